"""Replay of measured requests: each simulated request takes over the luck of one measured request.

Models: memory within a request, spread between requests and what they have to do with output length, as measured.
Leaves out: whether a lookup drafter proposed where nothing matched, unless the measurement or a proposal rate says so.
Numbers: measured requests (`specsim.acceptance.measured`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specsim.acceptance.base import (
    MAX_SPEC_TOKENS,
    Luck,
    conditionals_of,
    request_offsets,
    round_starts,
    similar_outputs,
)
from specsim.acceptance.measured import Measured
from specsim.errors import ProfileError
from specsim.rng import Purpose, stream
from specsim.type_checks import check_types

__all__ = ["Empirical"]

_SIMILAR = 1.08
"""Ratio of output lengths at which a request is replayed 1/e times as often. With 1.2, held-out halves are
predicted with twice the bias: the few outputs of some thousand tokens then borrow from the many shorter ones."""


@dataclass(frozen=True, eq=False)
class Empirical:
    """Measured runs, replayed. Requests are drawn with replacement, those with a similar output length before others,
    and the middle of a measurement is shortened or repeated to the output length that is wanted.

    Raises:
        ProfileError: when there is no request or a figure is out of range.
    """

    runs: tuple[np.ndarray, ...]
    """int8 arrays, one a request: drafts that would match at each position."""
    max_spec_tokens: int
    name: str = "measured"
    change: float = 0.0
    """Shift of each conditional acceptance: below 0 each matching draft breaks, above 0 each first miss heals, with
    the chance that moves the mean acceptance at that point by `change`."""
    proposal_rate: float = 1.0
    """Share of positions at which the drafter proposes; where nothing matched, proposals are drawn to fit it. Follows
    from `drafts` where these are measured."""
    drafts: tuple[np.ndarray, ...] | None = None
    """int8 arrays like `runs`: drafts proposed at each position; None: as many as asked wherever one proposes."""

    def __post_init__(self) -> None:
        check_types(self, "replay", ProfileError)
        if not self.runs or any(len(run) == 0 for run in self.runs):
            raise ProfileError("measured acceptance needs at least one request, each with at least one position")
        if not 1 <= self.max_spec_tokens <= MAX_SPEC_TOKENS:
            raise ProfileError(f"max_spec_tokens must be 1..{MAX_SPEC_TOKENS}, got {self.max_spec_tokens!r}")
        if not 0.0 <= self.proposal_rate <= 1.0:
            raise ProfileError(f"proposal_rate must lie in 0..1, got {self.proposal_rate!r}")
        if self.drafts is not None and list(map(len, self.drafts)) != list(map(len, self.runs)):
            raise ProfileError("measured drafts must have the positions of the measured runs")

    @classmethod
    def of(cls, measured: Measured, *, proposal_rate: float = 1.0) -> Empirical:
        """Replay of measured requests; their own proposals win over the rate."""
        rate = proposal_rate
        if measured.drafts is not None:
            rate = float(np.mean(np.concatenate(measured.drafts) > 0))
        return cls(measured.runs, measured.max_spec_tokens, measured.name, 0.0, rate, measured.drafts)

    @functools.cached_property
    def conditional(self) -> tuple[float, ...]:
        """Conditional probabilities whose acceptance lengths are the measured ones at every static k."""
        return conditionals_of(self)

    def expected_length(self, num_spec_tokens: int) -> float:
        """Tokens over rounds at a static k when every measured request is replayed once, last rounds not cut."""
        run, _, starts = self._walk(num_spec_tokens)
        return 1.0 + float(np.minimum(run[starts], num_spec_tokens).mean())

    def expected_drafts(self, num_spec_tokens: int) -> float:
        """Drafts a round when every measured request is replayed once."""
        _, drafts, starts = self._walk(num_spec_tokens)
        if drafts is not None:
            return float(np.minimum(drafts[starts], num_spec_tokens).mean())
        if self.proposal_rate >= 1.0:
            return float(num_spec_tokens)
        hits = float(np.mean(self._unchanged[starts] > 0))
        return num_spec_tokens * (hits + (1.0 - hits) * self._idle_rate)

    def with_change(self, delta: float) -> Empirical:
        """Conditional acceptance moved by `delta` on the same measured requests; proposals stay."""
        return dataclasses.replace(self, change=self.change + delta, name=f"{self.name} {delta:+g}")

    def luck(
        self, seed: int, first_request_id: int, output_tokens: np.ndarray, tasks: np.ndarray | None = None
    ) -> Luck:
        """See `AcceptanceModel.luck`; `tasks` is ignored."""
        ids = np.arange(first_request_id, first_request_id + len(output_tokens), dtype=np.int64)
        return self.luck_of(seed, ids, output_tokens)

    def luck_of(self, seed: int, ids: np.ndarray, output_tokens: np.ndarray, tasks: np.ndarray | None = None) -> Luck:
        """See `AcceptanceModel.luck_of`; `tasks` is ignored."""
        offsets = request_offsets(output_tokens)
        run = np.empty(int(offsets[-1]), dtype=np.int8)
        always = self.proposal_rate >= 1.0 and self.drafts is None
        drafts = None if always else np.empty(len(run), dtype=np.int8)
        chances = self._chances(np.asarray(output_tokens, dtype=np.int64))
        for i, request in enumerate(np.asarray(ids).tolist()):
            draws = stream(seed, Purpose.ACCEPTANCE, request)
            place = slice(int(offsets[i]), int(offsets[i + 1]))
            n = place.stop - place.start
            which = int(np.searchsorted(chances[int(output_tokens[i])], draws.random(), side="right"))
            seen = np.minimum(_lasting(self.runs[which], n), self.max_spec_tokens).astype(np.int8)
            now = self._moved(seen, draws.random(n + self.max_spec_tokens)) if self.change else seen
            if drafts is not None:
                if self.drafts is None:
                    asked = (seen > 0) | (draws.random(n) < self._idle_rate)
                    drafts[place] = MAX_SPEC_TOKENS * asked
                else:
                    drafts[place] = _lasting(self.drafts[which], n)
                now = np.minimum(now, drafts[place])
            run[place] = now
        return Luck(run, drafts, offsets)

    def _chances(self, output_tokens: np.ndarray) -> dict[int, np.ndarray]:
        """Running sums of the chance of each measured request, by output length."""
        wanted = np.unique(output_tokens)
        sums = np.cumsum(similar_outputs(wanted, np.array(list(map(len, self.runs))), _SIMILAR), axis=1)
        sums[:, -1] = 1.0
        return dict(zip(wanted.tolist(), sums, strict=True))

    @functools.cached_property
    def _unchanged(self) -> np.ndarray:
        return np.minimum(np.concatenate(self.runs), self.max_spec_tokens)

    @functools.cached_property
    def _idle_rate(self) -> float:
        """Chance of a proposal where nothing matches."""
        hits = float(np.mean(self._unchanged > 0))
        return max(0.0, (self.proposal_rate - hits) / (1.0 - hits)) if hits < 1.0 else 1.0

    @functools.cached_property
    def _mean_acceptance(self) -> float:
        """Mean conditional acceptance over every tested draft of all positions."""
        accepted = int(self._unchanged.sum(dtype=np.int64))
        missed = int(np.count_nonzero(self._unchanged < self.max_spec_tokens))
        return accepted / (accepted + missed) if accepted + missed else 0.0

    def _moved(self, run: np.ndarray, draws: np.ndarray) -> np.ndarray:
        a, limit = self._mean_acceptance, self.max_spec_tokens
        if self.change < 0:
            chance = min(1.0, -self.change / a) if a > 0 else 1.0
            places = np.append(np.flatnonzero(draws < chance), len(draws) + limit)
            positions = np.arange(len(run))
            return np.minimum(run, places[np.searchsorted(places, positions)] - positions).astype(np.int8)
        healed = (draws < (min(1.0, self.change / (1.0 - a)) if a < 1 else 0.0)).tolist()
        values = run.tolist()
        for p in range(len(values) - 1, -1, -1):
            length = values[p]
            if length < limit and healed[p + length]:
                beyond = p + length + 1
                length = min(limit, length + 1 + (values[beyond] if beyond < len(values) else 0))
            values[p] = length
        return np.asarray(values, dtype=np.int8)

    @functools.cached_property
    def _changed(self) -> np.ndarray:
        """Runs of all measured requests, changed with draws that are always the same."""
        if not self.change:
            return self._unchanged
        parts = []
        for i, run in enumerate(self.runs):
            draws = stream(0, Purpose.ACCEPTANCE, i).random(len(run) + self.max_spec_tokens)
            parts.append(self._moved(np.minimum(run, self.max_spec_tokens), draws))
        changed = np.concatenate(parts)
        return changed if self.drafts is None else np.minimum(changed, np.concatenate(self.drafts))

    def _walk(self, num_spec_tokens: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Runs and drafts of all measured requests, one after another, and where their rounds start."""
        drafts = None if self.drafts is None else np.concatenate(self.drafts)
        return self._changed, drafts, round_starts(self._changed, self._ends, num_spec_tokens)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.concatenate(([0], np.cumsum(_sizes(self.runs))))


def _sizes(runs: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([len(run) for run in runs], dtype=np.int64)


def _lasting(values: np.ndarray, n: int) -> np.ndarray:
    """n values with the beginning and the end of the measured ones: the middle is left out, or its half comes again.

    Acceptance differs between the first tokens of an answer and its end, so neither may be lost or come twice.
    """
    size = len(values)
    if n <= size:
        return np.concatenate((values[: n // 2], values[size - (n - n // 2) :])) if n < size else values
    half = size // 2
    more = np.resize(values[size // 4 : size // 4 + half + 1], n - size)
    return np.concatenate((values[:half], more, values[half:]))
