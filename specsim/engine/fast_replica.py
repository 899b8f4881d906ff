"""One engine whose step costs no work per running request: the same decisions as the plain scheduler, by sums.

Decoding requests live in a `DecodeBatch`; the few that are still in their prompt are handled one by one. In this
discipline a prompt that is not finished in a step has used up the token budget, so at most one is left over, and it is
the one admitted last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from specsim.config import ReplicaLimits
from specsim.engine.decode_batch import DecodeBatch, DecodeSetup, Peek
from specsim.engine.decode_columns import ColumnBatch
from specsim.engine.decode_horizon import HorizonBatch
from specsim.engine.decode_ring import RingBatch
from specsim.engine.plain_replica import windowed_chunk_pairs
from specsim.engine.recorder import Recorder
from specsim.engine.replica import StepView
from specsim.engine.rounds import RoundTable
from specsim.errors import InvariantError
from specsim.kv_cache import KVCache
from specsim.latency import StepCost, StepWork
from specsim.policies import Observed, Policy
from specsim.scheduler import never_fits
from specsim.workload import Workload

__all__ = ["FastReplica"]


class FastReplica:
    """See `specsim.engine.replica.Replica`."""

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
        self.index = index
        self._workload = workload
        self._trace = workload.trace
        self._prompt = workload.prompt_tokens
        self._output = workload.output_tokens
        self._limits = limits
        self._policy = policy
        self._cost = cost
        self._recorder = recorder
        self._window = cost.window_tokens
        setup = DecodeSetup(workload, limits, policy.num_spec_tokens, cost.window_tokens)
        self._lookahead = setup.lookahead_tokens
        never_truncates = limits.max_num_seqs * (1 + policy.num_spec_tokens) <= limits.max_num_batched_tokens
        self._batch: DecodeBatch
        self._columns: ColumnBatch | None = None
        """The decode batch where the policy trims drafts or watches rounds, which sums cannot tell."""
        if policy.trims or policy.watches == "rounds":
            self._batch = self._columns = ColumnBatch(setup)
        elif policy.constant and never_truncates:
            self._batch = RingBatch(setup, round_table(setup))
        elif HorizonBatch.fits(setup):
            self._batch = HorizonBatch(setup)
        else:
            self._batch = ColumnBatch(setup)
        hashed = workload.trace.hash_block_tokens if limits.enable_prefix_caching else None
        self._kv = KVCache(
            limits.num_kv_blocks,
            limits.block_size_tokens,
            fixed_blocks_per_request=limits.fixed_blocks_per_request,
            hash_block_tokens=hashed,
        )
        self._hashes: dict[int, list[int]] = {}
        self._waiting: deque[int] = deque()
        self._running: dict[int, None] = {}
        self._partial: int | None = None
        self._partial_computed = 0
        self._emitted: dict[int, int] = {}
        """Output tokens of requests that were preempted, until they decode again."""
        self._last_emit_s: dict[int, float] = {}
        """Last emission of requests that missed the previous step, by preemption or for want of budget."""
        self._late: set[int] = set()
        """Those of them that are in the decode batch."""
        self._preempted: set[int] = set()
        """Requests that were ever preempted."""
        self._watches = policy.watches != "nothing"
        self._seen = Observed()
        self._counts_iterations = policy.watches == "completed"
        self._iterations: dict[int, int] = {}
        """Steps in which a request emitted tokens; of those that decode, less `_decode_steps`, which counts for all."""
        self._decode_steps = 0
        self._completed: list[tuple[int, int]] = []
        self._constant = policy.constant
        self._next_k = policy.num_spec_tokens if policy.constant else -1
        self._work = StepWork(machinery=machinery, next_num_spec_tokens=self._next_k)
        self._peek = Peek()
        self._completing: list[int] = []
        self._began_s = 0.0
        self._size = 0
        self.outstanding_tokens = 0
        refused = never_fits(workload.trace.prompt_tokens, workload.trace.output_tokens, limits, policy.num_spec_tokens)
        self._refused = frozenset(np.flatnonzero(refused).tolist())

    def submit(self, request: int, now_s: float) -> bool:
        if request in self._refused:
            return False
        self._waiting.append(request)
        self.outstanding_tokens += self._prompt[request]
        return True

    def begin_step(self, now_s: float) -> float | None:
        if not self._running and not self._waiting:
            return None
        limits, work, kv = self._limits, self._work, self._kv
        if work.prefill_tokens:
            self._completing.clear()
            work.prefill_tokens = work.prefill_rows = work.prefill_kv_tokens = 0
            work.prefill_pairs = work.prefill_windowed_pairs = 0
        preempted = 0
        peek = self._batch.peek(limits.max_num_batched_tokens)
        while peek.new_blocks > kv.pool.available:
            self._preempt_tail(now_s)
            preempted += 1
            peek = self._batch.peek(limits.max_num_batched_tokens)
        if peek.new_blocks:
            kv.pool.take(peek.new_blocks)
        drafts = peek.draft_tokens
        if limits.tree_nodes:
            drafts = limits.verified_tokens(drafts, peek.draft_rounds)
        budget = limits.max_num_batched_tokens - peek.served - drafts
        size = peek.served
        if self._partial is not None and budget > 0:
            request, computed = self._partial, self._partial_computed
            tokens = min(self._known(request) - computed, budget)
            if kv.reserve(request, computed + tokens + self._lookahead):
                self._prefill(request, computed, tokens)
                budget -= tokens
                size += 1
            else:
                self._preempt_tail(now_s)
                preempted += 1
        if preempted:
            if self._recorder.measures(now_s):
                self._recorder.totals.preemptions += preempted
        elif self._waiting and budget > 0:
            size += self._admit(now_s, budget)
        if size == 0:
            return None
        if self._columns is not None:
            self._look_at_rounds(self._columns, peek, size)
        work.decode_requests = peek.served
        work.draft_tokens = peek.draft_tokens
        work.draft_requests = peek.draft_rounds
        work.kv_tokens = peek.kv_tokens
        work.windowed_kv_tokens = peek.windowed_kv_tokens
        if not self._constant:
            k = self._policy.next_k(size, peek.kv_tokens, peek.served)
            work.switches = 0 <= self._next_k != k
            self._next_k = work.next_num_spec_tokens = k
        self._peek, self._size, self._began_s = peek, size, now_s
        return self._cost.step_s(work)

    def end_step(self, now_s: float) -> list[int]:
        recorder, kv, peek = self._recorder, self._kv, self._peek
        measured = recorder.measure_from_s <= now_s <= recorder.measure_until_s
        used_blocks = kv.pool.used
        done = self._batch.advance(self._next_k, self._late)
        if measured:
            recorder.step(
                now_s - self._began_s,
                self._size,
                used_blocks,
                peek.served,
                peek.draft_rounds,
                peek.draft_tokens,
                done.gained,
                self._work.prefill_tokens,
                self._next_k,
            )
            regular = peek.served - len(done.resumed)
            if regular:
                recorder.gaps.add(now_s - self._began_s, regular)
        if self._counts_iterations:
            self._completed = []
            self._decode_steps += 1
            for request in done.waited:
                self._iterations[request] -= 1
        if done.resumed or done.waited:
            self._note_late(done.resumed, done.waited, now_s, measured)
        finished = []
        for request, blocks in done.finished:
            kv.total[request] += blocks
            self._finish(request, now_s)
            finished.append(request)
        for request in self._completing:
            if self._complete_prompt(request, now_s, measured):
                finished.append(request)
        if self._watches:
            seen = self._seen
            seen.batch, seen.rounds, seen.draft_rounds = self._size, peek.served, peek.draft_rounds
            seen.drafted, seen.accepted = peek.draft_tokens, done.gained - peek.served
            seen.completed = self._completed
            if self._columns is not None:
                seen.emitted = self._columns.emitted if peek.served else seen.requests
            self._policy.observe(seen)
        return finished

    def view(self) -> StepView:
        return StepView(self._work, len(self._running), len(self._waiting), self._kv.pool.used)

    def _look_at_rounds(self, columns: ColumnBatch, peek: Peek, size: int) -> None:
        """Note who is verified in this step, and let the policy trim the drafts."""
        seen = self._seen
        seen.requests, seen.drafts = columns.scheduled()
        if self._policy.trims and peek.draft_tokens:
            work = self._work
            drafts = self._policy.trim(seen.requests, seen.drafts, size, work.prefill_tokens, work.prefill_rows)
            seen.drafts = drafts
            columns.verify(drafts)
            peek.draft_tokens = int(drafts.sum())
            peek.draft_rounds = int(np.count_nonzero(drafts))

    def _known(self, request: int) -> int:
        return self._prompt[request] + self._emitted.get(request, 0) if self._emitted else self._prompt[request]

    def _admit(self, now_s: float, budget: int) -> int:
        limits, kv, waiting = self._limits, self._kv, self._waiting
        admitted = 0
        while waiting and budget > 0 and len(self._running) < limits.max_num_seqs:
            request = waiting[0]
            known = self._known(request)
            cached = 0
            hashes: list[int] = []
            if kv.prefix is not None:
                known_hashes = self._hashes.get(request)
                if known_hashes is None:
                    known_hashes = self._hashes[request] = kv.entries(self._trace.hashes(request).tolist())
                hashes = known_hashes
                cached = kv.cached_tokens(hashes, known - 1)
            tokens = min(known - cached, budget)
            if not kv.admit(request, hashes, cached, cached + tokens + self._lookahead):
                break
            waiting.popleft()
            self._running[request] = None
            if request not in self._preempted:
                rows = self._recorder.rows
                rows.first_scheduled_s[request] = now_s
                if cached:
                    rows.cached_tokens[request] = cached
                    if self._recorder.measures(now_s):
                        self._recorder.totals.cached_tokens += cached
            self._prefill(request, cached, tokens)
            budget -= tokens
            admitted += 1
        return admitted

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

    def _complete_prompt(self, request: int, now_s: float, measured: bool) -> bool:
        emitted = self._emitted.pop(request, 0) + 1 if self._emitted else 1
        if self._counts_iterations:
            self._iterations[request] = self._iterations.get(request, 0) + 1 - self._decode_steps
        if emitted == 1:
            self._recorder.rows.first_token_s[request] = now_s
        else:
            last_s = self._last_emit_s.pop(request)
            if measured:
                self._recorder.gaps.add(now_s - last_s)
        if emitted == self._output[request]:
            self._finish(request, now_s)
            return True
        self._batch.add(request, emitted, self._next_k)
        return False

    def _finish(self, request: int, now_s: float) -> None:
        self._recorder.rows.finish_s[request] = now_s
        if self._counts_iterations:
            iterations = self._iterations.pop(request) + self._decode_steps
            self._completed.append((self._output[request], iterations))
        self._kv.release(request)
        if self._hashes:
            del self._hashes[request]
        del self._running[request]
        self.outstanding_tokens -= self._prompt[request]

    def _preempt_tail(self, now_s: float) -> None:
        self._kv.drop_idle()
        request, _ = self._running.popitem()
        if request == self._partial:
            self._partial = None
        else:
            emitted, blocks = self._batch.pop_tail(request)
            self._emitted[request] = emitted
            if self._counts_iterations:
                self._iterations[request] += self._decode_steps
            self._kv.total[request] += blocks
            self._last_emit_s.setdefault(request, now_s)
            self._late.discard(request)
        self._kv.release(request)
        self._preempted.add(request)
        self._recorder.rows.preemptions[request] += 1
        self._waiting.appendleft(request)

    def _note_late(self, resumed: Sequence[int], waited: Sequence[int], now_s: float, measured: bool) -> None:
        for request in resumed:
            last_s = self._last_emit_s.pop(request)
            self._late.discard(request)
            if measured:
                self._recorder.gaps.add(now_s - last_s)
        for request in waited:
            self._last_emit_s.setdefault(request, self._began_s)
            self._late.add(request)


def round_table(setup: DecodeSetup) -> RoundTable:
    """The table of this setup, kept with its workload so that every load and replica shares it."""
    limits = setup.limits
    key = (setup.num_spec_tokens, setup.lookahead_tokens, setup.window_tokens, limits.block_size_tokens,
           limits.max_model_len)  # fmt: skip
    tables = setup.workload.tables
    if key not in tables:
        tables.clear()
        tables[key] = RoundTable(setup)
    table = tables[key]
    if not isinstance(table, RoundTable):
        raise InvariantError(f"workload.tables[{key}] is {type(table).__name__}")
    return table
