"""Prompt lookup: the last tokens are searched in the request's own text, and what followed them there is proposed.

Semantics of vLLM's `ngram` method (`prompt_lookup_min`, `prompt_lookup_max`): the longest n-gram between the two that
ends the text and occurred before, the first place where it did, and up to k tokens from there. Saxena 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrate.drafters.base import NOTHING, Draftee, Law, Proposal
from calibrate.models import FlatModel, SlotCache
from specsim.errors import ScenarioError

__all__ = ["NgramDrafter", "lookup"]


def lookup(tokens: Sequence[int], k: int, *, min_tokens: int, max_tokens: int) -> list[int]:
    """Up to `k` tokens that followed the first earlier place of the longest n-gram that ends the text; empty: none."""
    text = np.asarray(tokens, dtype=np.int64)
    if k < 1 or len(text) <= min_tokens:
        return []
    # length[i]: tokens before place i that agree with the end of the text; places begin where something may follow
    places = np.arange(min_tokens, len(text))
    length = np.zeros(len(places), dtype=np.int64)
    alive = np.ones(len(places), dtype=bool)
    for n in range(1, max_tokens + 1):
        alive &= (places >= n) & (text[places - n] == text[-n])
        if not alive.any():
            break
        length[alive] = n
    best = int(length.max())
    if best < min_tokens:
        return []
    start = int(places[int(length.argmax())])
    found: list[int] = text[start : start + k].tolist()
    return found


class NgramDrafter:
    """See `calibrate.drafters.base.Drafter`."""

    name = "ngram"
    hidden_layers = None

    def __init__(self, *, min_tokens: int = 5, max_tokens: int = 5) -> None:
        """
        Args:
            min_tokens, max_tokens: shortest and longest n-gram that is looked up; vLLM's default is 5 and 5.

        Raises:
            ScenarioError: not 1 <= min_tokens <= max_tokens.
        """
        if not 1 <= min_tokens <= max_tokens:
            raise ScenarioError(f"n-grams need 1 <= min_tokens <= max_tokens, got {min_tokens} and {max_tokens}")
        self.min_tokens = min_tokens
        self.max_tokens = max_tokens

    def start(self, target: FlatModel, cache: SlotCache) -> None:
        """Nothing is needed of the target."""

    def propose(self, draftees: Sequence[Draftee], k: int, law: Law | None) -> list[Proposal]:
        return [
            Proposal(tuple(lookup(d.tokens, k, min_tokens=self.min_tokens, max_tokens=self.max_tokens)))
            if d.drafts
            else NOTHING
            for d in draftees
        ]

    def release(self, request: int, finished: Sequence[int] | None) -> None:
        """Nothing is kept."""
