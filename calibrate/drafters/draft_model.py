"""A separate small model of the same vocabulary, with its own cache, one pass a draft.

It computes prompts in the chunks in which the target does, and catches up before it drafts: on what replaced a rejected
draft, and after full acceptance on the last draft as well, which it proposed but never computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.drafters.base import NOTHING, Draftee, Law, Proposal
from calibrate.drafters.chain import draft_chain
from calibrate.models import FlatModel, SlotCache
from specsim.errors import ScenarioError

__all__ = ["DraftModelDrafter"]


class DraftModelDrafter:
    """See `calibrate.drafters.base.Drafter`."""

    name = "draft_model"
    hidden_layers = None

    def __init__(self, model: FlatModel, *, syncs_at_zero: bool = False) -> None:
        """`syncs_at_zero`: it keeps its cache up to date in steps after which nothing is drafted (vLLM, SGLang);
        else it catches up when it is asked again."""
        self._model = model
        self._syncs_at_zero = syncs_at_zero
        self._slots: dict[int, int] = {}
        self._fed: dict[int, list[int]] = {}
        """Tokens of each request that the cache holds, its own drafts included."""

    def start(self, target: FlatModel, cache: SlotCache) -> None:
        if self._model.vocab_size != target.vocab_size:
            raise ScenarioError(
                f"draft model {self._model.name} has {self._model.vocab_size} tokens in its vocabulary and target "
                f"{target.name} {target.vocab_size}; drafts need the same vocabulary"
            )
        self._cache = SlotCache(cache.num_slots, cache.max_tokens)

    def propose(self, draftees: Sequence[Draftee], k: int, law: Law | None) -> list[Proposal]:
        if not draftees or (not k and not self._syncs_at_zero):
            return [NOTHING] * len(draftees)
        slots, contexts = [], []
        for d in draftees:
            if d.request not in self._slots:
                self._slots[d.request], self._fed[d.request] = self._cache.acquire(), []
            slot, fed = self._slots[d.request], self._fed[d.request]
            # what was fed and is still true; the last token is fed again, since its logits were not kept
            true = next((n for n, (a, b) in enumerate(zip(fed, d.tokens, strict=False)) if a != b), len(fed))
            self._cache.commit(slot, min(true, len(d.tokens) - 1))
            slots.append(slot)
            contexts.append(self._cache.committed[slot])
        proposals = draft_chain(self._model, self._cache, slots, contexts, draftees, k, law)
        for d, slot, proposal in zip(draftees, slots, proposals, strict=True):
            self._fed[d.request] = [*d.tokens, *proposal.tokens][: self._cache.written[slot]]
        return proposals

    def release(self, request: int, finished: Sequence[int] | None) -> None:
        if request in self._slots:
            self._cache.release(self._slots.pop(request))
            del self._fed[request]
