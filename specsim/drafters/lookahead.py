"""Lookahead decoding: Jacobi iteration inside the target finds n-grams, so every step is wider and nothing drafts.

Models: each step computes a window of W columns and N - 1 levels beside up to G guessed n-grams of N - 1 tokens, all in
the target's pass; N is k + 1. Leaves out: the pool of n-grams, and steps with fewer guesses than G: the width is fixed,
as engines with static shapes run it. Numbers: W = G = 15, 10 or 7 for 7B, 13B and 33B models, N = 5 (arXiv 2402.02057).
"""

from __future__ import annotations

from collections.abc import Mapping

from specsim.drafters.base import Drafter, EngineName, Option, PerDraft
from specsim.shapes import ModelShape

__all__ = ["DRAFTER"]


def _usual(target: ModelShape) -> int:
    billions = target.active_parameters / 1e9
    return 15 if billions < 10 else 10 if billions < 20 else 7


def _nodes(num_spec_tokens: int, options: Mapping[str, int]) -> int:
    return (options["window"] + options["guesses"]) * num_spec_tokens - 1


DRAFTER = Drafter(
    name="lookahead",
    title="lookahead decoding: Jacobi n-grams inside a wider step",
    aliases=("lookahead decoding", "LADE", "Jacobi", "Jacobi decoding"),
    source="Fu et al. 2024, lookahead decoding (arXiv 2402.02057)",
    mode="none",
    loads="nothing",
    catches_up=False,
    keeps_kv=False,
    lookahead=PerDraft(),
    nodes=_nodes,
    usual_k=4,
    options={
        "window": Option("W: columns of the lookahead window.", 1, 64, _usual),
        "guesses": Option("G: n-grams verified at once.", 1, 64, _usual),
    },
    engines={
        "trtllm": EngineName("Lookahead", takes_model=False, remark="Lookahead decoding belongs to "
                                   "TensorRT-LLM's older engine-build line."),
    },
    notes="N, the length of the n-grams, is k + 1.",
)  # fmt: skip
