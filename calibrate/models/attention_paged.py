"""Attention of a whole batch in one call, on GPUs: torch's varlen_attn (FlashAttention), which reads slots as pages.

It is used where it exists and agrees with the slot-by-slot way on a small random batch; the check runs once a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property

import torch

from calibrate.models.attention_loop import Loop
from calibrate.models.flat_batch import Part
from calibrate.models.kv_cache import PAGE_TOKENS, SlotCache

__all__ = ["Pages", "attend", "works"]


class Pages:
    """The batch as the kernel wants it, worked out once a pass when it is first asked for."""

    def __init__(self, parts: Sequence[Part], slots: SlotCache, device: torch.device) -> None:
        self._parts = parts
        self._pages = slots.stride // PAGE_TOKENS
        self._device = device
        self.max_q = max(part.num_tokens for part in parts)
        self.max_k = max(part.context_tokens + part.num_tokens for part in parts)

    @cached_property
    def cu_seq_q(self) -> torch.Tensor:
        """int32 [parts + 1]: first row of each part."""
        widths = [0, *(part.num_tokens for part in self._parts)]
        return torch.tensor(widths, dtype=torch.int32, device=self._device).cumsum(0, dtype=torch.int32)

    @cached_property
    def seqused_k(self) -> torch.Tensor:
        """int32 [parts]: tokens in each slot, this batch's included."""
        held = [part.context_tokens + part.num_tokens for part in self._parts]
        return torch.tensor(held, dtype=torch.int32, device=self._device)

    @cached_property
    def block_table(self) -> torch.Tensor:
        """int32 [parts, pages of a slot]: every slot's pages lie one after another."""
        slot = torch.tensor([part.slot for part in self._parts], dtype=torch.int32, device=self._device)
        return slot[:, None] * self._pages + torch.arange(self._pages, dtype=torch.int32, device=self._device)


def attend(
    pages: Pages, flat: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None, window: int
) -> torch.Tensor:
    """As `attention_loop.Loop.attend`, for keys and values of one shape."""
    from torch.nn.attention.varlen import varlen_attn

    found = varlen_attn(
        flat.contiguous(),
        keys.view(-1, PAGE_TOKENS, *keys.shape[2:]),
        values.view(-1, PAGE_TOKENS, *values.shape[2:]),
        pages.cu_seq_q,
        None,
        pages.max_q,
        pages.max_k,
        scale=scaling,
        window_size=(window - 1 if window else -1, 0),
        enable_gqa=flat.shape[1] != keys.shape[2],
        seqused_k=pages.seqused_k,
        block_table=pages.block_table,
    )
    assert isinstance(found, torch.Tensor)
    return found


@cache
def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel is there and right: decoding, verifying and a chunk in one batch, with and without window."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    parts = [Part(2, 300, 1), Part(0, 40, 5), Part(1, 0, 33)]
    slots = SlotCache(3, 512)
    source = torch.Generator(device).manual_seed(0)
    shape = (sum(part.num_tokens for part in parts), 8, 64)
    flat = torch.randn(shape, generator=source, device=device, dtype=torch.float32).to(dtype)
    stored = (3, slots.stride, 2, 64)
    keys, values = (torch.randn(stored, generator=source, device=device).to(dtype) for _ in range(2))
    try:
        for window in (0, 20):
            found = attend(Pages(parts, slots, device), flat, keys, values, None, window)
            expected = Loop(parts).attend(flat, keys, values, None, window, None)
            if not torch.allclose(found.float(), expected.float(), rtol=0.05, atol=0.02):
                return False
    except (ImportError, RuntimeError, TypeError, ValueError):
        return False
    return True
