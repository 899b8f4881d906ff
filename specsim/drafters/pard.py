"""PARD: a small model taught to draft all positions in one pass over mask tokens.

Models: one pass of a whole small model over the caught-up tokens and k further rows a request.
Leaves out: nothing else. Numbers: vLLM 0.33.0 sources (k input slots); TensorRT-LLM counts 2k tokens a request.
"""

from __future__ import annotations

from specsim.drafters.base import Drafter, EngineName, PerDraft

__all__ = ["DRAFTER"]

DRAFTER = Drafter(
    name="pard",
    title="PARD: a small model that drafts all positions in one pass",
    aliases=("parallel draft model", "parallel draft", "PARD-2"),
    source="An et al. 2025, PARD (arXiv 2504.18583); vLLM 0.33.0 sources",
    mode="parallel",
    loads="model",
    kind="model",
    listed_as=("draft_model",),
    extra_rows=PerDraft(each=1),
    usual_k=8,
    engines={
        "vllm": EngineName("draft_model", remark="PARD needs a checkpoint that was trained for parallel drafts.",
                           settings={"parallel_drafting": True}),
        "trtllm": EngineName("PARD"),
    },
    borrows=("draft_model",),
    notes="The usual draft model of the target stands for its shape; name a PARD checkpoint with --draft.",
)  # fmt: skip
