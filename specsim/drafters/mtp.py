"""Multi-token prediction: the layer that ships with the target, reused for every draft.

Models: a layer built like the target's last one, experts and latent attention included, that reuses the target's
embedding and head. Leaves out: several different MTP layers, one a position. Numbers: the target's own sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specsim.drafters.base import Drafter, EngineName
from specsim.errors import CatalogueError
from specsim.shapes import ModelShape

__all__ = ["DRAFTER", "mtp_head"]


def mtp_head(target: ModelShape) -> ModelShape:
    """One MTP layer of `target`: hidden state and embedding (2 x hidden) are projected on entry.

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


def _derived(target: ModelShape, options: Mapping[str, int]) -> ModelShape:
    return mtp_head(target)


DRAFTER = Drafter(
    name="mtp",
    title="multi-token prediction: the target's own extra layer, k passes",
    aliases=("NEXTN", "next-n", "multi-token prediction", "MTP head", "MTP layer", "deepseek_mtp", "qwen3_next_mtp",
             "glm4_moe_mtp", "ernie_mtp", "mimo_mtp", "draft-mtp", "frozen-KV MTP"),
    source="DeepSeek-V3 report (arXiv 2412.19437); Gloeckle et al. 2024 (arXiv 2404.19737)",
    mode="serial",
    loads="head",
    kind="mtp",
    derive=_derived,
    trees=True,
    engines={
        "vllm": EngineName("mtp", takes_model=False),
        "sglang": EngineName("NEXTN", takes_model=False),
        "trtllm": EngineName("MTP", takes_model=False),
        "llamacpp": EngineName("draft-mtp", takes_model=False),
    },
)  # fmt: skip
