"""Attention of a flat batch over slots: the one function that every transformers architecture is made to call.

Models: causal attention of each part's tokens over its own slot; grouped heads, sliding windows, soft caps, attention
sinks; trees of drafts, each token of which sees its branch, slot by slot on every device, since the paged kernel takes
no masks. Leaves out: latent caches (keys and values of MLA are cached as they are attended to).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from calibrate.models import attention_loop, attention_paged
from calibrate.models.flat_batch import FlatBatch
from calibrate.models.kv_cache import SlotCache
from specsim.errors import ScenarioError

__all__ = ["NAME", "AttentionPlan", "backend_name"]

NAME = "specsim_slots"
"""Under which transformers knows `_attend`."""


class AttentionPlan:
    """Where a batch's keys go and which calls are made, worked out once a pass and used by every layer."""

    def __init__(self, batch: FlatBatch, cache: SlotCache, device: torch.device) -> None:
        self.cache = cache
        places = [
            part.slot * cache.stride + part.context_tokens + n for part in batch.parts for n in range(part.num_tokens)
        ]
        self.places = torch.tensor(places, device=device)
        """int64 [tokens]: row of each token in the cache, slots one after another."""
        self.loop = attention_loop.Loop(batch.parts)
        self.has_trees = any(part.branches is not None for part in batch.parts)
        self.pages = attention_paged.Pages(batch.parts, cache, device)


def backend_name(device: torch.device, dtype: torch.dtype) -> str:
    """What attention runs on, for profiles."""
    kernel = (
        "varlen_attn over pages" if attention_paged.works(device, dtype) else "scaled_dot_product_attention by slot"
    )
    return f"torch {torch.__version__} {kernel} on {device.type}"


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
    new_keys, new_values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    keys, values = flat_plan.cache.layer(module.layer_idx, new_keys, new_values)  # type: ignore[arg-type]
    keys.flatten(0, 1).index_copy_(0, flat_plan.places, new_keys)
    values.flatten(0, 1).index_copy_(0, flat_plan.places, new_values)
    flat, window = query[0].transpose(0, 1), sliding_window or 0
    explicit = softcap is not None or s_aux is not None
    plain = not explicit and not flat_plan.has_trees
    if plain and keys.shape == values.shape and attention_paged.works(flat.device, flat.dtype):
        return attention_paged.attend(flat_plan.pages, flat, keys, values, scaling, window)[None], None
    special = attention_loop.Special(softcap, s_aux) if explicit else None
    return flat_plan.loop.attend(flat, keys, values, scaling, window, special)[None], None


AttentionInterface.register(NAME, _attend)  # type: ignore[arg-type]
