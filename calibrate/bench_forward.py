"""`vllm bench forward --output-json` as measured points: exact batches of a real engine, timed as captured graphs.

Each entry is one case with `requests` (query_len, kv_len, num_draft_tokens) and `median_us`; `kv_len` counts the tokens
of the query too. A pass of vLLM includes its output head, so that points are of kind whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrate.points import Point
from specsim.errors import ProfileError

__all__ = ["read_bench_forward"]

_SPREAD = 0.01
"""Half width that is assumed of a median, relative to it, where the file gives no repeats."""
_HELD_OUT = 4
"""Every so many-th case is held out of the fit."""


def read_bench_forward(path: str | Path) -> list[Point]:
    """Points of a file, every fourth held out.

    Raises:
        ProfileError: the file, the case, and what is wrong.
    """
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ProfileError(f"{path}: not JSON") from None
    rows = data.get("results", data.get("cases")) if isinstance(data, Mapping) else data
    if not isinstance(rows, list) or not rows:
        raise ProfileError(f"{path}: expected a list of cases as vllm bench forward --output-json writes it")
    points: dict[str, Point] = {}
    for number, row in enumerate(rows):
        point = _point(row, f"{path}: case {number + 1}", held_out=number % _HELD_OUT == _HELD_OUT - 1)
        if point.key in points:
            times = sum(other.parts == point.parts for other in points.values())
            point = replace(point, again=times)
        points[point.key] = point
    return list(points.values())


def _point(row: Any, place: str, *, held_out: bool) -> Point:
    if not isinstance(row, Mapping):
        raise ProfileError(f"{place}: expected an object, got {type(row).__name__}")
    requests = row.get("requests")
    median = row.get("median_us")
    if not isinstance(requests, list) or not requests:
        raise ProfileError(f"{place}: has no requests")
    if not isinstance(median, int | float) or not (math.isfinite(median) and median > 0):
        raise ProfileError(f"{place}: median_us must be a number > 0, got {median!r}")
    parts, drafts = [], 0
    for request in requests:
        try:
            query, cached = int(request["query_len"]), int(request["kv_len"])
            drafts += int(request.get("num_draft_tokens", 0) or 0)
        except (KeyError, TypeError, ValueError) as error:
            raise ProfileError(f"{place}: a request needs query_len and kv_len ({error})") from None
        if query < 1 or cached < query:
            raise ProfileError(f"{place}: query_len {query} and kv_len {cached}: kv_len counts the query's tokens too")
        parts.append((query, cached - query))
    # one token more than drafts is verified; anything longer is a prompt chunk, of which the last row is sampled
    is_prefill = sum(query for query, _ in parts) != len(parts) + drafts
    seconds = float(median) * 1e-6
    return Point(
        "whole", "target", tuple(parts), rows=len(parts) + drafts, is_prefill=is_prefill, is_holdout=held_out,
        seconds=seconds, low_s=seconds * (1 - _SPREAD), high_s=seconds * (1 + _SPREAD), repeats=1,
    )  # fmt: skip
