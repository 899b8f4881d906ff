"""A runner that computes nothing: rounds emit what the luck of a workload says, dealt or measured before."""

from __future__ import annotations

from calibrate.engine.runner import Outcome
from specsim.engine.dealt_luck import DealtLuck
from specsim.request import Request
from specsim.scheduler import StepPlan
from specsim.workload import Workload

__all__ = ["RecordedRunner"]


class RecordedRunner:
    """See `calibrate.engine.runner.Runner`."""

    def __init__(self, workload: Workload, *, spoils: bool = False) -> None:
        """`spoils`: the drafter loses track of requests in steps after which nothing is drafted."""
        self._luck = DealtLuck(workload, spoils=spoils)

    def run(self, plan: StepPlan, next_k: int, held: frozenset[int]) -> Outcome:
        return Outcome(self._luck.emitted(plan, next_k))

    def drafts(self, request: Request) -> int:
        return self._luck.drafts(request)
