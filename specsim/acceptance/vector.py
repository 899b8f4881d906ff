"""Acceptance by draft position: conditional probabilities, with spread between requests and a proposal rate.

Each output position owns one uniform u; a round that starts at p accepts its draft j, which stands for position
p + j - 1, when u of that position is below a_j. Every k thus shares the same luck, rounds use fresh uniforms, and the
tokens per round at a static k are exactly `1 + rate * (a_1 s_1 + a_1 a_2 s_2 + ...)`, s_j the chance that a proposal
has a draft j.
Leaves out: longer memory than a request's own effect; that long proposals match better than short ones.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from specsim.acceptance.base import MAX_SPEC_TOKENS, Luck, request_offsets, shifted
from specsim.acceptance.spread import sigma_for_spread, thresholds
from specsim.errors import ProfileError
from specsim.rng import Purpose
from specsim.type_checks import check_types

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
    """Chance that draft 1, 2, ... matches, given that it was proposed and that those before it matched."""
    max_spec_tokens: int = 20
    proposal_rate: float = 1.0
    """Chance that the drafter proposes at a position (n-gram); below 1 `Luck.drafts` is dealt."""
    sigma: float = 0.0
    """Spread between requests on the logit scale (`specsim.acceptance.spread`)."""
    name: str = "per position"
    proposed: tuple[float, ...] = (1.0,)
    """Chance that a proposal has a draft 1 (always 1), 2, ...; the last value is carried on. (1.0,): all asked for."""

    def __post_init__(self) -> None:
        check_types(self, "acceptance", ProfileError)
        if not self.given:
            raise ProfileError("acceptance vector is empty; give at least one probability")
        for a in (*self.given, self.proposal_rate, *self.proposed):
            if isinstance(a, bool) or not isinstance(a, int | float) or not 0.0 <= a <= 1.0:
                raise ProfileError(f"acceptance probability must lie in 0..1, got {a!r}")
        if self.proposed[:1] != (1.0,) or any(b > a for a, b in itertools.pairwise(self.proposed)):
            raise ProfileError(f"proposed must start with 1 and never rise, got {self.proposed!r}")
        if not 1 <= self.max_spec_tokens <= MAX_SPEC_TOKENS:
            raise ProfileError(f"max_spec_tokens must be 1..{MAX_SPEC_TOKENS}, got {self.max_spec_tokens!r}")
        if len(self.proposed) > self.max_spec_tokens:
            raise ProfileError(f"proposed has {len(self.proposed)} values; give at most {self.max_spec_tokens}")
        if not (math.isfinite(self.sigma) and 0.0 <= self.sigma <= 6.0):
            raise ProfileError(f"acceptance sigma must lie in 0..6, got {self.sigma!r}")

    @functools.cached_property
    def conditional(self) -> tuple[float, ...]:
        """The vector, carried on to `max_spec_tokens` values."""
        missing = self.max_spec_tokens - len(self.given)
        return tuple(map(float, self.given[: self.max_spec_tokens])) + (float(self.given[-1]),) * max(0, missing)

    @functools.cached_property
    def survival(self) -> tuple[float, ...]:
        """Chance that a proposal has a draft 1, 2, ..., carried on to `max_spec_tokens` values."""
        missing = self.max_spec_tokens - len(self.proposed)
        return self.proposed[: self.max_spec_tokens] + self.proposed[-1:] * max(0, missing)

    def with_spread(self, spread: float, num_spec_tokens: int) -> PerPosition:
        """The model whose requests differ by `spread` tokens (SD, no sampling noise) in mean acceptance length at k.

        Raises:
            ProfileError: when that spread is not possible.
        """
        sigma = sigma_for_spread(self.conditional, self.proposal_rate, num_spec_tokens, spread, self.survival)
        return dataclasses.replace(self, sigma=sigma)

    def with_change(self, delta: float) -> PerPosition:
        """Each conditional probability moved by `delta` and clipped; proposals and sigma stay."""
        moved = tuple(min(1.0, max(0.0, a + delta)) for a in self.conditional)
        return PerPosition(
            moved, self.max_spec_tokens, self.proposal_rate, self.sigma, f"{self.name} {delta:+g}", self.proposed
        )

    def with_logit_shift(self, shift: float) -> PerPosition:
        """Each conditional probability moved by `shift` on the logit scale; proposals and sigma stay."""
        moved = tuple(shifted(a, shift) for a in self.conditional)
        return dataclasses.replace(self, given=moved)

    def expected_length(self, num_spec_tokens: int) -> float:
        """Tokens a round at a static k (at most `max_spec_tokens`), bonus and rounds without proposal included."""
        accepted, length = self.proposal_rate, 1.0
        for a, there in zip(self.conditional[:num_spec_tokens], self.survival, strict=False):
            accepted *= a
            length += accepted * there
        return length

    def expected_drafts(self, num_spec_tokens: int) -> float:
        """Drafts a round at a static k, rounds without a proposal included."""
        there = self.survival[:num_spec_tokens]
        return self.proposal_rate * (math.fsum(there) + (num_spec_tokens - len(there)) * self.survival[-1])

    def luck(
        self, seed: int, first_request_id: int, output_tokens: np.ndarray, tasks: np.ndarray | None = None
    ) -> Luck:
        """See `AcceptanceModel.luck`; `tasks` is ignored."""
        ids = np.arange(first_request_id, first_request_id + len(output_tokens), dtype=np.int64)
        return self.luck_of(seed, ids, output_tokens)

    def luck_of(self, seed: int, ids: np.ndarray, output_tokens: np.ndarray, tasks: np.ndarray | None = None) -> Luck:
        """See `AcceptanceModel.luck_of`; `tasks` is ignored."""
        offsets, ids = request_offsets(output_tokens), np.asarray(ids, dtype=np.int64)
        run = np.zeros(int(offsets[-1]), dtype=np.int8)
        always = self.proposal_rate >= 1.0 and self.proposed == (1.0,)
        drafts = None if always else np.zeros(len(run), dtype=np.int8)
        first = 0
        while first < len(ids):
            last = int(np.searchsorted(offsets, offsets[first] + _BLOCK_TOKENS, side="right")) - 1
            last = min(max(last, first + 1), len(ids))
            part = slice(int(offsets[first]), int(offsets[last]))
            self._deal(
                seed,
                ids[first:last],
                np.diff(offsets[first : last + 1]),
                run[part],
                None if drafts is None else drafts[part],
            )
            first = last
        return Luck(run, drafts, offsets)

    def _deal(
        self, seed: int, ids: np.ndarray, lengths: np.ndarray, run: np.ndarray, drafts: np.ndarray | None
    ) -> None:
        """Fill `run` and `drafts` of one block. A request draws its own effect first, then one uniform a position
        (two with proposals), and max_spec_tokens positions beyond its end, so that late runs are not cut short."""
        from specsim.rng_kernels import fill_uniforms, round_keys  # where it is used, since numba takes long to load

        a = self.conditional
        per_position = 1 if drafts is None else 2
        sizes = 1 + per_position * (lengths + self.max_spec_tokens)
        starts = np.concatenate(([0], np.cumsum(sizes)))
        draws = np.empty(int(starts[-1]))
        fill_uniforms(round_keys(seed, Purpose.ACCEPTANCE), ids, starts, draws)
        # index into `draws` of the uniform of every output position
        owner_start = np.repeat(starts[:-1] + 1, lengths)
        local = np.arange(len(run)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        where = owner_start + per_position * local
        limits: tuple[float, ...] = (self.proposal_rate, *a)
        if drafts is not None:
            drafts[:] = self._proposals(draws[where + 1], draws[starts[:-1]], lengths)
        if self.sigma > 0.0:
            limits = thresholds(a, self.proposal_rate, self.sigma, self.survival)
            effects = _effects(draws[starts[:-1]])
            with np.errstate(divide="ignore"):
                draws = np.log(draws) - np.log1p(-draws)
            draws -= np.repeat(self.sigma * effects, sizes)
        if drafts is None:
            alive = np.arange(len(run))
        else:
            alive = np.flatnonzero(drafts)
        at = where[alive]
        for depth in range(self.max_spec_tokens):
            hit = draws[at + per_position * depth] < limits[depth + 1]
            alive, at = alive[hit], at[hit]
            if not len(alive):
                break
            run[alive] = depth + 1
        if drafts is not None:
            np.minimum(run, drafts, out=run)

    def _proposals(self, u: np.ndarray, effect_u: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Drafts proposed at each position: below the rate there is a proposal, and how far below says how long."""
        rate = np.full(len(u), self.proposal_rate)
        if self.sigma > 0.0 and self.proposal_rate < 1.0:
            limit = thresholds(self.conditional, self.proposal_rate, self.sigma, self.survival)[0]
            rate = np.repeat(1.0 / (1.0 + np.exp(-limit - self.sigma * _effects(effect_u))), lengths)
        share = np.divide(u, rate, out=np.ones_like(u), where=u < rate)
        rising = np.asarray(self.proposed[::-1])
        size = len(rising) - np.searchsorted(rising, share, side="right")
        return np.where(size == len(rising), MAX_SPEC_TOKENS, size)


def _effects(u: np.ndarray) -> np.ndarray:
    """Standard normal effects of requests from their uniforms."""
    return np.asarray([_NORMAL.inv_cdf(min(max(x, 1e-15), 1.0 - 1e-15)) for x in u.tolist()])


class Constant(PerPosition):
    """The same conditional acceptance at every position: the textbook model."""

    def __init__(self, alpha: float, *, max_spec_tokens: int = 20, sigma: float = 0.0) -> None:
        super().__init__((alpha,), max_spec_tokens, 1.0, sigma, f"constant {alpha:g}")
