"""Drafting with a head that follows the target's features, and then its own: EAGLE, EAGLE-2, EAGLE-3, MTP.

The head's keys and values of known tokens are always computed from the target's features, those of accepted drafts too;
what it guessed from its own is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from calibrate.drafters.base import NOTHING, Draftee, Law, Proposal
from calibrate.drafters.planting import CHAIN, Node, Planting, grow
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache
from calibrate.models.feature_head import FeatureHead
from calibrate.models.flat_batch import Branches
from specsim.trees import Tree

__all__ = ["FeatureDrafter"]


class FeatureDrafter:
    """See `calibrate.drafters.base.Drafter`."""

    def __init__(self, name: str, head: FeatureHead, planting: Planting = CHAIN) -> None:
        self.name = name
        self.hidden_layers: tuple[int, ...] | None = head.hidden_layers
        self._head, self._planting = head, planting
        self._slots: dict[int, int] = {}

    def room(self, k: int) -> int:
        """Its own nodes, at the head or at the target."""
        return self._planting.most_nodes(k) + k

    def trees(self, k: int) -> tuple[Tree, ...]:
        """See `calibrate.drafters.base.Planted`."""
        return self._planting.trees(k)

    def start(self, target: FlatModel, cache: SlotCache) -> None:
        self._target = target
        self._cache = SlotCache(cache.num_slots, cache.max_tokens)

    def propose(self, draftees: Sequence[Draftee], k: int, law: Law | None) -> list[Proposal]:
        found = [NOTHING] * len(draftees)
        shown = [n for n, draftee in enumerate(draftees) if self._follows(draftee)]
        if not shown:
            return found
        features, read = self._catch_up([draftees[n] for n in shown])
        live = [row for row, n in enumerate(shown) if draftees[n].drafts]
        if not k or not live:
            return found
        slots = [self._slots[draftees[shown[row]].request] for row in live]
        streams = [draftees[shown[row]].generator for row in live]
        growing = _Growing(self._head, self._target, self._cache, slots, features[live], read[live])
        for row, proposal in zip(live, grow(streams, k, self._planting, law, growing.look), strict=True):
            found[shown[row]] = proposal
        for slot in slots:
            self._cache.rollback(slot)
        return found

    def _follows(self, draftee: Draftee) -> bool:
        """Whether all features of a request were shown, and some are new; it gets a slot when its text begins."""
        new = len(draftee.hidden[0]) if draftee.hidden else 0
        first = draftee.computed_tokens - new
        if not new:
            return False
        if not first and draftee.request not in self._slots:
            self._slots[draftee.request] = self._cache.acquire()
        slot = self._slots.get(draftee.request)
        return slot is not None and first == self._cache.committed[slot]

    def _catch_up(self, draftees: Sequence[Draftee]) -> tuple[torch.Tensor, torch.Tensor]:
        """(feature, what the output head reads) behind the last known token of each, [requests, size]."""
        parts, tokens, pieces = [], list[int](), []
        for draftee in draftees:
            new = len(draftee.hidden[0])
            first = draftee.computed_tokens - new
            following = draftee.tokens[first + 1 : draftee.computed_tokens + 1]
            parts.append(Part(self._slots[draftee.request], first, len(following)))
            tokens += following
            pieces.append(self._head.features(draftee.hidden)[: len(following)])
        batch = FlatBatch(tokens, parts)
        features, read = self._head(torch.cat(pieces), batch, self._cache, self._target)
        for part in parts:
            self._cache.commit(part.slot, part.context_tokens + part.num_tokens)
        return features[batch.last_rows], read[batch.last_rows]

    def release(self, request: int, finished: Sequence[int] | None) -> None:
        if request in self._slots:
            self._cache.release(self._slots.pop(request))


class _Growing:
    """The head's passes over the trees of a round."""

    def __init__(
        self,
        head: FeatureHead,
        target: FlatModel,
        cache: SlotCache,
        slots: Sequence[int],
        features: torch.Tensor,
        read: torch.Tensor,
    ) -> None:
        self._head, self._target, self._cache, self._slots = head, target, cache, slots
        self._read = read
        self._behind: list[dict[int, torch.Tensor]] = [{-1: row} for row in features]
        """Features behind each node of each tree."""
        self._rows: list[list[int]] = [[] for _ in slots]
        """Nodes of each tree in its slot, in order."""

    def look(self, level: int, rows: Sequence[tuple[int, int]], trees: Sequence[Sequence[Node]]) -> torch.Tensor:
        """See `planting.Look`."""
        if level:
            self._compute(level, rows, trees)
        return self._head.logits(self._read, self._target)

    def _compute(self, level: int, rows: Sequence[tuple[int, int]], trees: Sequence[Sequence[Node]]) -> None:
        parts = []
        for n, slot in enumerate(self._slots):
            own = [node for tree, node in rows if tree == n]
            if not own:
                continue
            base, before = self._cache.committed[slot], self._rows[n]
            held = {node: place for place, node in enumerate([*before, *own])}
            seen = torch.zeros(len(own), len(held), dtype=torch.bool)
            for row, node in enumerate(own):
                at = node
                while at >= 0:
                    seen[row, held[at]] = True
                    at = trees[n][at].parent
            is_text = len(held) == level  # a chain so far
            branches = None if is_text else Branches((base + level - 1,) * len(own), seen.numpy())
            parts.append(Part(slot, base + len(before), len(own), branches))
            before += own
        tokens = [trees[n][node].token for n, node in rows]
        into = torch.stack([self._behind[n][trees[n][node].parent] for n, node in rows])
        features, self._read = self._head(into, FlatBatch(tokens, parts), self._cache, self._target)
        for row, (n, node) in enumerate(rows):
            self._behind[n][node] = features[row]
