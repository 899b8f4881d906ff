"""Attention slot by slot: one call for each part, on a view of its slot, so that nothing is padded or gathered.

A pass then costs what its contexts add up to, whatever widths lie side by side in it. Neighbouring slots with equal
contexts and widths are one call. Works on every device and in every dtype; the calls a layer grow with the number of
parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F

from calibrate.models.flat_batch import Branches, Part

__all__ = ["Loop", "Special"]

_FOLD_TOKENS = 16
"""Widest part whose grouped heads are folded into its queries; beyond, the causal kernel pays."""
_LEAST_COLUMNS = 256
"""Keys that a shared mask has room for at least."""


@dataclass(frozen=True, slots=True)
class Special:
    """What the kernel does not have."""

    softcap: float | None
    """Scores are squeezed to this range (Gemma 2)."""
    sinks: torch.Tensor | None
    """[heads]: a logit that takes part in the softmax and gives nothing (GPT-OSS)."""


@dataclass(frozen=True, slots=True)
class _Call:
    """`count` parts of `width` tokens, from row `row` of their run, in neighbouring slots with equal contexts."""

    row: int
    width: int
    slot: int
    count: int
    context: int
    branches: Branches | None = None
    """A tree, which is a call of its own."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive parts that are all narrow enough to be folded, or one call that is not."""

    row: int
    tokens: int
    calls: tuple[_Call, ...]

    @property
    def is_narrow(self) -> bool:
        return self.calls[0].width <= _FOLD_TOKENS


class Loop:
    """The calls of one batch, and the masks that they share."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.runs = _runs(parts)
        self._masks: dict[tuple[int, int, int, int, int], torch.Tensor] = {}

    def attend(
        self,
        flat: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float | None,
        window: int,
        special: Special | None,
    ) -> torch.Tensor:
        """[tokens, heads, dim] of queries of that shape.

        Args:
            keys, values: [slots, tokens of a slot, kv heads, dim], contiguous, with this batch's own written.
            window: most keys that a query sees; 0: all before it.
        """
        pieces = [
            (self._folded if run.is_narrow or special is not None else self._wide)(
                run, flat[run.row : run.row + run.tokens], keys, values, scaling, window, special
            )
            for run in self.runs
        ]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _folded(
        self,
        run: _Run,
        flat: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float | None,
        window: int,
        special: Special | None,
    ) -> torch.Tensor:
        """The heads of a group share keys: as further queries of one head they read them once."""
        heads = keys.shape[2]
        groups = flat.shape[1] // heads
        q = flat.unflatten(1, (heads, groups)).transpose(0, 1).contiguous().flatten(1, 2)
        found = []
        for call in run.calls:
            first, end = _first_key(call.context, window), call.context + call.width
            k, v = _view(keys, call, first, end), _view(values, call, first, end)
            own = _queries(q, call, groups)
            mask = None
            if call.width > 1 or call.branches is not None:
                mask = self._mask(call, window, groups, q)
            if special is not None:
                mixed = _written_out(own, k, v, mask, scaling, special, call.width)
            else:
                mixed = F.scaled_dot_product_attention(own, k, v, attn_mask=mask, scale=scaling)
            found.append(mixed if call.count == 1 else mixed.transpose(0, 1).flatten(1, 2)[None])
        whole = found[0] if len(found) == 1 else torch.cat(found, 2)
        return whole[0].unflatten(1, (-1, groups)).transpose(0, 1).flatten(1, 2)

    def _wide(
        self,
        run: _Run,
        flat: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float | None,
        window: int,
        special: Special | None,
    ) -> torch.Tensor:
        call = run.calls[0]
        first, end = _first_key(call.context, window), call.context + call.width
        k, v = _view(keys, call, first, end), _view(values, call, first, end)
        q = flat.unflatten(0, (call.count, call.width)).transpose(1, 2)
        causal = not call.context and (not window or window >= call.width) and call.branches is None
        mask = None if causal else self._mask(call, window, 1, q)
        shares = flat.shape[1] > keys.shape[2]
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=shares
        )
        return mixed.transpose(1, 2).flatten(0, 1)

    def _mask(self, call: _Call, window: int, fold: int, like: torch.Tensor) -> torch.Tensor:
        """Additive [width * fold, keys], each query `fold` times: it sees keys up to its own, at most `window` of them
        (0: all); in a tree those of its branch.

        The keys begin where the window of the first query does.
        """
        key = (call.width, call.context, window, fold, id(call.branches))
        found = self._masks.get(key)
        if found is None:
            first, end = _first_key(call.context, window), call.context + call.width
            if call.branches is not None:
                hidden = _hidden_in_tree(call, call.branches, window)[:, first:]
                found = _additive(hidden, fold, like.dtype, like.device)
            elif call.width <= _FOLD_TOKENS:
                room = max(_LEAST_COLUMNS, 1 << (end - first - 1).bit_length())
                found = _shared_mask(call.width, window, fold, room, like.dtype, like.device)[:, room - (end - first) :]
            else:
                found = _additive(_hidden(call.width, window, end - first), fold, like.dtype, like.device)
            self._masks[key] = found
        return found


@lru_cache(maxsize=64)
def _shared_mask(
    width: int, window: int, fold: int, columns: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[width * fold, columns], of which every narrow part takes the columns of its own keys: they end with the part,
    so that all contexts look alike from there."""
    return _additive(_hidden(width, window, columns), fold, dtype, device)


def _hidden(width: int, window: int, columns: int) -> np.ndarray:
    """bool [width, columns]: whether a query does not see a key; the last key is the last query's own."""
    behind = np.arange(columns - width, columns)[:, None] - np.arange(columns)[None]
    hidden: np.ndarray = (behind < 0) | (behind >= window) if window else behind < 0
    return hidden


def _hidden_in_tree(call: _Call, branches: Branches, window: int) -> np.ndarray:
    """bool [width, keys from the first of the slot]."""
    end = call.context + call.width
    places = np.concatenate([np.arange(call.context), branches.positions])
    hidden = np.zeros((call.width, end), dtype=bool)
    hidden[:, end - branches.seen.shape[1] :] = ~branches.seen
    if window:
        hidden |= places[None] <= places[call.context :, None] - window
    return hidden


def _additive(hidden: np.ndarray, fold: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    at = torch.from_numpy(np.repeat(hidden, fold, axis=0)).to(device)
    return torch.zeros(at.shape, dtype=dtype, device=device).masked_fill_(at, float("-inf"))


def _runs(parts: Sequence[Part]) -> list[_Run]:
    runs: list[_Run] = []
    calls: list[_Call] = []
    start = row = 0

    def close() -> None:
        nonlocal start, calls
        if calls:
            runs.append(_Run(start, row - start, tuple(calls)))
        start, calls = row, []

    for _, alike in groupby(enumerate(parts), key=_likeness):
        stretch = [part for _, part in alike]
        part = stretch[0]
        wide = part.num_tokens > _FOLD_TOKENS
        if wide:
            close()
        calls.append(_Call(row - start, part.num_tokens, part.slot, len(stretch), part.context_tokens, part.branches))
        row += len(stretch) * part.num_tokens
        if wide:
            close()
    close()
    return runs


def _likeness(numbered: tuple[int, Part]) -> tuple[int, int, int, int]:
    """The same for parts that can be one call: texts of one width in neighbouring slots with equal contexts."""
    number, part = numbered
    return part.num_tokens, part.context_tokens, part.slot - number, -1 if part.branches is None else number


def _first_key(context: int, window: int) -> int:
    return max(0, context + 1 - window) if window else 0


def _view(cache: torch.Tensor, call: _Call, first: int, end: int) -> torch.Tensor:
    """[count, kv heads, end - first, dim] of some slots; one operation, since it is made for every part and layer."""
    slot, token, head, one = cache.stride()
    size = (call.count, cache.shape[2], end - first, cache.shape[3])
    return cache.as_strided(size, (slot, head, token, one), call.slot * slot + first * token)


def _queries(q: torch.Tensor, call: _Call, groups: int) -> torch.Tensor:
    """[count, kv heads, width * groups, dim] of queries [kv heads, tokens * groups, dim]; one operation, too."""
    head, row, one = q.stride()
    own = call.width * groups
    return q.as_strided(
        (call.count, q.shape[0], own, q.shape[2]),
        (own * row, head, row, one),
        q.storage_offset() + call.row * groups * row,
    )


def _written_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    special: Special,
    width: int,
) -> torch.Tensor:
    """q: [count, kv heads, width * groups, dim]."""
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    if special.softcap is not None:
        scores = torch.tanh(scores / special.softcap) * special.softcap
    if mask is not None:
        scores = scores + mask
    if special.sinks is None:
        return torch.softmax(scores, -1) @ v
    logit = (
        special.sinks.to(scores.dtype).view(1, k.shape[1], 1, -1).expand(1, -1, width, -1).reshape(1, k.shape[1], -1, 1)
    )
    scores = torch.cat([scores, logit.expand(scores.shape[0], -1, -1, -1)], -1)
    return torch.softmax(scores, -1)[..., :-1] @ v
