"""Medusa: heads on the target's last hidden state, one a draft position, their candidates verified as a tree.

Models: per head one residual block and an output head of its own, all run at once after the target; no attention, no
cache. Leaves out: typical acceptance, which is not exact.
Numbers: heads as in Medusa-1, five of them and 64 verified tokens, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping

from specsim.drafters.base import Drafter, EngineName, Option, PerDraft, UsualTree
from specsim.shapes import ModelShape

__all__ = ["DRAFTER", "medusa_heads"]


def medusa_heads(target: ModelShape, options: Mapping[str, int], *, blocks: int = 1, rows: int = 0) -> ModelShape:
    """`options["heads"]` heads: each a square layer of the target's width and an output head of its vocabulary.

    Args:
        blocks: residual blocks of each, at least 1.
        rows: of each output head, where it drafts a part of the vocabulary; 0: all of it.
    """
    each = "one residual block" if blocks == 1 else f"{blocks} residual blocks"
    return ModelShape(
        name=f"{options['heads']} medusa heads for {target.name}",
        kind="medusa",
        num_layers=options["heads"],
        hidden_size=target.hidden_size,
        num_heads=1,
        num_kv_heads=1,
        head_dim=target.hidden_size,
        intermediate_size=blocks * target.hidden_size,
        vocab_size=target.vocab_size,
        max_position_tokens=target.max_position_tokens,
        gated_mlp=False,
        draft_vocab_size=rows,
        source=f"{each} and one output head each, as in Medusa, for {target.name}",
    )


DRAFTER = Drafter(
    name="medusa",
    title="Medusa: one head a position on the last hidden state",
    aliases=("Medusa-1", "Medusa-2", "medusa heads"),
    source="Cai et al. 2024, Medusa (arXiv 2401.10774)",
    mode="heads",
    loads="head",
    kind="medusa",
    derive=medusa_heads,
    catches_up=False,
    keeps_kv=False,
    lookahead=PerDraft(),
    trees=True,
    usual_tree=UsualTree(nodes=63, topk=10),
    usual_k=4,
    options={"heads": Option("Heads that are loaded; k may not be larger.", 1, 16, 5)},
    engines={
        "trtllm": EngineName("Medusa", remark="Medusa belongs to TensorRT-LLM's older engine-build line."),
    },
    notes="The tree of the paper, 64 verified tokens, unless another is given.",
)
