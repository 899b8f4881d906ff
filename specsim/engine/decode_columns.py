"""Decoding requests as numpy columns: a step costs a fixed handful of vector operations, whatever the batch and policy.

Handles everything: k that changes, drafts cut by the token budget or the model's length, lookup drafters.
"""

from __future__ import annotations

import itertools

import numpy as np

from specsim.acceptance.base import MAX_SPEC_TOKENS
from specsim.engine.decode_batch import Advance, DecodeSetup, Peek
from specsim.workload import CHUNK

__all__ = ["ColumnBatch"]

_SUM = np.add.reduce

ROWS = 64
SPANS = 1 << 17
"""Output positions for which room is made at first; it grows and is tidied as needed."""


class ColumnBatch:
    """See `specsim.engine.decode_batch.DecodeBatch`.

    Every row points into one flat array of spans (its request's luck), so a round of the whole batch is one gather.
    A row's `room` is the output position up to which its blocks reach, so that growth is one comparison.
    """

    _PAD = 0
    """Empty spans kept behind those of each request."""

    def __init__(self, setup: DecodeSetup) -> None:
        self._setup = setup
        self._workload = setup.workload
        self._block = setup.block_size_tokens
        self._lookahead = setup.lookahead_tokens
        self._window = setup.window_tokens
        self._max_len = setup.limits.max_model_len
        self._slots = setup.limits.draft_slots
        self._length_cuts = setup.longest_tokens + setup.num_spec_tokens > self._max_len
        self._span = np.zeros(SPANS, dtype=np.int64)
        self._offered: np.ndarray | None = None
        """Most drafts by place, int8, once a request has come whose drafter does not always propose all."""
        self._span_end = 0
        self._rows = 0
        self._ids: list[int] = []
        self._k = 0
        self._use(np.zeros((8, ROWS), dtype=np.int64))
        self._kv_tokens = 0
        # the step last peeked
        self._served = 0
        self._cut_drafts: np.ndarray | None = None
        self._grow: np.ndarray | None = None
        self.spoils = False
        """Whether requests that are served in a step after which nothing is drafted go stale."""
        self.emitted = np.zeros(0, dtype=np.int64)
        """Tokens that each request of the last step emitted."""

    @property
    def count(self) -> int:
        """Requests in the batch."""
        return self._rows

    def _use(self, columns: np.ndarray) -> None:
        """Name the rows of the table in which each request has a column."""
        self._columns = columns
        self._at = columns[0]  # position in the flat spans
        self._end = columns[1]  # one past the request's last span
        self._offset = columns[2]  # cached tokens = at + offset
        self._room = columns[3]  # flat position up to which blocks reach
        self._blocks = columns[4]  # blocks taken since it joined
        self._drafts = columns[5]  # drafts waiting to be verified
        self._request = columns[6]
        self._stale = columns[7]  # 1: its drafts never match

    def add(self, request: int, emitted: int, next_k: int, is_stale: bool = False) -> None:
        prompt, output = self._workload.prompt_tokens[request], self._workload.output_tokens[request]
        chunk = self._workload.luck(request // CHUNK)
        first = int(chunk.offsets[request % CHUNK])
        length = output - emitted
        self._make_room(length + self._PAD)
        start, n = self._span_end, self._rows
        self._span[start : start + length] = 1 if is_stale else chunk.span[first + emitted : first + output]
        self._stale[n] = is_stale
        if chunk.drafts is not None:
            if self._offered is None:
                self._offered = np.full(len(self._span), MAX_SPEC_TOKENS, dtype=np.int8)
            self._offered[start : start + length] = chunk.drafts[first + emitted : first + output]
        elif self._offered is not None:
            self._offered[start : start + length] = MAX_SPEC_TOKENS
        self._span_end = start + length + self._PAD
        self._ids.append(request)
        self._request[n] = request
        self._at[n] = start
        self._end[n] = start + length
        context = prompt + emitted - 1
        self._offset[n] = context - start
        held = -(-(context + self._lookahead) // self._block) * self._block
        self._room[n] = start + held - context - self._lookahead
        self._blocks[n] = 0
        self._drafts[n] = next_k
        self._trim_drafts(slice(n, n + 1))
        self._kv_tokens += context
        self._rows = n + 1

    def peek(self, budget_tokens: int) -> Peek:
        n = self._rows
        self._cut_drafts = None
        if n == 0:
            self._served, self._grow = 0, None
            return Peek()
        drafts = self._drafts[:n]
        if self._length_cuts:
            left = self._max_len - 2 - self._at[:n] - self._offset[:n]
            drafts = self._cut_drafts = np.minimum(drafts, left)
        draft_tokens = int(_SUM(drafts))
        served, kv_tokens = n, self._kv_tokens
        slots = self._slots
        if n * (1 + slots) + draft_tokens > budget_tokens:
            ends = np.cumsum(drafts + 1 + slots)
            tokens = np.clip(budget_tokens - (ends - drafts - 1), 0, drafts + 1)
            served = int(np.count_nonzero(tokens))
            drafts = self._cut_drafts = tokens[:served] - 1
            draft_tokens = int(_SUM(drafts))
            kv_tokens = int(_SUM(self._at[:served] + self._offset[:served]))
        self._served = served
        at = self._at[:served]
        missing = at + drafts
        missing += 1
        missing -= self._room[:served]
        new_blocks = 0
        self._grow = None
        if served and int(missing.max()) > 0:
            self._grow = np.maximum(-(-missing // self._block), 0)
            new_blocks = int(_SUM(self._grow))
        windowed = 0
        if self._window:
            windowed = int(_SUM(np.minimum(at + self._offset[:served], self._window)))
        draft_rounds = int(np.count_nonzero(drafts))
        return Peek(served, draft_tokens, draft_rounds, new_blocks, kv_tokens, windowed)

    def scheduled(self) -> tuple[np.ndarray, np.ndarray]:
        """(requests, drafts of each) of the step last peeked, int64 copies."""
        drafts = self._drafts[: self._served] if self._cut_drafts is None else self._cut_drafts
        return self._request[: self._served].copy(), np.array(drafts, dtype=np.int64)

    def verify(self, drafts: np.ndarray) -> None:
        """Verify only so many of the drafts scheduled; blocks for all of them stay taken."""
        self._cut_drafts = drafts

    def advance(self, next_k: int, waiting: set[int]) -> Advance:
        result = Advance()
        n, served = self._rows, self._served
        if served == 0:
            result.waited = self._ids[:n]
            return result
        if self._grow is not None:
            self._blocks[:served] += self._grow
            self._room[:served] += self._grow * self._block
        at = self._at[:served]
        drafts = self._drafts[:served] if self._cut_drafts is None else self._cut_drafts
        gain = self.emitted = np.minimum(self._span[at], drafts + 1)
        at += gain
        result.gained = int(_SUM(gain))
        self._kv_tokens += result.gained
        self._drafts[:served] = next_k
        if served < n:
            result.waited = self._ids[served:n]
        if waiting:
            result.resumed = [i for i in self._ids[:served] if i in waiting]
        done = at == self._end[:served]
        if np.count_nonzero(done):
            self._drop(np.flatnonzero(done), result)
            served -= len(result.finished)
        self._trim_drafts(slice(0, served))
        if self.spoils and next_k == 0:
            self._spoil(served)
        return result

    def _spoil(self, rows: int) -> None:
        """From here on no draft of the first `rows` requests matches: the drafter has missed some of their tokens."""
        for row in np.flatnonzero(self._stale[:rows] == 0).tolist():
            self._span[self._at[row] : self._end[row]] = 1
            self._stale[row] = 1

    def pop(self, request: int) -> tuple[int, int]:
        n = self._rows - 1
        row = n if self._ids[n] == request else self._ids.index(request)
        emitted = self._workload.output_tokens[request] - int(self._end[row] - self._at[row])
        blocks = int(self._blocks[row])
        self._kv_tokens -= int(self._at[row] + self._offset[row])
        if row == n:
            self._ids.pop()
            self._rows = n
        else:
            keep = np.ones(n + 1, dtype=bool)
            keep[row] = False
            self._keep(keep)
        return emitted, blocks

    def progress(self) -> list[tuple[int, int]]:
        left = (self._end[: self._rows] - self._at[: self._rows]).tolist()
        outputs = self._workload.output_tokens
        return [(request, outputs[request] - more) for request, more in zip(self._ids, left, strict=True)]

    def _trim_drafts(self, rows: slice) -> None:
        """Cut fresh drafts to what the drafter has to propose."""
        if self._offered is not None:
            drafts = self._drafts[rows]
            np.minimum(drafts, self._offered[self._at[rows]], out=drafts)

    def _drop(self, done: np.ndarray, result: Advance) -> None:
        result.finished = [(self._ids[row], int(self._blocks[row])) for row in done.tolist()]
        for row in done.tolist():
            self._kv_tokens -= int(self._at[row] + self._offset[row])
        keep = np.ones(self._rows, dtype=bool)
        keep[done] = False
        self._keep(keep)

    def _keep(self, keep: np.ndarray) -> None:
        """Drop the rows that are not to be kept, leaving the others in order."""
        left = int(np.count_nonzero(keep))
        self._columns[:, :left] = self._columns[:, : self._rows].compress(keep, axis=1)
        self._ids = list(itertools.compress(self._ids, keep.tolist()))
        self._rows = left

    def _make_room(self, length: int) -> None:
        if self._rows == len(self._at):
            self._use(np.concatenate((self._columns, np.zeros_like(self._columns)), axis=1))
        if self._span_end + length <= len(self._span):
            return
        n = self._rows
        left = self._end[:n] - self._at[:n]
        total = int(left.sum()) + n * self._PAD
        size = len(self._span)
        while total + length > size // 2:
            size *= 2
        old, old_offered = self._span, self._offered
        self._span = np.zeros(size, dtype=old.dtype)
        self._offered = None if old_offered is None else np.full(size, MAX_SPEC_TOKENS, dtype=np.int8)
        start = 0
        for row in range(n):
            at, end = int(self._at[row]), int(self._end[row])
            self._span[start : start + end - at] = old[at:end]
            if self._offered is not None and old_offered is not None:
                self._offered[start : start + end - at] = old_offered[at:end]
            shift = start - at
            self._at[row] += shift
            self._end[row] += shift
            self._room[row] += shift
            self._offset[row] -= shift
            start += end - at + self._PAD
        self._span_end = start
