"""A trace in words: the lines that commands print about it, and the same as data for `--json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from specsim.traces.model import Trace
from specsim.traces.stats import TraceStats, describe
from specsim.traces.write import fingerprint

__all__ = ["facts", "summary"]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _span(seconds: float) -> str:
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds:,.0f} s ({seconds / unit:.1f} {name})"
    return f"{seconds:.4g} s"


def facts(item: Trace, stats: TraceStats) -> list[tuple[str, str]]:
    """(name, text) lines about a trace, in the order in which commands print them."""
    meta = item.meta
    rows = [
        ("format", meta.format),
        ("unit of time", meta.time_unit),
        ("rows", f"{meta.rows_read:,} read, {meta.rows_kept:,} kept, {sum(meta.dropped.values()):,} not used"),
    ]
    rows += [
        ("  not used", f"{count:,} x {reason} ({meta.dropped_examples.get(reason, '')})")
        for reason, count in sorted(meta.dropped.items(), key=lambda pair: -pair[1])
    ]
    peak_from = _span(stats.busiest_minute_start_s)
    rows += [
        ("requests", f"{stats.rows:,}"),
        ("span", _span(stats.span_s)),
        ("rate", f"{_number(stats.rate_per_s)} requests/s"),
        ("busiest minute", f"{_number(stats.busiest_minute_rate_per_s)} requests/s, from {peak_from}"),
        ("burstiness", f"CV of gaps {_number(stats.gap_cv)}, D60 {_number(stats.dispersion_60s)} (1 is Poisson)"),
    ]
    for name, tokens in (("prompt tokens", stats.prompt), ("output tokens", stats.output)):
        shown = [_number(value) for value in (tokens.mean, tokens.p50, tokens.p95, tokens.p99, tokens.max)]
        rows.append((name, "mean {}, p50 {}, p95 {}, p99 {}, max {}".format(*shown)))
    rows.append(("prefill share", f"{stats.prefill_token_share:.1%} of all tokens"))
    if stats.prefix_reuse is not None:
        block = item.hash_block_tokens
        rows.append(("prefix reuse", f"{stats.prefix_reuse:.1%} of {block}-token blocks, with an endless cache"))
    if stats.sessions is not None:
        rows.append(("sessions", f"{stats.sessions:,}"))
    rows.append(("short outputs", f"{stats.short_output_share:.1%} under 8 tokens"))
    return rows


def summary(item: Trace) -> dict[str, Any]:
    """What `--json` prints about a trace: `meta`, `stats` and the `fingerprint` of the requests."""
    meta = {name: getattr(item.meta, name) for name in item.meta.__dataclass_fields__}
    meta["dropped"], meta["dropped_examples"] = dict(item.meta.dropped), dict(item.meta.dropped_examples)
    return {
        "meta": meta,
        "stats": asdict(describe(item)),
        "hash_block_tokens": item.hash_block_tokens,
        "fingerprint": fingerprint(item),
    }
