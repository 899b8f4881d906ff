"""From a path to the runs of a benchmark client's file: parsed, recognised by its fields, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specsim.benchmarks.aiperf import is_aiperf, read_aiperf
from specsim.benchmarks.flat import is_sglang, is_vllm, read_sglang, read_vllm
from specsim.benchmarks.guidellm import is_guidellm, read_guidellm
from specsim.benchmarks.model import Benchmark
from specsim.errors import ScenarioError
from specsim.traces.opening import shown_path

__all__ = ["read_benchmarks"]

_LARGEST_BYTES = 1 << 30
_KNOWN = "vllm bench serve --save-result, sglang bench_serving, aiperf and guidellm"
_FOREIGN: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"avg_latency", "latencies"}),
        "is of vllm bench latency, which serves no load; give one of bench serve",
    ),
    (frozenset({"elapsed_time", "tokens_per_second"}), "is of vllm bench throughput, which has no latencies"),
    (frozenset({"metadata", "metrics"}), "is aiperf's file of single requests; give profile_export_aiperf.json"),
    (frozenset({"timestamp", "input_length"}), "is a trace; give it to plan or simulate with --trace"),
)
"""Fields of files that are taken for one of these, and what is said of them."""


def read_benchmarks(path: str) -> list[Benchmark]:
    """The runs of a file, in its order.

    Raises:
        ScenarioError: it cannot be read, is not JSON, is of no known client, or a field of it is wrong; with the place.
    """
    place = shown_path(path)
    try:
        file = Path(path).expanduser()
        if file.is_file() and file.stat().st_size > _LARGEST_BYTES:
            raise ScenarioError(f"{place}: larger than 1 GiB; save the run without texts")
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ScenarioError(f"{place}: cannot be read: {reason}; give a result of {_KNOWN}") from None
    objects = list(_objects(text, place))
    found: list[Benchmark] = []
    for number, data in enumerate(objects, start=1):
        where = place if len(objects) == 1 else f"{place}: run {number}"
        try:
            found += _runs(data, where)
        except ScenarioError as error:  # a record that checks itself knows no place
            raise error if str(error).startswith(place) else ScenarioError(f"{where}: {error}") from None
    if not found:
        raise ScenarioError(f"{place}: is empty; give a result of {_KNOWN}")
    return found


def _objects(text: str, place: str) -> Iterator[Any]:
    """The JSON values of a text, one after another with or without lines between."""
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            line = text.count("\n", 0, at) + 1
            raise ScenarioError(f"{place}: line {line}: not JSON, or cut off; give a result of {_KNOWN}") from None
        yield value


def _runs(data: Any, place: str) -> list[Benchmark]:
    if not isinstance(data, Mapping):
        raise ScenarioError(f"{place}: holds a {type(data).__name__} where a result is an object; give one of {_KNOWN}")
    if is_vllm(data):
        return [read_vllm(data, place)]
    if is_sglang(data):
        return [read_sglang(data, place)]
    if is_guidellm(data):
        return list(read_guidellm(data, place))
    if is_aiperf(data):
        return [read_aiperf(data, place)]
    for fields, said in _FOREIGN:
        if fields <= set(data):
            raise ScenarioError(f"{place}: {said}")
    shown = ", ".join(sorted(map(str, data))[:6]) or "none"
    raise ScenarioError(f"{place}: no result of {_KNOWN} (its fields: {' '.join(shown.split())[:120]})")
