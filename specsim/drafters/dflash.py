"""DFlash: a few layers that draft a whole block in one pass, conditioned on the target's hidden states.

Models: hidden states of several target layers are projected once a token to the keys and values of every drafter layer;
a round runs k + 1 queries through all layers against the full context. Leaves out: several denoising passes,
and vLLM's cap on requests at once, max_num_batched_tokens / (k + 1), which is beyond what the cache usually holds.
Numbers: five layers on five hidden states and blocks of 16, as the published drafters for Qwen3 have.
"""

from __future__ import annotations

from collections.abc import Mapping

from specsim.drafters.base import Drafter, EngineName, Option, PerDraft
from specsim.drafters.eagle import eagle_head
from specsim.shapes import ModelShape

__all__ = ["DRAFTER", "block_drafter"]

_FUSED = 5


def block_drafter(target: ModelShape, layers: int) -> ModelShape:
    """A drafter of `layers` layers with the target's attention and dense MLP; embedding and head are the target's."""
    head = eagle_head(target, "eagle")
    return ModelShape(
        name=f"dflash drafter assumed for {target.name}",
        kind="dflash",
        num_layers=layers,
        hidden_size=head.hidden_size,
        num_heads=head.num_heads,
        num_kv_heads=head.num_kv_heads,
        head_dim=head.head_dim,
        intermediate_size=head.intermediate_size,
        vocab_size=head.vocab_size,
        max_position_tokens=head.max_position_tokens,
        gated_mlp=head.gated_mlp,
        fused_hidden_states=_FUSED,
        shares_target_head=True,
        source=f"assumed: {layers} layers of the usual proportions for {target.name}",
        doubtful=("num_layers", "num_heads", "head_dim", "intermediate_size"),
        notes="No published block drafter for this target is in the catalogue.",
    )


def _derived(target: ModelShape, options: Mapping[str, int]) -> ModelShape:
    return block_drafter(target, options["layers"])


DRAFTER = Drafter(
    name="dflash",
    title="DFlash: a block of drafts in one pass of a few layers",
    aliases=("DFlash2", "block diffusion", "block drafter", "draft-dflash"),
    source="Chen et al. 2026, DFlash (arXiv 2602.06036); vLLM 0.33.0 sources",
    mode="block",
    loads="head",
    kind="dflash",
    derive=_derived,
    lookahead=PerDraft(each=1, fixed=1),
    usual_k=8,
    options={"layers": Option("Decoder layers of the drafter.", 1, 32, 5)},
    engines={
        "vllm": EngineName("dflash"),
        "sglang": EngineName("DFLASH"),
        "trtllm": EngineName("DFlash"),
        "llamacpp": EngineName("draft-dflash"),
    },
)
