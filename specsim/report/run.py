"""The text of one run, from its JSON form, and its requests as a file."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from specsim.metrics import POOL_METRICS
from specsim.records import RunResult
from specsim.report.explain import write_explanation
from specsim.report.files import whole_file
from specsim.report.text import Page, number, percent, plus_minus

__all__ = ["run_text", "write_requests"]

_STATISTICS = ("mean", "p50", "p95", "p99")
_LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl_chunk": "gap between deliveries",
    "itl_token": "gap between tokens",
    "e2e": "whole request",
    "queue": "wait for the engine",
    "handover": "prompt done to decoding",
}
"""Beginning of a metric's name -> what the table calls it."""
_FRACTIONS = ("_share", "_rate", "_use", "kv_peak", "utilisation")


def replicas_text(deployment: Mapping[str, Any]) -> str:
    """How many replicas there are, and of which kind."""
    if deployment["prefill_replicas"]:
        return f"{deployment['prefill_replicas']} prefill and {deployment['decode_replicas']} decode replica(s)"
    return f"{deployment['replicas']} replica(s)"


def run_text(result: Mapping[str, Any], *, color: bool = False) -> str:
    """Question, latencies in ms, every other metric with its unit, warnings; at most 100 columns."""
    page = Page(color=color)
    metrics = dict(result["metrics"])
    if not result["deployment"]["prefill_replicas"]:
        metrics = {name: value for name, value in metrics.items() if name not in POOL_METRICS}
    page.heading(f"Run {result['run_id'] or '(not stored)'}{', reused from the store' if result['reused'] else ''}")
    page.facts(_facts(result))
    if "explain" in result:
        write_explanation(page, result["explain"])
    if "timeline" in result:
        page.heading("Timeline")
        page.line(result["timeline"]["text"])
    page.heading("Latency, ms")
    page.table(
        ["", *_STATISTICS], [_latency_row(name, metrics) for name in _LATENCIES if f"{name}_mean_s" in metrics or
                             f"{name}_p50_s" in metrics]
    )  # fmt: skip
    page.heading("Everything else")
    left = [(name, _value(name, value)) for name, value in metrics.items()]
    half = -(-len(left) // 2)
    right = [*left[half:], ("", "")][:half]
    page.table(["", "", "", ""], [[*a, f"  {b[0]}", b[1]] for a, b in zip(left[:half], right, strict=True)])
    if result["warnings"]:
        page.heading("Warnings")
        for warning in result["warnings"]:
            page.line(warning)
    return page.text()


def _facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    deployment, load, profile = result["deployment"], result["load"], result["profile"]
    names, acceptance, slo = deployment["names"], result["acceptance"], result["slo"]
    method = result["speculation"]["method"]
    rate = f"{load['rate_per_s']:.4g} requests/s" if load["rate_per_s"] else "arrival times of the log"
    arriving = f"{load['concurrency']} in flight" if load["concurrency"] else rate
    rows = [
        ("scenario", str(result["scenario"])),
        ("policy", f"{result['policy']['label']}, seed {result['seed']}, {result['engine']} scheduler"),
        (
            "deployment",
            f"{names['target']} on {names['gpu']}, tp {deployment['tp']}, {replicas_text(deployment)}",
        ),
        ("workload", f"{result['trace']['source']}: {load['requests']:,} requests, {arriving}"),
        ("profile", f"{profile['kind']}, step times {plus_minus(profile['relative_error'])}: {profile['name']}"),
    ]
    if acceptance is not None:
        length = f"{acceptance['expected_length']:.2f} tokens a round ({plus_minus(acceptance['relative_error'])})"
        rows.append(("speculation", f"{method}, drafter {names['draft']}"))
        rows.append(("acceptance", f"{length}; {acceptance['source']}"))
    asked = [f"{name.upper()} {slo[f'{name}_s'] * 1e3:g} ms" for name in ("ttft", "tpot") if slo[f"{name}_s"]]
    rows.append(("objective", f"{' and '.join(asked) or 'none'} for {percent(slo['share'])} of requests"))
    rows += [("note", text) for text in (*result["trace"]["notes"], *profile["notes"])]
    rows += [("assumed", text) for text in result["assumed"]]
    return rows


def _latency_row(name: str, metrics: dict[str, Any]) -> list[str]:
    """Takes the statistics of one latency out of `metrics`."""
    cells = []
    for statistic in _STATISTICS:
        key = f"{name}_{statistic}_s"
        known = key in metrics
        value = metrics.pop(key, None)
        cells.append(number(value * 1e3) if value is not None else "-" if known else "")
    return [f"{name} ({_LATENCIES[name]})", *cells]


def _value(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith(_FRACTIONS):
        return percent(value)
    return number(value, 4) + ("/s" if name.endswith("_per_s") else "")


def _columns(result: RunResult) -> dict[str, list[Any]]:
    records: list[Any] = [result.requests, *([] if result.prefill is None else [result.prefill.handover])]
    return {f.name: getattr(record, f.name).tolist() for record in records for f in fields(record)}


def _rows(columns: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for index, values in enumerate(zip(*columns.values(), strict=True)):
        plain = (None if isinstance(v, float) and not math.isfinite(v) else v for v in values)
        yield {"request": index, **dict(zip(columns, plain, strict=True))}


def write_requests(result: RunResult, path: str) -> None:
    """One row a request in trace order, times in s, what did not happen left empty (null in .jsonl).

    Raises:
        ScenarioError: when the file cannot be written; an old one is then left as it was.
    """
    columns = _columns(result)
    with whole_file("--requests-out", path) as out:
        if path.endswith(".csv"):
            table = csv.DictWriter(out, ["request", *columns], lineterminator="\n")
            table.writeheader()
            table.writerows(_rows(columns))
        else:
            out.writelines(json.dumps(row, allow_nan=False) + "\n" for row in _rows(columns))
