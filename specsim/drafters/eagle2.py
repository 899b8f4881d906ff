"""EAGLE-2: the EAGLE head with a dynamic tree, grown where the drafter is sure.

Models: per level the best few nodes are drafted on, then the best nodes overall are verified.
Leaves out: that the tree follows the context: its shape here is the best one for the mean acceptance. Numbers: the
paper's 60 drafts, at most 10 a level, depth 6.
"""

from __future__ import annotations

from collections.abc import Mapping

from specsim.drafters.base import Drafter, EngineName, UsualTree
from specsim.drafters.eagle import eagle_head
from specsim.shapes import ModelShape

__all__ = ["DRAFTER"]


def _derived(target: ModelShape, options: Mapping[str, int]) -> ModelShape:
    return eagle_head(target, "eagle")


DRAFTER = Drafter(
    name="eagle2",
    title="EAGLE-2: the EAGLE head with a dynamic tree",
    aliases=("EAGLE-2", "EAGLE dynamic tree"),
    source="Li et al. 2024, EAGLE-2 (arXiv 2406.16858)",
    mode="serial",
    loads="head",
    kind="eagle",
    derive=_derived,
    listed_as=("eagle",),
    trees=True,
    usual_tree=UsualTree(nodes=60, topk=10),
    usual_k=6,
    engines={
        "vllm": EngineName("eagle"),
        "sglang": EngineName("EAGLE"),
        "trtllm": EngineName("Eagle", remark="TensorRT-LLM takes dynamic trees as use_dynamic_tree, not for "
                             "sliding-window or latent-attention targets."),
    },
    borrows=("eagle",),
)  # fmt: skip
