"""A predicted figure held against repeats of a measured one: signed error, noise, and what counts as close enough.

Error: predicted over measured, less 1; measured is the median over repeats. Noise: how far a single repeat lies from
that median at most, relative to it. Close enough: at most 5 %, or the noise where that is larger.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

__all__ = ["BOUND", "JUDGED", "compared", "finite", "middle", "sign_right", "within_bound"]

BOUND = 0.05
"""Error that is allowed whatever the noise."""
JUDGED = ("output_tokens_per_s", "tpot_mean_s")
"""Figures that decide; the others are printed beside them."""


def compared(values: Sequence[float], predicted: float, luck: float, *, decides: bool) -> dict[str, Any]:
    """One figure as JSON: measured, predicted, error, noise, and `luck`, the relative spread of the prediction.

    `decides`: it is judged, by `within`.
    """
    measured, noise = middle(values)
    error = predicted / measured - 1.0 if measured else math.nan
    found: dict[str, Any] = {
        "measured": finite(measured),
        "predicted": finite(predicted),
        "error": finite(error),
        "noise": finite(noise),
        "luck": finite(luck),
    }
    if decides:
        found["within"] = within_bound(error, noise)
    return found


def middle(values: Sequence[float]) -> tuple[float, float]:
    """(median, largest deviation of one value from it, relative); no noise is known of a single value: nan."""
    median = statistics.median(values)
    if len(values) < 2 or not median or not math.isfinite(median):
        return median, math.nan
    return median, max(abs(value / median - 1.0) for value in values)


def within_bound(error: float, noise: float) -> bool:
    """Whether an error is close enough; one that is not known is not."""
    bound = max(BOUND, noise) if math.isfinite(noise) else BOUND
    return math.isfinite(error) and abs(error) <= bound


def sign_right(predicted: float, measured: float, noise: float) -> bool | None:
    """Whether a ratio is predicted on its side of 1; None: the measured one lies within its noise of 1."""
    clear = abs(measured - 1.0) > (noise if math.isfinite(noise) else 0.0)
    return (predicted > 1.0) == (measured > 1.0) if clear else None


def finite(value: float) -> float | None:
    """The value as JSON can hold it."""
    return value if math.isfinite(value) else None
