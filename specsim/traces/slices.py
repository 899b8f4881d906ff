"""Cutting and rescaling a trace: window, busiest stretch, first N, faster or slower. Each leaves a note."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from specsim.errors import TraceError
from specsim.traces.model import Trace
from specsim.traces.options import ReadOptions

__all__ = ["busiest_start", "chosen", "cut", "refuse_absurd", "with_note"]

_FASTEST_PER_S = 10_000.0
_YEAR_S = 365.25 * 86400


def with_note(trace: Trace, note: str) -> Trace:
    """The trace with one more sentence in `meta.notes`."""
    return replace(trace, meta=replace(trace.meta, notes=(*trace.meta.notes, note)))


def chosen(trace: Trace, mask: np.ndarray) -> Trace:
    """The requests of a mask (bool [n]), with their times, prefix hashes, sessions and tasks."""
    ids = offsets = None
    if trace.hash_ids is not None and trace.hash_offsets is not None:
        blocks = np.diff(trace.hash_offsets)
        ids = trace.hash_ids[np.repeat(mask, blocks)]
        offsets = np.concatenate([np.zeros(1, dtype=trace.hash_offsets.dtype), np.cumsum(blocks[mask])])
    return replace(
        trace,
        arrival_s=trace.arrival_s[mask],
        prompt_tokens=trace.prompt_tokens[mask],
        output_tokens=trace.output_tokens[mask],
        hash_ids=ids,
        hash_offsets=offsets,
        session=None if trace.session is None else trace.session[mask],
        task=None if trace.task is None else trace.task[mask],
    )


def refuse_absurd(trace: Trace, flag: str) -> None:
    """Refuse drawn or rescaled arrivals that no deployment sees: over 10,000 requests/s, all at once, over a year.

    Args:
        flag: what made the arrivals, for the message.

    Raises:
        TraceError: they are absurd.
    """
    many = len(trace) >= 10
    if many and trace.span_s == 0:
        what, way_out = "all requests arrive at the same time", "a lower rate or CV"
    elif many and trace.rate_per_s > _FASTEST_PER_S:
        what, way_out = f"{trace.rate_per_s:,.4g} requests/s", f"at most {_FASTEST_PER_S:,.0f} requests/s"
    elif trace.span_s > _YEAR_S:
        what, way_out = f"the trace lasts {trace.span_s / _YEAR_S:,.3g} years", "a higher rate, or fewer requests"
    else:
        return
    raise TraceError(f"{trace.meta.source}: with {flag} {what}, which no deployment sees; choose {way_out}")


def busiest_start(arrival_s: np.ndarray, length_s: float) -> float:
    """Start of the window [start, start + length) that holds most arrivals; the earliest of equals.

    Windows are tried at every arrival, which contains an optimal one.
    """
    stops = np.searchsorted(arrival_s, arrival_s + length_s, side="left")
    return float(arrival_s[int(np.argmax(stops - np.arange(len(arrival_s))))])


def _window(trace: Trace, first_s: float, stop_s: float, why: str) -> Trace:
    first = int(np.searchsorted(trace.arrival_s, first_s, side="left"))
    stop = int(np.searchsorted(trace.arrival_s, stop_s, side="left"))
    if stop <= first:
        end = float(trace.arrival_s[-1])
        raise TraceError(
            f"{trace.meta.source}: no request arrives in {why} {first_s:g}:{stop_s:g} s; the trace runs from 0 to"
            f" {end:g} s: choose --window inside that"
        )
    part = trace.rows(first, stop)
    part = replace(part, arrival_s=part.arrival_s - first_s)
    note = f"{why} {first_s:g} s to {stop_s:g} s: {stop - first:,} of {len(trace):,} requests, times from its start"
    return with_note(part, note)


def cut(trace: Trace, options: ReadOptions) -> Trace:
    """The trace after `window` or `busiest_s`, then `limit`, then `rate_scale`.

    Raises:
        TraceError: nothing is left, or drawn or rescaled arrivals are absurd.
    """
    if options.arrivals is not None and trace.meta.format != "servegen":
        refuse_absurd(trace, "--arrivals")
    elif options.session_rate_per_s is not None:
        refuse_absurd(trace, "--session-rate")
    if options.window is not None:
        stop = options.window[1]
        last = math.nextafter(float(trace.arrival_s[-1]), math.inf)
        trace = _window(trace, options.window[0], last if math.isinf(stop) else stop, "window")
    elif options.busiest_s is not None:
        if trace.span_s <= options.busiest_s:
            trace = with_note(trace, f"busiest {options.busiest_s:g} s: the whole trace is no longer than that")
        else:
            start = busiest_start(trace.arrival_s, options.busiest_s)
            trace = _window(trace, start, start + options.busiest_s, "busiest window")
    if options.limit is not None and options.limit < len(trace):
        total = len(trace)
        trace = with_note(trace.rows(0, options.limit), f"first {options.limit:,} of {total:,} requests")
    if options.rate_scale is not None and options.rate_scale != 1:
        before = trace.rate_per_s
        trace = trace.scaled(options.rate_scale)
        if before > 0:
            refuse_absurd(trace, f"--rate-scale {options.rate_scale:g}")
        trace = with_note(
            trace, f"arrivals {options.rate_scale:g} times as fast: {before:.4g} -> {trace.rate_per_s:.4g} requests/s"
        )
    return trace
