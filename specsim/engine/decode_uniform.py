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


class UniformBatch(ColumnBatch):
    """See `specsim.engine.decode_batch.DecodeBatch`; `_room` here is lowered by what one round may need."""

    def __init__(self, setup: DecodeSetup) -> None:
        super().__init__(setup)
        self._k = 0
        self._gain = np.zeros(0, dtype=np.int64)
        self._short: np.ndarray | None = None
        self._new_blocks = 0

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
            self._k = next_k
        elif next_k != self._k:
            raise InvariantError(f"request {request} joins with {next_k} drafts where the others have {self._k}")
        super().add(request, emitted, next_k)
        self._room[self.count - 1] -= self._k + 1

    def peek(self, budget_tokens: int) -> Peek:
        n, k = self.count, self._k
        if n == 0:
            return Peek()
        short = self._at[:n] > self._room[:n]
        self._new_blocks = int(np.count_nonzero(short))
        self._short = short
        windowed = 0
        if self._window:
            windowed = int(_SUM(np.minimum(self._at[:n] + self._offset[:n], self._window)))
        return Peek(n, n * k, n if k else 0, self._new_blocks, self._kv_tokens, windowed)

    def advance(self, next_k: int, waiting: set[int]) -> Advance:
        result = Advance()
        n = self.count
        if n == 0:
            self._k = next_k
            return result
        if self._new_blocks:
            short = self._short
            self._blocks[:n] += short
            self._room[:n][short] += self._block
        at = self._at[:n]
        gain = self._span.take(at)
        np.minimum(gain, self._k + 1, out=gain)
        at += gain
        result.gained = int(_SUM(gain))
        self._kv_tokens += result.gained
        if next_k != self._k:
            self._room[:n] += self._k - next_k
            self._k = next_k
        if waiting:
            result.resumed = [i for i in self._ids if i in waiting]
        done = at == self._end[:n]
        if np.count_nonzero(done):
            self._drop(np.flatnonzero(done), result)
        return result
