"""Serving for real with acceptance that is dealt: passes, drafting and verification are computed, and what a round
emits is what an acceptance model says. For models with random weights, whose drafts would never be accepted.

A round's text is its first drafts, of a tree those on its longest branch, and one token of the target's; what it says
means nothing, what it costs is real.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibrate.drafters.base import Drafter, Proposal
from calibrate.engine.model_runner import ModelRunner
from calibrate.engine.runner import Outcome
from calibrate.models import FlatModel
from calibrate.rejection import Branch
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
        self._paths: dict[int, tuple[int, ...]] = {}
        """Of each request the drafts on the branch that is taken."""

    def run(self, plan: StepPlan, next_k: int, held: frozenset[int]) -> Outcome:
        self._counts = self._luck.emitted(plan, next_k)
        return super().run(plan, next_k, held)

    def drafts(self, request: Request) -> int:
        """As dealt; the proposal is filled up or cut to it when it is verified."""
        return self._luck.drafts(request)

    def _job(self, item: Any, padded_tokens: int) -> Any:
        request = item.request
        if request.is_decoding:
            sequence, levels = self._sequences[request.request_id], item.num_draft_tokens
            own = sequence.proposal.first(levels)
            sequence.proposal, self._paths[request.request_id] = _deepened(own, levels, self._width(levels))
        return super()._job(item, padded_tokens)

    def _apply(self, plan: StepPlan, said: dict[int, Branch], jobs: list[Any]) -> dict[int, int]:
        forced = dict(said)
        for item, job in zip(plan.scheduled, jobs, strict=False):
            request, branch = item.request.request_id, said.get(id(job))
            count = self._counts.get(request)
            if count is not None and branch is not None:
                path = self._paths[request][: count - 1] if item.request.is_decoding else ()
                tokens = (*(job.proposal.tokens[node] for node in path), branch.tokens[-1])
                forced[id(job)] = Branch(tokens, path)
        return super()._apply(plan, forced, jobs)


def _deepened(own: Proposal, levels: int, drafts: int) -> tuple[Proposal, tuple[int, ...]]:
    """A proposal of at most so many drafts with a branch of all levels, and the drafts on that branch.

    What the longest branch lacks is filler; others make room for it, the last ones first.
    """
    above, depths = own.above, own.depths
    path: list[int] = []
    at = max(range(len(depths)), key=depths.__getitem__, default=-1)
    while at >= 0:
        path.insert(0, at)
        at = above[at]
    others = [node for node in range(len(depths)) if node not in path][: drafts - levels]
    kept = sorted([*path, *others])
    taken = [kept.index(node) for node in path]
    rest = own.only(kept)
    tokens, parents = [*rest.tokens], [*rest.above]
    for _ in range(levels - len(path)):
        parents.append(taken[-1] if taken else -1)
        taken.append(len(tokens))
        tokens.append(_FILLER)
    is_chain = taken == list(range(len(tokens)))
    return Proposal(tuple(tokens), None, None if is_chain else tuple(parents)), tuple(taken)
