"""Stored plans and runs as JSON, JSON lines or CSV, written as they are read.

JSON is one object with `schema_version` and lists by type; JSON lines have one object with a `type` each; CSV has one
row per run (or per request of a run), since a plan is no table.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TextIO

from db.canonical import flat_metrics

__all__ = ["EXPORT_SCHEMA_VERSION", "FORMATS", "Format", "write_export"]

EXPORT_SCHEMA_VERSION = 1
Format = Literal["json", "jsonl", "csv"]
FORMATS: tuple[Format, ...] = ("json", "jsonl", "csv")

_TYPES = ("trace", "profile", "scenario", "plan", "run")
_OWN = ("type", "plan_ids", "requests", "point", "policy", "metrics")


def write_export(items: Iterable[Mapping[str, Any]], out: TextIO, *, format: Format) -> dict[str, int]:
    """Write `items` (of `Store.iter_full`) to `out`; how many of each type were written.

    CSV takes the runs only: their columns, then every metric that has no column, then `point` and `policy` as JSON.
    When the items carry `requests`, CSV has the request rows instead.
    """
    if format == "json":
        return _write_json(items, out)
    if format == "jsonl":
        written = dict.fromkeys(_TYPES, 0)
        for item in items:
            out.write(json.dumps(item, sort_keys=True, allow_nan=False) + "\n")
            written[item["type"]] += 1
        return written
    return _write_csv([item for item in items if item["type"] == "run"], out)


def _write_json(items: Iterable[Mapping[str, Any]], out: TextIO) -> dict[str, int]:
    lists: dict[str, list[Mapping[str, Any]]] = {name: [] for name in _TYPES}
    for item in items:
        lists[item["type"]].append(item)
    body = {"schema_version": EXPORT_SCHEMA_VERSION, **{f"{name}s": rows for name, rows in lists.items()}}
    json.dump(body, out, indent=2, sort_keys=True, allow_nan=False)
    out.write("\n")
    return {name: len(rows) for name, rows in lists.items()}


def _write_csv(runs: list[Mapping[str, Any]], out: TextIO) -> dict[str, int]:
    if any("requests" in run for run in runs):
        rows = [row for run in runs for row in run.get("requests", ())]
        columns = list(rows[0]) if rows else []
    else:
        metrics = [flat_metrics(run["metrics"]) for run in runs]
        own = [name for name in (runs[0] if runs else ()) if name not in _OWN]
        more = sorted({name for flat in metrics for name in flat} - set(own))
        columns = [*own, *more, "point", "policy"]
        rows = [{**flat, **run} for flat, run in zip(metrics, runs, strict=True)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in columns])
    return {"run": len(runs), "request": len(rows) if any("requests" in run for run in runs) else 0}


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    return value
