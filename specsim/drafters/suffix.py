"""Suffix decoding: suffix trees over the request's own text and past responses, drafts as long as the match deserves.

Models: a search on the host; between none and k drafts a round, more where the match is long.
Leaves out: how the trees fill up while a server runs: acceptance is that of filled ones. Numbers: none of its own.
"""

from __future__ import annotations

from specsim.drafters.base import Drafter, EngineName, PerDraft

__all__ = ["DRAFTER"]

DRAFTER = Drafter(
    name="suffix",
    title="suffix decoding: suffix trees over prompt and past responses",
    aliases=("suffix decoding", "SuffixDecoding", "suffix tree", "suffix automaton", "SA", "SA spec", "arctic suffix"),
    source="Oliaro et al. 2024 (arXiv 2411.04975); vLLM 0.33.0 sources (tree depth 24)",
    mode="none",
    loads="nothing",
    looks_up=True,
    catches_up=False,
    keeps_kv=False,
    lookahead=PerDraft(),
    varies=True,
    trees=True,
    usual_k=8,
    engines={
        "vllm": EngineName("suffix", takes_model=False, remark="vLLM's suffix decoding needs the package "
                           "arctic-inference, and its V2 model runner does not take it."),
        "trtllm": EngineName("SA", takes_model=False, remark="TensorRT-LLM calls it SA: sa_config in newer "
                                   "versions, use_sa_spec in older ones."),
    },
    borrows=("ngram",),
)  # fmt: skip
