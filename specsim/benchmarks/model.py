"""One measured run of a serving engine, as a benchmark client wrote it down: the load, and what was seen.

Leaves out: what was served on what, which most clients do not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specsim.errors import ScenarioError
from specsim.type_checks import check_types

__all__ = ["FIGURES", "MOST_LENGTH", "Acceptance", "Benchmark"]

_ALIKE = 0.05
"""Relative difference of mean lengths up to which runs are repeats."""
_LONGEST = 2**31 - 1
_LEAST_S = 1e-9
"""Least latency above 0 that a clock of a client shows; predictions are divided by it."""
MOST_LENGTH = 65
"""Most tokens that a round emits: 64 drafts, and the bonus token."""
FIGURES: tuple[str, ...] = (
    "output_tokens_per_s",
    *(f"{metric}_{what}_s" for metric in ("ttft", "tpot") for what in ("mean", "p50", "p95", "p99")),
    *(f"itl_chunk_{what}_s" for what in ("p50", "p95", "p99")),
)
"""Figures that files may have, named as in `specsim.metrics.RunMetrics`."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What the engine counted of its drafts during the run."""

    length: float
    """Mean acceptance length, bonus included."""
    conditional: tuple[float, ...] = ()
    """By draft position, given that all before were accepted; empty: not known, or at odds with the length."""
    num_spec_tokens: int | None = None
    """Draft tokens a round, where the counts tell."""

    def __post_init__(self) -> None:
        check_types(self, "benchmark acceptance")
        if not 1 <= self.length <= MOST_LENGTH:
            raise ScenarioError(f"benchmark acceptance.length must lie in 1..{MOST_LENGTH}, got {self.length!r}")

    @classmethod
    def of_marginals(cls, marginals: Sequence[float], length: float | None = None) -> Acceptance:
        """From the share of rounds that accepted each draft, by position; behind a 0 all is 0."""
        conditional, before = [], 1.0
        for marginal in marginals:
            conditional.append(min(1.0, marginal / before) if before > 0 else 0.0)
            before = marginal
        return cls(1 + sum(marginals) if length is None else length, tuple(conditional), len(marginals) or None)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One run.

    Raises:
        ScenarioError: no request, lengths that are no lengths, or a load that is none.
    """

    client: str
    """Which program measured."""
    source: str
    """File, and which of its runs where it has several."""
    prompt_tokens: tuple[int, ...]
    """Of each request, in the order of sending."""
    output_tokens: tuple[int, ...]
    figures: Mapping[str, float]
    """Those of `FIGURES` that the file has."""
    model: str | None = None
    backend: str | None = None
    """What the client took the engine for."""
    concurrency: int | None = None
    """Most requests in flight."""
    rate_per_s: float | None = None
    """Requests per second that were asked for; None, and no concurrency: all at once."""
    arrival_cv: float = 1.0
    """Standard deviation over mean of the gaps between arrivals at that rate; 1 for Poisson, 0 for even."""
    starts_s: tuple[float, ...] = ()
    """When each request was sent, from the first on, where the client alone decided it; empty: not known."""
    acceptance: Acceptance | None = None
    speculates: bool | None = None
    """None: the file does not say."""
    says: Mapping[str, str] = field(default_factory=dict)
    """What else it says of the deployment, by field of `Deployment` or `Speculation`."""
    notes: tuple[str, ...] = ()
    """Sentences on what was not as it should be, or is not known."""

    def __post_init__(self) -> None:
        check_types(self, "benchmark")
        place = f"{self.source}: "
        if not self.prompt_tokens or len(self.prompt_tokens) != len(self.output_tokens):
            raise ScenarioError(
                f"{place}{len(self.prompt_tokens)} prompts and {len(self.output_tokens)} outputs; a run has at least "
                f"one request, and as many of both"
            )
        for name, lengths in (("prompt", self.prompt_tokens), ("output", self.output_tokens)):
            if min(lengths) < 1 or max(lengths) > _LONGEST:
                wrong = min(lengths) if min(lengths) < 1 else max(lengths)
                raise ScenarioError(f"{place}a request of {wrong} {name} tokens; lengths must lie in 1..{_LONGEST}")
        if self.concurrency is not None and not 1 <= self.concurrency <= 65_536:
            raise ScenarioError(f"{place}{self.concurrency} requests in flight; must be 1..65536")
        if self.rate_per_s is not None and not 1e-6 <= self.rate_per_s <= 1e6:
            raise ScenarioError(f"{place}{self.rate_per_s!r} requests per second; must lie in 1e-6..1e6")
        if self.starts_s and len(self.starts_s) != len(self.prompt_tokens):
            raise ScenarioError(f"{place}{len(self.starts_s)} times of sending for {len(self.prompt_tokens)} requests")
        unknown = sorted(set(self.figures) - set(FIGURES))
        if unknown:
            raise ScenarioError(f"{place}figures {', '.join(unknown)} are not compared; there are {', '.join(FIGURES)}")
        for name, value in self.figures.items():
            if value < _LEAST_S and (value != 0 or name == "output_tokens_per_s"):
                raise ScenarioError(f"{place}{name} must be at least {_LEAST_S:g}, is {value:g}")

    @property
    def load(self) -> str:
        """`16 in flight`, `4/s`, `4/s, at most 16 in flight`, `all at once`."""
        most = "" if self.concurrency is None else f"{self.concurrency} in flight"
        if self.rate_per_s is not None:
            return f"{self.rate_per_s:g}/s" + (f", at most {most}" if most else "")
        return most or ("at times of its own" if self.starts_s and max(self.starts_s) > 1 else "all at once")

    def repeats(self, other: Benchmark) -> bool:
        """Whether two runs are of the same settings, as far as the files tell: client, model, load, number of requests
        and, within 5 %, mean lengths."""
        mine, theirs = ((run.client, run.model, run.load, len(run.prompt_tokens)) for run in (self, other))
        pairs = ((self.prompt_tokens, other.prompt_tokens), (self.output_tokens, other.output_tokens))
        return mine == theirs and all(abs(sum(a) / sum(b) - 1) <= _ALIKE for a, b in pairs)
