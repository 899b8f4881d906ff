"""What the rounds of a step emit, and how many drafts are proposed, from the luck of a workload."""

from __future__ import annotations

from specsim.request import Request
from specsim.scheduler import StepPlan
from specsim.workload import Workload

__all__ = ["DealtLuck"]


class DealtLuck:
    """Luck of output positions, and requests of which the drafter has missed a part."""

    def __init__(self, workload: Workload, *, spoils: bool) -> None:
        """`spoils`: a drafter that is loaded but not asked misses the tokens of that step, and never matches again."""
        self._workload = workload
        self._spoils = spoils
        self._stale: set[int] = set()
        self._next_k = 0

    def emitted(self, plan: StepPlan, next_k: int) -> dict[int, int]:
        """Request -> tokens that a step emits; call it once for every step that is carried out."""
        self.forget(plan)
        self._next_k = next_k
        emitted: dict[int, int] = {}
        for item in plan.scheduled:
            i = item.request.request_id
            if item.request.is_decoding:
                span = 1 if i in self._stale else self._workload.span(i, item.request.num_emitted_tokens)
                emitted[i] = min(span, item.num_draft_tokens + 1)
            elif item.finishes_prompt:
                emitted[i] = 1
        if self._spoils and next_k == 0:
            self._stale.update(item.request.request_id for item in plan.scheduled)
        return emitted

    def forget(self, plan: StepPlan) -> None:
        """Whom a step has thrown out is computed again, and the drafter with it."""
        self._stale.difference_update(request.request_id for request in plan.preempted)

    def joined(self, request: Request, next_k: int) -> int:
        """Drafts of the first round of a request that came with its cache, where the others have `next_k`. While
        nothing is drafted it is taken for one of which the drafter misses a part."""
        if self._spoils and next_k == 0:
            self._stale.add(request.request_id)
        return min(next_k, self._workload.drafts(request.request_id, request.num_emitted_tokens))

    def drafts(self, request: Request) -> int:
        """Drafts proposed in that step for a request's next round."""
        return min(self._next_k, self._workload.drafts(request.request_id, request.num_emitted_tokens))
