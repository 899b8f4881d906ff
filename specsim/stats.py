"""Intervals and paired comparisons over replications. A difference whose interval holds zero is a tie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

__all__ = ["Estimate", "Verdict", "estimate", "paired", "paired_ratio"]

Verdict = Literal["higher", "lower", "tie", "unknown"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its interval; `low` and `high` are nan when one replication cannot give one."""

    mean: float
    low: float
    high: float
    n: int

    def compared_to(self, value: float) -> Verdict:
        """Whether the interval lies above or below `value`, or holds it (a tie)."""
        if math.isnan(self.mean):
            return "unknown"
        if math.isnan(self.low):
            return "tie"
        if self.low > value:
            return "higher"
        return "lower" if self.high < value else "tie"


@cache
def _t_quantile(level: float, degrees: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + level / 2))


def estimate(values: Sequence[float], *, level: float = 0.95) -> Estimate:
    """Mean and Student t interval of independent replications; values that are nan are left out."""
    x = np.asarray([v for v in values if not math.isnan(v)], dtype=np.float64)
    n = len(x)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(x.mean())
    if n == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    half = _t_quantile(level, n - 1) * float(x.std(ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def paired(a: Sequence[float], b: Sequence[float], *, level: float = 0.95) -> Estimate:
    """Mean of a - b over pairs that met the same requests with the same luck.

    Raises:
        ValueError: when the sequences differ in length.
    """
    return estimate([x - y for x, y in zip(a, b, strict=True)], level=level)


def paired_ratio(a: Sequence[float], b: Sequence[float], *, level: float = 0.95) -> Estimate:
    """Ratio a / b over pairs: geometric mean, with the t interval of the logarithms.

    Pairs with a value that is not positive and finite are left out.
    """
    logs = [
        math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0 and y > 0 and math.isfinite(x) and math.isfinite(y)
    ]
    e = estimate(logs, level=level)
    return Estimate(math.exp(e.mean), math.exp(e.low), math.exp(e.high), e.n)
