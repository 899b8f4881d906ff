"""Which loads to compare at: the trace's own, and a grid up to the capacity of the fleet."""

from __future__ import annotations

import numpy as np

__all__ = ["choose_loads", "requests_at"]

LOWEST, HIGHEST = 0.1, 1.05
"""The grid as shares of the capacity without speculation: from nearly idle to just overloaded."""
LEAST_REQUESTS = 250


def choose_loads(own_per_s: float, capacity_per_s: float, points: int) -> tuple[float, ...]:
    """Loads in requests per second, rising: `points` evenly from 10 % to 105 % of capacity, and the trace's own.

    A grid point within 4 % of the trace's own load gives way to it.
    """
    grid = [float(x) for x in np.linspace(LOWEST, HIGHEST, points) * capacity_per_s]
    kept = [load for load in grid if abs(load / own_per_s - 1.0) > 0.04]
    return tuple(sorted({*(float(f"{load:.4g}") for load in kept), own_per_s}))


def requests_at(load_per_s: float, own_per_s: float, highest_per_s: float, available: int) -> int:
    """How many requests of a stretch to serve: all at the trace's own load and at the highest, fewer below.

    Steps per request fall as batches grow, so a low load needs fewer requests for as many steps, and queues, which
    make percentiles noisy, are rare there.
    """
    if load_per_s == own_per_s or load_per_s >= highest_per_s:
        return available
    share = max(0.15, min(1.0, load_per_s / highest_per_s))
    return min(available, max(LEAST_REQUESTS, round(available * share)))
