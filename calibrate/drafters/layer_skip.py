"""Self-speculation by layer skipping (LayerSkip): the target's first layers and its head draft.

The drafts' keys and values go into the target's own cache, behind what is committed; the pass that verifies computes
them again. Elhoushi et al. 2024 (arXiv 2404.16710); without their training, acceptance is that of an early exit.
"""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.drafters.base import Draftee, Law, Proposal
from calibrate.drafters.chain import draft_chain
from calibrate.models import FlatModel, SlotCache

__all__ = ["LayerSkipDrafter"]


class LayerSkipDrafter:
    """See `calibrate.drafters.base.Drafter`."""

    name = "layer_skip"
    hidden_layers = None

    def __init__(self, *, num_layers: int) -> None:
        """`num_layers`: layers of the target after which it exits."""
        self._num_layers = num_layers

    def start(self, target: FlatModel, cache: SlotCache) -> None:
        self._model = target.first_layers(self._num_layers)
        self._cache = cache

    def propose(self, draftees: Sequence[Draftee], k: int, law: Law | None) -> list[Proposal]:
        slots = [d.slot for d in draftees]
        contexts = [d.computed_tokens for d in draftees]
        proposals = draft_chain(self._model, self._cache, slots, contexts, draftees, k, law)
        for slot in slots:
            self._cache.rollback(slot)
        return proposals

    def release(self, request: int, finished: Sequence[int] | None) -> None:
        """Nothing is kept: the cache is the target's."""
