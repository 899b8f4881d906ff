"""Arrival times drawn from a process: for logs that have none, for session starts, and for synthetic traces."""

from __future__ import annotations

import numpy as np

from specsim.rng import Purpose, stream
from specsim.traces.options import ArrivalProcess

__all__ = ["draw_arrivals", "draw_session_starts"]


def draw_arrivals(process: ArrivalProcess, rows: int, seed: int) -> np.ndarray:
    """float64 [rows], sorted seconds from 0 of a renewal process; the first arrival is at 0.

    Gamma gaps with mean 1/rate and the process's coefficient of variation c have shape 1/c**2; c = 1 is Poisson,
    c = 0 is even.
    """
    if rows == 0:
        return np.empty(0)
    mean = 1 / process.rate_per_s
    if process.cv == 0:
        return np.arange(rows) * mean
    shape = 1 / process.cv**2
    gaps = stream(seed, Purpose.ARRIVALS).gamma(shape, mean / shape, rows)
    gaps[0] = 0.0
    return np.cumsum(gaps)


def draw_session_starts(sessions: int, rate_per_s: float, seed: int) -> np.ndarray:
    """float64 [sessions], sorted Poisson starts in seconds, the first at 0."""
    gaps = stream(seed, Purpose.SESSIONS).exponential(1 / rate_per_s, sessions)
    if sessions:
        gaps[0] = 0.0
    return np.cumsum(gaps)
