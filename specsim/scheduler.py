"""Scheduling of one engine by the rules of its discipline, request by request: slow, obvious, the fast path's oracle.

Models: every rule of `specsim.disciplines`: which requests a step serves and with how many tokens, prompts in chunks,
blocks reserved and given back, who is thrown out when they run out, who is let in, and requests that stay for a while
after they have finished. Leaves out: priorities, LoRA, encoders. There is no clock here and no length of outputs: both
belong to the caller; a request's `asked_output_tokens` is what it says itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specsim.admission import NewTokenRatio, batch_of, chunk_of, placeholders_of, seats, whole_room
from specsim.config import ReplicaLimits
from specsim.errors import InvariantError
from specsim.kv_cache import KVCache
from specsim.request import Request, State

__all__ = ["Scheduled", "Scheduler", "StepPlan"]


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
    num_placeholder_tokens: int = 0
    """Placeholders computed beside its one token, and rejected."""
    enters_decoding: bool = False
    """Whether it enters with one token to compute, as a row of the decode step."""


@dataclass(slots=True)
class StepPlan:
    """What one step computes, in order, and whom it preempted."""

    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    leaving: list[Request] = field(default_factory=list)
    """Requests that have finished and are computed all the same."""
    prompts_only: bool = False
    """Whether prompts have this step to themselves, by rule."""
    padded_tokens: int = 0
    """Tokens to which each of its prompts is padded; 0: they are not."""

    def __bool__(self) -> bool:
        return bool(self.scheduled or self.leaving)


class Scheduler:
    """Queues of one replica. `schedule` decides a step; `update` applies what the step emitted."""

    def __init__(
        self,
        limits: ReplicaLimits,
        *,
        num_spec_tokens: int = 0,
        is_constant: bool = True,
        hash_block_tokens: int | None = None,
    ) -> None:
        """`is_constant`: whether every round has `num_spec_tokens` drafts, so that placeholders make sense."""
        self.limits = limits
        self.discipline = limits.discipline
        self.num_spec_tokens = num_spec_tokens
        self.lookahead_tokens = limits.lookahead_tokens(num_spec_tokens)
        self.seats = seats(limits, num_spec_tokens)
        self.placeholders = placeholders_of(limits, num_spec_tokens) if is_constant else 0
        shares = limits.enable_prefix_caching and self.discipline.prefix_caching
        self.kv = KVCache(
            limits.num_kv_blocks,
            limits.block_size_tokens,
            fixed_blocks_per_request=limits.fixed_blocks_per_request,
            hash_block_tokens=hash_block_tokens if shares else None,
        )
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.leaving: list[Request] = []
        """Finished, but still in the batch: they hold their seats and blocks."""
        self.keeps_finished = False
        """Whether blocks of a finished request stay until `give_back`, as on a prefill replica."""
        self.remote: deque[Request] = deque()
        """Prompts computed elsewhere, waiting for blocks here, in order."""
        self.pulling: dict[int, Request] = {}
        """Those that hold blocks, while their cache is on its way."""
        self.ratio = NewTokenRatio()
        self.is_blocked = False
        """Under `admission` estimate: somebody was turned away, and nobody is let in until the batch has shrunk."""

    def add(self, request: Request) -> None:
        """Queue a new request behind all others."""
        request.hashes = self.kv.entries(request.hashes)
        self.waiting.append(request)

    def pull(self) -> list[Request]:
        """Give blocks to prompts computed elsewhere, in order; only while all that wait here are let in and a seat is
        free. Such a prompt takes no seat yet."""
        found = []
        while self.remote and not self.waiting and len(self.running) + len(self.leaving) < self.seats:
            request = self.remote[0]
            room = request.prompt_tokens + self.lookahead_tokens
            if self.discipline.reserve != "step":
                asked = request.asked_output_tokens
                room = int(whole_room(request.prompt_tokens, asked, self.limits, self.num_spec_tokens))
            others = len(self.running) + len(self.leaving) + len(self.pulling)
            kept = self.discipline.kept_for_decode_tokens * (others + 1) if others else 0
            if room + kept > self.kv.free_tokens((), 0) and others:
                break
            if not self.kv.admit(request.request_id, (), 0, room):
                break
            self.pulling[request.request_id] = self.remote.popleft()
            found.append(request)
        return found

    def receive(self, request_id: int) -> None:
        """The cache of a pulled prompt is here: it waits for a seat, before all that have no blocks."""
        request = self.pulling.pop(request_id)
        request.has_cache = True
        self.waiting.insert(self._count_with_cache(), request)

    def join(self) -> list[Request]:
        """Requests whose cache is here start to decode while there are seats; their first token came with it.

        Not while a prompt is computed again: it stays the last admitted until it is done.
        """
        found: list[Request] = []
        if not all(request.is_decoding for request in self.running):
            return found
        while self.waiting and self.waiting[0].has_cache and len(self.running) + len(self.leaving) < self.seats:
            request = self.waiting.popleft()
            request.has_cache = False
            request.move(State.RUNNING)
            request.num_computed_tokens = request.prompt_tokens
            request.num_emitted_tokens = 1
            request.is_decoding = True
            self.running.append(request)
            found.append(request)
        return found

    def give_back(self, request_id: int) -> None:
        """Release the blocks of a finished request that `keeps_finished` has kept."""
        self.kv.release(request_id)
        self.is_blocked = False

    def _count_with_cache(self) -> int:
        return sum(request.has_cache for request in self.waiting)

    def schedule(self) -> StepPlan:
        """Hand out the tokens of one step. Reserves blocks and moves requests; computes nothing."""
        plan = StepPlan()
        if not self.running and not self.waiting and not self.leaving:
            self.ratio.idle()
            return plan
        order, budget = self.discipline.order, self.limits.max_num_batched_tokens
        if order == "batch":
            self._form_batch(plan)
        elif order == "prompts_first":
            self._schedule_waiting(plan, self._continue_prompt(plan, budget))
        if plan.scheduled:
            plan.prompts_only = True
            return plan
        plan.leaving = list(self.leaving)
        drafts = [request.num_draft_tokens for request in plan.leaving]
        budget -= len(drafts) * (1 + self.limits.draft_slots)
        budget -= self.limits.verified_tokens(sum(drafts), sum(d > 0 for d in drafts))
        if order == "prompts_first":
            self._retract(plan)
        budget = self._schedule_running(plan, budget)
        if order == "mixed" and not plan.preempted:
            self._schedule_waiting(plan, budget)
        return plan

    def _schedule_running(self, plan: StepPlan, budget: int) -> int:
        """The budget that is left for others: none while a prompt is unfinished."""
        is_cut, slots = self.discipline.decode_budget == "cut", self.limits.draft_slots
        position = levels = drafting = 0
        while position < len(self.running):
            request = self.running[position]
            context, want = request.num_computed_tokens, self._wanted(request)
            if not request.is_decoding:
                tokens = chunk_of(want, budget - slots, self.limits, whole=False)
            else:
                tokens = min(want, budget - slots) if is_cut else want
            if tokens <= 0:
                return 0
            room = context + tokens + self.lookahead_tokens
            while self.discipline.reserve == "step" and not self.kv.reserve(request.request_id, room):
                victim = self.running[-1]
                self._preempt(victim)
                plan.preempted.append(victim)
                if victim is request:
                    return budget
            drafts = max(0, tokens - (request.num_tokens - context))
            self._schedule(plan, request, tokens, drafts)
            budget = budget - tokens - slots if request.is_decoding or tokens == want else 0
            if drafts:  # of a tree, every node takes a token of the budget, not only the levels
                before = self.limits.verified_tokens(levels, drafting)
                levels, drafting = levels + drafts, drafting + 1
                budget -= self.limits.verified_tokens(levels, drafting) - before - drafts
            position += 1
        return budget

    def _wanted(self, request: Request) -> int:
        """Tokens that a running request has to compute, drafts included."""
        want = request.num_tokens + request.num_draft_tokens - request.num_computed_tokens
        # The token behind the last known one sits at `context + tokens`; it too must lie within the model.
        return min(want, self.limits.max_model_len - 1 - request.num_computed_tokens)

    def _continue_prompt(self, plan: StepPlan, budget: int) -> int:
        slots = self.limits.draft_slots
        for request in self.running:
            if not request.is_decoding:
                want = self._wanted(request)
                tokens = chunk_of(want, budget - slots, self.limits, whole=False)
                self._schedule(plan, request, tokens, 0)
                budget = budget - tokens - slots if tokens == want else 0
        return budget

    def _retract(self, plan: StepPlan) -> None:
        """Before a decode step: throw requests out until what the others need fits."""

        def needed() -> int:
            return sum(
                self.kv.need(r.request_id, r.num_computed_tokens + self._wanted(r) + self.lookahead_tokens)
                for r in self.running
            )

        while needed() > self.kv.pool.available:
            victim = self.running[-1]
            if self.discipline.victim == "least_output" and not self.num_spec_tokens:
                victim = min(reversed(self.running), key=lambda r: (r.num_emitted_tokens, -r.prompt_tokens))
            self._preempt(victim)
            plan.preempted.append(victim)
        if plan.preempted:
            emitted = sum(r.num_emitted_tokens for r in self.running)
            self.ratio.retracted(emitted, sum(r.asked_output_tokens for r in self.running), len(self.running))
        else:
            self.ratio.decoded()

    def _schedule_waiting(self, plan: StepPlan, budget: int) -> None:
        already = list(self.running)
        slots = self.limits.draft_slots
        while self.waiting and budget > slots and len(self.running) + len(self.leaving) < self.seats:
            request = self.waiting[0]
            if request.has_cache and self.discipline.hand_over == "token":
                return  # until it can `join`
            cached = request.num_tokens - 1
            if not request.has_cache:
                cached = self.kv.cached_tokens(request.hashes, cached)
            left = request.num_tokens - cached
            alone = all(item.request.is_decoding or item.enters_decoding for item in plan.scheduled)
            placeholders = self.placeholders if left == 1 and alone else 0
            enters = alone and (placeholders > 0 or request.has_cache)
            if left == 1 and 1 + placeholders > budget - slots:
                return
            must_be_whole = not self.discipline.chunked_prefill and not request.num_emitted_tokens
            tokens = chunk_of(left, budget - slots, self.limits, whole=must_be_whole)
            if not tokens or not (request.has_cache or self._admit(request, cached, tokens, already)):
                return
            self.waiting.popleft()
            request.has_cache = False
            request.num_computed_tokens = cached
            request.move(State.RUNNING)
            self.running.append(request)
            self._schedule(plan, request, tokens, 0, placeholders, enters_decoding=enters)
            budget -= tokens + placeholders + slots
            if tokens < left:
                return

    def _admit(self, request: Request, cached: int, tokens: int, already: list[Request]) -> bool:
        """Reserve what a request needs to start, beside those `already` running before this step's admissions."""
        reserve, admission = self.discipline.reserve, self.discipline.admission
        room = cached + tokens + self.lookahead_tokens
        if reserve != "step":
            asked = request.asked_output_tokens
            room = int(whole_room(request.prompt_tokens, asked, self.limits, self.num_spec_tokens))
        elif admission == "prompt":
            if not self.kv.fits(request.hashes, cached, request.num_tokens):
                return False
        elif admission == "estimate":
            room = request.num_tokens + self.lookahead_tokens
            if self.is_blocked or not self._expects_room(request, cached, already):
                self.is_blocked = True
                return False
        admitted = self.kv.admit(request.request_id, request.hashes, cached, room)
        self.is_blocked = not admitted
        return admitted

    def _expects_room(self, request: Request, cached: int, already: list[Request]) -> bool:
        def left(r: Request) -> int:
            return r.asked_output_tokens - r.num_emitted_tokens

        if not self.running:
            return True  # alone it fits, or it would have been refused
        admitted = self.running[len(already) :]
        return self.ratio.admits(
            new_tokens=request.num_tokens - cached,
            own_output_tokens=left(request),
            promised_tokens=sum(min(left(r), NewTokenRatio.MOST_NEW_TOKENS) for r in admitted),
            running_output_tokens=sum(map(left, already)),
            free_tokens=self.kv.free_tokens(request.hashes, cached),
            block_size_tokens=self.limits.block_size_tokens,
        )

    def _form_batch(self, plan: StepPlan) -> None:
        if self.running:
            return
        ahead = ((request.prompt_tokens, request.asked_output_tokens) for request in self.waiting)
        count, plan.padded_tokens, room = batch_of(ahead, self.limits, self.num_spec_tokens)
        for _ in range(count):
            request = self.waiting.popleft()
            if not self.kv.admit(request.request_id, (), 0, room):
                raise InvariantError(f"request {request.request_id} of a static batch finds no room in an empty cache")
            request.padding_tokens = plan.padded_tokens - request.prompt_tokens
            request.move(State.RUNNING)
            self.running.append(request)
            self._schedule(plan, request, request.prompt_tokens, 0)

    def _schedule(
        self, plan: StepPlan, request: Request, tokens: int, drafts: int, placeholders: int = 0, *,
        enters_decoding: bool = False,
    ) -> None:  # fmt: skip
        context = request.num_computed_tokens
        prefilling = not request.is_decoding
        finishes = prefilling and context + tokens == request.num_tokens
        if prefilling:
            self.kv.publish(request.request_id, request.hashes, context + tokens)
        plan.scheduled.append(Scheduled(request, tokens, drafts, context, finishes, placeholders, enters_decoding))

    def _preempt(self, request: Request) -> None:
        self.kv.drop_idle()
        self.running.remove(request)
        self.kv.release(request.request_id)
        request.move(State.PREEMPTED)
        request.is_decoding = False
        request.num_computed_tokens = 0
        request.num_draft_tokens = 0
        self.is_blocked = False
        if self.discipline.requeue == "head":
            self.waiting.insert(self._count_with_cache(), request)
        else:
            self.waiting.append(request)

    def update(
        self,
        plan: StepPlan,
        emitted: Mapping[int, int],
        finished: set[int],
        drafts: Callable[[Request], int],
        next_k: int = 0,
    ) -> None:
        """Apply a computed step.

        Args:
            plan: what `schedule` returned.
            emitted: request id -> tokens that it emitted in this step (prefills that do not finish have no entry).
            finished: ids of requests that are complete with this step.
            drafts: called for each request that decodes next; gives the drafts proposed for it.
            next_k: drafts of the next round as the engine plans it for requests that it does not know to be complete.
        """
        gone: list[Request] = []
        if self.discipline.order != "batch":
            gone, self.leaving = self.leaving, gone
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
                self._finish(request)
            elif request.is_decoding:
                request.num_draft_tokens = drafts(request)
        if self.discipline.order == "batch" and not self.running:
            gone, self.leaving = self.leaving, []
        for request in gone:
            self.give_back(request.request_id)
        for request in self.leaving:
            request.num_draft_tokens = next_k

    def _finish(self, request: Request) -> None:
        request.move(State.FINISHED)
        self.running.remove(request)
        if self.discipline.extra_step or self.discipline.order == "batch":
            self.leaving.append(request)
        elif not self.keeps_finished:
            self.give_back(request.request_id)
