"""A separate small model of the same vocabulary, one pass a draft.

Models: the whole model loaded beside the target, with a cache of its own in all of its layers. Its first pass takes,
next to what the target has just computed, the newest token of each request, which heads on hidden states take shifted.
Leaves out: drafters with another vocabulary. Numbers: vLLM 0.33.0 sources (one input slot a request).
"""

from __future__ import annotations

from specsim.drafters.base import Drafter, EngineName, PerDraft

__all__ = ["DRAFTER"]

DRAFTER = Drafter(
    name="draft_model",
    title="independent draft model: k passes of a small model",
    aliases=("draft", "standalone", "SpS", "speculative sampling", "independent draft model", "small draft model",
             "vanilla speculative decoding", "draft-simple", "draft target", "two-model"),
    source="Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318)",
    mode="serial",
    loads="model",
    kind="model",
    extra_rows=PerDraft(fixed=1),
    trees=True,
    engines={
        "vllm": EngineName("draft_model"),
        "sglang": EngineName("STANDALONE"),
        "trtllm": EngineName("DraftTarget"),
        "llamacpp": EngineName("draft-simple"),
    },
)  # fmt: skip
