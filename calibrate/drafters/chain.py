"""Drafting one token after another with a model: what an independent draft model and skipped layers have in common."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from calibrate.drafters.base import NOTHING, Draftee, Law, Proposal, chosen
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache

__all__ = ["draft_chain"]


def draft_chain(
    model: FlatModel,
    cache: SlotCache,
    slots: Sequence[int],
    contexts: Sequence[int],
    draftees: Sequence[Draftee],
    k: int,
    law: Law | None,
) -> list[Proposal]:
    """k serial passes, the first of which catches up on everything that the cache lacks.

    Args:
        slots, contexts: place of each sequence in `cache`, and its tokens there.
        draftees: those that want no drafts take part in the first pass only, up to their computed tokens.

    Keys and values are left written, not committed.
    """
    ends = [len(d.tokens) if d.drafts and k else d.computed_tokens for d in draftees]
    behind = [n for n in range(len(draftees)) if ends[n] > contexts[n]]
    if not behind:
        return [NOTHING] * len(draftees)
    parts = [Part(slots[n], contexts[n], ends[n] - contexts[n]) for n in behind]
    batch = FlatBatch([t for n in behind for t in draftees[n].tokens[contexts[n] : ends[n]]], parts)
    hidden = model.forward(batch, cache)
    live = [n for n in behind if draftees[n].drafts] if k else []
    rows = [row for n, row in zip(behind, batch.last_rows, strict=True) if draftees[n].drafts]
    drafts: dict[int, list[int]] = {n: [] for n in live}
    laws: dict[int, list[torch.Tensor]] = {n: [] for n in live}
    for level in range(k if live else 0):
        if level:
            parts = [Part(slots[n], ends[n] + level - 1, 1) for n in live]
            hidden = model.forward(FlatBatch([drafts[n][-1] for n in live], parts), cache)
            rows = list(range(len(live)))
        tokens, probs = chosen(model.logits(hidden[rows]), [draftees[n] for n in live], law)
        for row, n in enumerate(live):
            drafts[n].append(tokens[row])
            if probs is not None:
                laws[n].append(probs[row])
    return [
        Proposal(tuple(drafts[n]), torch.stack(laws[n]) if laws[n] else None) if n in drafts else NOTHING
        for n in range(len(draftees))
    ]
