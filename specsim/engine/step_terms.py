"""Seconds of pure decode steps in a table that compiled loops can read: what `StepCost` remembers, as an array.

A make-up that is not there yet is asked for, and learnt.
"""

from __future__ import annotations

import numpy as np

from specsim.engine import decode_kernels as kernels
from specsim.latency import StepCost

__all__ = ["StepTerms", "step_terms"]

_FIRST, _MOST = 1 << 10, 1 << 18
"""Places of the table at first, and at most; a power of two, and at least half of them stay free."""


class StepTerms:
    """The table of one cost, with speculation loaded or not."""

    def __init__(self, cost: StepCost, machinery: bool) -> None:
        profile = cost.profile
        self._cost = cost
        self._machinery = machinery
        self._known = 0
        self.terms = np.zeros((_FIRST, kernels.TERMS))
        self.nodes = np.array(cost.nodes, dtype=np.int64)
        self.prices = np.array(
            [profile.switch_s, float(profile.host_overlaps), profile.host_s, profile.host_request_s], dtype=np.float64
        )

    def learn(self, key: tuple[int, int, int, int]) -> None:
        """Take in a make-up: (requests, levels of drafts, drafts verified, next k), see `StepCost.terms`."""
        if 2 * self._known >= len(self.terms):
            self._grow()
        place = kernels.find_terms(self.terms, *key)
        self.terms[place] = (*key, 1.0, *self._cost.terms(*key, self._machinery))
        self._known += 1

    def _grow(self) -> None:
        old, size = self.terms, 2 * len(self.terms)
        if size > _MOST:
            old, size, self._known = old[:0], _FIRST, 0
        self.terms = np.zeros((size, kernels.TERMS))
        for row in old[old[:, kernels.USED] > 0]:
            self.terms[kernels.find_terms(self.terms, *(int(value) for value in row[: kernels.USED]))] = row


def step_terms(cost: StepCost, *, machinery: bool) -> StepTerms:
    """The table of this cost, kept with it so that every load and replica shares it."""
    found = cost.tables.get(machinery)
    if not isinstance(found, StepTerms):
        found = cost.tables[machinery] = StepTerms(cost, machinery)
    return found
