"""Heads at their true shape: as many weights as the shape counts, and passes that attend to what is cached."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from calibrate.models import FlatBatch, Part, SlotCache
from calibrate.models.head_shape import random_head
from specsim.drafters.eagle import eagle_head
from specsim.drafters.mtp import mtp_head
from specsim.errors import ScenarioError
from specsim.shapes import ModelShape

TARGET = ModelShape(
    name="tiny", num_layers=4, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=64,
    vocab_size=120, max_position_tokens=512,
)  # fmt: skip


LATENT = replace(
    TARGET, num_kv_heads=4, head_dim=20, moe_layers=3, num_experts=4, experts_per_token=2, moe_intermediate_size=24,
    shared_expert_intermediate_size=24, q_lora_rank=12, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
    v_head_dim=12,
)  # fmt: skip
SHAPES = {
    "eagle": eagle_head(TARGET, "eagle"),
    "eagle3": replace(eagle_head(TARGET, "eagle3"), draft_vocab_size=40),
    "mtp": mtp_head(replace(TARGET, num_mtp_layers=1)),
    "mtp, latent attention and experts": mtp_head(replace(LATENT, num_mtp_layers=1)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_head_has_the_weights_that_its_shape_counts(name: str) -> None:
    shape = SHAPES[name]
    head = random_head(shape)
    weights = {name: p.numel() for name, p in head._body.named_parameters() if p.ndim > 1 and "embed" not in name}
    counted = shape.attention_parameters + shape.dense_mlp_parameters + shape.routed_expert_parameters
    assert sum(weights.values()) == counted + shape.fusion_parameters
    assert head.vocab_size == (40 if name == "eagle3" else 120)
    assert head._head.weight.numel() == shape.head_parameters


@pytest.mark.parametrize("name", SHAPES)
def test_a_pass_over_a_cache_is_the_pass_over_everything(name: str) -> None:
    head = random_head(SHAPES[name], dtype=torch.float64, seed=2)
    ids = torch.randint(120, (12,), generator=torch.Generator().manual_seed(0)).tolist()
    head._body._states = torch.randn(1, head._body._state_size, dtype=torch.float64).expand(12, -1).contiguous()
    whole = head.forward(FlatBatch(ids, [Part(0, 0, 12)]), SlotCache(1, 12))
    cache = SlotCache(1, 12)
    head.forward(FlatBatch(ids[:7], [Part(0, 0, 7)]), cache)
    rest = head.forward(FlatBatch(ids[7:], [Part(0, 7, 5)]), cache)
    torch.testing.assert_close(rest, whole[7:], rtol=1e-5, atol=1e-6)


def test_other_drafters_are_refused() -> None:
    with pytest.raises(ScenarioError, match="of kind medusa; heads of kind eagle, eagle3, mtp"):
        random_head(replace(eagle_head(TARGET, "eagle"), kind="medusa"))
