"""Drafting with an EAGLE-3 head: it follows the target's features, and then its own, one token after another.

The head's keys and values of known tokens are always computed from the target's features, those of accepted drafts too;
what it guessed from its own is thrown away. Chains only; grown trees are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from calibrate.drafters.base import NOTHING, Draftee, Law, Proposal, chosen
from calibrate.drafters.eagle3_head import Eagle3Head, KeysValues
from calibrate.models import FlatModel, SlotCache

__all__ = ["Eagle3Drafter", "in_targets_vocabulary"]


def in_targets_vocabulary(head: Eagle3Head, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[rows, vocabulary] of logits over the draft vocabulary; tokens that it lacks cannot be drafted."""
    whole = logits.new_full((len(logits), vocab_size), float("-inf"))
    return whole.index_copy_(1, head.target_ids, logits)


class Eagle3Drafter:
    """See `calibrate.drafters.base.Drafter`."""

    name = "eagle3"

    def __init__(self, head: Eagle3Head) -> None:
        self._head = head
        self.hidden_layers: tuple[int, ...] | None = head.layers
        self._known: dict[int, KeysValues] = {}

    def start(self, target: FlatModel, cache: SlotCache) -> None:
        self._target = target

    def propose(self, draftees: Sequence[Draftee], k: int, law: Law | None) -> list[Proposal]:
        return [self._propose(draftee, k, law) for draftee in draftees]

    @torch.inference_mode()
    def _propose(self, draftee: Draftee, k: int, law: Law | None) -> Proposal:
        head, target = self._head, self._target
        base = self._known.get(draftee.request)
        new = len(draftee.hidden[0]) if draftee.hidden else 0
        first = draftee.computed_tokens - new
        if not new or first != (0 if base is None else len(base.keys)):
            return NOTHING  # its features were not all shown
        device = target.device
        features = head.fc(torch.cat(draftee.hidden[1:], dim=-1))
        following = torch.tensor(draftee.tokens[first + 1 : draftee.computed_tokens + 1], device=device)
        rows = len(following)  # while a prompt is computed its last token's successor may not be known yet
        positions = torch.arange(first, first + rows, device=device)
        queries, residual, own = head.begin(features[:rows], head.embed(target, following), positions)
        base = own if base is None else base.joined(own)
        self._known[draftee.request] = base
        if not draftee.drafts or not k:
            return NOTHING
        feature = head.finish(queries[-1:], residual[-1:], base, positions[-1:] + 1, [])
        tokens: list[int] = []
        laws: list[torch.Tensor] = []
        steps: list[KeysValues] = []
        visible = positions[-1:] + 1
        for level in range(k):
            if level:
                embedded = head.embed(target, torch.tensor(tokens[-1:], device=device))
                queries, residual, own = head.begin(feature, embedded, visible + level - 1)
                steps.append(own)
                feature = head.finish(queries, residual, base, visible, steps)
            logits = in_targets_vocabulary(head, head.draft_logits(feature), target.vocab_size)
            drawn, probs = chosen(logits, [draftee], law)
            tokens += drawn
            if probs is not None:
                laws.append(probs[0])
        return Proposal(tuple(tokens), torch.stack(laws) if laws else None)

    def release(self, request: int, finished: Sequence[int] | None) -> None:
        self._known.pop(request, None)
