"""One engine whose steps cost no work in Python per running request, and which takes several of them at once.

Alone, a replica knows when the next request comes. Until then, as long as no prompt is computed, nobody finishes, no
block is short and the policy answers as before, nothing happens that anybody else could see: such steps are run in a
row by a compiled loop, behind the step that was decided in Python. What a step is stands in `specsim.engine.fast_step`.
"""

from __future__ import annotations

from specsim.config import ReplicaLimits
from specsim.engine.decode_kernels import run_steps
from specsim.engine.fast_step import ENDLESS
from specsim.engine.open_road import TOLD, OpenRoad
from specsim.engine.recorder import Recorder
from specsim.latency import StepCost
from specsim.policies import Policy
from specsim.workload import Workload

__all__ = ["FastReplica"]

_NO_FIRST = (-1.0, 0, 0, False)


class FastReplica(OpenRoad):
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
        super().__init__(index, workload, limits, policy, cost, machinery, recorder)
        self._is_static = self._order == "batch"
        self._is_steady = policy.constant or (
            type(policy).steady_for is not Policy.steady_for and not self._looks_at_rounds
        )
        self._most = TOLD if self._watches else ENDLESS
        self._budget = limits.max_num_batched_tokens if self._is_cut else ENDLESS

    def begin_step(self, now_s: float, until_s: float = 0.0) -> float | None:
        if not self._running and not self._waiting and not self._leaving:
            self._ratio.idle()
            return None
        self._forget_prompts()
        if now_s >= until_s:
            return self._begin(now_s)
        if self._is_open():
            seconds = self._travel(now_s)
            if seconds is not None:
                return seconds
        if self._only_decodes():
            seconds = self._run(now_s, until_s)
            if seconds is not None:
                return seconds
        seconds = self._begin(now_s)
        if seconds is None or not self._goes_on():
            return seconds
        longer = self._run_on(now_s, until_s, seconds)
        return seconds if longer is None else longer

    def _only_decodes(self) -> bool:
        """Whether requests only decode in the coming step, and none is late or waits for a place that is there."""
        return (
            self._batch.count > 0
            and self._partial is None
            and not self._late
            and (self._is_static or not (self._leaving or (self._waiting and not self._is_shut)))
            and (not self._joined_s or len(set(self._joined_s.values())) == 1)
        )

    def _goes_on(self) -> bool:
        """Whether that will be so behind the step that was decided, and nobody finishes with its first token."""
        return (
            self._is_steady
            and self._partial is None
            and not (self._late or self._placed or self._peek.is_cut)
            and (self._is_static or not self._waiting or (self._is_shut and not self._leaving))
            and (not self._joined_s or (not self._prompts_only and len(set(self._joined_s.values())) == 1))
            and not self._ends_at_once()
        )

    def _ends_at_once(self) -> bool:
        output, emitted = self._output, self._emitted
        for request in self._completing:
            if output[request] == 1 or (emitted and output[request] == emitted.get(request, 0) + 1):
                return True
        return False

    def _run(self, now_s: float, until_s: float) -> float | None:
        """Run steps in which requests only decode, up to the first that ends at `until_s` or later or with a request
        finished; the seconds that they take, None where blocks or the token budget do not suffice for the first."""
        batch, policy, served = self._batch, self._policy, self._batch.count
        k, most, kv_below = self._next_k, ENDLESS, ENDLESS
        if not self._constant:
            peek = batch.peek(self._budget)
            if peek.is_cut or peek.new_blocks > self._kv.pool.available:
                return None
            if self._looks_at_rounds:
                self._prompts_only = False
                self._look_at_rounds(peek, served)
            kv_tokens = peek.kv_tokens + self._padding
            k = policy.next_k(served, kv_tokens, served)
            most, kv_below = policy.steady_for(served, kv_tokens, served)
        self._prompts_only, self._size = False, served
        leaving = (len(self._leaving), self._leaving_kv, self._leaving_windowed, True)
        return self._row(now_s, until_s, _NO_FIRST, k, k, most, kv_below, leaving, 0)

    def _run_on(self, now_s: float, until_s: float, first_s: float) -> float | None:
        """Carry out the step that was decided, which takes `first_s`, and run on behind it; None where the policy
        cannot say beforehand what it will choose then."""
        batch, policy, is_alone = self._batch, self._policy, self._prompts_only
        k, then_k, most, kv_below = self._next_k, self._next_k, ENDLESS, ENDLESS
        count = batch.count + len(self._completing)
        if not self._constant and count:
            kv_tokens = batch.kv_tokens + self._padding + sum(map(self._known, self._completing))
            kv_tokens += 0 if is_alone else batch.count  # each brings one token at least
            then_k = policy.next_k(count, kv_tokens, count)
            most, kv_below = policy.steady_for(count, kv_tokens, count)
            if most < 2:
                return None
        first = (first_s, self._size + (batch.count if is_alone else 0), self._work.prefill_tokens, is_alone)
        leaving, freed = (len(self._leaving), self._leaving_kv, self._leaving_windowed, self._is_static), 0
        if self._leaving and not self._is_static:
            freed = self._kv.pool.used
            for request in self._leaving:
                self._release(request)
            freed -= self._kv.pool.used
            self._leaving, self._leaving_kv, self._leaving_windowed = [], 0, 0
        return self._row(now_s, until_s, first, k, then_k, most, kv_below, leaving, freed)

    def _row(
        self, now_s: float, until_s: float, first: tuple[float, int, int, bool], k: int, then_k: int, most: int,
        kv_below: int, leaving: tuple[int, int, int, bool], freed: int,
    ) -> float | None:  # fmt: skip
        """Steps in a row, see `decode_kernels.run_steps`: the seconds that they take, None where there are none."""
        batch, pool, recorder, table = self._batch, self._kv.pool, self._recorder, self._table
        first_s, _, _, is_alone = first
        is_special = first_s >= 0.0
        later, later_from_s = len(self._joined_s), 0.0
        if later:
            later_from_s = next(iter(self._joined_s.values()))
        if is_special:
            if self._counts_iterations:
                self._decode_steps += not is_alone
            for request in self._completing:
                self._complete_prompt(request, now_s + first_s, is_pending=True)
            self._completing.clear()
        last_k = self._next_k if self._next_k >= 0 else k
        gap_from_s = self._decoded_s if self._separate else now_s
        while True:
            end_s, steps, taken, gained, finished, seconds, lacks, make_up = run_steps(
                batch.sums, batch.rows, batch.notes, batch.luck, table.terms, table.prices, table.nodes,
                recorder.record, self._told, now_s, until_s, recorder.measure_from_s, recorder.measure_until_s, *first,
                last_k, k, then_k, min(most, self._most), kv_below, pool.used + freed, freed, pool.capacity,
                self._budget, batch.slots, batch.trims, *leaving, self._padding, gap_from_s, later, later_from_s,
            )  # fmt: skip
            if steps:
                break
            if not lacks:
                return None
            table.learn(make_up)
        pool.take(taken)
        self._next_k = k if steps == 1 else then_k
        self._left_running -= gained
        if self._separate and steps > is_alone:
            for _ in range(steps - is_special):
                self._ratio.decoded()
            self._joined_s.clear()
            self._decoded_s = end_s
        if self._counts_iterations:
            self._completed = []
            self._decode_steps += steps - is_special
        if self._watches:
            self._history = self._told[:steps].tolist()
        self._ran = []
        if finished:
            for request, held in batch.finished(finished):
                self._kv.total[request] = held
                self._finish(request, end_s)
                self._ran.append(request)
        return seconds if steps == 1 else end_s - now_s  # type: ignore[no-any-return]
