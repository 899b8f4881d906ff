"""Queues of a fast replica: who waits, who runs, who stays after the end, and the blocks that they hold.

The same decisions as `specsim.scheduler`, without touching requests that decode: those live in a `DecodeBatch`. At most
one prompt is unfinished between two steps, and it is the one admitted last.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np

from specsim.admission import (
    NewTokenRatio,
    asked_tokens,
    batch_of,
    chunk_of,
    never_fits,
    placeholders_of,
    seats,
    whole_room,
)
from specsim.config import ReplicaLimits
from specsim.engine.core import chunk_pairs, windowed_chunk_pairs
from specsim.engine.decode_batch import DecodeBatch
from specsim.engine.recorder import Recorder
from specsim.errors import InvariantError
from specsim.kv_cache import KVCache
from specsim.latency import StepWork
from specsim.policies import Policy
from specsim.workload import Workload

__all__ = ["FastQueues"]


class FastQueues:
    """What `FastReplica` is built on; prompts and departures of the coming step are written into its `StepWork`."""

    def __init__(
        self, workload: Workload, limits: ReplicaLimits, policy: Policy, window_tokens: int, recorder: Recorder
    ) -> None:
        discipline, k = limits.discipline, policy.num_spec_tokens
        self._trace = workload.trace
        self._prompt = workload.prompts
        self._output = workload.outputs
        self._limits = limits
        self._recorder = recorder
        self._window = window_tokens
        self._num_spec_tokens = k
        self._lookahead = limits.lookahead_tokens(k)
        self._batch = DecodeBatch(workload, limits, k, window_tokens)
        shares = limits.enable_prefix_caching and discipline.prefix_caching
        self._kv = KVCache(
            limits.num_kv_blocks,
            limits.block_size_tokens,
            fixed_blocks_per_request=limits.fixed_blocks_per_request,
            hash_block_tokens=workload.trace.hash_block_tokens if shares else None,
        )
        self._seats = seats(limits, k)
        self._placeholders = placeholders_of(limits, k) if policy.constant else 0
        self._whole = not discipline.chunked_prefill
        self._token_comes = discipline.hand_over == "token"
        self._slots = limits.draft_slots
        self._grows = discipline.reserve == "step"
        self._checks_prompt = self._grows and discipline.admission == "prompt"
        self._expects = self._grows and discipline.admission == "estimate"
        self._stays = discipline.extra_step or discipline.order == "batch"
        self._asked: list[int] = []
        self._room: list[int] = []
        trace = workload.trace
        if not self._grows or self._expects:
            asked = asked_tokens(trace.output_tokens, limits)
            self._asked = asked.tolist()
            self._room = whole_room(trace.prompt_tokens, asked, limits, k).tolist()
        refused = never_fits(trace.prompt_tokens, trace.output_tokens, limits, k)
        self._refused = frozenset(np.flatnonzero(refused).tolist())
        self._work = StepWork()
        self._hashes: dict[int, list[int]] = {}
        self._waiting: deque[int] = deque()
        self._arrived: set[int] = set()
        """The first of the waiting: their prompts were computed elsewhere and are here, in blocks that they hold."""
        self._leaving: list[int] = []
        """Finished, but still in the batch: they hold their seats and blocks."""
        self._leaving_kv = self._leaving_windowed = 0
        self._partial: int | None = None
        self._partial_computed = 0
        self._stale_prompt: int | None = None
        """The request with the unfinished prompt, if the drafter has missed a part of it."""
        self._completing: list[int] = []
        self._placed = 0
        """Requests among them that entered with placeholders."""
        self._placed_kv = self._placed_windowed = 0
        self._longest = 0
        """Prompt tokens of each request of a static batch, padding included."""
        self._padding = 0
        """Padding of the running ones, summed."""
        self._emitted: dict[int, int] = {}
        """Output tokens of requests that were preempted, until they decode again."""
        self._last_emit_s: dict[int, float] = {}
        """Last emission of requests that missed the previous step, by preemption or for want of budget."""
        self._late: set[int] = set()
        """Those of them that are in the decode batch."""
        self._joined_s: dict[int, float] = {}
        """First emission of requests that joined since the last decode step, where prompts have steps of their own."""
        self._decoded_s = 0.0
        """End of the last decode step."""
        self._preempted: set[int] = set()
        """Requests that were ever preempted."""
        self._returned = 0
        """Those of them that wait."""
        self._counts_iterations = policy.watches == "completed"
        self._iterations = array("q", bytes(8 * len(workload) if self._counts_iterations else 0))
        """Steps in which a request emitted tokens; of those that decode, less `_decode_steps`, which counts for all."""
        self._decode_steps = 0
        self._completed: list[tuple[int, int]] = []
        self._ratio = NewTokenRatio()
        self._is_blocked = False
        self._is_shut = False
        """Whether the one who waits first has no chance until somebody leaves."""
        self._asked_running = self._left_running = 0
        """What running requests have asked for, and what of it is not written yet; kept for the estimate only."""
        self.outstanding_tokens = 0

    def submit(self, request: int, now_s: float) -> bool:
        if request in self._refused:
            return False
        self._waiting.append(request)
        self.outstanding_tokens += self._prompt[request]
        return True

    @property
    def _running(self) -> int:
        """Requests admitted and not finished."""
        return self._batch.count + len(self._completing) + (self._partial is not None)

    def _known(self, request: int) -> int:
        return self._prompt[request] + self._emitted.get(request, 0) if self._emitted else self._prompt[request]

    def _forget_prompts(self) -> None:
        """Forget the prompts of the previous step."""
        work = self._work
        if not (work.prefill_tokens or self._placed):
            return
        self._completing.clear()
        self._placed = self._placed_kv = self._placed_windowed = 0
        work.prefill_tokens = work.prefill_rows = work.prefill_kv_tokens = 0
        work.prefill_pairs = work.prefill_windowed_pairs = 0

    def _continue_prompt(self, budget: int) -> tuple[int, bool]:
        """Go on with the unfinished prompt: (budget left for others, whether there was room for it)."""
        request, computed = self._partial, self._partial_computed
        assert request is not None
        left = self._known(request) - computed
        room = budget - self._slots
        tokens = left if left <= room else chunk_of(left, room, self._limits, whole=False)
        if not tokens:
            return 0, True
        if self._grows and not self._kv.reserve(request, computed + tokens + self._lookahead):
            return 0, False
        self._prefill(request, computed, tokens)
        return (room - tokens if tokens == left else 0), True

    def _admit(self, now_s: float, budget: int) -> int:
        limits, kv, waiting, work = self._limits, self._kv, self._waiting, self._work
        admitted = promised = 0
        left_running = self._left_running
        slots = self._slots
        running = self._running
        self._is_shut = False
        while waiting and budget > slots:
            if running + len(self._leaving) >= self._seats:
                self._is_shut = True
                break
            request = waiting[0]
            known = self._known(request)
            cached = 0
            hashes: Sequence[int] = ()
            has_cache = request in self._arrived
            if has_cache:
                if self._token_comes:
                    break
                cached = known - 1
            elif kv.prefix is not None:
                known_hashes = self._hashes.get(request)
                if known_hashes is None:
                    known_hashes = self._hashes[request] = kv.entries(self._trace.hashes(request).tolist())
                hashes = known_hashes
                cached = kv.cached_tokens(hashes, known - 1)
            left = tokens = known - cached
            placeholders = self._placeholders if left == 1 and not work.prefill_tokens else 0
            if left + placeholders > budget - slots:
                whole = self._whole and request not in self._emitted
                tokens = 0 if placeholders else chunk_of(left, budget - slots, limits, whole=whole)
                if not tokens:
                    break
            room = cached + tokens + self._lookahead
            if has_cache:
                self._arrived.remove(request)
            elif self._checks_prompt:
                if tokens < left and not kv.fits(hashes, cached, known):
                    self._is_shut = True
                    break
            elif self._expects:
                own = self._asked[request] - (known - self._prompt[request])
                if self._is_blocked or (
                    running
                    and not self._ratio.admits(
                        left, own, promised, left_running, kv.free_tokens(hashes, cached), limits.block_size_tokens
                    )
                ):
                    self._is_blocked = self._is_shut = True
                    break
                room = known + self._lookahead
            elif self._room:
                room = self._room[request]
            if not has_cache and not kv.admit(request, hashes, cached, room):
                self._is_blocked = True
                # A chunk that a smaller budget leaves may need fewer blocks than this one, but never all too few.
                self._is_shut = (
                    not self._grows or self._expects or (self._checks_prompt and not kv.fits(hashes, cached, known))
                )
                break
            waiting.popleft()
            running += 1
            if self._expects:
                self._is_blocked = False
                promised += min(own, NewTokenRatio.MOST_NEW_TOKENS)
                self._asked_running += self._asked[request]
                self._left_running += own
            if request in self._preempted:
                self._returned -= 1
            else:
                self._note_first(request, cached, now_s)
            if placeholders or (has_cache and not work.prefill_tokens):
                self._place(request, cached)
            else:
                self._prefill(request, cached, tokens)
            budget -= tokens + placeholders + slots
            admitted += 1
            if tokens < left:
                break
        return admitted

    def _note_first(self, request: int, cached: int, now_s: float) -> None:
        rows = self._recorder.rows
        rows.first_scheduled_s[request] = now_s
        if cached:
            rows.cached_tokens[request] = cached
            if self._recorder.measures(now_s):
                self._recorder.cached_tokens += cached

    def _prefill(self, request: int, context: int, tokens: int) -> None:
        work = self._work
        work.prefill_tokens += tokens
        work.prefill_kv_tokens += context
        work.prefill_pairs += tokens * context + tokens * (tokens + 1) // 2
        if self._window:
            work.prefill_windowed_pairs += windowed_chunk_pairs(context, tokens, self._window)
        if self._hashes:
            self._kv.publish(request, self._hashes[request], context + tokens)
        if context + tokens == self._known(request):
            work.prefill_rows += 1
            self._completing.append(request)
            self._partial = None
        else:
            if self._partial is not None and self._partial != request:
                raise InvariantError(f"requests {self._partial} and {request} both hold an unfinished prompt")
            self._partial, self._partial_computed = request, context + tokens

    def _place(self, request: int, context: int) -> None:
        """A request enters with its one token and placeholders, as a row of the decode step."""
        if self._hashes:
            self._kv.publish(request, self._hashes[request], context + 1)
        self._completing.append(request)
        self._placed += 1
        self._placed_kv += context
        self._placed_windowed += min(context, self._window)

    def _form_batch(self, now_s: float) -> int:
        """A static batch, its prompts computed together in this step."""
        ahead = ((self._prompt[request], self._asked[request]) for request in self._waiting)
        count, longest, room = batch_of(ahead, self._limits, self._num_spec_tokens)
        work = self._work
        for _ in range(count):
            request = self._waiting.popleft()
            if not self._kv.admit(request, (), 0, room):
                raise InvariantError(f"request {request} of a static batch finds no room in an empty cache")
            self._note_first(request, 0, now_s)
            self._padding += longest - self._prompt[request]
            self._completing.append(request)
        self._longest = longest
        work.prefill_rows = count
        work.prefill_tokens = count * longest
        work.prefill_pairs = count * chunk_pairs(0, longest)
        if self._window:
            work.prefill_windowed_pairs = count * windowed_chunk_pairs(0, longest, self._window)
        return count

    def _preempt(self, now_s: float) -> None:
        """Throw out who goes first by the rules."""
        self._kv.drop_idle()
        discipline = self._limits.discipline
        if discipline.victim == "least_output" and not self._num_spec_tokens:
            progress = reversed(self._batch.progress())
            request = min(progress, key=lambda item: (item[1], -self._prompt[item[0]]))[0]
        else:  # who has an unfinished prompt was admitted last
            request = self._batch.last if self._partial is None else self._partial
        if request == self._partial:
            self._partial = None
        else:
            emitted, blocks = self._batch.pop(request)
            self._emitted[request] = emitted
            if self._counts_iterations:
                self._iterations[request] += self._decode_steps
            self._kv.total[request] = blocks
            last_s = now_s if discipline.order == "mixed" else self._joined_s.pop(request, self._decoded_s)
            self._last_emit_s.setdefault(request, last_s)
            self._late.discard(request)
        if request == self._stale_prompt:
            self._stale_prompt = None
        if self._expects:
            self._asked_running -= self._asked[request]
            self._left_running -= self._asked[request] - self._emitted.get(request, 0)
        self._kv.release(request)
        self._is_blocked = self._is_shut = False
        self._preempted.add(request)
        self._returned += 1
        self._recorder.rows.preemptions[request] += 1
        if discipline.requeue == "head":
            self._waiting.insert(len(self._arrived), request)
        else:
            self._waiting.append(request)

    def _finish(self, request: int, now_s: float) -> None:
        self._recorder.rows.finish_s[request] = now_s
        if self._counts_iterations:
            iterations = self._iterations[request] + self._decode_steps
            self._completed.append((self._output[request], iterations))
        self.outstanding_tokens -= self._prompt[request]
        if self._expects:
            self._asked_running -= self._asked[request]
            self._left_running -= self._asked[request] - self._output[request]
        if not self._stays:
            self._release(request)
            return
        context = self._prompt[request] + self._output[request] - 1
        self._leaving.append(request)
        self._leaving_windowed += min(context, self._window)
        if self._longest:
            padding = self._longest - self._prompt[request]
            self._padding -= padding
            context += padding
        self._leaving_kv += context

    def _release(self, request: int) -> None:
        self._kv.release(request)
        self._is_blocked = self._is_shut = False
        if self._hashes:
            del self._hashes[request]
