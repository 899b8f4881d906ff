"""Continuous batching after vLLM V1, request by request: slow, obvious, and the oracle of the fast path.

Models: one token budget a step, no prefill or decode phase; running requests first in order of admission, each wanting
its uncomputed tokens (1 + drafts when decoding), then waiting ones in order of arrival; prompts in chunks; drafts
charged in full and cut at the end of the budget; blocks for computed + scheduled + lookahead; when blocks run out the
last running request is preempted, recomputed later, queued at the head, and nothing is admitted in that step.
Leaves out: priorities, LoRA, encoders, asynchronous scheduling (a request may there run one step too long), padding of
one-token requests to 1 + k. There is no clock here and no length of outputs: both belong to the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from specsim.config import ReplicaLimits
from specsim.errors import InvariantError
from specsim.kv_cache import KVCache
from specsim.request import Request, State

__all__ = ["Scheduled", "Scheduler", "StepPlan", "never_fits"]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request's part of a step."""

    request: Request
    num_tokens: int
    """Tokens computed for it in this step, drafts included."""
    num_draft_tokens: int
    """Drafts among them; 0 while its prompt is computed."""
    context_tokens: int
    """Tokens already in the cache before this step."""
    finishes_prompt: bool
    """Whether a prefilling request reaches its last known token and so samples one."""


@dataclass(slots=True)
class StepPlan:
    """What one step computes, in order, and whom it preempted."""

    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.scheduled)


def never_fits(
    prompt_tokens: np.ndarray | int, output_tokens: np.ndarray | int, limits: ReplicaLimits, num_spec_tokens: int
) -> np.ndarray:
    """Which requests ask for more than `max_model_len` or than the whole cache, so that they are refused at arrival.

    Arrays of length n in, bool [n] out. `output_tokens` stands for a request's max_tokens.
    """
    tokens = np.asarray(prompt_tokens, dtype=np.int64) + output_tokens
    lookahead = limits.lookahead_tokens(num_spec_tokens)
    room = np.minimum(tokens + num_spec_tokens, limits.max_model_len) + lookahead
    blocks = -(-room // limits.block_size_tokens) + limits.fixed_blocks_per_request
    found: np.ndarray = (tokens > limits.max_model_len) | (blocks > limits.num_kv_blocks)
    return found


class Scheduler:
    """Queues of one replica. `schedule` decides a step; `update` applies what the step emitted."""

    def __init__(
        self, limits: ReplicaLimits, *, num_spec_tokens: int = 0, hash_block_tokens: int | None = None
    ) -> None:
        self.limits = limits
        self.lookahead_tokens = limits.lookahead_tokens(num_spec_tokens)
        self.kv = KVCache(
            limits.num_kv_blocks,
            limits.block_size_tokens,
            fixed_blocks_per_request=limits.fixed_blocks_per_request,
            hash_block_tokens=hash_block_tokens if limits.enable_prefix_caching else None,
        )
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a new request behind all others."""
        request.hashes = self.kv.entries(request.hashes)
        self.waiting.append(request)

    def schedule(self) -> StepPlan:
        """Hand out the tokens of one step. Reserves blocks and moves requests; computes nothing."""
        plan = StepPlan()
        budget = self._schedule_running(plan, self.limits.max_num_batched_tokens)
        if not plan.preempted:
            self._schedule_waiting(plan, budget)
        return plan

    def _schedule_running(self, plan: StepPlan, budget: int) -> int:
        position = levels = drafting = 0
        while position < len(self.running) and budget > 0:
            request = self.running[position]
            context = request.num_computed_tokens
            want = request.num_tokens + request.num_draft_tokens - context
            # The token behind the last known one sits at `context + tokens`; it too must lie within the model.
            tokens = min(want, budget, self.limits.max_model_len - 1 - context)
            while not self.kv.reserve(request.request_id, context + tokens + self.lookahead_tokens):
                victim = self.running[-1]
                self._preempt(victim)
                plan.preempted.append(victim)
                if victim is request:
                    return budget
            drafts = max(0, tokens - (request.num_tokens - context))
            self._schedule(plan, request, tokens, drafts)
            budget -= tokens
            if drafts:  # of a tree, every node takes a token of the budget, not only the levels
                before = self.limits.verified_tokens(levels, drafting)
                levels, drafting = levels + drafts, drafting + 1
                budget -= self.limits.verified_tokens(levels, drafting) - before - drafts
            position += 1
        return budget

    def _schedule_waiting(self, plan: StepPlan, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            cached = self.kv.cached_tokens(request.hashes, request.num_tokens - 1)
            tokens = min(request.num_tokens - cached, budget)
            room = cached + tokens + self.lookahead_tokens
            if not self.kv.admit(request.request_id, request.hashes, cached, room):
                return
            self.waiting.popleft()
            request.num_computed_tokens = cached
            request.move(State.RUNNING)
            self.running.append(request)
            self._schedule(plan, request, tokens, 0)
            budget -= tokens

    def _schedule(self, plan: StepPlan, request: Request, tokens: int, drafts: int) -> None:
        context = request.num_computed_tokens
        prefilling = not request.is_decoding
        finishes = prefilling and context + tokens == request.num_tokens
        if prefilling:
            self.kv.publish(request.request_id, request.hashes, context + tokens)
        plan.scheduled.append(Scheduled(request, tokens, drafts, context, finishes))

    def _preempt(self, request: Request) -> None:
        self.kv.drop_idle()
        self.running.remove(request)
        self.kv.release(request.request_id)
        request.move(State.PREEMPTED)
        request.is_decoding = False
        request.num_computed_tokens = 0
        request.num_draft_tokens = 0
        self.waiting.appendleft(request)

    def update(
        self, plan: StepPlan, emitted: Mapping[int, int], finished: set[int], drafts: Callable[[Request], int]
    ) -> None:
        """Apply a computed step.

        Args:
            plan: what `schedule` returned.
            emitted: request id -> tokens that it emitted in this step (prefills that do not finish have no entry).
            finished: ids of requests that are complete with this step.
            drafts: called for each request that decodes next; gives the drafts proposed for it.
        """
        for item in plan.scheduled:
            request = item.request
            count = emitted.get(request.request_id, 0)
            if item.request.is_decoding:
                if not 1 <= count <= 1 + item.num_draft_tokens:
                    raise InvariantError(
                        f"request {request.request_id} emitted {count} tokens with {item.num_draft_tokens} drafts"
                    )
                request.num_computed_tokens += count
            else:
                if count != int(item.finishes_prompt):
                    raise InvariantError(f"request {request.request_id} emitted {count} tokens from its prompt")
                request.num_computed_tokens += item.num_tokens
                request.is_decoding = item.finishes_prompt
            request.num_emitted_tokens += count
            if request.request_id in finished:
                request.move(State.FINISHED)
                self.running.remove(request)
                self.kv.release(request.request_id)
            elif request.is_decoding:
                request.num_draft_tokens = drafts(request)
