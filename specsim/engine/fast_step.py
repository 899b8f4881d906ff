"""One step of a fast replica: what it contains, what it brings, and the gaps between deliveries.

The same decisions as the plain scheduler, from sums over the requests that decode. The queues are those of
`specsim.engine.fast_queues`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specsim.config import ReplicaLimits
from specsim.engine.decode_batch import Peek
from specsim.engine.fast_queues import FastQueues
from specsim.engine.recorder import Recorder
from specsim.engine.replica import StepView
from specsim.latency import StepCost
from specsim.policies import Observed, Policy
from specsim.workload import Workload

__all__ = ["ENDLESS", "FastStep"]

ENDLESS = 1 << 62
"""More tokens than there ever are."""
_NOBODY = np.zeros(0, dtype=np.int64)


class FastStep(FastQueues):
    """What `FastReplica` is built on: steps one at a time."""

    def __init__(
        self,
        index: int,
        workload: Workload,
        limits: ReplicaLimits,
        policy: Policy,
        cost: StepCost,
        machinery: bool,
        recorder: Recorder,
    ) -> None:
        super().__init__(workload, limits, policy, cost.window_tokens, recorder)
        self.index = index
        self._workload = workload
        self._policy = policy
        self._cost = cost
        self._order = limits.discipline.order
        self._separate = self._order != "mixed"
        self._is_cut = limits.discipline.decode_budget == "cut"
        self._watches = policy.watches != "nothing"
        self._trims = policy.trims
        self._looks_at_rounds = policy.trims or policy.watches == "rounds"
        self._seen = Observed()
        self._history: list[list[int]] = []
        """Of each step since the policy was told: requests, rounds, rounds with drafts, drafts, tokens emitted."""
        self._constant = policy.constant
        self._next_k = policy.num_spec_tokens if policy.constant else -1
        self._work.machinery = machinery
        self._work.next_num_spec_tokens = self._next_k
        self._prompts_only = False
        self._spoils = machinery and not policy.constant and cost.profile.at_zero_drafts == "stale"
        if self._spoils:
            self._batch.spoils()
        self._prompt_seen: tuple[int | None, int] = (None, 0)
        """The unfinished prompt and how far it was when the last step ended."""
        self._peek = Peek()
        self._began_s = 0.0
        self._size = 0
        self._ran: list[int] | None = None
        """Who has finished in the steps that were taken in a row; None: the step is carried out when it ends."""

    def _begin(self, now_s: float) -> float | None:
        """Decide a step; its seconds, None when there is nothing to do."""
        work = self._work
        size = self._prompts_alone(now_s) if self._separate else 0
        self._prompts_only = size > 0
        if size:
            peek = Peek()
        else:
            peek, size = self._decode_step(now_s)
            if size == 0 and not self._leaving:
                return None
        if self._looks_at_rounds:
            self._look_at_rounds(peek, size)
        kv_tokens = self._describe(peek)
        if not self._constant:
            k = self._next_k
            if not self._prompts_only or not self._batch.count:
                k = self._policy.next_k(size, kv_tokens, peek.served)
            work.switches = 0 <= self._next_k != k
            self._next_k = work.next_num_spec_tokens = k
        if self._separate:
            # Alone, prompts only fill the drafter's cache: the drafts come with the next decode step.
            work.next_num_spec_tokens = min(self._next_k, 1) if self._prompts_only else self._next_k
        self._peek, self._size, self._began_s = peek, size, now_s
        return self._cost.step_s(work)

    def _describe(self, peek: Peek) -> int:
        """Write what decodes into the step's work; cached tokens of the requests that are not leaving."""
        work = self._work
        work.decode_requests = peek.served
        work.draft_tokens = peek.draft_tokens
        work.draft_requests = peek.draft_rounds
        kv_tokens = peek.kv_tokens
        if self._padding and not self._prompts_only:
            kv_tokens += self._padding
        work.kv_tokens = kv_tokens
        work.windowed_kv_tokens = peek.windowed_kv_tokens
        if not self._prompts_only and (self._leaving or self._placed):
            others = len(self._leaving) + self._placed
            work.decode_requests += others
            work.draft_tokens += len(self._leaving) * self._next_k + self._placed * self._placeholders
            work.draft_requests += len(self._leaving) if self._next_k else 0
            work.draft_requests += self._placed if self._placeholders else 0
            work.kv_tokens += self._leaving_kv + self._placed_kv
            work.windowed_kv_tokens += self._leaving_windowed + self._placed_windowed
        return kv_tokens

    def _prompts_alone(self, now_s: float) -> int:
        """Prompts that take this step for themselves; 0: it is a decode step."""
        if self._order == "batch":
            return 0 if self._running else self._form_batch(now_s)
        budget, size = self._limits.max_num_batched_tokens, 0
        if self._partial is not None:
            budget, _ = self._continue_prompt(budget)
            size = 1
        if self._waiting and budget > 0:
            size += self._admit(now_s, budget)
        return size

    def _leaving_tokens(self) -> int:
        """Tokens of the budget that finished requests take which are computed all the same."""
        count, k = len(self._leaving), self._next_k
        return count * (1 + self._slots) + self._limits.verified_tokens(count * k, count if k else 0)

    def _decode_step(self, now_s: float) -> tuple[Peek, int]:
        """Decoding requests, and whatever prompts share the step with them: (what decodes, requests in all)."""
        kv, budget = self._kv, self._limits.max_num_batched_tokens
        if self._leaving:
            budget -= self._leaving_tokens()
        most = budget if self._is_cut else ENDLESS
        preempted = 0
        peek = self._batch.peek(most)
        while peek.new_blocks > kv.pool.available:
            self._preempt(now_s)
            preempted += 1
            peek = self._batch.peek(most)
        if peek.new_blocks:
            kv.pool.take(peek.new_blocks)
        size = peek.served
        if self._separate:
            if preempted:
                asked = self._asked_running
                self._ratio.retracted(asked - self._left_running, asked, self._running)
            else:
                self._ratio.decoded()
        else:
            drafts = peek.draft_tokens
            if self._limits.tree_nodes:
                drafts = self._limits.verified_tokens(drafts, peek.draft_rounds)
            budget -= peek.served * (1 + self._slots) + drafts
            if self._partial is not None and budget > 0:
                before = self._work.prefill_tokens
                budget, has_room = self._continue_prompt(budget)
                size += self._work.prefill_tokens > before
                if not has_room:
                    self._preempt(now_s)
                    preempted += 1
            elif self._partial is not None:
                budget = 0
            if not preempted and self._waiting and budget > 0:
                size += self._admit(now_s, budget)
        if preempted and self._recorder.measures(now_s):
            self._recorder.preemptions += preempted
        return peek, size

    def end_step(self, now_s: float) -> Sequence[int]:
        gone: Sequence[int] = ()
        finished, self._ran = self._ran, None
        if finished is None:
            if self._leaving and self._order != "batch":
                gone, self._leaving = self._leaving, []
                self._leaving_kv = self._leaving_windowed = 0
            finished = []
            for request, held in self._carry_out(now_s):
                self._kv.total[request] = held
                self._finish(request, now_s)
                finished.append(request)
            for request in self._completing:
                if self._complete_prompt(request, now_s):
                    finished.append(request)
            self._completing.clear()
        if self._order == "batch" and not self._running and self._leaving:
            gone, self._leaving = self._leaving, []
            self._leaving_kv = self._leaving_windowed = self._longest = 0
        for request in gone:
            self._release(request)
        if self._spoils:
            prompt = (self._partial, self._partial_computed)
            if self._next_k == 0 and self._partial is not None and prompt != self._prompt_seen:
                self._stale_prompt = self._partial
            self._prompt_seen = prompt
        if self._watches:
            self._tell()
        return finished

    def _tell(self) -> None:
        """Let the policy observe the steps that have ended."""
        seen, last = self._seen, len(self._history) - 1
        for n, (seen.batch, seen.rounds, seen.draft_rounds, seen.drafted, gained) in enumerate(self._history):
            seen.accepted = gained - seen.rounds
            seen.completed = self._completed if n == last else ()
            if self._looks_at_rounds:
                seen.emitted = self._batch.emitted[: seen.rounds]
            self._policy.observe(seen)

    def _carry_out(self, now_s: float) -> list[tuple[int, int]]:
        """Carry out the step that began for those that decode: (request, its blocks) of whom it finishes."""
        recorder, peek, batch = self._recorder, self._peek, self._batch
        measured = recorder.measure_from_s <= now_s <= recorder.measure_until_s
        served, size, gap_s = peek.served, self._size, now_s - self._began_s
        gaps = served
        seconds = gap_s
        if self._prompts_only:
            size += batch.count
        elif self._late or served < batch.count:
            resumed, waited = batch.turns(self._late)
            gaps -= len(resumed)
            self._note_late(resumed, waited, now_s, measured)
        if self._separate and not self._prompts_only:
            gaps, gap_s = self._note_stalls(now_s, measured)
        gained, finished = batch.advance(
            recorder, served, self._next_k, measured, seconds, size, self._kv.pool.used, peek.draft_rounds,
            self._limits.verified_tokens(peek.draft_tokens, peek.draft_rounds), self._work.prefill_tokens, gap_s, gaps,
        )  # fmt: skip
        self._left_running -= gained
        if self._counts_iterations:
            self._completed = []
            self._decode_steps += not self._prompts_only
        if self._watches:
            self._history = [[self._size, served, peek.draft_rounds, peek.draft_tokens, gained]]
        return finished

    def view(self) -> StepView:
        peek = self._peek
        return StepView(
            self._work,
            self._running,
            len(self._waiting),
            self._kv.pool.used,
            peek.served,
            peek.draft_tokens,
        )

    def _look_at_rounds(self, peek: Peek, size: int) -> None:
        """Note who is verified in this step, and let the policy trim the drafts."""
        seen = self._seen
        if self._prompts_only:
            seen.requests = seen.drafts = _NOBODY
            return
        batch = self._batch
        seen.requests, seen.drafts = batch.scheduled()
        if self._trims and peek.draft_tokens:
            tokens = self._work.prefill_tokens + self._placed * (1 + self._placeholders)
            rows = self._work.prefill_rows + self._placed
            drafts = self._policy.trim(seen.requests, seen.drafts, size, tokens, rows)
            seen.drafts = drafts
            peek.draft_tokens, peek.draft_rounds = batch.verify(drafts)

    def _complete_prompt(self, request: int, now_s: float, *, is_pending: bool = False) -> bool:
        emitted = self._emitted.pop(request, 0) + 1 if self._emitted else 1
        self._left_running -= 1
        if self._counts_iterations:
            self._iterations[request] += 1 - self._decode_steps
        if emitted == 1:
            self._recorder.rows.first_token_s[request] = now_s
        else:
            last_s = self._last_emit_s.pop(request)
            if self._recorder.measures(now_s):
                self._recorder.gap(now_s - last_s)
        if emitted == self._output[request]:
            self._finish(request, now_s)
            return True
        is_stale = self._spoils and (self._next_k == 0 or request == self._stale_prompt)
        self._batch.add(request, emitted, self._next_k, self._kv.total.pop(request), is_stale, is_pending)
        if self._separate:
            self._joined_s[request] = now_s
        return False

    def _note_stalls(self, now_s: float, measured: bool) -> tuple[int, float]:
        """A decode step before which prompts may have had steps of their own: (rounds with the usual gap, that gap)."""
        joined, gap_s = self._joined_s, now_s - self._decoded_s
        others = self._peek.served - len(joined)
        if measured:
            for since_s in joined.values():
                self._recorder.gap(now_s - since_s)
        joined.clear()
        self._decoded_s = now_s
        return others, gap_s

    def _note_late(self, resumed: Sequence[int], waited: Sequence[int], now_s: float, measured: bool) -> None:
        for request in resumed:
            last_s = self._last_emit_s.pop(request)
            self._late.discard(request)
            if measured:
                self._recorder.gap(now_s - last_s)
        for request in waited:
            self._last_emit_s.setdefault(request, self._began_s)
            self._late.add(request)
            if self._counts_iterations:
                self._iterations[request] -= 1
