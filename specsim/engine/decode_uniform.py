"""Decoding requests as numpy columns where every one has the same number of drafts: the columns' quick special case.

Valid while drafts are never cut (by the budget, the model's length or a lookup that finds nothing) and a round never
needs more than one new block; `fits` says so.
"""

from __future__ import annotations

import numpy as np

from specsim.engine.decode_batch import Advance, DecodeSetup, Peek
from specsim.engine.decode_columns import ColumnBatch
from specsim.errors import InvariantError

__all__ = ["UniformBatch"]

_SUM = np.add.reduce
_PARKED = np.array([0, -1, 0, 1 << 60, 0, 0], dtype=np.int64)
"""A parked row: at position 0, where a span of 0 is kept; no end, no cached tokens, endless room."""


class UniformBatch(ColumnBatch):
    """See `specsim.engine.decode_batch.DecodeBatch`.

    A finished request's row is parked, on a position where nothing is emitted, until enough of them can be tidied away.
    Here `_room` is lowered by what one round needs, and `_blocks` keeps the room at joining, counted from the end.
    """

    def __init__(self, setup: DecodeSetup) -> None:
        super().__init__(setup)
        self._draft(0)
        self._peek = Peek()
        self._advance = Advance()
        self._short: np.ndarray | None = None
        self._new_blocks = 0
        self._parked = 0
        self._span[0] = 0
        self._span_end = self._first = 1

    def _use(self, columns: np.ndarray) -> None:
        super()._use(columns)
        self._ones = np.ones(columns.shape[1], dtype=np.int64)
        self._most = self._ones * (self._k + 1)

    def _draft(self, num_spec_tokens: int) -> None:
        self._k = num_spec_tokens
        self._most.fill(num_spec_tokens + 1)

    @property
    def count(self) -> int:
        """Requests in the batch."""
        return self._rows - self._parked

    def _taken(self, row: int) -> int:
        return int(self._room[row] + self._k + 1 - self._end[row] - self._blocks[row]) // self._block

    @staticmethod
    def fits(setup: DecodeSetup) -> bool:
        """Whether this class does what `ColumnBatch` would."""
        limits, k = setup.limits, setup.num_spec_tokens
        workload = setup.workload
        longest = max((p + o for p, o in zip(workload.prompt_tokens, workload.output_tokens, strict=True)), default=0)
        always = workload.acceptance is None or workload.acceptance.proposal_rate >= 1.0
        return (
            always
            and longest + k <= limits.max_model_len
            and limits.max_num_seqs * (1 + k) <= limits.max_num_batched_tokens
            and 2 * k + 1 <= limits.block_size_tokens
        )

    def add(self, request: int, emitted: int, next_k: int) -> None:
        if self.count == 0:
            self._draft(next_k)
        elif next_k != self._k:
            raise InvariantError(f"request {request} joins with {next_k} drafts where the others have {self._k}")
        super().add(request, emitted, next_k)
        row = self._rows - 1
        self._blocks[row] = self._room[row] - self._end[row]
        self._room[row] -= self._k + 1

    def peek(self, budget_tokens: int) -> Peek:
        n, k = self._rows, self._k
        count = n - self._parked
        peek = self._peek
        peek.served, peek.draft_tokens, peek.draft_rounds = count, count * k, count if k else 0
        peek.kv_tokens = self._kv_tokens
        if count == 0:
            peek.new_blocks = peek.windowed_kv_tokens = 0
            return peek
        short = self._at[:n] > self._room[:n]
        peek.new_blocks = self._new_blocks = int(np.count_nonzero(short))
        self._short = short
        if self._window:
            peek.windowed_kv_tokens = int(_SUM(np.minimum(self._at[:n] + self._offset[:n], self._window)))
        return peek

    def advance(self, next_k: int, waiting: set[int]) -> Advance:
        result = self._advance
        result.gained, result.finished, result.resumed = 0, (), ()
        n = self._rows
        if n == self._parked:
            if next_k != self._k:
                self._draft(next_k)
            return result
        if self._new_blocks:
            room = self._room[:n]
            np.add(room, self._block, out=room, where=self._short)
        at = self._at[:n]
        gain = self._span.take(at)
        np.minimum(gain, self._most[:n], out=gain)
        at += gain
        result.gained = int(gain.dot(self._ones[:n]))
        self._kv_tokens += result.gained
        if next_k != self._k:
            self._room[:n] += self._k - next_k
            self._draft(next_k)
        if waiting:
            result.resumed = [i for i in self._ids if i in waiting]  # a parked row's id is in no set
        done = at == self._end[:n]
        if np.count_nonzero(done):
            self._drop(np.flatnonzero(done), result)
        return result

    def pop_tail(self, request: int) -> tuple[int, int]:
        self._tidy()
        return super().pop_tail(request)

    def _drop(self, done: np.ndarray, result: Advance) -> None:
        finished = []
        for row in done.tolist():
            finished.append((self._ids[row], self._taken(row)))
            self._kv_tokens -= int(self._at[row] + self._offset[row])
            self._columns[:, row] = _PARKED
            self._ids[row] = -1
        result.finished = finished
        self._parked += len(finished)
        if self._parked > 8 + self._rows // 4:
            self._tidy()

    def _tidy(self) -> None:
        if self._parked:
            self._keep(self._end[: self._rows] >= 0)
            self._parked = 0

    def _make_room(self, length: int) -> None:
        if self._rows == len(self._at) or self._span_end + length > len(self._span):
            self._tidy()
        super()._make_room(length)
