"""Acceptance by draft position: conditional probabilities, with spread between requests and a proposal rate.

Each output position owns one uniform u; a round that starts at p accepts its draft j, which stands for position
p + j - 1, when u of that position is below a_j. Every k thus shares the same luck, rounds use fresh uniforms, and the
tokens per round at a static k are exactly `1 + rate * (a_1 + a_1 a_2 + ...)`.
Leaves out: longer memory than a request's own effect; proposals shorter than k.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from specsim.acceptance.base import MAX_SPEC_TOKENS, Luck, request_offsets
from specsim.acceptance.spread import sigma_for_spread, thresholds
from specsim.errors import ProfileError
from specsim.rng import Purpose, stream

__all__ = ["Constant", "PerPosition"]

_BLOCK_TOKENS = 1 << 14  # small enough that a block stays in the cache of a core
_NORMAL = NormalDist()


@dataclass(frozen=True)
class PerPosition:
    """Conditional acceptance by position; beyond the vector the last value is carried.

    Raises:
        ProfileError: when a probability is outside 0..1 or a size is out of range.
    """

    given: tuple[float, ...]
    """Chance that draft 1, 2, ... matches, given that those before it did and that something was proposed."""
    max_spec_tokens: int = 20
    proposal_rate: float = 1.0
    """Chance that the drafter proposes at a position (n-gram); below 1 `Luck.proposes` is dealt."""
    sigma: float = 0.0
    """Spread between requests on the logit scale (`specsim.acceptance.spread`)."""
    name: str = "per position"

    def __post_init__(self) -> None:
        if not self.given:
            raise ProfileError("acceptance vector is empty; give at least one probability")
        for a in (*self.given, self.proposal_rate):
            if isinstance(a, bool) or not isinstance(a, int | float) or not 0.0 <= a <= 1.0:
                raise ProfileError(f"acceptance probability must lie in 0..1, got {a!r}")
        if not 1 <= self.max_spec_tokens <= MAX_SPEC_TOKENS:
            raise ProfileError(f"max_spec_tokens must be 1..{MAX_SPEC_TOKENS}, got {self.max_spec_tokens!r}")
        if not (math.isfinite(self.sigma) and 0.0 <= self.sigma <= 6.0):
            raise ProfileError(f"acceptance sigma must lie in 0..6, got {self.sigma!r}")

    @functools.cached_property
    def conditional(self) -> tuple[float, ...]:
        """The vector, carried on to `max_spec_tokens` values."""
        missing = self.max_spec_tokens - len(self.given)
        return tuple(map(float, self.given[: self.max_spec_tokens])) + (float(self.given[-1]),) * max(0, missing)

    def with_spread(self, spread: float, num_spec_tokens: int) -> PerPosition:
        """The model whose requests differ by `spread` tokens (SD, no sampling noise) in mean acceptance length at k.

        Raises:
            ProfileError: when that spread is not possible.
        """
        sigma = sigma_for_spread(self.conditional, self.proposal_rate, num_spec_tokens, spread)
        return dataclasses.replace(self, sigma=sigma)

    def with_change(self, delta: float) -> PerPosition:
        """Each conditional probability moved by `delta` and clipped; proposals and sigma stay."""
        moved = tuple(min(1.0, max(0.0, a + delta)) for a in self.conditional)
        return PerPosition(moved, self.max_spec_tokens, self.proposal_rate, self.sigma, f"{self.name} {delta:+g}")

    def expected_length(self, num_spec_tokens: int) -> float:
        """Tokens a round at a static k (at most `max_spec_tokens`), bonus and rounds without proposal included."""
        survival, length = self.proposal_rate, 1.0
        for a in self.conditional[:num_spec_tokens]:
            survival *= a
            length += survival
        return length

    def luck(
        self, seed: int, first_request_id: int, output_tokens: np.ndarray, tasks: np.ndarray | None = None
    ) -> Luck:
        """See `AcceptanceModel.luck`; `tasks` is ignored."""
        ids = np.arange(first_request_id, first_request_id + len(output_tokens), dtype=np.int64)
        return self.luck_of(seed, ids, output_tokens)

    def luck_of(self, seed: int, ids: np.ndarray, output_tokens: np.ndarray, tasks: np.ndarray | None = None) -> Luck:
        """See `AcceptanceModel.luck_of`; `tasks` is ignored."""
        offsets = request_offsets(output_tokens)
        run = np.zeros(int(offsets[-1]), dtype=np.int8)
        proposes = np.ones(len(run), dtype=bool) if self.proposal_rate < 1.0 else None
        first = 0
        while first < len(ids):
            last = int(np.searchsorted(offsets, offsets[first] + _BLOCK_TOKENS, side="right")) - 1
            last = min(max(last, first + 1), len(ids))
            part = slice(int(offsets[first]), int(offsets[last]))
            self._deal(
                seed,
                ids[first:last].tolist(),
                np.diff(offsets[first : last + 1]),
                run[part],
                None if proposes is None else proposes[part],
            )
            first = last
        return Luck(run, proposes, offsets)

    def _deal(
        self, seed: int, ids: list[int], lengths: np.ndarray, run: np.ndarray, proposes: np.ndarray | None
    ) -> None:
        """Fill `run` and `proposes` of one block. A request draws its own effect first, then one uniform a position
        (two with proposals), and max_spec_tokens positions beyond its end, so that late runs are not cut short."""
        a = self.conditional
        per_position = 1 if proposes is None else 2
        sizes = 1 + per_position * (lengths + self.max_spec_tokens)
        starts = np.concatenate(([0], np.cumsum(sizes)))
        draws = np.empty(int(starts[-1]))
        for request, begin, end in zip(ids, starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            stream(seed, Purpose.ACCEPTANCE, request).random(out=draws[begin:end])
        # index into `draws` of the uniform of every output position
        owner_start = np.repeat(starts[:-1] + 1, lengths)
        local = np.arange(len(run)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        where = owner_start + per_position * local
        limits: tuple[float, ...] = (self.proposal_rate, *a)
        if self.sigma > 0.0:
            limits = thresholds(a, self.proposal_rate, self.sigma)
            effects = [_NORMAL.inv_cdf(min(max(u, 1e-15), 1.0 - 1e-15)) for u in draws[starts[:-1]].tolist()]
            with np.errstate(divide="ignore"):
                draws = np.log(draws) - np.log1p(-draws)
            draws -= np.repeat(self.sigma * np.asarray(effects), sizes)
        if proposes is None:
            alive = np.arange(len(run))
        else:
            np.less(draws[where + 1], limits[0], out=proposes)
            alive = np.flatnonzero(proposes)
        at = where[alive]
        for depth in range(self.max_spec_tokens):
            hit = draws[at + per_position * depth] < limits[depth + 1]
            alive, at = alive[hit], at[hit]
            if not len(alive):
                break
            run[alive] = depth + 1


class Constant(PerPosition):
    """The same conditional acceptance at every position: the textbook model."""

    def __init__(self, alpha: float, *, max_spec_tokens: int = 20, sigma: float = 0.0) -> None:
        super().__init__((alpha,), max_spec_tokens, 1.0, sigma, f"constant {alpha:g}")
