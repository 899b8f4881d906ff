"""Decoding requests under a k that changes from time to time: several steps ahead are worked out at once.

While k stays the same every request's rounds are known, so the sums of the next steps (tokens, drafts, blocks, who
finishes) are computed together, a few vector operations for all of them; a request that joins adds its own. When k
changes, what is left of the horizon is thrown away and the next one is shorter. Valid while drafts are never cut, by
the budget or by the model's length; `fits` says so.
"""

from __future__ import annotations

import itertools

import numpy as np

from specsim.engine.decode_batch import Advance, DecodeSetup, Peek
from specsim.engine.decode_columns import ColumnBatch
from specsim.errors import InvariantError

__all__ = ["HorizonBatch"]

_SHORTEST, _LONGEST = 2, 32
_SUM = np.add.reduce


class HorizonBatch(ColumnBatch):
    """See `specsim.engine.decode_batch.DecodeBatch`. Between horizons the columns are those of `ColumnBatch`."""

    _PAD = 1

    def __init__(self, setup: DecodeSetup) -> None:
        super().__init__(setup)
        self._peek = Peek()
        self._advance = Advance()
        self._next_length = _SHORTEST
        self._length = 0
        """Steps of the horizon; 0: there is none."""
        self._step = 0
        """Steps of it that were carried out."""
        self._planned = 0
        """Rows that it was worked out for; later rows joined since."""
        self._places = np.zeros((1, 0), dtype=np.int64)
        """[length + 1, planned]: position of each row before each step."""
        self._taken_by = np.zeros((0, 0), dtype=np.int64)
        """[length, planned]: blocks that each row has taken within the horizon, by each step."""
        self._joined: dict[int, tuple[int, list[int], list[int]]] = {}
        """Row -> step at which it joined, its positions and its blocks from then on."""
        self._pointers: dict[int, tuple[np.ndarray, int]] = {}
        """k -> next place of every place, and up to where it is worked out."""
        self._pointed_spans = self._span
        self._gone = 0
        """Rows that finished within the horizon."""
        self._gained: list[int] = []
        self._new_blocks: list[int] = []
        self._windowed: list[int] = []
        self._drafted: list[int] = []
        self._draft_rounds: list[int] = []
        """Sums by step; drafts only where a drafter may propose fewer than k, otherwise they follow from the count."""
        self._done: dict[int, list[int]] = {}
        """Step -> rows that finish with it, rising."""

    @staticmethod
    def fits(setup: DecodeSetup) -> bool:
        """Whether this class does what `ColumnBatch` would."""
        return setup.longest_tokens + setup.num_spec_tokens <= setup.limits.max_model_len and setup.never_cuts

    @property
    def count(self) -> int:
        return self._rows - self._gone

    def add(self, request: int, emitted: int, next_k: int, is_stale: bool = False) -> None:
        if self.count == 0:
            self._settle()
            self._k = next_k
        elif next_k != self._k:
            raise InvariantError(f"request {request} joins with {next_k} drafts where the others have {self._k}")
        always = self._offered is None
        super().add(request, emitted, next_k, is_stale)
        if always and self._offered is not None:
            self._settle()
        if self._step < self._length:
            self._join(self._rows - 1)

    def peek(self, budget_tokens: int) -> Peek:
        peek = self._peek
        if self.count == 0:
            peek.served = peek.draft_tokens = peek.draft_rounds = peek.new_blocks = 0
            peek.kv_tokens = peek.windowed_kv_tokens = 0
            return peek
        if self._step == self._length:
            self._look_ahead()
        step, count = self._step, self.count
        peek.served, peek.new_blocks, peek.kv_tokens = count, self._new_blocks[step], self._kv_tokens
        if self._offered is None:
            peek.draft_tokens, peek.draft_rounds = count * self._k, count if self._k else 0
        else:
            peek.draft_tokens, peek.draft_rounds = self._drafted[step], self._draft_rounds[step]
        if self._window:
            peek.windowed_kv_tokens = self._windowed[step]
        return peek

    def advance(self, next_k: int, waiting: set[int]) -> Advance:
        result = self._advance
        result.gained, result.finished, result.resumed = 0, (), ()
        if self.count:
            step = self._step
            result.gained = self._gained[step]
            self._kv_tokens += result.gained
            if waiting:
                result.resumed = [i for i in self._ids if i in waiting]
            done = self._done.get(step)
            if done is not None:
                result.finished = [self._finished(row, step) for row in done]
                self._gone += len(done)
            self._step = step + 1
        if next_k != self._k:
            self._next_length = min(max(_SHORTEST, self._step), _LONGEST)
            self._settle()
            self._k = next_k
            if self.spoils and next_k == 0:
                self._spoil(self._rows)
                self._pointers.clear()
        return result

    def pop(self, request: int) -> tuple[int, int]:
        self._settle()
        return super().pop(request)

    def progress(self) -> list[tuple[int, int]]:
        self._settle()
        return super().progress()

    def _finished(self, row: int, step: int) -> tuple[int, int]:
        if row < self._planned:
            blocks = int(self._taken_by[step, row])
        else:
            since, _, taken = self._joined[row]
            blocks = taken[step + 1 - since]
        self._kv_tokens -= int(self._end[row] + self._offset[row])
        return self._ids[row], int(self._blocks[row]) + blocks

    def _look_ahead(self) -> None:
        """Work out the next steps of every request under the present k."""
        if self._step:
            self._next_length = min(2 * self._next_length, _LONGEST)
        self._settle()
        n, length, k = self._rows, self._next_length, self._k
        end, offered = self._end[:n], self._offered
        follow = self._next_places(k).take
        places = np.empty((length + 1, n), dtype=np.int64)
        rows = list(places)
        here = rows[0]
        here[:] = self._at[:n]
        for there in rows[1:]:
            follow(here, out=there, mode="clip")
            here = there
        before = places[:-1]
        active = before < end
        drafts = k * active if offered is None else np.minimum(offered.take(before), k) * active
        missing = (before + (1 - self._room[:n])) * active + drafts
        taken = np.maximum.accumulate(np.maximum((missing + (self._block - 1)) // self._block, 0), axis=0)
        reached = _SUM(places, axis=1).tolist()
        self._gained = [after - now for now, after in itertools.pairwise(reached)]
        blocks = _SUM(taken, axis=1).tolist()
        self._new_blocks = [blocks[0], *(after - now for now, after in itertools.pairwise(blocks))]
        if offered is not None:
            self._drafted = _SUM(drafts, axis=1, dtype=np.int64).tolist()
            self._draft_rounds = np.count_nonzero(drafts, axis=1).tolist()
        if self._window:
            self._windowed = _SUM(np.minimum(before + self._offset[:n], self._window) * active, axis=1).tolist()
        self._done = {}
        finishing = np.flatnonzero(here == end)
        for row, steps in zip(finishing.tolist(), active[:, finishing].sum(axis=0).tolist(), strict=True):
            self._done.setdefault(steps - 1, []).append(row)
        self._places, self._taken_by = places, taken
        self._length, self._step, self._planned = length, 0, n

    def _next_places(self, k: int) -> np.ndarray:
        """Where a round with k drafts that starts at a position leads, for every position that holds a span."""
        if self._pointed_spans is not self._span:
            self._pointed_spans = self._span
            self._pointers.clear()
        places, known = self._pointers.get(k, (None, 0))
        if places is None:
            places = np.zeros(len(self._span), dtype=np.int64)
        if known < self._span_end:
            fresh = slice(known, self._span_end)
            places[fresh] = np.minimum(self._span[fresh], k + 1) + np.arange(known, self._span_end)
            self._pointers[k] = (places, self._span_end)
        return places

    def _join(self, row: int) -> None:
        """Add a new request's rounds to what is left of the horizon."""
        at, end, room, k = int(self._at[row]), int(self._end[row]), int(self._room[row]), self._k
        spans = self._span[at : min(end, at + (self._length - self._step) * (k + 1))].tolist()
        context, window, block = at + int(self._offset[row]), self._window, self._block
        positions, blocks = [at], [0]
        place, taken = 0, 0
        gained, new_blocks, offered = self._gained, self._new_blocks, self._offered
        for step in range(self._step, self._length):
            drafts = k if offered is None else min(k, int(offered[at + place]))
            missing = at + place + drafts + 1 - room
            if missing > 0:
                more = -(-missing // block)
                taken += more
                room += more * block
                new_blocks[step] += more
            if window:
                self._windowed[step] += min(context + place, window)
            if offered is not None:
                self._drafted[step] += drafts
                self._draft_rounds[step] += drafts > 0
            gain = spans[place]
            if gain > drafts:
                gain = drafts + 1
            gained[step] += gain
            place += gain
            positions.append(at + place)
            blocks.append(taken)
            if at + place == end:
                self._done.setdefault(step, []).append(row)
                break
        self._joined[row] = (self._step, positions, blocks)

    def _settle(self) -> None:
        """End the horizon: bring the columns to the present step, without the rows that have finished."""
        if not self._length:
            return
        step, n = self._step, self._planned
        if step:
            self._at[:n] = self._places[step]
            taken = self._taken_by[step - 1]
            self._blocks[:n] += taken
            self._room[:n] += taken * self._block
        for row, (since, positions, blocks) in self._joined.items():
            now = min(step - since, len(positions) - 1)
            self._at[row] = positions[now]
            self._blocks[row] += blocks[now]
            self._room[row] += blocks[now] * self._block
        self._length = self._step = 0
        self._joined.clear()
        if self._gone:
            self._keep(self._at[: self._rows] < self._end[: self._rows])
            self._gone = 0

    def _make_room(self, length: int) -> None:
        if self._rows == len(self._at) or self._span_end + length > len(self._span):
            self._settle()
        super()._make_room(length)
