"""Decoding requests under a constant k as a ring of sums: a step costs the same few operations whatever the batch.

Because luck is fixed before the run, everything that a request will do under a constant k is known when it joins: its
rounds are added to a ring indexed by step, and reading a step is reading one row. Only valid while every request is
served in every step, so never where the token budget can run out among decoding requests.
"""

from __future__ import annotations

import numpy as np

from specsim.engine.decode_batch import Advance, DecodeSetup, Peek
from specsim.engine.rounds import BLOCKS, COLUMNS, GAIN, WINDOWED, RoundTable
from specsim.errors import InvariantError

__all__ = ["RingBatch"]

_TIDY = 128
"""Steps after which rows are cleared; a power of two, so that it divides the ring."""


class RingBatch:
    """See `specsim.engine.decode_batch.DecodeBatch`."""

    def __init__(self, setup: DecodeSetup, table: RoundTable) -> None:
        self._setup = setup
        self._table = table
        self._prompt = setup.workload.prompt_tokens
        self._output = setup.workload.output_tokens
        self._window = setup.window_tokens
        size = 1 << (max(self._output, default=1) + 2 * _TIDY).bit_length()
        self._mask = size - 1
        self._ring = np.zeros((size, COLUMNS), dtype=np.int32)
        self._finish: dict[int, list[int]] = {}
        self._step = 0
        self._kv_tokens = 0
        self._windowed = 0
        self._rounds: dict[int, tuple[int, int, np.ndarray, int, int]] = {}
        """Request -> step of its first round, tokens out by then, its rounds, blocks that they take in all, turn."""
        self._turn = 0
        self._peek = Peek()
        self._advance = Advance()
        self._row: list[int] | None = None
        self.count = 0

    def add(self, request: int, emitted: int, next_k: int, is_stale: bool = False) -> None:
        rounds, blocks = self._table.rounds(request, emitted)
        self._turn += 1
        self._rounds[request] = (self._step, emitted, rounds, blocks, self._turn)
        first = self._step & self._mask
        stop = first + len(rounds)
        if stop <= len(self._ring):
            self._ring[first:stop] += rounds
        else:
            self._spread(rounds, self._step, 1)
        last = self._step + len(rounds) - 1
        others = self._finish.get(last)
        if others is None:
            self._finish[last] = [request]
        else:
            others.append(request)
        context = self._prompt[request] + emitted - 1
        self._kv_tokens += context
        if self._window:
            self._windowed += min(context, self._window)
        self.count += 1
        self._row = None

    def peek(self, budget_tokens: int) -> Peek:
        row = self._row
        if row is None:
            row = self._row = self._ring[self._step & self._mask].tolist()
        peek = self._peek
        peek.served = self.count
        _, peek.draft_tokens, peek.draft_rounds, peek.new_blocks, _ = row
        peek.kv_tokens, peek.windowed_kv_tokens = self._kv_tokens, self._windowed
        return peek

    def advance(self, next_k: int, waiting: set[int]) -> Advance:
        result = self._advance
        result.gained, result.finished, result.resumed = 0, (), ()
        if not self.count:
            return result
        row = self._row
        if row is None:
            raise InvariantError("a step was carried out that was not looked at first")
        result.gained = row[GAIN]
        self._kv_tokens += row[GAIN]
        self._windowed += row[WINDOWED]
        if waiting:
            result.resumed = [i for i in self._rounds if i in waiting]
        finished = self._finish.pop(self._step, None)
        if finished is not None:
            if len(finished) > 1:
                finished.sort(key=self._turn_of)
            done = []
            for request in finished:
                done.append((request, self._rounds.pop(request)[3]))
                context = self._prompt[request] + self._output[request] - 1
                self._kv_tokens -= context
                if self._window:
                    self._windowed -= min(context, self._window)
            self.count -= len(finished)
            result.finished = done
        self._step += 1
        if not self._step & _TIDY - 1:
            self._clear(self._step - _TIDY)
        self._row = None
        return result

    def pop(self, request: int) -> tuple[int, int]:
        began, emitted, rounds, _, _ = self._rounds.pop(request)
        done = self._step - began
        self._spread(rounds[done:], self._step, -1)
        finish = began + len(rounds) - 1
        self._finish[finish].remove(request)
        if not self._finish[finish]:
            del self._finish[finish]
        past = rounds[:done].sum(axis=0).tolist()
        emitted += past[GAIN]
        context = self._prompt[request] + emitted - 1
        self._kv_tokens -= context
        if self._window:
            self._windowed -= min(context, self._window)
        self.count -= 1
        self._row = None
        return emitted, past[BLOCKS]

    def progress(self) -> list[tuple[int, int]]:
        return [
            (request, emitted + int(rounds[: self._step - began, GAIN].sum()))
            for request, (began, emitted, rounds, _, _) in self._rounds.items()
        ]

    def _clear(self, first: int) -> None:
        """Make the rows of steps that are over ready for their next turn, many at a time."""
        place = first & self._mask
        self._ring[place : place + _TIDY] = 0

    def _turn_of(self, request: int) -> int:
        return self._rounds[request][4]

    def _spread(self, rounds: np.ndarray, step: int, sign: int) -> None:
        first = step & self._mask
        stop = first + len(rounds)
        ring, size = self._ring, self._mask + 1
        if stop <= size:
            ring[first:stop] += rounds if sign > 0 else -rounds
            return
        ring[first:] += sign * rounds[: size - first]
        ring[: stop - size] += sign * rounds[size - first :]
