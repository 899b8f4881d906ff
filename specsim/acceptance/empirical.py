"""Replay of measured requests: each simulated request takes over the luck of one measured request.

Format: JSON lines, plain or gzip, one object a request: `request`, `task`, `prompt_tokens`, `output_tokens` and, per
drafter, a list with one number for each output position: the tokens that a round starting there would emit with as
many drafts as were measured (bonus included, so 1 = nothing matched).
Models: memory within a request and spread between requests, as measured. Leaves out: whether a lookup drafter proposed
where nothing matched (the file cannot tell), unless a proposal rate is given.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import itertools
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specsim.acceptance.base import MAX_SPEC_TOKENS, Luck, request_offsets, walk_lengths
from specsim.errors import ProfileError, nearest
from specsim.rng import Purpose, stream

__all__ = ["Empirical", "read_measured"]

_KEYS = ("request", "task", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, eq=False)
class Empirical:
    """Measured runs, replayed. Requests are drawn with replacement, each as likely as any other, and a request that
    wants more tokens than were measured starts over at the first position.

    Raises:
        ProfileError: when there is no request or a run is out of range.
    """

    runs: tuple[np.ndarray, ...]
    """int8 arrays, one a request: drafts that would match at each position."""
    max_spec_tokens: int
    name: str = "measured"
    change: float = 0.0
    """Shift of each conditional acceptance: below 0 each matching draft breaks, above 0 each first miss heals, with
    the chance that moves the mean acceptance at that point by `change`."""
    proposal_rate: float = 1.0
    """Share of positions at which the drafter proposes; where nothing matched, proposals are drawn to fit it."""

    def __post_init__(self) -> None:
        if not self.runs or any(len(run) == 0 for run in self.runs):
            raise ProfileError("measured acceptance needs at least one request, each with at least one position")
        if not 1 <= self.max_spec_tokens <= MAX_SPEC_TOKENS:
            raise ProfileError(f"max_spec_tokens must be 1..{MAX_SPEC_TOKENS}, got {self.max_spec_tokens!r}")
        if not 0.0 <= self.proposal_rate <= 1.0:
            raise ProfileError(f"proposal_rate must lie in 0..1, got {self.proposal_rate!r}")

    @functools.cached_property
    def conditional(self) -> tuple[float, ...]:
        """Conditional probabilities whose acceptance lengths are the measured ones at every static k."""
        lengths = [1.0, *(self.expected_length(k) for k in range(1, self.max_spec_tokens + 1))]
        survival, found = self.proposal_rate, []
        for before, after in itertools.pairwise(lengths):
            gain = max(0.0, after - before)
            found.append(min(1.0, gain / survival) if survival > 0 else 0.0)
            survival = gain
        return tuple(found)

    def expected_length(self, num_spec_tokens: int) -> float:
        """Tokens a round at a static k when every measured request is replayed once over equally many tokens."""
        per_token = [
            rounds / tokens
            for rounds, tokens in (walk_lengths(run, num_spec_tokens) for run in self._changed_runs)
        ]  # fmt: skip
        return len(per_token) / sum(per_token)

    def expected_drafts(self, num_spec_tokens: int) -> float:
        """All k where something is proposed."""
        return self.proposal_rate * num_spec_tokens

    def with_change(self, delta: float) -> Empirical:
        """Conditional acceptance moved by `delta` on the same measured requests."""
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
        drafts = np.zeros(len(run), dtype=np.int8) if self.proposal_rate < 1.0 else None
        for i, request in enumerate(np.asarray(ids).tolist()):
            draws = stream(seed, Purpose.ACCEPTANCE, request)
            measured = self.runs[int(draws.random() * len(self.runs))]
            part = run[offsets[i] : offsets[i + 1]]
            part[:] = np.resize(measured, len(part))
            if self.change:
                part[:] = self._moved(part, draws.random(len(part) + self.max_spec_tokens))
            if drafts is not None:
                proposes = (part > 0) | (draws.random(len(part)) < self._idle_rate)
                drafts[offsets[i] : offsets[i + 1]] = MAX_SPEC_TOKENS * proposes
        np.minimum(run, self.max_spec_tokens, out=run)
        return Luck(run, drafts, offsets)

    @functools.cached_property
    def _idle_rate(self) -> float:
        """Chance of a proposal where nothing matches."""
        hits = sum(int(np.count_nonzero(run)) for run in self.runs) / sum(map(len, self.runs))
        return max(0.0, (self.proposal_rate - hits) / (1.0 - hits)) if hits < 1.0 else 1.0

    @functools.cached_property
    def _mean_acceptance(self) -> float:
        """Mean conditional acceptance over every tested draft of all positions."""
        accepted = sum(int(run.sum(dtype=np.int64)) for run in self.runs)
        missed = sum(int(np.count_nonzero(run < self.max_spec_tokens)) for run in self.runs)
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
    def _changed_runs(self) -> list[list[int]]:
        if not self.change:
            return [np.minimum(run, self.max_spec_tokens).tolist() for run in self.runs]
        changed = []
        for i, run in enumerate(self.runs):
            draws = stream(0, Purpose.ACCEPTANCE, i).random(len(run) + self.max_spec_tokens)
            changed.append(self._moved(np.minimum(run, self.max_spec_tokens), draws).tolist())
        return changed


def read_measured(path: str | Path, *, drafter: str, task: str | None = None, proposal_rate: float = 1.0) -> Empirical:
    """Read measured requests of one drafter (and task) from a file in the format of this module.

    Raises:
        ProfileError: with file and line, when the file cannot be read or a line is malformed.
    """
    place = Path(path)
    runs: list[np.ndarray] = []
    tasks: set[str] = set()
    try:
        raw = place.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ProfileError(f"{place}: cannot be read as measured acceptance ({reason})") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{place}: line {number}"
        row = _row(line, where)
        tasks.add(str(row.get("task")))
        if task is None or row.get("task") == task:
            runs.append(_run(row, drafter, where))
    if not runs:
        found = f"tasks there: {', '.join(sorted(tasks))}" if tasks else "the file is empty"
        raise ProfileError(f"{place}: no measured request" + (f" of task '{task}'; {found}" if task else f"; {found}"))
    longest = max(int(run.max()) for run in runs)
    return Empirical(tuple(runs), max(1, longest), f"measured {drafter} in {place.name}", 0.0, proposal_rate)


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{where}: not a JSON object ({error})") from error
    if not isinstance(row, dict):
        raise ProfileError(f"{where}: expected an object, got {type(row).__name__}")
    return row


def _run(row: dict[str, Any], drafter: str, where: str) -> np.ndarray:
    values = row.get(drafter)
    if values is None:
        there = [key for key in row if key not in _KEYS]
        raise ProfileError(
            f"{where}: no drafter '{drafter}'{nearest(drafter, there)}; there: {', '.join(there) or '-'}"
        )
    if not isinstance(values, list) or not values:
        raise ProfileError(f"{where}: '{drafter}' must be a list with one number per output position")
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SPEC_TOKENS + 1:
            raise ProfileError(
                f"{where}: '{drafter}' position {position} must be a whole number 1..{MAX_SPEC_TOKENS + 1} "
                f"(tokens of a round, bonus included), got {value!r}"
            )
    return np.asarray(values, dtype=np.int8) - np.int8(1)
