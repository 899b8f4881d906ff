"""Attention slot by slot against attention written out query by query, for any mixture of parts."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.models.attention_loop import Loop
from calibrate.models.flat_batch import Part

_SLOTS, _ROOM, _DIM = 6, 64, 8


@st.composite
def _batches(draw: st.DrawFn) -> list[Part]:
    slots = draw(st.lists(st.integers(0, _SLOTS - 1), min_size=1, max_size=_SLOTS, unique=True))
    widths = st.one_of(st.integers(1, 4), st.integers(1, 24))
    return [Part(slot, draw(st.integers(0, 20)), draw(widths)) for slot in slots]


def _written_out(
    parts: list[Part], flat: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int
) -> torch.Tensor:
    groups, rows = flat.shape[1] // keys.shape[2], []
    for part in parts:
        for n in range(part.num_tokens):
            place = part.context_tokens + n
            first = max(0, place + 1 - window) if window else 0
            query = flat[len(rows)]
            for_heads = [
                torch.softmax(keys[part.slot, first : place + 1, head // groups] @ query[head] / _DIM**0.5, 0)
                @ values[part.slot, first : place + 1, head // groups]
                for head in range(flat.shape[1])
            ]
            rows.append(torch.stack(for_heads))
    return torch.stack(rows)


@given(_batches(), st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2)]), st.sampled_from([0, 1, 5, 17]))
@settings(max_examples=25, deadline=None)
def test_any_mixture_of_parts_attends_as_each_query_alone(
    parts: list[Part], heads: tuple[int, int], window: int
) -> None:
    kv_heads, groups = heads
    source = torch.Generator().manual_seed(len(parts))
    tokens = sum(part.num_tokens for part in parts)
    flat = torch.randn((tokens, kv_heads * groups, _DIM), generator=source, dtype=torch.float64)
    keys, values = (
        torch.randn((_SLOTS, _ROOM, kv_heads, _DIM), generator=source, dtype=torch.float64) for _ in range(2)
    )
    with torch.inference_mode():
        found = Loop(parts).attend(flat, keys, values, None, window, None)
    torch.testing.assert_close(found, _written_out(parts, flat, keys, values, window))
