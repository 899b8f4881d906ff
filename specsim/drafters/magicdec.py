"""Self-speculation over a sparse cache (MagicDec): the whole target drafts, but attends to a few tokens only.

Models: k passes of the target itself over a fixed budget of cached tokens a request, its first tokens and its latest
(StreamingLLM), so that drafting reads every weight but next to no cache; verify reads the whole cache once for all
drafts. Pays where the cache, not the weights, fills a step: long contexts and large batches. Nothing more is loaded.
Leaves out: the copy of the budget's keys and values that MagicDec keeps beside the target's cache (read in place here),
and choosing tokens by content (SnapKV). Targets with windowed layers draft with their own window in all layers.
Numbers: a budget of 512 tokens, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specsim.drafters.base import Drafter, Option, PerDraft
from specsim.shapes import ModelShape

__all__ = ["DRAFTER", "over_a_window"]


def over_a_window(target: ModelShape, options: Mapping[str, int]) -> ModelShape:
    """`target` with every layer attending to `options["budget"]` tokens; to its own window where it has one, since a
    step counts the cache at one window only."""
    return replace(
        target,
        name=f"{target.name} over {target.window_tokens or options['budget']} tokens",
        kind="layers",
        windowed_layers=target.num_layers,
        window_tokens=target.window_tokens or options["budget"],
        num_mtp_layers=0,
        shares_target_head=True,
        tie_embeddings=False,
        source=f"derived from {target.name}",
        notes="",
    )


DRAFTER = Drafter(
    name="magicdec",
    title="self-speculation over a sparse cache: the target drafts on few cached tokens",
    aliases=("MagicDec", "sparse KV self-speculation", "StreamingLLM self-speculation", "sparse cache"),
    source="Sadhukhan, Chen et al. 2024, MagicDec (arXiv 2408.11049)",
    mode="serial",
    loads="layers",
    kind="layers",
    derive=over_a_window,
    catches_up=False,
    keeps_kv=False,
    lookahead=PerDraft(),
    options={"budget": Option("Cached tokens that a draft attends to.", 16, 65536, 512)},
    notes="For contexts far longer than the budget. The published speed-ups come from research code that pays more for "
    "drafts than is charged here: their rise with the batch is met, their level lies about 30 % lower.",
)
