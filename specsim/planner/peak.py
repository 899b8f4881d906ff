"""The window of a log that hardware must hold: its busiest minutes, whole, or as much of them as is simulated."""

from __future__ import annotations

import numpy as np

from specsim.errors import TraceError
from specsim.planner.job import busiest
from specsim.traces.model import Trace
from specsim.traces.slices import busiest_start

__all__ = ["FEWEST_REQUESTS", "peak_window"]

FEWEST_REQUESTS = 20
"""Fewer say nothing about a share of requests."""


def peak_window(trace: Trace, window_s: float, most: int) -> tuple[Trace, list[str]]:
    """Requests of the window of `window_s` with most arrivals, times as in the log, and sentences on what was taken.

    Raises:
        TraceError: too few requests to say anything.
    """
    start = float(trace.arrival_s[0]) if len(trace) else 0.0
    if trace.span_s > window_s:
        start = busiest_start(trace.arrival_s, window_s)
    first, stop = (int(np.searchsorted(trace.arrival_s, t, side="left")) for t in (start, start + window_s))
    window = trace.rows(first, stop) if trace.span_s > window_s else trace
    if len(window) < FEWEST_REQUESTS or window.span_s <= 0:
        raise TraceError(
            f"{trace.meta.source}: {len(window)} requests in the busiest {window_s:g} s are too few to size a fleet "
            f"for; give a longer --peak, or a longer trace"
        )
    if trace.span_s > window_s:
        notes = [
            f"Sized for the busiest {window_s:g} s of the log, from {start:.0f} s on: {len(window):,} of "
            f"{len(trace):,} requests at {window.rate_per_s:.3g} per s (the whole log has {trace.rate_per_s:.3g})."
        ]
    else:
        notes = [
            f"The log is no longer than the {window_s:g} s asked for: it is sized for whole, {len(window):,} requests "
            f"at {window.rate_per_s:.3g} per s."
        ]
    simulated, said = busiest(window, most)
    return simulated, [*notes, *said]
