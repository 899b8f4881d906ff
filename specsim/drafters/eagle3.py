"""EAGLE-3: one layer on three fused hidden states of the target, with an output head of fewer rows.

Models: as EAGLE, with a projection of three hidden states, twice as wide an attention input and its own output head.
Leaves out: nothing else. Numbers: 32,000 rows as in published heads, where the catalogue lists none.
"""

from __future__ import annotations

from collections.abc import Mapping

from specsim.drafters.base import Drafter, EngineName
from specsim.drafters.eagle import eagle_head
from specsim.shapes import ModelShape

__all__ = ["DRAFTER"]


def _derived(target: ModelShape, options: Mapping[str, int]) -> ModelShape:
    return eagle_head(target, "eagle3")


DRAFTER = Drafter(
    name="eagle3",
    title="EAGLE-3: one layer on three fused hidden states, k passes",
    aliases=("EAGLE-3", "draft-eagle3", "eagle3 head", "speculators eagle3"),
    source="Li et al. 2025, EAGLE-3 (arXiv 2503.01840)",
    mode="serial",
    loads="head",
    kind="eagle3",
    derive=_derived,
    trees=True,
    engines={
        "vllm": EngineName("eagle3"),
        "sglang": EngineName("EAGLE3"),
        "trtllm": EngineName("Eagle3"),
        "llamacpp": EngineName("draft-eagle3"),
    },
)
