"""Seconds of steps whose drafts form a tree: the simulator counts depth, the costs are those of all nodes.

Models: a drafting request verifies 1 + nodes tokens, of which one path of at most `depth` drafts can be accepted; the
drafter makes one pass a level over that level's share of the nodes, the first over the accepted path.
Leaves out: tree attention slower than causal attention of the same width, trees whose shape changes from round to
round. Numbers: a LatencyProfile.
"""

from __future__ import annotations

import math
from dataclasses import replace

from specsim.config import ReplicaLimits
from specsim.errors import CapacityError, ScenarioError
from specsim.latency import StepCost, StepWork
from specsim.profiles import LatencyProfile

__all__ = ["TreeCost", "tree_limits"]


class TreeCost(StepCost):
    """A `StepCost` for trees of `num_nodes` drafts and `depth` levels; hand the simulator `depth` as its k.

    Raises:
        ScenarioError: when there are fewer nodes than levels.
    """

    def __init__(self, profile: LatencyProfile, *, num_nodes: int, depth: int) -> None:
        super().__init__(profile)
        if not 1 <= depth <= num_nodes:
            raise ScenarioError(f"a tree needs at least one node a level, got {num_nodes} nodes for depth {depth}")
        self.num_nodes = num_nodes
        self.depth = depth

    def step_s(self, work: StepWork) -> float:
        """Seconds of the step; `work.draft_tokens` counts levels, of which each stands for its share of the nodes."""
        k = work.next_num_spec_tokens
        nodes = round(work.draft_tokens * self.num_nodes / self.depth)
        seconds = super().step_s(replace(work, draft_tokens=nodes, next_num_spec_tokens=0))
        if not k:
            return seconds
        if not nodes and self.profile.draft is not None:
            seconds += self.profile.speculation_host_s
        if self._draft is None:
            return seconds + work.decode_requests * self.profile.lookup_request_s
        return seconds + self._tree_draft_s(work, k)

    def _tree_draft_s(self, work: StepWork, depth: int) -> float:
        draft = self._draft
        assert draft is not None
        decode, rows = work.decode_requests, work.decode_requests + work.prefill_rows
        path = decode + work.draft_tokens
        level = math.ceil(self.num_nodes / self.depth)
        seconds = draft.matrix(path + work.prefill_tokens, draft.alike(decode, work.draft_tokens))
        seconds += draft.head(rows) + draft.prefill(work)
        seconds += (depth - 1) * (
            draft.matrix(rows * level, draft.alike(rows, rows * (level - 1))) + draft.head(rows * level)
        )
        if work.prefill_rows:
            prompts = work.prefill_kv_tokens + work.prefill_tokens
            seconds += (depth - 1) * prompts * (draft.cost.kv_token_s + draft.cost.windowed_kv_token_s)
        if decode:
            width, unsplit = self._width(decode, work.draft_tokens)
            full, windowed = self._draft_kv_rates(depth, width, unsplit)
            seconds += work.kv_tokens * full + work.windowed_kv_tokens * windowed
        return seconds

    def decode_step_s(
        self,
        batch: int,
        context_tokens: float,
        num_spec_tokens: int = 0,
        *,
        machinery: bool | None = None,
        drafts_per_request: float | None = None,
        draft_nodes: int | None = None,
    ) -> float:
        """See `StepCost.decode_step_s`; drafts are this tree unless `draft_nodes` says otherwise."""
        return super().decode_step_s(
            batch,
            context_tokens,
            num_spec_tokens,
            machinery=machinery,
            drafts_per_request=drafts_per_request,
            draft_nodes=self.num_nodes if draft_nodes is None else draft_nodes,
        )


def tree_limits(limits: ReplicaLimits, *, num_nodes: int, depth: int, in_flight: int) -> ReplicaLimits:
    """Limits under which an engine that counts levels runs out of token budget and blocks where nodes would.

    `in_flight`: requests kept running; the budget is charged for all of them as if they decoded.

    Raises:
        CapacityError: when the token budget does not hold the tree of one request.
    """
    most = limits.max_num_batched_tokens // (1 + num_nodes)
    if most < 1:
        raise CapacityError(
            f"a tree of {num_nodes} nodes does not fit max_num_batched_tokens {limits.max_num_batched_tokens}; "
            f"raise it or give fewer nodes"
        )
    running = min(limits.max_num_seqs, most, in_flight)
    wider = num_nodes - depth
    blocks = math.ceil(wider / limits.block_size_tokens)
    return replace(
        limits,
        max_num_seqs=running,
        max_num_batched_tokens=limits.max_num_batched_tokens - running * wider,
        fixed_blocks_per_request=limits.fixed_blocks_per_request + blocks,
    )
