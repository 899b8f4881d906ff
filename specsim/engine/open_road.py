"""A replica on the open road: alone, with requests that come whatever it does, or one whenever another finishes.

Then it knows all that will happen, and arrivals, admissions, prompts and completions are carried out with the steps by
one compiled walk (`specsim.engine.road_kernels`), a stretch of them at a time. What that walk cannot decide is decided
in `fast_queues` and `fast_step`, for one step, as everywhere else.
"""

from __future__ import annotations

import numpy as np

from specsim.config import ReplicaLimits
from specsim.engine import road_kernels as road
from specsim.engine.decode_kernels import COUNT, FINISHED
from specsim.engine.fast_step import FastStep
from specsim.engine.recorder import Recorder
from specsim.engine.router import ClosedLoop, Source
from specsim.engine.step_terms import step_terms
from specsim.errors import InvariantError
from specsim.latency import StepCost
from specsim.policies import Ahead, Policy
from specsim.policies.budget import Budget
from specsim.workload import Workload

__all__ = ["TOLD", "OpenRoad"]

TOLD = 256
"""Most steps of which a policy is told afterwards."""
_NO_DRAFTS = np.zeros(0, dtype=np.int8)


class OpenRoad(FastStep):
    """What `FastReplica` is built on: stretches of the open road, where it is on one."""

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
        self._table = step_terms(cost, machinery=machinery)
        self._told = np.zeros((TOLD if self._watches else 0, 5), dtype=np.int64)
        """What is to be observed of a row of steps."""
        self._source: Source | None = None
        """Where requests come from, if it is followed on the open road."""

    def follow(self, source: Source) -> None:
        """Take requests from where they come from, before they are submitted, if the rules and the policy are such as
        the compiled walk knows."""
        policy, limits, rules = self._policy, self._limits, self._limits.discipline
        ahead = Ahead.constant(policy.num_spec_tokens, self._seats) if policy.constant else policy.ahead(self._seats)
        is_known = rules.order == "mixed" and not (self._stays or self._expects or self._kv.prefix is not None)
        if ahead is None or not is_known:
            return
        self._trimmer = None
        if self._looks_at_rounds:
            if type(policy) is not Budget:
                return
            self._trimmer = policy.trimmer(len(self._output), self._seats)
            if self._trimmer is None:
                return
        self._source, self._ahead = source, ahead
        self._to_tell = self._told if self._trimmer is None else self._told[:0]
        n = len(source.arrival_s) - 1
        prompts = np.asarray(self._trace.prompt_tokens[:n], dtype=np.int64)
        room = np.asarray(self._room[:n], dtype=np.int64) if self._room else prompts + self._lookahead
        asks = np.zeros((n, 4), dtype=np.int32)
        asks[:, road.PROMPT], asks[:, road.OUTPUT] = prompts, self._trace.output_tokens[:n]
        asks[:, road.BLOCKS] = -(-room // limits.block_size_tokens) + limits.fixed_blocks_per_request
        refused = [request for request in self._refused if request < n]
        asks[refused, road.REFUSED] = 1
        self._asks = asks
        rows = self._recorder.rows
        times = (rows.first_scheduled_s, rows.first_token_s, rows.finish_s)
        self._columns = (
            *(np.frombuffer(column, dtype=np.float64) for column in times),
            np.frombuffer(self._iterations, dtype=np.int64),
        )
        self._luck = (np.zeros(0, dtype=np.int16), _NO_DRAFTS, np.zeros(1, dtype=np.int64))
        self._queue = np.zeros(road.QUEUE, dtype=np.int64)
        by_block = rules.chunk_by_block and limits.block_size_tokens <= limits.max_num_batched_tokens
        self._rules = np.array(
            [
                limits.max_num_batched_tokens, self._seats, limits.num_kv_blocks, self._slots, self._lookahead,
                limits.block_size_tokens, limits.fixed_blocks_per_request, self._whole, by_block, self._is_cut,
                self._checks_prompt, self._grows, self._placeholders, self._window, self._cost.has_knees,
                self._counts_iterations, 0,
            ],
            dtype=np.int64,
        )  # fmt: skip

    def _is_open(self) -> bool:
        """Whether the coming step may be on the open road: nobody is late or computed again."""
        return self._source is not None and not (self._late or self._returned or self._emitted)

    def _travel(self, now_s: float) -> float | None:
        """Take steps on the open road; the seconds that they take, None where the first must be decided in Python."""
        source, queue, batch, pool, waiting = self._source, self._queue, self._batch, self._kv.pool, self._waiting
        recorder = self._recorder
        assert source is not None
        came = source.next_request
        waits = waiting[0] if waiting else came
        partial = -1 if self._partial is None else self._partial
        before_measured = 0
        if isinstance(source, ClosedLoop):
            before_measured = source.before_measured
            self._rules[road.CLOSED] = road.FILLED if source.was_full else road.UNFILLED
        stale = -1 if self._stale_prompt is None else self._stale_prompt
        queue[: road.LUCK_FROM] = (
            waits, came, pool.used, self.outstanding_tokens, self._next_k, 0, batch.place, partial,
            self._partial_computed, self._kv.total.get(partial, 0), stale, self._decode_steps, 0, before_measured,
        )  # fmt: skip
        if len(self._to_tell):
            self._look_ahead()
        # up to there `end - now` has no rounding, so that a clock can be moved on by it
        end_s, until_s, seconds = now_s, 2.0 * now_s, 0.0
        while True:
            ahead, table = self._ahead, self._table
            end_s, step_s, recorder.measure_from_s, recorder.measure_until_s = road.travel(
                batch.sums, batch.rows, batch.notes, batch.luck, table.terms, table.prices, table.nodes, table.drafting,
                recorder.record, self._to_tell, self._asks, source.arrival_s, *self._columns, *self._luck, self._rules,
                queue, ahead.contexts, ahead.ks, ahead.groups, ahead.left, self._trimmer, end_s, until_s,
                recorder.measure_from_s, recorder.measure_until_s,
            )  # fmt: skip
            seconds = step_s or seconds
            state = queue.tolist()
            batch.count, batch.place = batch.sums.item(COUNT), state[road.PLACE]
            if state[road.TO_TELL]:
                self._next_k = state[road.NEXT_K]
                self._history = self._to_tell[: state[road.TO_TELL]].tolist()
                self._decode_steps = state[road.DECODE_STEPS]
                if self._counts_iterations:
                    ended = batch.notes[FINISHED, : state[road.ENDED]].tolist()
                    self._completed = [(self._output[one], self._iterations[one] + self._decode_steps) for one in ended]
                self._tell()
                self._look_ahead()
            if not self._help(state):
                break
        if not state[road.TAKEN]:
            return None
        pool.used, self.outstanding_tokens, self._next_k = (
            state[place] for place in (road.IN_USE, road.OUTSTANDING, road.NEXT_K)
        )
        self._partial_computed, self._decode_steps = state[road.COMPUTED], state[road.DECODE_STEPS]
        if state[road.PARTIAL] != partial:
            self._kv.total.pop(partial, None)
        self._partial = None
        if state[road.PARTIAL] >= 0:
            self._partial = state[road.PARTIAL]
            self._kv.total[self._partial] = state[road.HOLDS]
        self._stale_prompt = state[road.STALE_PROMPT] if state[road.STALE_PROMPT] >= 0 else None
        self._prompt_seen = (self._partial, self._partial_computed)
        waits, coming = state[road.WAITS], state[road.COMING]
        while waiting and waiting[0] < waits:
            waiting.popleft()
        new = range(max(came, waits), coming)
        waiting.extend([request for request in new if request not in self._refused] if self._refused else new)
        if self._refused and coming > came:
            recorder.rows.rejected[came:coming] = self._asks[came:coming, road.REFUSED]
        source.passed(coming, state[road.DONE])
        self._is_shut = self._is_blocked = False
        self._ran, self._history = [], []
        return seconds if state[road.TAKEN] == 1 else end_s - now_s

    def _help(self, state: list[int]) -> bool:
        """Give the walk what it lacks; whether it can go on."""
        why, asked = state[road.WHY], state[road.ASK :]
        if why == road.TERMS_LACK:
            key = (asked[0], asked[1], asked[2], asked[3])
            if asked[4]:
                self._table.learn_prompts(key, asked[4], asked[5])
            else:
                self._table.learn(key)
        elif why == road.ANSWER_LACKS:
            size, kv_tokens, rounds = asked[:3]
            band = int(np.searchsorted(self._ahead.contexts, kv_tokens // rounds if rounds else 0, side="right")) - 1
            self._ahead.ks[band, size] = self._policy.next_k(size, kv_tokens, rounds)
        elif why == road.ROOM_LACKS:
            self._batch.make_room(asked[0], asked[1])
            self._queue[road.PLACE] = self._batch.place
        elif why == road.LUCK_LACKS:
            first, luck = self._workload.stretch(asked[0])
            if state[road.LUCK_OF] and first == state[road.LUCK_FROM]:
                return False
            self._luck = luck.span, _NO_DRAFTS if luck.drafts is None else luck.drafts, luck.offsets
            self._queue[road.LUCK_FROM], self._queue[road.LUCK_OF] = first, len(luck.offsets) - 1
        else:
            return why == road.TOLD
        return True

    def _look_ahead(self) -> None:
        """Ask again what the policy will answer."""
        ahead = self._policy.ahead(self._seats)
        if ahead is None:
            raise InvariantError(f"policy {type(self._policy).__name__} has looked ahead before and does no more")
        self._ahead = ahead
