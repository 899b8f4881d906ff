"""A run of the reference engine, to be simulated again with its own step times and its own rounds.

What then still differs is the simulator's fault: scheduling, clock, statistics. How steps are predicted is another
question, and not asked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.engine.records import Served
from specsim.acceptance.base import MAX_SPEC_TOKENS, Luck, request_offsets
from specsim.acceptance.empirical import Empirical
from specsim.latency import StepCost, StepWork
from specsim.profiles import LatencyProfile
from specsim.trees import Tree
from specsim.workload import Workload

__all__ = ["MeasuredSteps", "RecordedRounds", "recorded_rounds"]

_NEAR = 16
"""Steps back and ahead in which the same work is looked for, so that one step more or less does not lose the thread."""
_Key = tuple[int, int, int, int, int, int]


def _key(work: StepWork) -> _Key:
    return (
        work.decode_requests,
        work.draft_tokens,
        work.prefill_tokens,
        work.prefill_rows,
        work.kv_tokens,
        work.next_num_spec_tokens,
    )


class MeasuredSteps(StepCost):
    """Steps cost what they were measured to, in the order of the run. For one simulation.

    A step lasts from when the engine could begin it until it could begin the next. Work that did not occur about there
    costs what the most similar step did, and is counted in `unmatched`.
    """

    by_law = False

    def __init__(self, served: Served, profile: LatencyProfile, trees: Sequence[Tree] = ()) -> None:
        """
        Args:
            profile: what policies are told of costs, and what says how the drafter behaves at k = 0.
            trees: what k levels of drafts looked like, one a k; empty: chains.
        """
        super().__init__(profile, trees)
        self._keys = [_key(step.work) for step in served.steps]
        self._seconds = [step.seconds + step.after_s for step in served.steps]
        table = np.array(self._keys, dtype=np.float64).reshape(-1, len(_Key.__args__))  # type: ignore[attr-defined]
        self._scale = np.maximum(table.std(axis=0), 1.0) if len(table) else 1.0
        self._table = table / self._scale
        self._next = 0
        self.unmatched = 0

    def step_s(self, work: StepWork) -> float:
        key = _key(work)
        low, high = max(0, self._next - _NEAR), min(self._next + _NEAR, len(self._keys))
        if self._next < len(self._keys) and self._keys[self._next] == key:
            n = self._next
        elif key in self._keys[low:high]:
            n = low + self._keys[low:high].index(key)
        else:
            self.unmatched += 1
            low = min(low, max(0, len(self._keys) - _NEAR))
            high = max(high, low + 1)
            far = np.abs(self._table[low:high] - np.array(key, dtype=np.float64) / self._scale).sum(axis=1)
            self._next += 1
            return self._seconds[low + int(far.argmin())]
        self._next = n + 1
        return self._seconds[n]


@dataclass(frozen=True)
class RecordedRounds(Empirical):
    """Each request has the luck of its own rounds; where none began, nothing is proposed."""

    def luck(
        self, seed: int, first_request_id: int, output_tokens: np.ndarray, tasks: np.ndarray | None = None
    ) -> Luck:
        return self.luck_of(seed, first_request_id + np.arange(len(output_tokens)), output_tokens, tasks)

    def luck_of(self, seed: int, ids: np.ndarray, output_tokens: np.ndarray, tasks: np.ndarray | None = None) -> Luck:
        assert self.drafts is not None
        own = np.asarray(ids).tolist()
        return Luck(
            np.concatenate([self.runs[n] for n in own]),
            np.concatenate([self.drafts[n] for n in own]),
            request_offsets(output_tokens),
        )

    def with_change(self, delta: float) -> Empirical:
        """The rounds as a measurement like any other, changed."""
        return Empirical(self.runs, self.max_spec_tokens, self.name, drafts=self.drafts).with_change(delta)


def recorded_rounds(served: Served, workload: Workload) -> RecordedRounds:
    """The rounds of a run as the acceptance model of its own requests."""
    runs = [np.zeros(length, dtype=np.int8) for length in workload.output_tokens]
    drafts = [np.zeros(length, dtype=np.int8) for length in workload.output_tokens]
    for r in served.rounds:
        runs[r.request][r.position] = r.emitted - 1
    for (request, position), count in served.proposals.items():
        drafts[request][position] = min(count, MAX_SPEC_TOKENS)
    return RecordedRounds(tuple(runs), MAX_SPEC_TOKENS, "recorded rounds", drafts=tuple(drafts))
