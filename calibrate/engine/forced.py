"""Serving for real with acceptance that is dealt: passes, drafting and verification are computed, and what a round
emits is what an acceptance model says. For models with random weights, whose drafts would never be accepted.

A round's text is its first drafts and one token of the target's; what it says means nothing, what it costs is real.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibrate.drafters.base import Drafter, Proposal
from calibrate.engine.model_runner import ModelRunner
from calibrate.engine.runner import Outcome
from calibrate.models import FlatModel
from specsim.config import ReplicaLimits
from specsim.engine.dealt_luck import DealtLuck
from specsim.request import Request
from specsim.scheduler import StepPlan
from specsim.workload import Workload

__all__ = ["ForcedRunner"]

_FILLER = 0


class ForcedRunner(ModelRunner):
    """See `calibrate.engine.runner.Runner`. The luck is that of the workload, so that a simulation of the same workload
    has the same rounds."""

    def __init__(
        self,
        model: FlatModel,
        prompts: Sequence[Sequence[int]],
        workload: Workload,
        limits: ReplicaLimits,
        *,
        drafter: Drafter | None = None,
        num_spec_tokens: int = 0,
        **values: Any,
    ) -> None:
        """Arguments as of `ModelRunner`; the workload brings its acceptance model."""
        super().__init__(model, prompts, workload, limits, drafter=drafter, num_spec_tokens=num_spec_tokens, **values)
        self._luck = DealtLuck(workload, spoils=False)
        self._counts: dict[int, int] = {}

    def run(self, plan: StepPlan, next_k: int, held: frozenset[int]) -> Outcome:
        self._counts = self._luck.emitted(plan, next_k)
        return super().run(plan, next_k, held)

    def drafts(self, request: Request) -> int:
        """As dealt; the proposal is filled up or cut to it when it is verified."""
        return self._luck.drafts(request)

    def _job(self, item: Any, padded_tokens: int) -> Any:
        request = item.request
        if request.is_decoding:
            sequence = self._sequences[request.request_id]
            wanted, own = item.num_draft_tokens, sequence.proposal.tokens
            sequence.proposal = Proposal((*own[:wanted], *[_FILLER] * (wanted - len(own))))
        return super()._job(item, padded_tokens)

    def _apply(self, plan: StepPlan, texts: dict[int, tuple[int, ...]], jobs: list[Any]) -> dict[int, int]:
        forced = dict(texts)
        for item, job in zip(plan.scheduled, jobs, strict=False):
            count, said = self._counts.get(item.request.request_id), texts.get(id(job))
            if count is not None and said is not None:
                forced[id(job)] = (*job.proposal.tokens[: count - 1], said[-1])
        return super()._apply(plan, forced, jobs)
