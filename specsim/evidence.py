"""What a measured latency profile rests on: its points, how far it misses points kept out of the fit, and its range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from specsim.errors import ProfileError, nearest
from specsim.type_checks import check_types

__all__ = ["RANGES", "Evidence", "outside"]

RANGES: Mapping[str, str] = {
    "requests": "requests in a step",
    "width": "tokens verified a request",
    "context_tokens": "cached tokens of a request",
    "step_tokens": "tokens in a step",
}
"""Quantities whose measured range is kept, and how a sentence calls them."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where the terms of a profile were measured, and how well they hold there.

    Raises:
        ProfileError: a number that is not finite or negative, an unknown range, or a range that falls.
    """

    points: int
    """Measured points that the fit used."""
    holdout_points: int = 0
    """Further points, measured between them, that it did not see."""
    holdout_median: float = 0.0
    """Median relative error of those points."""
    holdout_p95: float = 0.0
    """95th percentile of the same."""
    noise: float = 0.0
    """Median over points of the half width of a measurement's interval, relative to it."""
    noise_p95: float = 0.0
    """95th percentile of the same."""
    drift: float = 0.0
    """Spread of the reference point over the measurement: 95th over 5th percentile, less 1."""
    flagged: tuple[str, ...] = ()
    """Points that no physical law explains, so that the fit leaves them out, each with the reason."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Quantity of `RANGES` -> smallest and largest value measured."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Term, as `target.token_s` -> its 95 % interval."""
    ceilings: Mapping[str, float] = field(default_factory=dict)
    """Limits measured on the same device: copy_bytes_per_s, matrix_flops_per_s; and memory_bytes."""
    references: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """target, draft -> seconds of the reference point for which terms hold, and how far other points follow when it
    drifts (0: not at all, 1: in proportion)."""
    reference_parts: Mapping[str, str] = field(default_factory=dict)
    """The same -> which point that is, as `2@48 2@80`: tokens behind cached tokens of each request; ` layers=8` where
    only so many ran."""
    points_sha256: str = ""
    """Hash of the points file."""

    def __post_init__(self) -> None:
        for name in ("ranges", "intervals", "references"):
            given = getattr(self, name)
            if isinstance(given, Mapping):  # JSON has lists
                pairs = {key: tuple(pair) if isinstance(pair, list) else pair for key, pair in given.items()}
                object.__setattr__(self, name, pairs)
        check_types(self, "evidence", ProfileError)
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, int | float) and value < 0:
                raise ProfileError(f"evidence {f.name} must be finite and >= 0, got {value!r}")
        for role, (seconds, share) in self.references.items():
            if not (seconds > 0 and 0 <= share <= 1):
                raise ProfileError(
                    f"evidence references: {role} needs seconds > 0 and a share in 0..1, got {seconds!r} and {share!r}"
                )
        for name, (low, high) in self.ranges.items():
            if name not in RANGES:
                raise ProfileError(f"evidence ranges: unknown quantity '{name}'{nearest(name, RANGES)}")
            if not low <= high:
                raise ProfileError(f"evidence ranges: {name} runs from {low!r} to {high!r}; the first must be smaller")


def outside(evidence: Evidence | None, **used: float) -> tuple[str, ...]:
    """A sentence for each quantity of `RANGES` that was used above its measured range; no evidence, no sentence.

    Below the range nothing is said: fewer requests, narrower verification and shorter contexts than the smallest
    measured lie between it and zero.
    """
    if evidence is None:
        return ()
    found = []
    for name, value in used.items():
        high = evidence.ranges.get(name, (0.0, math.inf))[1]
        if value > high:
            found.append(f"{RANGES[name]} up to {value:,.0f}, measured up to {high:,.0f}")
    if not found:
        return ()
    return (f"Step times are extrapolated beyond what the profile measured: {'; '.join(found)}.",)
