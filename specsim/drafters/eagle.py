"""EAGLE: one decoder layer on the target's hidden states and the next token's embedding, one pass a draft.

Models: a cache of one layer, the target's embedding and output head shared. Leaves out: nothing else.
Numbers: proportions of published heads where the catalogue lists none: the target's attention and dense MLP.
"""

from __future__ import annotations

from collections.abc import Mapping

from specsim.drafters.base import Drafter, EngineName
from specsim.shapes import ModelKind, ModelShape

__all__ = ["DRAFTER", "eagle_head"]

_EAGLE3_ROWS = 32_000
_HEAD_DIM = 128
_KV_HEADS = 8


def eagle_head(target: ModelShape, kind: ModelKind, *, layers: int = 1) -> ModelShape:
    """A head of the usual proportions for a `target` without a published one; marked as assumed.

    `kind` is `eagle` or `eagle3`. A latent-attention target gets plain grouped attention of 128-wide heads, an all-MoE
    target a dense MLP of three times its hidden size, as the published heads for such targets have; 32,000 output rows
    for EAGLE-3.
    """
    head_dim, heads, kv_heads = target.head_dim, target.num_heads, target.num_kv_heads
    if target.is_mla:
        head_dim = _HEAD_DIM
        heads = max(_KV_HEADS, target.hidden_size // _HEAD_DIM // _KV_HEADS * _KV_HEADS)
        kv_heads = _KV_HEADS
    return ModelShape(
        name=f"{kind} head assumed for {target.name}",
        kind=kind,
        num_layers=layers,
        hidden_size=target.hidden_size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=target.intermediate_size or 3 * target.hidden_size,
        vocab_size=target.vocab_size,
        max_position_tokens=target.max_position_tokens,
        gated_mlp=target.gated_mlp,
        fused_hidden_states=3 if kind == "eagle3" else 2,
        draft_vocab_size=min(_EAGLE3_ROWS, target.vocab_size) if kind == "eagle3" else 0,
        shares_target_head=True,
        source=f"assumed: usual proportions for {target.name}",
        doubtful=("num_heads", "head_dim", "intermediate_size", "draft_vocab_size"),
        notes="No published head for this target is in the catalogue.",
    )


def _derived(target: ModelShape, options: Mapping[str, int]) -> ModelShape:
    return eagle_head(target, "eagle")


DRAFTER = Drafter(
    name="eagle",
    title="EAGLE: one layer on hidden states, k passes",
    aliases=("EAGLE-1", "EAGLE1", "eagle head"),
    source="Li et al. 2024, EAGLE (arXiv 2401.15077)",
    mode="serial",
    loads="head",
    kind="eagle",
    derive=_derived,
    trees=True,
    engines={
        "vllm": EngineName("eagle"),
        "sglang": EngineName("EAGLE"),
        "trtllm": EngineName("Eagle"),
    },
)
