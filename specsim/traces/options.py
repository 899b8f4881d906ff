"""How a trace is to be read: every choice a user can make, checked when it is made.

Leaves out: the reading itself. Units at the user's edge are written out (`10m`, `250ms`); inside they are seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specsim.checks import read_number
from specsim.errors import TraceError, nearest
from specsim.type_checks import Unbounded, check_types

__all__ = [
    "FIELD_NAMES",
    "LEAST_RATE_PER_S",
    "MOST_RATE_PER_S",
    "TIME_UNITS",
    "ArrivalProcess",
    "ReadOptions",
    "parse_arrivals",
    "parse_columns",
    "parse_duration",
    "parse_per_token",
    "parse_window",
]

TIME_UNITS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds in each unit that a duration or a time column may have."""

LEAST_RATE_PER_S, MOST_RATE_PER_S = 1e-6, 1e6
"""Rates beyond these are slips of the pen: one request in 12 days, and far more than any fleet serves."""
_CV_RANGE = (1e-3, 1e3)
"""Beyond, the shape 1/CV**2 of gamma gaps leaves what can be drawn; 0.001 is even already."""
_SCALE_RANGE = (1e-6, 1e6)
_PER_TOKEN_RANGE = (1e-3, 1e6)
"""Bytes or characters a token; texts have about 4."""
_MOST_TOKENS = 100_000_000

FIELD_NAMES = (
    "arrival",
    "end",
    "duration",
    "prompt_tokens",
    "output_tokens",
    "hash_ids",
    "session",
    "task",
    "status",
    "id",
    "prompt_text",
    "output_text",
    "prompt_bytes",
    "output_bytes",
)
"""Fields of a request that `columns` may map to a column of the file."""

_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(ns|us|ms|s|m|min|h|d)?\s*$", re.IGNORECASE)


def parse_duration(text: str | float, what: str = "duration") -> float:
    """Seconds in `90`, `90s`, `10m`, `1.5h`, `2d` or `250ms`; a bare number is seconds.

    Raises:
        TraceError: not a finite duration >= 0.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        seconds = float(text)
    else:
        match = _DURATION.match(str(text))
        if not match:
            raise TraceError(f"{what} {text!r} is not a duration: write seconds, or a number with ms, s, m, h or d")
        unit = (match[2] or "s").lower()
        seconds = float(match[1]) * TIME_UNITS["m" if unit == "min" else unit]
    if not (math.isfinite(seconds) and seconds >= 0):
        raise TraceError(f"{what} must be finite and >= 0, got {text!r}")
    return seconds


def parse_window(text: str) -> tuple[float, float]:
    """Seconds (first, stop) of `A:B`, both from the start of the trace; `A:` runs to the end.

    Raises:
        TraceError: not two durations with the first before the second.
    """
    parts = str(text).split(":")
    if len(parts) != 2:
        raise TraceError(f"window {text!r} must be A:B, for example 10m:20m, counted from the start of the trace")
    first = parse_duration(parts[0], "window start") if parts[0].strip() else 0.0
    stop = parse_duration(parts[1], "window end") if parts[1].strip() else math.inf
    if stop <= first:
        raise TraceError(f"window {text!r} is empty: its end must be after its start")
    return first, stop


def parse_columns(items: tuple[str, ...] | list[str]) -> dict[str, str]:
    """`["arrival=ts,prompt_tokens=n_in", ...]` as a map from our field to the column of the file.

    Raises:
        TraceError: a piece without `=`, or a field that does not exist.
    """
    columns: dict[str, str] = {}
    for piece in (piece for item in items for piece in item.split(",")):
        name, equals, column = piece.partition("=")
        name, column = name.strip(), column.strip()
        if not equals or not column:
            raise TraceError(f"column map {piece!r} must be FIELD=COLUMN, for example arrival=created_at")
        if name not in FIELD_NAMES:
            raise TraceError(
                f"column map: unknown field {name!r}{nearest(name, FIELD_NAMES)}; one of {', '.join(FIELD_NAMES)}"
            )
        columns[name] = column
    return columns


def parse_per_token(text: str | float, what: str) -> tuple[float, float]:
    """(prompt, output) of `4.5` (both) or `4.5:180` (one each): bytes or characters per token.

    Raises:
        TraceError: not one or two finite numbers > 0.
    """
    try:
        numbers = [read_number(part) for part in str(text).split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(x > 0 for x in numbers):
        raise TraceError(f"{what} {text!r} must be one number > 0, or two as PROMPT:OUTPUT, for example 4.8:9.5")
    return numbers[0], numbers[-1]


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """A renewal process of arrivals: `poisson:RATE`, `gamma:RATE:CV` or `even:RATE`."""

    kind: str
    rate_per_s: float
    cv: float = 1.0
    """Standard deviation over mean of the gaps; 1 for Poisson, 0 for even."""

    def __post_init__(self) -> None:
        check_types(self, "arrivals", TraceError)

    def __str__(self) -> str:
        tail = f" with CV {self.cv:g}" if self.kind == "gamma" else ""
        return f"{self.kind} at {self.rate_per_s:g}/s{tail}"


def parse_arrivals(text: str) -> ArrivalProcess:
    """An arrival process as written on the command line.

    Raises:
        TraceError: unknown kind, wrong number of figures, or one that is not finite and > 0.
    """
    kind, *figures = str(text).strip().lower().split(":")
    wanted = {"poisson": 1, "gamma": 2, "even": 1}
    if kind not in wanted:
        raise TraceError(
            f"arrivals {text!r}: unknown process{nearest(kind, wanted)}; poisson:RATE, gamma:RATE:CV or even:RATE"
        )
    try:
        numbers = [read_number(figure) for figure in figures]
    except ValueError:
        numbers = []
    if len(numbers) != wanted[kind] or not all(x > 0 for x in numbers):
        shape = "gamma:RATE:CV" if kind == "gamma" else f"{kind}:RATE"
        raise TraceError(f"arrivals {text!r} must be {shape} with finite numbers > 0, RATE in requests/s")
    _within(f"arrivals {text!r}: RATE in requests/s", numbers[0], LEAST_RATE_PER_S, MOST_RATE_PER_S)
    if kind == "gamma":
        _within(f"arrivals {text!r}: CV", numbers[1], *_CV_RANGE)
    cv = {"poisson": 1.0, "even": 0.0}.get(kind, numbers[-1])
    return ArrivalProcess(kind=kind, rate_per_s=numbers[0], cv=cv)


def _positive(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise TraceError(f"{name} must be finite and > 0, got {value!r}")


def _within(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise TraceError(f"{name} must be {low:g} to {high:g}, got {value:g}")


def _whole(name: str, value: int | None, low: int, high: int | None = None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise TraceError(f"{name} must be a whole number >= {low}, got {value!r}")
    if high is not None and value > high:
        raise TraceError(f"{name} must be at most {high:,}, got {value if value < 10**30 else 'far more'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Everything that overrules what the reader would find out or do by itself.

    Raises:
        TraceError: a value out of range, or two that contradict each other.
    """

    trace_format: str | None = None
    """Name from `specsim.traces.formats.format_names()`; None detects it from the content."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Field (see `FIELD_NAMES`) -> column name, dotted path of nested keys, or `#3` for the third CSV column."""
    time_unit: str | None = None
    """Unit of a numeric time column: s, ms, us, ns, m, h or d."""
    strict: bool = False
    """Refuse the first bad row instead of counting it."""
    window: tuple[float, Unbounded] | None = None
    """Seconds from the start of the trace: keep arrivals in [first, stop)."""
    busiest_s: float | None = None
    """Keep the window of this length with most arrivals."""
    limit: int | None = None
    """Keep this many requests from the start (of the window)."""
    rate_scale: float | None = None
    """Make the kept requests arrive this many times as fast."""
    seed: int = 0
    """Seed of everything drawn: grid spread, arrivals, session starts, ServeGen samples."""
    spread_grid: bool = True
    """Spread arrivals that sit on a coarse time grid over their cell."""
    session_rate_per_s: float | None = None
    """Sessions starting per second (Poisson), for logs whose times are relative to a session."""
    arrivals: ArrivalProcess | None = None
    """Draw arrivals in file order from this process instead of reading them."""
    bytes_per_token: tuple[float, float] | None = None
    """(prompt, output) bytes a token, to estimate tokens from an access log."""
    chars_per_token: tuple[float, float] | None = None
    """(prompt, output) characters a token, to estimate tokens from text."""
    default_output_tokens: int | None = None
    """Output tokens of rows that do not say."""
    hash_block_tokens: int | None = None
    """Prompt tokens that one prefix hash covers; None infers it from the lengths."""
    max_line_bytes: int = 16 << 20
    """A longer line is refused instead of being held in memory."""

    def __post_init__(self) -> None:
        check_types(self, "options", TraceError)
        if self.time_unit is not None and self.time_unit not in TIME_UNITS:
            raise TraceError(
                f"--time-unit {self.time_unit!r} is unknown{nearest(self.time_unit, TIME_UNITS)};"
                f" one of {', '.join(TIME_UNITS)}"
            )
        if self.trace_format == "":
            raise TraceError("--trace-format is empty; name a format, or leave it out to detect it from the content")
        for name in self.columns:
            if name not in FIELD_NAMES:
                raise TraceError(f"--column: unknown field {name!r}{nearest(name, FIELD_NAMES)}")
        if self.window is not None:
            first, stop = self.window
            if not (math.isfinite(first) and first >= 0 and stop > first):
                raise TraceError(f"--window must run from a time >= 0 to a later one, got {first!r}:{stop!r}")
        if self.window is not None and self.busiest_s is not None:
            raise TraceError("--window and --busiest both choose a slice: give one of them")
        if self.arrivals is not None and self.session_rate_per_s is not None:
            raise TraceError("--arrivals and --session-rate both make arrival times: give one of them")
        _positive("--busiest", self.busiest_s)
        _positive("--rate-scale", self.rate_scale)
        _within("--rate-scale", self.rate_scale, *_SCALE_RANGE)
        _positive("--session-rate", self.session_rate_per_s)
        _within("--session-rate", self.session_rate_per_s, LEAST_RATE_PER_S, MOST_RATE_PER_S)
        _whole("--limit", self.limit, 1)
        _whole("--seed", self.seed, 0)
        _whole("--default-output", self.default_output_tokens, 1, _MOST_TOKENS)
        _whole("--hash-block", self.hash_block_tokens, 1, _MOST_TOKENS)
        _whole("--max-line", self.max_line_bytes, 1024, 1 << 40)
        for name, pair in (("--bytes-per-token", self.bytes_per_token), ("--chars-per-token", self.chars_per_token)):
            if pair is not None:
                for number in pair:
                    _positive(name, number)
                    _within(name, number, *_PER_TOKEN_RANGE)


def describe_path(path: str | Path) -> str:
    """The path as messages show it; standard input is `-`."""
    return "standard input" if str(path) == "-" else str(path)
