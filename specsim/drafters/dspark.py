"""DSpark: a block drafter whose drafts are then filled in one after another by a small head.

Models: the block pass of DFlash. Leaves out: the small sequential head, and trimming of the verified block by
confidence. Numbers: as DFlash.
"""

from __future__ import annotations

from collections.abc import Mapping

from specsim.drafters.base import Drafter, EngineName, Option, PerDraft
from specsim.drafters.dflash import block_drafter
from specsim.shapes import ModelShape

__all__ = ["DRAFTER"]


def _derived(target: ModelShape, options: Mapping[str, int]) -> ModelShape:
    return block_drafter(target, options["layers"])


DRAFTER = Drafter(
    name="dspark",
    title="DSpark: a block drafter like DFlash",
    aliases=("draft-dspark",),
    source="vLLM 0.33.0 and SGLang 0.5.23 sources",
    mode="block",
    loads="head",
    kind="dflash",
    derive=_derived,
    lookahead=PerDraft(each=1, fixed=1),
    usual_k=5,
    options={"layers": Option("Decoder layers of the drafter.", 1, 32, 5)},
    engines={
        "vllm": EngineName("dspark"),
        "sglang": EngineName("DSPARK"),
        "llamacpp": EngineName("draft-dspark"),
    },
    borrows=("dflash",),
    notes="Its small sequential head, and trimming of the verified block by confidence, are left out.",
)
