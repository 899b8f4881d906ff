"""Drafts at every output position of a text that is known: what a round starting there would have matched.

For a greedy target and a drafter whose drafts depend on nothing but the text before them, and whose first k of K drafts
are those that it makes when asked for k. Accepted drafts are then the text itself, so a model that drafts one token
after another needs a single pass over the text: its choice at every position beside what stands there. A run counts
matches within the text; the bonus token of its last round may lie beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from calibrate.drafters.ngram import lookup
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache

__all__ = ["ChainPositions", "NgramPositions", "Runs", "leading_matches", "runs_of_choices"]

_ROWS = 256
"""Rows of logits at a time; a row is a whole vocabulary."""


@dataclass(frozen=True, eq=False, slots=True)
class Runs:
    """Of one text."""

    run: np.ndarray
    """int8 [output tokens]: drafts that match in a round starting there."""
    drafts: np.ndarray | None = None
    """int8 alike: drafts that there are to propose; None: as many as asked."""


def runs_of_choices(matches: Sequence[bool], most: int) -> np.ndarray:
    """int8 [positions]: consecutive matches from each position on, at most `most`."""
    run = np.zeros(len(matches), dtype=np.int8)
    length = 0
    for position in range(len(matches) - 1, -1, -1):
        length = min(length + 1, most) if matches[position] else 0
        run[position] = length
    return run


def leading_matches(drafts: Sequence[int], text: Sequence[int]) -> int:
    """Drafts that agree with the text before the first that does not."""
    return next((n for n, (a, b) in enumerate(zip(drafts, text, strict=False)) if a != b), min(len(drafts), len(text)))


class ChainPositions:
    """A model that drafts one token after another: a draft model, or the target's first layers."""

    def __init__(self, model: FlatModel, *, longest: int) -> None:
        """`longest`: most tokens of prompt and output."""
        self._model = model
        self._cache = SlotCache(1, longest)

    def runs(self, prompt: Sequence[int], output: Sequence[int], most: int) -> Runs:
        """What rounds with at most `most` drafts would match."""
        slot = self._cache.acquire()
        text = [*prompt, *output]
        hidden = self._model.forward(FlatBatch(text[:-1], [Part(slot, 0, len(text) - 1)]), self._cache)
        self._cache.release(slot)
        rows = hidden[len(prompt) - 1 :].split(_ROWS)
        choices = torch.cat([self._model.logits(part).argmax(-1) for part in rows]).tolist()
        return Runs(runs_of_choices([a == b for a, b in zip(choices, output, strict=True)], most))


class NgramPositions:
    """Prompt lookup."""

    def __init__(self, *, min_tokens: int, max_tokens: int) -> None:
        self._min_tokens, self._max_tokens = min_tokens, max_tokens

    def runs(self, prompt: Sequence[int], output: Sequence[int], most: int) -> Runs:
        """What rounds with at most `most` drafts would match, and how many drafts they have."""
        text = np.asarray([*prompt, *output], dtype=np.int64)
        run, drafts = np.zeros((2, len(output)), dtype=np.int8)
        for position in range(len(output)):
            known = text[: len(prompt) + position]
            found = lookup(known, most, min_tokens=self._min_tokens, max_tokens=self._max_tokens)  # type: ignore[arg-type]
            drafts[position] = len(found)
            run[position] = leading_matches(found, output[position : position + most])
        return Runs(run, drafts)
