"""Which loads to compare at: the trace's own, a grid up to the capacity of the fleet, and how many requests at each."""

from __future__ import annotations

import numpy as np

__all__ = ["LEAST_REQUESTS", "choose_loads", "requests_at", "steps_per_request"]

LOWEST, HIGHEST = 0.1, 1.05
"""The grid as shares of the capacity without speculation: from nearly idle to just overloaded."""
LEAST_REQUESTS = 250
"""Fewer say too little about a 99th percentile."""
LEAST_STEPS, FEWEST_REQUESTS = 100_000, 60
"""Where outputs are so long that `LEAST_REQUESTS` take more than so many engine steps, so many requests do."""
STEPS_A_POINT, MOST_STEPS = 20_000, 300_000
"""Engine steps after which a load has been simulated for long enough; the trace's own load gets more."""


def choose_loads(own_per_s: float, capacity_per_s: float, points: int) -> tuple[float, ...]:
    """Loads in requests per second, rising: `points` evenly from 10 % to 105 % of capacity, and the trace's own.

    A grid point within 4 % of the trace's own load gives way to it.
    """
    grid = [float(x) for x in np.linspace(LOWEST, HIGHEST, points) * capacity_per_s]
    kept = [load for load in grid if abs(load / own_per_s - 1.0) > 0.04]
    return tuple(sorted({*(float(f"{load:.4g}") for load in kept), own_per_s}))


def steps_per_request(load_per_s: float, mean_output_tokens: float, step_s: float) -> float:
    """Engine steps for each request without speculation: one a token when alone, fewer the more share a step.

    A fleet that is never idle makes 1 / step_s steps a second, whatever the load; `step_s` is that of a small batch.
    """
    return max(1e-9, min(mean_output_tokens, 1.0 / (load_per_s * step_s)))


def requests_at(available: int, steps_a_request: float, *, own: bool) -> int:
    """How many of `available` requests to serve at a load: at low loads fewer give as many steps.

    Traffic in which steps are few (short outputs, high load) is served whole, so that loads differ in nothing else. The
    trace's own load (`own`) is served whole unless its steps are very many.
    """
    most = (MOST_STEPS if own else STEPS_A_POINT) / steps_a_request
    least = max(FEWEST_REQUESTS, min(LEAST_REQUESTS, LEAST_STEPS / steps_a_request))
    return min(available, round(max(most, least)))
