"""Prompt lookup: the last tokens are searched in the request's own text, and what followed them there is proposed.

Models: a search on the host, no model, no cache, rounds in which nothing is found.
Leaves out: lookups that run on the GPU. Numbers: none of its own.
"""

from __future__ import annotations

from specsim.drafters.base import Drafter, EngineName, PerDraft

__all__ = ["DRAFTER"]

DRAFTER = Drafter(
    name="ngram",
    title="prompt lookup: what followed the same words before",
    aliases=("n-gram lookup", "n-gram prompt lookup", "prompt lookup", "prompt lookup decoding", "PLD", "ngram_gpu",
             "ngram-simple", "ngram-mod", "ngram-map-k", "ngram-map-k4v", "NGramDecoding", "lookup"),
    source="Saxena 2023, prompt-lookup-decoding; vLLM 0.33.0 sources",
    mode="none",
    loads="nothing",
    looks_up=True,
    catches_up=False,
    keeps_kv=False,
    lookahead=PerDraft(),
    varies=True,
    trees=True,
    engines={
        "vllm": EngineName("ngram", takes_model=False),
        "sglang": EngineName("NGRAM", takes_model=False, remark="SGLang's NGRAM matches several continuations as a "
                             "tree and drafts 12 tokens by default."),
        "trtllm": EngineName("NGram", takes_model=False),
        "llamacpp": EngineName("ngram-simple", takes_model=False),
    },
)  # fmt: skip
