"""Attention of a flat batch over slots: the one function that every transformers architecture is made to call.

Models: causal attention of each part's tokens over its own slot; grouped heads, sliding windows, soft caps, attention
sinks. Parts of equal width and context in neighbouring slots are one call; every other part is a call of its own, on a
view of its slot, so that a pass costs what its contexts add up to, without padding or gathering.
Leaves out: latent caches (keys and values of MLA are cached as they are attended to), trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from calibrate.models.flat_batch import FlatBatch, Part
from calibrate.models.kv_cache import SlotCache
from specsim.errors import ScenarioError

__all__ = ["NAME", "AttentionPlan", "backend_name"]

NAME = "specsim_slots"
"""Under which transformers knows `_attend`."""
_FOLD_TOKENS = 16
"""Widest part whose grouped heads are folded into its queries; beyond, the causal kernel pays."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One attention call: `count` parts in neighbouring slots, alike in width and context."""

    row: int
    slot: int
    count: int
    width: int
    context: int


class AttentionPlan:
    """Where a batch's keys go and which calls are made, worked out once a pass and used by every layer."""

    def __init__(self, batch: FlatBatch, cache: SlotCache, device: torch.device) -> None:
        self.cache = cache
        self.calls = _calls(batch.parts)
        places = [
            part.slot * cache.max_tokens + part.context_tokens + n
            for part in batch.parts
            for n in range(part.num_tokens)
        ]
        self.places = torch.tensor(places, device=device)
        """int64 [tokens]: row of each token in the cache, slots one after another."""
        self._masks: dict[tuple[int, int, int, int], torch.Tensor] = {}

    def mask(self, width: int, context: int, window: int, fold: int, like: torch.Tensor) -> torch.Tensor:
        """Additive [fold * width, keys]: query n sees keys up to context + n, at most `window` of them (0: all).

        The keys begin where the window of the first query does.
        """
        key = (width, context, window, fold)
        found = self._masks.get(key)
        if found is None:
            first = _first_key(context, window)
            query = torch.arange(context, context + width, device=like.device)[:, None]
            keys = torch.arange(first, context + width, device=like.device)[None, :]
            hidden = keys > query
            if window:
                hidden |= keys <= query - window
            found = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
            found = self._masks[key] = found.masked_fill_(hidden, float("-inf")).repeat(fold, 1)
        return found


def _calls(parts: Sequence[Part]) -> list[_Call]:
    calls: list[_Call] = []
    row = 0

    def alike(indexed: tuple[int, Part]) -> tuple[int, int, int]:
        index, part = indexed
        return part.num_tokens, part.context_tokens, part.slot - index

    for (width, context, _), group in groupby(enumerate(parts), key=alike):
        members = [part for _, part in group]
        calls.append(_Call(row, members[0].slot, len(members), width, context))
        row += width * len(members)
    return calls


def _first_key(context: int, window: int) -> int:
    return max(0, context + 1 - window) if window else 0


def backend_name(device: torch.device) -> str:
    """What attention runs on, for profiles."""
    return f"torch {torch.__version__} scaled_dot_product_attention on {device.type}, slot-contiguous cache"


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    flat_plan: AttentionPlan | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """[1, heads, tokens, dim] queries of a flat batch -> [1, tokens, heads, dim]; writes keys and values first."""
    if flat_plan is None:
        raise ScenarioError(
            f"{type(module).__name__} does not hand keyword arguments on to its attention, so its model cannot be "
            f"served here; use another architecture"
        )
    keys, values = flat_plan.cache.layer(module.layer_idx, key[0].transpose(0, 1), value[0].transpose(0, 1))  # type: ignore[arg-type]
    keys.flatten(0, 1).index_copy_(0, flat_plan.places, key[0].transpose(0, 1))
    values.flatten(0, 1).index_copy_(0, flat_plan.places, value[0].transpose(0, 1))
    flat = query[0].transpose(0, 1)
    heads, window = flat.shape[1], sliding_window or 0
    groups = heads // keys.shape[2]
    out = flat.new_empty((flat.shape[0], heads, values.shape[3]))
    explicit = softcap is not None or s_aux is not None
    for call in flat_plan.calls:
        rows = slice(call.row, call.row + call.count * call.width)
        first, end = _first_key(call.context, window), call.context + call.width
        k = keys[call.slot : call.slot + call.count, first:end].transpose(1, 2)
        v = values[call.slot : call.slot + call.count, first:end].transpose(1, 2)
        q = flat[rows].unflatten(0, (call.count, call.width))  # [count, width, heads, dim]
        sees_all = call.width == 1
        if call.width > _FOLD_TOKENS and not explicit:
            causal = call.context == 0 and (not window or window >= call.width)
            mask = None if causal else flat_plan.mask(call.width, call.context, window, 1, q)
            mixed = F.scaled_dot_product_attention(
                q.transpose(1, 2), k, v, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=groups > 1
            )
            out[rows] = mixed.transpose(1, 2).flatten(0, 1)
            continue
        # the heads of a group share keys: as further queries of one head they read them once
        q = q.unflatten(2, (-1, groups)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        mask = None if sees_all else flat_plan.mask(call.width, call.context, window, groups, q)
        if explicit:
            mixed = _explicit(q, k, v, mask, scaling, softcap, s_aux, call.width)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
        mixed = mixed.unflatten(2, (groups, call.width)).permute(0, 3, 1, 2, 4)
        out[rows] = mixed.reshape(call.count * call.width, heads, -1)
    return out[None], None


def _explicit(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    width: int,
) -> torch.Tensor:
    """Attention written out, for what the kernel does not have: soft caps (Gemma 2) and sinks (GPT-OSS).

    q: [count, kv heads, groups * width, dim]; sinks: [heads], a logit that takes part in the softmax and gives nothing.
    """
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        logit = sinks.to(scores.dtype).view(1, k.shape[1], -1, 1).repeat_interleave(width, 2)
        scores = torch.cat([scores, logit.expand(scores.shape[0], -1, -1, -1)], -1)
        return torch.softmax(scores, -1)[..., :-1] @ v
    return torch.softmax(scores, -1) @ v


AttentionInterface.register(NAME, _attend)  # type: ignore[arg-type]
