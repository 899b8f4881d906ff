"""What an acceptance model is, and the luck that it deals.

A round that starts at output position p (p tokens already emitted) where k drafts are asked for drafts
`min(k, drafts[p])` tokens and emits `min(k, run[p]) + 1`, cut at what the request still wants; the next round starts
there. Luck is dealt once for the largest k and reused for every policy, so that comparisons are paired.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

__all__ = [
    "MAX_SPEC_TOKENS",
    "AcceptanceModel",
    "Luck",
    "conditionals_of",
    "request_offsets",
    "round_starts",
    "shifted",
    "similar_outputs",
]

MAX_SPEC_TOKENS = 64
"""Largest number of drafts a round; runs and drafts are int8."""


@dataclass(frozen=True, slots=True)
class Luck:
    """Runs of matching drafts of n requests, concatenated; request i owns `[offsets[i], offsets[i + 1])`."""

    run: np.ndarray
    """int8, one per output position: drafts that would match for a round starting there, at most max_spec_tokens."""
    drafts: np.ndarray | None
    """int8, one per output position: most drafts that the drafter has to propose for a round starting there, never
    below `run`, `MAX_SPEC_TOKENS` for as many as asked; None: always as many as asked."""
    offsets: np.ndarray
    """int64, n + 1."""

    def of(self, i: int) -> tuple[np.ndarray, np.ndarray | None]:
        """`(run, drafts)` of request i (views)."""
        part = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        return self.run[part], None if self.drafts is None else self.drafts[part]


class AcceptanceModel(Protocol):
    """Deals luck to requests; request i's luck depends on the seed and its own id only, never on other requests."""

    @property
    def name(self) -> str: ...

    @property
    def max_spec_tokens(self) -> int:
        """Longest run that is dealt: the largest k that the model is good for."""
        ...

    @property
    def conditional(self) -> tuple[float, ...]:
        """Conditional acceptance by draft position, given that a draft was proposed there."""
        ...

    @property
    def proposal_rate(self) -> float:
        """Share of positions at which the drafter proposes."""
        ...

    def luck(
        self, seed: int, first_request_id: int, output_tokens: np.ndarray, tasks: np.ndarray | None = None
    ) -> Luck:
        """Luck of requests `first_request_id + 0, 1, ...` with these output lengths (positive ints).

        `tasks`: content class of each request, for models that differ by class; others ignore it.
        """
        ...

    def luck_of(self, seed: int, ids: np.ndarray, output_tokens: np.ndarray, tasks: np.ndarray | None = None) -> Luck:
        """The same for any request ids."""
        ...

    def expected_length(self, num_spec_tokens: int) -> float:
        """Mean acceptance length at a static k: tokens a round over all rounds, bonus and empty rounds included."""
        ...

    def expected_drafts(self, num_spec_tokens: int) -> float:
        """Mean drafts a round at a static k, over all rounds, rounds without a proposal included."""
        ...

    def with_change(self, delta: float) -> AcceptanceModel:
        """The model with each conditional probability moved by `delta` (-0.1: ten points less), clipped to 0..1."""
        ...


def request_offsets(output_tokens: np.ndarray) -> np.ndarray:
    """Offsets of a concatenation; refuses lengths below 1.

    Raises:
        ValueError: when a length is not positive (traces are checked before).
    """
    lengths = np.asarray(output_tokens, dtype=np.int64)
    if lengths.ndim != 1 or (len(lengths) and lengths.min() < 1):
        raise ValueError("output_tokens must be a flat array of lengths >= 1")
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def round_starts(run: np.ndarray, offsets: np.ndarray, num_spec_tokens: int) -> np.ndarray:
    """Where the rounds of requests start at a static k, in the order of the positions.

    Args:
        run: runs of all requests, one after another; request i owns `[offsets[i], offsets[i + 1])`.
    """
    at, end = np.asarray(offsets[:-1]), np.asarray(offsets[1:])
    gain = np.minimum(run, num_spec_tokens).astype(np.int64) + 1
    found = []
    while len(at):
        alive = at < end
        at, end = at[alive], end[alive]
        found.append(at)
        at = at + gain[at]
    return np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)


def conditionals_of(model: AcceptanceModel) -> tuple[float, ...]:
    """Conditional probabilities, given a proposal, whose acceptance lengths are those of a model at every static k."""
    lengths = [1.0, *(model.expected_length(k) for k in range(1, model.max_spec_tokens + 1))]
    survival, found = model.proposal_rate, []
    for before, after in itertools.pairwise(lengths):
        gain = max(0.0, after - before)
        found.append(min(1.0, gain / survival) if survival > 0 else 0.0)
        survival = gain
    return tuple(found)


def shifted(chance: float, shift: float) -> float:
    """A probability moved on the logit scale; 0 and 1 stay."""
    if not 0.0 < chance < 1.0:
        return chance
    return 1.0 / (1.0 + (1.0 - chance) / chance * math.exp(-shift))


def similar_outputs(wanted: np.ndarray, measured: np.ndarray, ratio: float) -> np.ndarray:
    """[wanted, measured]: how much each measured request says of outputs of the wanted lengths; rows sum to 1.

    The weight falls with the distance of the logarithms, to 1/e where one length is `ratio` times the other.
    """
    distance = np.abs(np.log(wanted)[:, None] - np.log(measured)[None]) / math.log(ratio)
    weight = np.exp(distance.min(axis=1, keepdims=True) - distance)
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))
