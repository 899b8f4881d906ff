"""Arrivals by hour, or by a shorter or longer time where the trace is: what a strip of a day's traffic shows.

Leaves out: the hour of the clock, since a trace counts from its own start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["ArrivalRates", "arrival_rates"]

_HOUR_S, _DAY_S = 3600.0, 86400.0
_WIDTHS = ((120.0, 1.0), (1200.0, 10.0), (2 * _HOUR_S, 60.0), (6 * _HOUR_S, 300.0), (31 * _DAY_S, _HOUR_S))
"""(spans up to so many seconds, width of a bin); at most 744 bins, longer traces go by the day."""


@dataclass(frozen=True, slots=True)
class ArrivalRates:
    """Mean arrivals in consecutive times of equal width; the last one counts for the time that it covers."""

    first_s: float
    """Start of the first bin, seconds from the start of the trace."""
    bin_s: float
    rate_per_s: tuple[float, ...]


def arrival_rates(arrival_s: np.ndarray) -> ArrivalRates:
    """Rates of sorted arrivals (seconds, at least one); a last bin that is less than half full joins the one before."""
    first, last = float(arrival_s[0]), float(arrival_s[-1])
    span = last - first
    width = next((width for longest, width in _WIDTHS if span <= longest), _DAY_S)
    count = max(1, round(span / width))
    index = np.minimum(((arrival_s - first) // width).astype(np.int64), count - 1)
    requests = np.bincount(index, minlength=count)
    seconds = np.full(count, width)
    seconds[-1] = max(span - (count - 1) * width, width / 2)
    return ArrivalRates(first, width, tuple(float(rate) for rate in requests / seconds))
