"""Drafting heads at every output position of a known greedy text: chains and static trees.

A round accepts the branch that is the text, whatever else its tree holds. So it is enough to follow the text from
every position, and to ask at each depth which rank the text's next token has among the candidates: the run ends where
the tree has no such rank. Trees whose shape the drafts themselves decide (EAGLE-2) are measured by round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from calibrate.acceptance.positions import Runs
from calibrate.drafters.medusa import MedusaHeads
from calibrate.drafters.planting import CHAIN, Planting, likeliest
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache
from calibrate.models.feature_head import FeatureHead
from calibrate.models.flat_batch import Branches

__all__ = ["FeaturePositions", "MedusaPositions"]

_AT_ONCE = 64
"""Positions that are followed together; each sees the text before it and its own steps."""


class _Target:
    """The target's states over a whole text."""

    def __init__(self, target: FlatModel, longest: int, layers: tuple[int, ...]) -> None:
        self.model, self._layers = target, layers
        self._cache = SlotCache(1, longest)

    def states(self, text: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Of every token but the last two, [tokens, hidden size]: behind the last norm, then behind each layer."""
        slot = self._cache.acquire()
        batch = FlatBatch(text[:-2], [Part(slot, 0, len(text) - 2)])
        found = self.model.forward_keeping(batch, self._cache, self._layers)
        self._cache.release(slot)
        return found


def _first(prompt: Sequence[int]) -> int:
    """First output position that can be drafted: behind two tokens, the first of them computed."""
    return max(0, 2 - len(prompt))


class _Followers:
    """Positions from which the text is followed, each until the tree ends or the text leaves it."""

    def __init__(self, output: Sequence[int], places: Sequence[int], planting: Planting) -> None:
        self._output, self._planting = output, planting
        self.places = list(places)
        """Output position of each that still goes on."""
        self.paths: list[tuple[int, ...]] = [()] * len(self.places)
        self.run = np.zeros(len(output), dtype=np.int8)

    def step(self, logits: torch.Tensor) -> list[int]:
        """Look at what may come next, [places, vocabulary]; which of the places go on, by row."""
        level = len(self.paths[0])
        best = likeliest(logits, self._planting.widest(level)).tolist()
        going, places, paths = [], [], []
        for row, (place, path) in enumerate(zip(self.places, self.paths, strict=True)):
            there = place + level
            candidates = best[row][: self._planting.count(path)]
            if there < len(self._output) and self._output[there] in candidates:
                self.run[place] += 1
                going.append(row)
                places.append(place)
                paths.append((*path, candidates.index(self._output[there])))
        self.places, self.paths = places, paths
        return going


def _count(output: Sequence[int], first: int, levels: int) -> np.ndarray:
    """int8 [output tokens]: levels of drafts that there are."""
    count = np.full(len(output), levels, dtype=np.int8)
    count[:first] = 0
    return count


class MedusaPositions:
    """All heads from the state two tokens before each position."""

    def __init__(self, target: FlatModel, heads: MedusaHeads, *, longest: int, planting: Planting = CHAIN) -> None:
        self._target, self._heads, self._planting = _Target(target, longest, ()), heads, planting

    def runs(self, prompt: Sequence[int], output: Sequence[int], most: int) -> Runs:
        """What rounds with at most `most` levels of drafts would match; a head is a level."""
        first, levels = _first(prompt), min(most, len(self._heads), self._planting.deepest)
        following = _Followers(output, range(first, len(output)), self._planting)
        if first < len(output):
            hidden = self._target.states([*prompt, *output])[0][len(prompt) + first - 2 :]
            for head in range(levels):
                hidden = hidden[following.step(self._heads.logits(hidden, head))]
                if not following.places:
                    break
        return Runs(following.run, _count(output, first, levels))


class FeaturePositions:
    """A head from every position, over the features of the tokens before it and then its own."""

    def __init__(self, target: FlatModel, head: FeatureHead, *, longest: int, planting: Planting = CHAIN) -> None:
        self._target, self._head, self._planting = _Target(target, longest, head.hidden_layers), head, planting
        self._longest = longest

    def runs(self, prompt: Sequence[int], output: Sequence[int], most: int) -> Runs:
        """What rounds with at most `most` levels of drafts would match."""
        first = _first(prompt)
        levels = min(most, self._planting.deepest)
        count = _count(output, first, levels) if levels < most else None
        run = np.zeros(len(output), dtype=np.int8)
        if first >= len(output):
            return Runs(run, count)
        text, target = [*prompt, *output], self._target.model
        known = len(text) - 2
        cache = SlotCache(1, known + _AT_ONCE * levels)
        slot = cache.acquire()
        features = self._head.features(self._target.states(text))
        features, read = self._head(features, FlatBatch(text[1:-1], [Part(slot, 0, known)]), cache, target)
        cache.commit(slot, known)
        for begin in range(first, len(output), _AT_ONCE):
            places = range(begin, min(begin + _AT_ONCE, len(output)))
            following = _Followers(output, places, self._planting)
            rows = [len(prompt) + place - 2 for place in places]
            self._follow(following, levels, features[rows], read[rows], text, len(prompt), cache, slot)
            run += following.run
            cache.rollback(slot)
        return Runs(run, count)

    def _follow(
        self,
        following: _Followers,
        levels: int,
        features: torch.Tensor,
        read: torch.Tensor,
        text: Sequence[int],
        prompt_tokens: int,
        cache: SlotCache,
        slot: int,
    ) -> None:
        """Positions together, as a forest: each sees the known text before it, and its own steps."""
        target, known = self._target.model, cache.committed[slot]
        before = [prompt_tokens + place - 1 for place in following.places]
        steps = np.zeros((len(before), 0), dtype=bool)
        for level in range(levels):
            if level:
                own = range(len(before))
                seen = np.arange(known)[None] < np.array(before)[:, None]
                steps = np.concatenate([steps, np.eye(len(own), dtype=bool)], axis=1)
                tokens = [text[prompt_tokens + place + level - 1] for place in following.places]
                branches = Branches(tuple(n + level - 1 for n in before), np.concatenate([seen, steps], axis=1))
                part = Part(slot, cache.written[slot], len(own), branches)
                features, read = self._head(features, FlatBatch(tokens, [part]), cache, target)
            going = following.step(self._head.logits(read, target))
            if not going:
                return
            features, read = features[going], read[going]
            before, steps = [before[n] for n in going], steps[going]
