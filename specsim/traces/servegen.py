"""ServeGen client files (alibaba/ServeGen): rates and length distributions per client, sampled into requests.

A client is a pair: `chunk-N-trace.csv` (no header: window start in s, requests/s, CV of gaps, family, shape, scale) and
`chunk-N-dataset.json[.gz]` (window start -> input and output token histograms). Each window gets as many requests as
its measured rate says, with gaps of its fitted family scaled to fill it; prompt and output lengths are drawn
independently, as the files do not tie them. Clients are superposed. Leaves out: the reasoning share, image tokens.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specsim.checks import plain
from specsim.errors import TraceError
from specsim.rng import Purpose, stream
from specsim.traces.model import Trace, TraceMeta
from specsim.traces.options import ReadOptions
from specsim.traces.source import TextSource

__all__ = ["read_servegen"]

_DEFAULT_S = 600.0
_MOST_REQUESTS = 5_000_000
_MOST_TOKENS = 100_000_000


@dataclass(frozen=True, slots=True)
class _Client:
    """One client: window starts [w] in s, requests/s [w], family, shape [w], and its length histograms."""

    name: str
    start_s: np.ndarray
    rate_per_s: np.ndarray
    families: tuple[str, ...]
    shape: np.ndarray
    lengths: dict[str, Any]

    @property
    def window_s(self) -> float:
        return float(np.median(np.diff(self.start_s))) if len(self.start_s) > 1 else _DEFAULT_S


def _is_lengths(value: Any) -> bool:
    """Whether a document is the histogram half of a pair: window start -> token histograms as text."""
    if type(value) is not dict or not value:
        return False
    return all(
        str(key).isascii()
        and str(key).replace(".", "", 1).isdigit()
        and type(item) is dict
        and type(item.get("input_tokens")) is str
        for key, item in value.items()
    )


def _pair(path: Path) -> tuple[Path, Path]:
    """(trace.csv, dataset.json) of the pair that a path belongs to."""
    for half in ("-trace", "-dataset"):
        if half in path.name:
            stem = path.name[: path.name.rindex(half)]
            break
    else:
        raise TraceError(f"{path}: a ServeGen file must be named NAME-trace.csv or NAME-dataset.json, to find its pair")
    found = []
    for names in ((f"{stem}-trace.csv", f"{stem}-trace.csv.gz"), (f"{stem}-dataset.json", f"{stem}-dataset.json.gz")):
        beside = [path.with_name(name) for name in names if path.with_name(name).exists()]
        if not beside:
            raise TraceError(f"{path}: the other half of the ServeGen pair is missing: put {names[0]} beside it")
        found.append(beside[0])
    return found[0], found[1]


def _text(path: Path, options: ReadOptions, digest: Any) -> bytes:
    with TextSource(path, options.max_line_bytes) as source:
        data = b"".join(source.chunks())
    digest.update(data)
    return data


def _client(path: Path, options: ReadOptions, digest: Any) -> _Client:
    trace_path, lengths_path = _pair(path)
    columns: list[list[float]] = [[], [], []]
    families: list[str] = []
    text = _text(trace_path, options, digest).decode("utf-8", "replace")
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise TraceError(f"{trace_path}: not a CSV file ({error})") from None
    for line, row in enumerate(rows, start=1):
        if not row:
            continue
        try:
            start, rate, _, family, shape, _ = row
            numbers = [float(plain(start)), float(plain(rate)), float(plain(shape))]
            if not all(math.isfinite(x) and x >= 0 for x in numbers) or family not in ("Gamma", "Weibull", ""):
                raise ValueError
        except ValueError:
            raise TraceError(
                f"{trace_path}: line {line}: not a ServeGen window (start, rate, CV, Gamma or Weibull, shape, scale)"
            ) from None
        families.append(family)
        for column, number in zip(columns, numbers, strict=True):
            column.append(number)
    try:
        lengths = json.loads(_text(lengths_path, options, digest))
    except ValueError as error:
        raise TraceError(f"{lengths_path}: not valid JSON: {error}") from None
    if not _is_lengths(lengths):
        raise TraceError(f"{lengths_path}: not a ServeGen data set: window start -> input_tokens, output_tokens")
    starts = np.array(columns[0])
    if len(starts) == 0 or (np.diff(starts) <= 0).any():
        raise TraceError(f"{trace_path}: window starts must increase")
    name = trace_path.name.rsplit("-trace", 1)[0]
    return _Client(name, starts, np.array(columns[1]), tuple(families), np.array(columns[2]), lengths)


def _histogram(client: _Client, when_s: float, field: str) -> tuple[np.ndarray, np.ndarray]:
    """(values, cumulative probabilities) of the histogram in force at a time, or the nearest one that is not empty."""
    keys = sorted(client.lengths, key=lambda key: (float(key) > when_s, abs(float(key) - when_s)))
    for key in keys:
        text = str(client.lengths[key].get(field, "")).strip().strip("{}").strip()
        if not text:
            continue
        try:
            flat = np.array(text.replace(":", ",").split(","), dtype=np.float64)
            values, weights = flat[0::2], flat[1::2]
            if len(values) != len(weights) or not (weights >= 0).all() or not 0 < weights.sum() < math.inf:
                raise ValueError
            if not ((values >= 0) & (values <= _MOST_TOKENS)).all():
                raise ValueError
        except ValueError:
            raise TraceError(f"{client.name}: window {key}: {field} is not a histogram of tokens") from None
        return values, np.cumsum(weights) / weights.sum()
    raise TraceError(f"{client.name}: every histogram of {field} is empty")


def _gaps(family: str, shape: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Gaps [count] of a renewal process in arbitrary scale."""
    if family == "Gamma" and shape > 0:
        return rng.gamma(shape, 1.0, count)
    if family == "Weibull" and shape > 0:
        return rng.weibull(shape, count)
    return rng.exponential(1.0, count)


def _choose(clients: list[_Client], options: ReadOptions) -> tuple[float, float, str]:
    """(first, stop, why) in seconds of the file's clock."""
    begin = min(float(client.start_s[0]) for client in clients)
    end = max(float(client.start_s[-1]) + client.window_s for client in clients)
    if options.window is not None:
        first, stop = begin + options.window[0], min(end, begin + options.window[1])
        if stop <= first:
            raise TraceError(f"--window starts after the end of the ServeGen data, which spans {end - begin:g} s")
        return first, stop, f"window {first:g} s to {stop:g} s"
    length = options.busiest_s or _DEFAULT_S
    edges = np.unique(np.concatenate([client.start_s for client in clients]))
    edges = edges[edges + length <= end] if (edges + length <= end).any() else edges[:1]
    load = np.zeros(len(edges))
    for client in clients:
        knots = np.append(client.start_s, client.start_s[-1] + client.window_s)
        mass = np.concatenate(([0.0], np.cumsum(client.rate_per_s * np.diff(knots))))
        load += np.interp(edges + length, knots, mass) - np.interp(edges, knots, mass)
    first = float(edges[int(np.argmax(load))])
    why = f"busiest {length:g} s, from {first:g} s"
    if options.busiest_s is None:
        why += " (the default for ServeGen; --window A:B or --busiest DURATION chooses another)"
    return first, first + length, why


def read_servegen(path: str | Path, options: ReadOptions) -> Trace:
    """Requests of one client, or of all clients of a directory superposed; only the chosen window is sampled.

    Raises:
        TraceError: a pair is incomplete or malformed, the window is empty, or would hold more than 5 million requests.
    """
    where = Path(path)
    digest = hashlib.sha256()
    halves = sorted(where.glob("*-trace.csv*")) if where.is_dir() else [where]
    if not halves:
        inside = sorted(item.name for item in where.iterdir() if item.is_dir() and list(item.glob("*-trace.csv*")))
        hint = f"; give one of its folders: {', '.join(inside)}" if inside else ""
        raise TraceError(f"{path}: is a directory without ServeGen pairs (NAME-trace.csv with NAME-dataset.json){hint}")
    clients = [_client(half, options, digest) for half in halves]
    first, stop, why = _choose(clients, options)
    expected = 0.0
    pieces: list[np.ndarray] = []
    prompts: list[np.ndarray] = []
    outputs: list[np.ndarray] = []
    for number, client in enumerate(clients):
        rng = stream(options.seed, Purpose.ARRIVALS, number)
        draw = stream(options.seed, Purpose.LENGTHS, number)
        for window, (start, rate) in enumerate(zip(client.start_s.tolist(), client.rate_per_s.tolist(), strict=True)):
            begin, end = max(start, first), min(start + client.window_s, stop)
            if end <= begin or rate <= 0:
                continue
            expected += rate * (end - begin)
            if expected > _MOST_REQUESTS:
                raise TraceError(
                    f"{path}: the window holds over {_MOST_REQUESTS:,} requests; choose a shorter one with --window A:B"
                    " or --busiest DURATION"
                )
            count = int(rate * (end - begin) + rng.random())
            gaps = _gaps(client.families[window], float(client.shape[window]), count + 1, rng)
            pieces.append(begin + np.cumsum(gaps[:count]) / max(float(gaps.sum()), 1e-300) * (end - begin))
            for field, out in (("input_tokens", prompts), ("output_tokens", outputs)):
                values, cumulative = _histogram(client, start, field)
                pick = np.minimum(np.searchsorted(cumulative, draw.random(count), side="right"), len(values) - 1)
                out.append(values[pick].astype(np.int64))
    arrival = np.concatenate(pieces) if pieces else np.empty(0)
    if not len(arrival):
        raise TraceError(f"{path}: no client sends anything in the {why}; choose another with --window A:B")
    prompt, output = np.concatenate(prompts), np.concatenate(outputs)
    usable = (prompt >= 1) & (output >= 1)
    if not usable.any():
        raise TraceError(f"{path}: every sampled request has 0 tokens; choose another window with --window A:B")
    order = np.argsort(arrival[usable], kind="stable")
    zero = int(len(usable) - usable.sum())
    busy = f"{len(clients)} clients superposed" if len(clients) > 1 else "one client"
    return Trace(
        arrival_s=arrival[usable][order] - first,
        prompt_tokens=prompt[usable][order].astype(np.int32),
        output_tokens=output[usable][order].astype(np.int32),
        meta=TraceMeta(
            source=str(path),
            format="servegen",
            time_unit="s (fixed by the format)",
            sha256=digest.hexdigest(),
            rows_read=len(arrival),
            rows_kept=int(usable.sum()),
            dropped={"0 tokens": zero} if zero else {},
            dropped_examples={"0 tokens": "sampled from the histograms"} if zero else {},
            notes=(
                f"ServeGen, {busy}: requests are sampled with seed {options.seed} from measured rates and histograms",
                why,
                "prompt and output lengths are drawn independently of each other",
            ),
        ),
    )
