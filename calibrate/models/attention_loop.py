"""Attention slot by slot: one call for each part, on a view of its slot, so that nothing is padded or gathered.

A pass then costs what its contexts add up to. Neighbouring slots with equal contexts and widths are one call. Works on
every device and in every dtype; the calls a layer grow with the number of parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F

from calibrate.models.flat_batch import Branches, Part

__all__ = ["Loop", "Special"]

_FOLD_TOKENS = 16
"""Widest part whose grouped heads are folded into its queries; beyond, the causal kernel pays."""


@dataclass(frozen=True, slots=True)
class Special:
    """What the kernel does not have."""

    softcap: float | None
    """Scores are squeezed to this range (Gemma 2)."""
    sinks: torch.Tensor | None
    """[heads]: a logit that takes part in the softmax and gives nothing (GPT-OSS)."""


@dataclass(frozen=True, slots=True)
class _Call:
    """`count` parts, from number `index` of their run, in neighbouring slots with equal contexts."""

    index: int
    slot: int
    count: int
    context: int
    branches: Branches | None = None
    """A tree, which is a call of its own."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive parts of one width."""

    row: int
    width: int
    count: int
    calls: tuple[_Call, ...]


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
        pieces = [self._run(run, flat, keys, values, scaling, window, special) for run in self.runs]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _run(
        self,
        run: _Run,
        flat: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float | None,
        window: int,
        special: Special | None,
    ) -> torch.Tensor:
        width, groups = run.width, flat.shape[1] // keys.shape[2]
        q = flat[run.row : run.row + run.count * width].unflatten(0, (run.count, width))
        folded = width <= _FOLD_TOKENS or special is not None
        # the heads of a group share keys: as further queries of one head they read them once
        q = q.unflatten(2, (-1, groups)).permute(0, 2, 3, 1, 4).flatten(2, 3) if folded else q.transpose(1, 2)
        found = []
        for call in run.calls:
            first, end = _first_key(call.context, window), call.context + width
            k, v = _view(keys, call, first, end), _view(values, call, first, end)
            causal = not folded and not call.context and (not window or window >= width) and call.branches is None
            mask = None
            if (width > 1 or call.branches is not None) and not causal:
                mask = self._mask(width, call, window, groups if folded else 1, q)
            own = q[call.index : call.index + call.count]
            if special is not None:
                found.append(_written_out(own, k, v, mask, scaling, special, width))
            else:
                shares = groups > 1 and not folded
                found.append(
                    F.scaled_dot_product_attention(
                        own, k, v, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=shares
                    )
                )
        mixed = found[0] if len(found) == 1 else torch.cat(found)
        if folded:
            return mixed.unflatten(2, (groups, width)).permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)
        return mixed.transpose(1, 2).flatten(0, 1)

    def _mask(self, width: int, call: _Call, window: int, fold: int, like: torch.Tensor) -> torch.Tensor:
        """Additive [fold * width, keys]: query n sees keys up to context + n, at most `window` of them (0: all); in a
        tree those of its branch.

        The keys begin where the window of the first query does.
        """
        key = (width, call.context, window, fold, id(call.branches))
        found = self._masks.get(key)
        if found is None:
            first, end = _first_key(call.context, window), call.context + width
            query = keys = np.arange(end)
            if call.branches is not None:
                query = keys = np.concatenate([keys[: call.context], call.branches.positions])
            query = query[call.context :, None]
            if call.branches is None:
                hidden = keys[None] > query
            else:
                hidden = np.zeros((width, end), dtype=bool)
                hidden[:, end - call.branches.seen.shape[1] :] = ~call.branches.seen
            if window:
                hidden |= keys[None] <= query - window
            at = torch.from_numpy(hidden[:, first:]).to(like.device)
            found = torch.zeros(at.shape, dtype=like.dtype, device=like.device)
            found = self._masks[key] = found.masked_fill_(at, float("-inf")).repeat(fold, 1)
        return found


def _runs(parts: Sequence[Part]) -> list[_Run]:
    runs: list[_Run] = []
    row = 0
    for width, same_width in groupby(parts, key=lambda part: part.num_tokens):
        members = list(same_width)
        calls: list[_Call] = []
        for _, alike in groupby(enumerate(members), key=_likeness):
            stretch = list(alike)
            index, part = stretch[0]
            calls.append(_Call(index, part.slot, len(stretch), part.context_tokens, part.branches))
        runs.append(_Run(row, width, len(members), tuple(calls)))
        row += width * len(members)
    return runs


def _likeness(numbered: tuple[int, Part]) -> tuple[int, int, int]:
    """The same for parts that can be one call: texts in neighbouring slots with equal contexts."""
    number, part = numbered
    return part.context_tokens, part.slot - number, -1 if part.branches is None else number


def _first_key(context: int, window: int) -> int:
    return max(0, context + 1 - window) if window else 0


def _view(cache: torch.Tensor, call: _Call, first: int, end: int) -> torch.Tensor:
    """[count, kv heads, end - first, dim] of some slots; one operation, since it is made for every part and layer."""
    slot, token, head, one = cache.stride()
    size = (call.count, cache.shape[2], end - first, cache.shape[3])
    return cache.as_strided(size, (slot, head, token, one), call.slot * slot + first * token)


def _written_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    special: Special,
    width: int,
) -> torch.Tensor:
    """q: [count, kv heads, groups * width, dim]."""
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    if special.softcap is not None:
        scores = torch.tanh(scores / special.softcap) * special.softcap
    if mask is not None:
        scores = scores + mask
    if special.sinks is None:
        return torch.softmax(scores, -1) @ v
    logit = special.sinks.to(scores.dtype).view(1, k.shape[1], -1, 1).repeat_interleave(width, 2)
    scores = torch.cat([scores, logit.expand(scores.shape[0], -1, -1, -1)], -1)
    return torch.softmax(scores, -1)[..., :-1] @ v
