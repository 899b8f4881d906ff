"""From what callers hand over to rows of tables and back; no connection in sight."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from db import schema
from db.canonical import flat_metrics, output_json, plain_text
from db.failures import DamagedRow
from specsim.errors import StoreError
from specsim.records import RequestColumns

__all__ = [
    "checked_seed",
    "checked_sha256",
    "checked_status",
    "decoded",
    "metric_columns",
    "request_chunks",
    "text",
    "utc_text",
]

CHUNK_ROWS = 5000
_JSON_COLUMNS = ("stats", "body", "point", "policy", "metrics", "inputs", "result")


def utc_text(when: datetime | str | None = None) -> str:
    """UTC as ISO 8601 with microseconds and Z; now when None.

    Raises:
        StoreError: for a time without zone, or text in another form.
    """
    if isinstance(when, str):
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", when):
            raise StoreError(f"time {when!r} is not UTC like 2026-01-31T12:00:00.000000Z")
        return when
    if when is None:
        when = datetime.now(UTC)
    if when.tzinfo is None:
        raise StoreError(f"time {when.isoformat()} has no zone; give UTC")
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def checked_sha256(value: str, place: str) -> str:
    """`value` when it is a SHA-256 in lower-case hex, else a StoreError."""
    if not (isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value)):
        raise StoreError(f"{place} is {value!r}; it must be a SHA-256 in lower-case hex")
    return value


def checked_status(status: str) -> str:
    """`status` when it is complete or partial, else a StoreError."""
    if status not in ("complete", "partial"):
        raise StoreError(f"status {status!r} is not complete or partial")
    return status


def checked_seed(seed: int) -> int:
    """`seed` when it is a whole number that the databases can hold, else a StoreError."""
    if isinstance(seed, bool) or not isinstance(seed, int) or abs(seed) >= 2**63:
        raise StoreError(f"seed is {seed!r}; it must be a whole number below 2**63")
    return seed


def metric_columns(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Values of the metric columns: the metric of that name, nested names joined by `_`; None when it is missing.

    Raises:
        StoreError: when a main metric is not a number.
    """
    flat = flat_metrics(json.loads(output_json(metrics, place="metrics")))
    out: dict[str, float | None] = {}
    for name in schema.METRIC_COLUMNS:
        value = flat.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise StoreError(f"metric {name} is {value!r}; it must be a number or null")
        out[name] = None if value is None else float(value)
    return out


def request_chunks(run_id: str, requests: RequestColumns) -> Iterator[list[dict[str, Any]]]:
    """Rows of `run_request` in lists of at most CHUNK_ROWS; nan times become None."""
    times = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
    counts = ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions", "replica")
    n = len(requests.arrival_s)
    for low in range(0, n, CHUNK_ROWS):
        high = min(low + CHUNK_ROWS, n)
        columns: dict[str, list[Any]] = {}
        for name in times:
            columns[name] = [v if v == v else None for v in getattr(requests, name)[low:high].tolist()]
        for name in (*counts, "rejected"):
            columns[name] = getattr(requests, name)[low:high].tolist()
        names = list(columns)
        yield [
            {"run_id": run_id, "request_index": low + i, **dict(zip(names, values, strict=True))}
            for i, values in enumerate(zip(*columns.values(), strict=True))
        ]


def decoded(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row as plain values, its JSON columns parsed.

    Raises:
        DamagedRow: one of them is no JSON object.
    """
    return {key: _object(row, key) if key in _JSON_COLUMNS else value for key, value in row.items()}


def _object(row: Mapping[Any, Any], column: str) -> dict[str, Any]:
    try:
        value = json.loads(row[column])
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        if "id" in row:
            way_out = f"delete the row with specsim runs delete {row['id']}, or use another database with --db"
            raise DamagedRow(f"row {row['id']}", column, way_out)
        raise DamagedRow(f"row {str(row['sha256'])[:12]}", column, "restore a copy, or use another database with --db")
    return value


def text(value: str, place: str) -> str:
    """Storable text of `value`; a StoreError when it is no text."""
    if not isinstance(value, str):
        raise StoreError(f"{place} is {value!r}; it must be text")
    return plain_text(value)
