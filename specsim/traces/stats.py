"""What is in a trace: load, burstiness, lengths, prefix reuse, and what of it changes a plan.

Leaves out: anything about a deployment. Definitions: CV is standard deviation over mean of the gaps between arrivals;
D60 is variance over mean of arrivals per minute (both 1 for Poisson); prefix reuse assumes an endless cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.traces.model import Trace
from specsim.traces.slices import busiest_start

__all__ = ["SHORT_OUTPUT_TOKENS", "Lengths", "TraceStats", "describe"]

SHORT_OUTPUT_TOKENS = 8
"""Outputs below this end after one or two rounds, so speculation cannot matter to them."""
_IDS_AT_ONCE = 1 << 20
_PREFILL_BOUND_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts of one kind over all requests."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: int
    total: int


@dataclass(frozen=True, slots=True)
class TraceStats:
    """Figures of a trace as it will be replayed; None where a figure is undefined."""

    rows: int
    span_s: float
    rate_per_s: float
    gap_cv: float | None
    """None below 3 rows."""
    dispersion_60s: float | None
    """None below 3 full minutes."""
    busiest_minute_start_s: float
    busiest_minute_rate_per_s: float
    """Over the whole span when that is shorter than a minute (a second at least)."""
    prompt: Lengths
    output: Lengths
    prefix_reuse: float | None
    """Share of full hash blocks seen before, with an endless cache; None without hashes."""
    cached_prompt_share: float | None
    """Prompt tokens in such blocks over all prompt tokens."""
    sessions: int | None
    short_output_share: float
    """Share of requests with fewer than `SHORT_OUTPUT_TOKENS` output tokens."""
    prefill_token_share: float
    """Prompt tokens over all tokens."""
    warnings: tuple[str, ...]
    """Sentences on what changes the answer of a plan."""


def _lengths(tokens: np.ndarray) -> Lengths:
    p50, p95, p99 = np.percentile(tokens, [50, 95, 99])
    total = int(tokens.sum(dtype=np.int64))
    return Lengths(total / len(tokens), float(p50), float(p95), float(p99), int(tokens.max()), total)


def _distinct(values: np.ndarray, keep: np.ndarray) -> int:
    """Number of distinct values where `keep` is set, without a copy of the column.

    A bitmap where the range of values is small; else one part of the values at a time, by their low bits.
    """
    low, high = int(values.min()), int(values.max())
    chunks = [slice(first, first + _IDS_AT_ONCE) for first in range(0, len(values), _IDS_AT_ONCE)]
    if high - low < 16 * len(values) + 1024:
        seen = np.zeros(high - low + 1, dtype=bool)
        for chunk in chunks:
            seen[values[chunk][keep[chunk]] - low] = True
        return int(np.count_nonzero(seen))
    parts = 1 << max(0, (len(values) // _IDS_AT_ONCE).bit_length())
    total = 0
    for part in range(parts):
        pieces = [values[chunk][keep[chunk] & ((values[chunk] & (parts - 1)) == part)] for chunk in chunks]
        total += len(np.unique(np.concatenate(pieces)))
    return total


def _reuse(trace: Trace) -> tuple[float, float] | tuple[None, None]:
    """(hits over full blocks, tokens in hits over prompt tokens)."""
    if trace.hash_ids is None or trace.hash_offsets is None or not trace.hash_block_tokens:
        return None, None
    counts = np.diff(trace.hash_offsets)
    full = np.minimum(trace.prompt_tokens // trace.hash_block_tokens, counts)
    total = int(full.sum())
    if total == 0:
        return 0.0, 0.0
    keep = np.ones(len(trace.hash_ids), dtype=bool)
    last = trace.hash_offsets[:-1] + full
    keep[last[counts == full + 1]] = False
    for row in np.flatnonzero(counts > full + 1):
        keep[last[row] : trace.hash_offsets[row + 1]] = False
    hits = total - _distinct(trace.hash_ids, keep)
    prompt_total = int(trace.prompt_tokens.sum(dtype=np.int64))
    return hits / total, hits * trace.hash_block_tokens / prompt_total


def _dispersion(arrival_s: np.ndarray) -> float | None:
    """Variance over mean of arrivals in whole minutes from the first one; idle minutes count as 0."""
    minutes = int((arrival_s[-1] - arrival_s[0]) // 60)
    if minutes < 3:
        return None
    index = ((arrival_s - arrival_s[0]) // 60).astype(np.int64)
    _, counts = np.unique(index[index < minutes], return_counts=True)
    mean = counts.sum() / minutes
    variance = (np.square(counts, dtype=np.float64).sum() - minutes * mean**2) / (minutes - 1)
    return float(variance / mean)


def _warnings(trace: Trace, stats: dict[str, float | None]) -> tuple[str, ...]:
    out = list(trace.meta.warnings)
    if trace.meta.arrival_grid_s is not None:
        out.append(
            f"arrival times come from a {trace.meta.arrival_grid_s:g} s grid: burstiness below that is invented by"
            " spreading them"
        )
    short, prefill = stats["short"] or 0.0, stats["prefill"] or 0.0
    if short >= 0.2:
        out.append(
            f"{short:.0%} of the outputs are shorter than {SHORT_OUTPUT_TOKENS} tokens: speculation cannot matter to"
            " those requests"
        )
    if prefill >= _PREFILL_BOUND_SHARE:
        out.append(
            f"{prefill:.1%} of all tokens are prompt tokens: the load may be bound by prefill, which speculation does"
            " not speed up"
        )
    cv, peak, rate = stats["cv"], stats["peak"] or 0.0, stats["rate"] or 0.0
    if cv is not None and cv > 2:
        out.append(f"arrivals are bursty (CV of gaps {cv:.1f}, 1 is Poisson): judge by the peaks, not the mean rate")
    if rate > 0 and peak > 5 * rate and peak * 60 >= 20 and trace.span_s > 300:
        out.append(
            f"the busiest minute runs at {peak / rate:.0f} times the mean rate: --busiest 10m plans for the load that"
            " counts"
        )
    silence = float(np.diff(trace.arrival_s).max()) if len(trace) > 1 else 0.0
    if len(trace) >= 20 and silence > 0.25 * trace.span_s:
        out.append(
            f"one silence of {silence:,.0f} s takes {silence / trace.span_s:.0%} of the span: the mean rate says"
            " little; --busiest 10m or --window chooses a stretch that is in use"
        )
    if len(trace) < 100:
        out.append(f"only {len(trace):,} requests: tail percentiles of any simulation of them mean little")
    return tuple(dict.fromkeys(out))


def describe(trace: Trace) -> TraceStats:
    """Figures and warnings of a trace with at least one request."""
    arrival_s = trace.arrival_s
    gaps = np.diff(arrival_s)
    cv = float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else None
    start = busiest_start(arrival_s, 60.0)
    in_peak = int(np.searchsorted(arrival_s, start + 60.0) - np.searchsorted(arrival_s, start))
    prompt, output = _lengths(trace.prompt_tokens), _lengths(trace.output_tokens)
    reuse, cached = _reuse(trace)
    short = float((trace.output_tokens < SHORT_OUTPUT_TOKENS).mean())
    prefill = prompt.total / (prompt.total + output.total)
    rate = trace.rate_per_s
    peak = in_peak / max(1.0, min(60.0, trace.span_s))
    return TraceStats(
        rows=len(trace),
        span_s=trace.span_s,
        rate_per_s=rate,
        gap_cv=cv,
        dispersion_60s=_dispersion(arrival_s),
        busiest_minute_start_s=start,
        busiest_minute_rate_per_s=peak,
        prompt=prompt,
        output=output,
        prefix_reuse=reuse,
        cached_prompt_share=cached,
        sessions=len(np.unique(trace.session[trace.session >= 0])) if trace.session is not None else None,
        short_output_share=short,
        prefill_token_share=prefill,
        warnings=_warnings(trace, {"cv": cv, "peak": peak, "rate": rate, "short": short, "prefill": prefill}),
    )
