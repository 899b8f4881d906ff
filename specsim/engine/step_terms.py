"""Seconds of steps in a table that compiled loops can read: what `StepCost` remembers, as arrays.

A pure decode step is linear in its cached tokens once its make-up is fixed. A step with prompts is a sum of terms, each
by what it depends on. What is not there yet is asked for, and learnt.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from specsim.acceptance.base import MAX_SPEC_TOKENS
from specsim.engine import decode_kernels as kernels
from specsim.latency import StepCost

__all__ = ["StepTerms", "step_terms"]

_FIRST, _MOST = 1 << 10, 1 << 18
"""Places of the table at first, and at most; a power of two, and at least half of them stay free."""
_BLOCK = 64
"""Token counts that are learnt together."""
Key = tuple[int, int, int, int]


class StepTerms:
    """The table of one cost, with speculation loaded or not."""

    def __init__(self, cost: StepCost, machinery: bool) -> None:
        profile, draft = cost.profile, cost.profile.draft
        self._cost = cost
        self._machinery = machinery
        self._known = 0
        self.terms = np.zeros((_FIRST, kernels.TERMS))
        self.nodes = np.array(cost.nodes, dtype=np.int64)
        self.prices = np.zeros(kernels.PRICES)
        """See `decode_kernels`."""
        self.prices[: kernels.ALONE] = (
            profile.switch_s, profile.host_overlaps, profile.host_s, profile.host_request_s, profile.mixed_s,
        )  # fmt: skip
        self.prices[kernels.ALONE] = cost.target_by_tokens_alone
        for at, one in ((kernels.TARGET, profile.target), (kernels.DRAFTER, draft)):
            if one is not None:
                self.prices[at : at + 5] = (
                    one.kv_pair_s, one.window_tokens, one.windowed_kv_pair_s, one.kv_token_s, one.windowed_kv_token_s,
                )  # fmt: skip
        self.drafting = np.zeros((MAX_SPEC_TOKENS + 1, kernels.DRAFTING), dtype=np.int64)
        """By drafts of the next round, see `decode_kernels`; filled when it is first wanted."""

    def learn(self, key: Key) -> None:
        """Take in a make-up: (requests, levels of drafts, drafts verified, next k), see `StepCost.terms`."""
        self._add(key, lambda: self._cost.terms(*key, self._machinery))

    def learn_prompts(self, make_up: Key, prompt_tokens: int, prompt_rows: int) -> None:
        """Take in all terms of a step of that make-up with whole prompts beside it."""
        cost, (decode, levels, verified, k) = self._cost, make_up
        self._add((decode, levels, verified, kernels.MIXED + k), lambda: cost.mixed_terms(*make_up, self._machinery))
        rows, tokens = decode + prompt_rows, decode + verified + prompt_tokens
        self._add((rows + verified, 0, 0, kernels.HEAD), lambda: (cost.head_s(rows + verified), 0.0, 0.0))
        if cost.target_by_tokens_alone:
            self._add_block(tokens, kernels.MATRIX, lambda n: cost.target_matrix_s(n, 0, 0))
        else:
            key = (tokens, decode, verified, kernels.MATRIX)
            self._add(key, lambda: (cost.target_matrix_s(tokens, decode, verified), 0.0, 0.0))
        passes = cost.drafter_of(k, self._machinery)
        if not self.drafting[k, kernels.ASKED]:
            self._ask(k)
        if passes is None:
            return
        seen = decode + levels + prompt_tokens
        if passes.by_seen_alone(k):
            self._add_block(seen, kernels.FIRST + k, lambda n: passes.first_s(0, 0, 0, n, k))
        else:
            key = (seen, rows * kernels.APART + decode, levels, kernels.FIRST + k)
            self._add(key, lambda: (passes.first_s(decode, rows, levels, seen, k), 0.0, 0.0))
        further = [*passes.further_s(decode, rows, k), 0.0, 0.0]
        for part in range(len(further) // 3):
            some = further[3 * part : 3 * part + 3]
            self._add((decode, rows, part, kernels.FURTHER + k), lambda some=some: tuple(some))  # type: ignore[misc]

    def _ask(self, k: int) -> None:
        """What does not depend on a step but on its next k."""
        passes, row = self._cost.drafter_of(k, self._machinery), self.drafting[k]
        row[kernels.ASKED] = 1
        if passes is not None:
            row[kernels.RUNS], row[kernels.SEEN_ALONE] = 1, passes.by_seen_alone(k)
            row[kernels.CHUNKS], row[kernels.READS] = passes.reading(k)
            row[kernels.MORE] = len(passes.further_s(1, 1, k))

    def _add_block(self, count: int, code: int, seconds: Callable[[int], float]) -> None:
        """Take in a term for `count` and the counts next to it."""
        if not self.terms[kernels.find_terms(self.terms, count, 0, 0, code), kernels.USED]:
            for n in range(count // _BLOCK * _BLOCK, (count // _BLOCK + 1) * _BLOCK):
                self._add((n, 0, 0, code), lambda n=n: (seconds(n), 0.0, 0.0))  # type: ignore[misc]

    def _add(self, key: Key, terms: Callable[[], tuple[float, ...]]) -> None:
        place = kernels.find_terms(self.terms, *key)
        if self.terms[place, kernels.USED]:
            return
        if 2 * self._known >= len(self.terms):
            self._grow()
            place = kernels.find_terms(self.terms, *key)
        self.terms[place] = (*key, 1.0, *terms())
        self._known += 1

    def _grow(self) -> None:
        old, size = self.terms, 2 * len(self.terms)
        if size > _MOST:
            old, size, self._known = old[:0], _FIRST, 0
        self.terms = np.zeros((size, kernels.TERMS))
        kernels.refill(old, self.terms)


def step_terms(cost: StepCost, *, machinery: bool) -> StepTerms:
    """The table of this cost, kept with it so that every load and replica shares it."""
    found = cost.tables.get(machinery)
    if not isinstance(found, StepTerms):
        found = cost.tables[machinery] = StepTerms(cost, machinery)
    return found
