"""Prefix hashes while a trace is read: one growing column of integers, 4 bytes an id where they fit.

Ids that are no 64-bit integers (strings, 128-bit numbers) become 62 bits of a digest of their text. Ids are kept in
blocks of about a million that begin with a row, so that they can be widened, or sorted, without a second full copy.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from specsim.traces.values import RowProblem, show

__all__ = ["HashColumn"]

_CODED_FROM = 1 << 62
_BLOCK_IDS = 1 << 20
_ROWS_AT_ONCE = 1 << 16


def _code(value: Any) -> int:
    """A hash id as an int64: itself when it is a small integer, else 62 bits of a digest of its text."""
    if type(value) is int:
        if -_CODED_FROM < value < _CODED_FROM:
            return value
        value = str(value)
    if type(value) is not str:
        raise RowProblem("hash_ids not a list of ids", show(value))
    digest = hashlib.blake2b(value.encode("utf-8", "replace"), digest_size=8).digest()
    return _CODED_FROM | (int.from_bytes(digest, "big") >> 2)


class HashColumn:
    """All rows' prefix hashes one after another."""

    def __init__(self) -> None:
        self.coded = False
        """Some ids were replaced by digests."""
        self._blocks: list[array[int]] = [array("i")]
        self._firsts = [0]
        self._filled = 0
        self._wide = False

    def __len__(self) -> int:
        return self._filled + len(self._blocks[-1])

    def add(self, ids: Sequence[Any], scope: int | None = None) -> None:
        """Append the ids of one row.

        Args:
            scope: number of a session whose ids are its own, or None.

        Raises:
            RowProblem: not a list of integers or strings; nothing is appended then.
        """
        if type(ids) is not list:
            raise RowProblem("hash_ids not a list of ids", show(ids))
        if scope is not None:
            ids = [((scope + 1) << 32) + value if type(value) is int else _code(value) for value in ids]
        block = self._blocks[-1]
        if len(block) >= _BLOCK_IDS:
            block = self._new_block()
        if not self.coded:
            try:
                block.fromlist(ids)
                return
            except OverflowError:
                if not self._wide:
                    self._wide = True
                    block = self._new_block()
                    self.add(ids)
                    return
            except TypeError:
                pass
            coded = [_code(value) for value in ids]
            self._recode()
            self._blocks[-1].extend(coded)
            return
        block.extend([_code(value) for value in ids])

    def _new_block(self) -> array[int]:
        self._filled += len(self._blocks[-1])
        self._blocks.append(array("q" if self._wide else "i"))
        self._firsts.append(self._filled)
        return self._blocks[-1]

    def _recode(self) -> None:
        """From now on every id goes through `_code`, so that equal ids stay equal."""
        self.coded = self._wide = True
        for number, block in enumerate(self._blocks):
            self._blocks[number] = array("q", map(_code, block))

    def take(self, ends: np.ndarray, order: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """(ids int64 [sum], offsets int64 [rows + 1]) of the rows in `order`, or of all rows; empties the column.

        Args:
            ends: [n] where each row ends, in file order.
        """
        if order is None:
            out = np.empty(len(self), dtype=np.int64)
            at = 0
            while self._blocks:
                block = self._blocks.pop(0)
                out[at : at + len(block)] = np.frombuffer(block, dtype=f"i{block.itemsize}") if len(block) else 0
                at += len(block)
            return out, np.concatenate(([0], ends))
        starts = np.concatenate(([0], ends[:-1]))
        offsets = np.concatenate(([0], np.cumsum((ends - starts)[order])))
        out = np.empty(int(offsets[-1]), dtype=np.int64)
        views = [np.frombuffer(block, dtype=f"i{block.itemsize}") if len(block) else out[:0] for block in self._blocks]
        firsts = np.array(self._firsts)
        for chunk in range(0, len(order), _ROWS_AT_ONCE):
            rows = order[chunk : chunk + _ROWS_AT_ONCE]
            where = np.searchsorted(firsts, starts[rows], side="right") - 1
            begin, end = starts[rows] - firsts[where], ends[rows] - firsts[where]
            for at, number, a, b in zip(
                offsets[chunk : chunk + len(rows)].tolist(), where.tolist(), begin.tolist(), end.tolist(), strict=True
            ):
                out[at : at + b - a] = views[number][a:b]
        return out, offsets
