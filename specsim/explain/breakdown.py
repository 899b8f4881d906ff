"""The seconds of a run's steps by cause, summed while it goes.

Models: a step's time is that of its decoding requests as if they were alone, by the causes of `StepCost.parts`, and
what prompt chunks in the same step add to it, by the same causes; the two sum to the step. A request that decodes waits
for the whole step, so sums are kept per step and per decoding request; one past its first token that is left out of a
step stalls.
Leaves out: which request waited for which other. Numbers: the `StepCost` of the run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from specsim.engine.observe import Observer
from specsim.engine.replica import StepView
from specsim.latency import StepCost, StepWork

__all__ = ["Breakdown", "BreakdownObserver"]


@dataclass(slots=True)
class Breakdown:
    """Sums over the measured steps of a run, all replicas together; seconds unless a name says otherwise."""

    steps: int = 0
    busy_s: float = 0.0
    """Step times; what `decode_s` and `prefill_s` sum to."""
    decode_s: dict[str, float] = field(default_factory=dict)
    """By cause: steps without their prompt chunks."""
    prefill_s: dict[str, float] = field(default_factory=dict)
    """By cause: what prompt chunks add. A cause may be negative, where a chunk spares the padding of a graph."""
    rounds: int = 0
    """Decoding requests, summed over steps."""
    verified_tokens: int = 0
    """Tokens of decoding requests in the target's passes, drafts included."""
    request_decode_s: dict[str, float] = field(default_factory=dict)
    """`decode_s` with every step counted once for each request that decodes in it."""
    request_prefill_s: float = 0.0
    """The same of all of `prefill_s`: what decoding requests wait for the prompts of others."""
    request_stalled_s: float = 0.0
    """Steps counted once for each request past its first token that is not served in them."""


class BreakdownObserver(Observer):
    """Hand one to `simulate`, then read `breakdown`.

    Args:
        cost: what the run's steps are priced by.
        prefill_replicas: how many of the replicas, the first, only compute prompts. Their time counts, their steps do
            not.
    """

    def __init__(self, cost: StepCost, prefill_replicas: int = 0) -> None:
        self.breakdown = Breakdown()
        self._cost = cost
        self._prefill_replicas = prefill_replicas
        self._replica: dict[int, int] = {}
        self._decoding: defaultdict[int, int] = defaultdict(int)
        """Replica -> its requests past their first token."""
        self._past_prompt: set[int] = set()
        self._began: dict[int, tuple[float, int]] = {}

    def submitted(self, request: int, replica: int, arrival_s: float, accepted: bool) -> None:
        if request in self._past_prompt:
            self._decoding[self._replica[request]] -= 1
            self._decoding[replica] += 1
        if accepted:
            self._replica[request] = replica

    def first_token(self, request: int, now_s: float) -> None:
        self._past_prompt.add(request)
        self._decoding[self._replica[request]] += 1

    def finished(self, request: int, now_s: float) -> None:
        self._past_prompt.remove(request)
        self._decoding[self._replica.pop(request)] -= 1

    def step_began(self, replica: int, now_s: float, seconds: float, view: StepView) -> None:
        self._began[replica] = (seconds, self._decoding[replica])

    def step_ended(self, replica: int, now_s: float, measured: bool, view: StepView) -> None:
        if not measured:
            return
        seconds, past_prompt = self._began[replica]
        work, sums = view.work, self.breakdown
        count = view.rounds
        sums.steps += replica >= self._prefill_replicas
        sums.busy_s += seconds
        sums.rounds += count
        sums.verified_tokens += work.decode_requests + self._cost.drafts_verified(work)
        sums.request_stalled_s += (past_prompt - count) * seconds
        parts = self._cost.parts(work)
        if work.prefill_tokens or work.prefill_rows:
            parts = self._prefill(work, parts, count)
        for cause, value in parts.items():
            sums.decode_s[cause] = sums.decode_s.get(cause, 0.0) + value
            sums.request_decode_s[cause] = sums.request_decode_s.get(cause, 0.0) + count * value

    def _prefill(self, work: StepWork, parts: dict[str, float], count: int) -> dict[str, float]:
        """Count what prompt chunks add to a step of these parts and `count` decoding requests; the parts of those."""
        alone = dict.fromkeys(parts, 0.0)
        if work.decode_requests:
            alone = self._cost.parts(
                replace(
                    work,
                    prefill_tokens=0,
                    prefill_rows=0,
                    prefill_kv_tokens=0,
                    prefill_pairs=0,
                    prefill_windowed_pairs=0,
                )
            )
        sums = self.breakdown
        for cause, value in parts.items():
            added = value - alone[cause]
            sums.prefill_s[cause] = sums.prefill_s.get(cause, 0.0) + added
            sums.request_prefill_s += count * added
        return alone
