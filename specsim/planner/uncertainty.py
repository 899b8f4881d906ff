"""Errors of costs and acceptance, drawn jointly, and what a decode step is under each draw.

Models: a step is the sum of a few groups of causes (reading, computing, launches and host, drafting), each off by a
lognormal factor of the profile's own error; half of its variance is common to all GPUs, since they share efficiency
factors and methods of measurement. Acceptance is off by one factor for all.
Leaves out: errors that change with batch or context within a group. Numbers: `relative_error` of profiles and
acceptance; the half is assumed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specsim.latency import StepCost, StepWork
from specsim.planner.question import Question
from specsim.rng import Purpose, stream

__all__ = [
    "DRAWS",
    "GROUPS",
    "NEGLIGIBLE",
    "Draws",
    "Rounds",
    "Source",
    "draw",
    "measuring_command",
    "rounds_of",
    "unsettled",
]

DRAWS = 2000
"""Of joint errors; a probability from them is good to one per cent or so."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "reading weights and cache": ("weights", "kv"),
    "matrix work": ("compute",),
    "launches, links and host": ("fixed", "collectives", "graph", "host", "speculation", "lookup"),
    "drafting": ("draft",),
}
"""Group -> parts of `specsim.latency.StepCost.parts` that are off by the same factor."""
COMPUTING = 1
NEGLIGIBLE = 0.02
"""A decision that is wrong less often than this needs no measurement."""
_OUTER, _INNER = 32, 250
"""Values of a source that is known, and draws of the rest for each."""
_COMMON = 0.5
"""Share of a cost error's variance that all GPUs have in common."""

MEASURED_ACCEPTANCE = (
    "draft_model",
    "ngram",
    "suffix",
    "layer_skip",
    "medusa",
    "eagle",
    "eagle2",
    "eagle3",
    "mtp",
    "lookahead",
)
MEASURED_LATENCY = ("draft_model", "ngram", "suffix", "layer_skip", "medusa", "eagle", "eagle3", "mtp", "lookahead")
"""Methods that `specsim calibrate` measures; a test holds them to it."""

Source = tuple[str, str]
"""What a measurement would settle: ("latency", GPU), ("acceptance", ""), or ("term", group of `GROUPS`)
on every GPU."""


@dataclass(frozen=True)
class Draws:
    """Joint errors, one row a draw."""

    costs: Mapping[str, np.ndarray]
    """GPU -> standard normal deviates, (draws, groups)."""
    acceptance: np.ndarray
    """Standard normal deviates, (draws,)."""

    def cost_factors(self, gpu: str, error: float) -> np.ndarray:
        """Factors of the groups of a step, (draws, groups), for a one-sigma relative error; their median is 1."""
        return np.exp(np.log1p(error) * self.costs[gpu])

    def lengths(self, length: float, error: float, num_spec_tokens: int) -> np.ndarray:
        """Mean acceptance lengths, (draws,), within 1 and k + 1."""
        return np.clip(length * np.exp(np.log1p(error) * self.acceptance), 1.0, num_spec_tokens + 1.0)

    def __len__(self) -> int:
        return len(self.acceptance)

    def first(self, count: int) -> Draws:
        """The first so many draws."""
        return Draws({gpu: z[:count] for gpu, z in self.costs.items()}, self.acceptance[:count])

    def known(self, source: Source, row: int) -> Draws:
        """The draws with what one source had in one of them in all of them; the other sources stay as they are."""
        what, gpu = source
        if what == "acceptance":
            return Draws(self.costs, np.full(len(self), self.acceptance[row]))
        if what == "term":
            at = list(GROUPS).index(gpu)
            costs = {name: z.copy() for name, z in self.costs.items()}
            for name, z in costs.items():
                z[:, at] = self.costs[name][row, at]
            return Draws(costs, self.acceptance)
        return Draws({**self.costs, gpu: np.broadcast_to(self.costs[gpu][row], self.costs[gpu].shape)}, self.acceptance)


def draw(gpus: Sequence[str], *, seed: int, draws: int = DRAWS) -> Draws:
    """Errors for some GPUs; those of one do not depend on which others there are."""
    common = _normal(seed, "common", draws)
    costs = {
        gpu: np.sqrt(_COMMON) * common + np.sqrt(1.0 - _COMMON) * _normal(seed, gpu, draws)
        for gpu in dict.fromkeys(gpus)
    }
    return Draws(costs, _normal(seed, "acceptance", draws)[:, 0])


def _normal(seed: int, name: str, draws: int) -> np.ndarray:
    return stream(seed, Purpose.ERRORS, zlib.crc32(name.encode())).standard_normal((draws, len(GROUPS)))


@dataclass(frozen=True)
class Rounds:
    """Steady decoding of one question at some batches, with k drafts or without speculation (k None)."""

    batches: np.ndarray
    parts_s: np.ndarray
    """Seconds of a step by group, (batches, groups)."""
    length: float
    """Tokens a request and step, as assumed."""
    num_spec_tokens: int
    error: float
    """One sigma of a group's seconds."""
    acceptance_error: float

    def token_s(self, draws: Draws | None, gpu: str) -> np.ndarray:
        """Seconds a token of each request, (draws, batches); of None one row, as assumed."""
        if draws is None:
            return (self.parts_s.sum(axis=1) / self.length)[None, :]
        steps = draws.cost_factors(gpu, self.error) @ self.parts_s.T
        if not self.num_spec_tokens:
            return np.asarray(steps / self.length)
        return np.asarray(steps / draws.lengths(self.length, self.acceptance_error, self.num_spec_tokens)[:, None])


def rounds_of(question: Question, context_tokens: float, k: int | None, batches: Sequence[int]) -> Rounds:
    """The step times of a question at some batches by what causes them; k None: without speculation."""
    side = question.off if k is None else question.on
    length = question.acceptance.expected_length(k) if k else 1.0
    return Rounds(
        batches=np.asarray(batches, dtype=np.float64),
        parts_s=np.array([_parts(side.cost, question, b, context_tokens, k) for b in batches]),
        length=length,
        num_spec_tokens=k or 0,
        error=side.profile.relative_error,
        acceptance_error=question.acceptance_error,
    )


def _parts(cost: StepCost, question: Question, batch: int, context_tokens: float, k: int | None) -> list[float]:
    drafts = round(batch * question.acceptance.expected_drafts(k)) if k else 0
    work = StepWork(
        decode_requests=batch, draft_tokens=drafts, kv_tokens=round(batch * context_tokens),
        windowed_kv_tokens=round(batch * min(context_tokens, cost.window_tokens)), next_num_spec_tokens=k or 0,
        machinery=k is not None, draft_requests=batch if drafts else 0,
    )  # fmt: skip
    parts = cost.parts(work)
    return [sum(parts[name] for name in names) for names in GROUPS.values()]


def unsettled(draws: Draws, decide: Callable[[Draws], np.ndarray], source: Source | None) -> float:
    """How likely the best single decision is not the right one; once a source is known exactly, the mean of that over
    its values.

    `decide`: decisions by draw, as whole numbers.
    """
    inner = draws.first(_INNER)
    known = [inner] if source is None else [inner.known(source, row) for row in range(_OUTER)]
    wrong = [1.0 - np.unique(decide(it), return_counts=True)[1].max() / len(inner) for it in known]
    return float(np.mean(wrong))


def measuring_command(question: Question, what: str) -> str:
    """How to measure step times, on the GPU, or acceptance, where the model's weights are.

    Of a method that specsim does not run itself: acceptance from the counters of the engine, times without the drafter.
    """
    target, method = question.names["target"], question.speculation.method
    if what == "acceptance":
        if method not in MEASURED_ACCEPTANCE:
            k = max(question.speculation.num_spec_tokens)
            return f"--acceptance-length L --acceptance-length-k {k}, with L = 1 + accepted / drafts of the engine"
        return (
            f"specsim calibrate acceptance --target FOLDER --method {method} --prompts YOURS.jsonl -o acceptance.jsonl"
        )
    measured = method if method in MEASURED_LATENCY else "ngram"
    return f"specsim calibrate latency --target {target} --method {measured} --budget 10m -o measured.json"
