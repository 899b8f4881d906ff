"""Drafter shapes derived from a target: its own MTP layer, or an EAGLE-type head of the usual proportions.

Leaves out: acceptance (a derived head has no weights, hence no acceptance of its own). Proportions follow the published
heads of the catalogue: one decoder layer with the target's attention, the dense MLP of the target, 32,000 output rows
for EAGLE-3.
"""

from __future__ import annotations

from dataclasses import replace

from specsim.errors import CatalogueError
from specsim.shapes import ModelKind, ModelShape

__all__ = ["eagle_head", "mtp_head"]

_EAGLE3_ROWS = 32_000
_HEAD_DIM = 128
_KV_HEADS = 8


def mtp_head(target: ModelShape) -> ModelShape:
    """One MTP layer of `target`, as a drafter that reuses the target's embedding and head.

    The layer is built like the target's last one; hidden state and embedding (2 x hidden) are projected on entry.

    Raises:
        CatalogueError: when the target ships no MTP layer.
    """
    if not target.num_mtp_layers:
        raise CatalogueError(f"model {target.name}: ships no MTP layer (num_nextn_predict_layers is 0 or absent); "
                             f"choose another draft method")  # fmt: skip
    moe = bool(target.moe_layers)
    return replace(
        target,
        name=f"mtp of {target.name}",
        kind="mtp",
        num_layers=1,
        moe_layers=1 if moe else 0,
        intermediate_size=0 if moe else target.intermediate_size,
        windowed_layers=0,
        window_tokens=0,
        tie_embeddings=False,
        num_mtp_layers=0,
        fused_hidden_states=2,
        shares_target_head=True,
        notes="",
        source=f"derived from {target.name}",
    )


def eagle_head(target: ModelShape, kind: ModelKind) -> ModelShape:
    """A head of the usual proportions for a `target` without a published one; marked as assumed.

    `kind` is `eagle` or `eagle3`. A latent-attention target gets plain grouped attention of 128-wide heads, an all-MoE
    target a dense MLP of three times its hidden size, as the published heads for such targets have.
    """
    head_dim, heads, kv_heads = target.head_dim, target.num_heads, target.num_kv_heads
    if target.is_mla:
        head_dim = _HEAD_DIM
        heads = max(_KV_HEADS, target.hidden_size // _HEAD_DIM // _KV_HEADS * _KV_HEADS)
        kv_heads = _KV_HEADS
    return ModelShape(
        name=f"{kind} head assumed for {target.name}",
        kind=kind,
        num_layers=1,
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
