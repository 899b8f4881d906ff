"""One JSON form for everything that is hashed or stored, one rule for numbers that JSON lacks.

Inputs (settings, policies, whatever is part of a key) must be exact: nan and infinity are refused.
Outputs (metrics, results) may hold nan, for instance when no request had a second token: nan and both infinities
become null, since JSON has no word for them, and a null metric reads as "did not happen".
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from specsim.errors import StoreError

__all__ = ["canonical_json", "clean", "content_sha256", "flat_metrics", "output_json", "plain_text", "run_key"]


def clean(value: Any, *, place: str, nulls: bool) -> Any:
    """`value` as plain JSON types, numpy scalars and arrays included.

    `nulls`: True turns nan and infinity into None, False refuses them. Keys that are whole numbers become text.

    Raises:
        StoreError: for a type that JSON lacks, two keys with one text, or a refused number; names the place.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        if nulls:
            return None
        raise StoreError(f"{place} is {float(value)!r}; a stored setting must be a finite number")
    if isinstance(value, Mapping):
        return _clean_mapping(value, place, nulls)
    if isinstance(value, list | tuple):
        return [clean(item, place=f"{place}[{i}]", nulls=nulls) for i, item in enumerate(value)]
    if hasattr(value, "tolist"):  # numpy scalars and arrays, without importing numpy
        return clean(value.tolist(), place=place, nulls=nulls)
    raise StoreError(f"{place} is a {type(value).__name__}, which JSON cannot hold; convert it first")


def _clean_mapping(value: Mapping[Any, Any], place: str, nulls: bool) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise StoreError(f"{place} has the key {key!r}; keys must be text or whole numbers")
        if str(key) in out:
            raise StoreError(f"{place} has two keys that read {str(key)!r}; rename one")
        out[str(key)] = clean(item, place=f"{place}.{key}", nulls=nulls)
    return out


def canonical_json(value: Any, *, place: str = "value", nulls: bool = False) -> str:
    """JSON with sorted keys and no spaces: equal values give equal bytes. Pure ASCII, so any text survives."""
    return json.dumps(
        clean(value, place=place, nulls=nulls),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )


def output_json(value: Any, *, place: str) -> str:
    """JSON of metrics or a result: nan and infinity as null, keys in the order given, so that it prints as it did."""
    plain = clean(value, place=place, nulls=True)
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def content_sha256(value: Any, *, place: str = "value") -> str:
    """Hex SHA-256 of the canonical JSON of `value`; nan and infinity are refused."""
    return hashlib.sha256(canonical_json(value, place=place).encode("ascii")).hexdigest()


def run_key(
    *,
    trace_sha256: str,
    trace_slice: Any,
    profile_sha256: str,
    limits: Any,
    policy: Any,
    acceptance: Any,
    load: Any,
    seed: int,
    code_version: str,
    extra: Any = None,
) -> str:
    """Key under which a run is cached: equal exactly when a run would give the same bytes.

    Everything that can change a result goes in: `trace_slice` (window, limit, filters), `limits` (of a replica, and
    the number of replicas and router), `acceptance` (model and luck), `load` (requests/s or scale), `code_version` (of
    the simulator). `extra` takes whatever else the caller varies.
    """
    parts = {
        "trace_sha256": trace_sha256,
        "trace_slice": trace_slice,
        "profile_sha256": profile_sha256,
        "limits": limits,
        "policy": policy,
        "acceptance": acceptance,
        "load": load,
        "seed": seed,
        "code_version": code_version,
        "extra": extra,
    }
    return content_sha256(parts, place="run key")


def flat_metrics(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested metrics as one level, names joined by `_`: `{"ttft": {"p50_s": 1}}` gives `{"ttft_p50_s": 1}`."""
    out: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            out.update(flat_metrics(value, f"{prefix}{name}_"))
        else:
            out[f"{prefix}{name}"] = value
    return out


def plain_text(text: str) -> str:
    """`text` with what databases refuse (lone surrogates of undecodable file names, NUL) written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")
