"""The time column: raw values to relative numbers while reading, and one unit for all of them afterwards.

A column holds either dates or numbers; numbers keep their own unit until the whole column is known. Epoch numbers show
their unit by their size (1.7e9 is seconds, 1.7e12 milliseconds, ...). Leaves out: how arrivals are sliced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.errors import TraceError
from specsim.traces.options import TIME_UNITS
from specsim.traces.values import TICKS_PER_S, DateReader, RowProblem, read_number, show

OTHER_KIND = "time of another kind than the rows before"
"""Drop reason of a date in a column of numbers, or the other way round."""
__all__ = ["OTHER_KIND", "Clock", "Unit", "choose_unit", "epoch_unit", "suffix_unit"]

_YEAR_S = 365.25 * 86400
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_DOTNET_TICKS = (6.2e17, 6.6e17)
_EPOCH_CLASSES = (("s", 1e9), ("ms", 1e12), ("us", 1e15), ("ns", 1e18))
_EPOCH_FACTOR = 4.1
"""From 2001 to 2099 an epoch number lies between 1 and 4.1 of these."""
_LATEST = 1e19
"""Beyond the year 2286 in nanoseconds."""
_TIGHT = 0.25
_FASTEST_PER_S = 10_000.0
_SLOWEST_PER_S = 0.005


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of a time column and why it was taken."""

    seconds: float
    name: str
    reason: str
    certain: bool
    """Stated by the file, its format or the user, rather than guessed."""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def _check_range(value: float) -> None:
    if value < 0:
        raise RowProblem("time negative", show(value))
    if value > _LATEST:
        raise RowProblem("time out of range", show(value))


class Clock:
    """Turns the values of one time column into floats relative to the first one, without losing digits."""

    def __init__(self) -> None:
        self.dates = DateReader()
        self.kind: str | None = None
        """`date` or `number` once the first value is seen."""
        self.base: int | float = 0
        """First value: ticks for dates, the number itself otherwise."""

    def read(self, value: Any) -> float:
        """Value relative to the first, in ticks (dates) or in the column's own unit.

        Raises:
            RowProblem: missing, unreadable, or of the other kind than the values before.
        """
        if self.kind == "number":
            if type(value) is not int and type(value) is not float:
                if type(value) is str and self._is_date(value):
                    raise RowProblem(OTHER_KIND, show(value))
                value = read_number(value, "time")
            elif value != value or value in (float("inf"), float("-inf")):
                raise RowProblem("time not finite", show(value))
            _check_range(value)
            return float(value - self.base)
        if self.kind == "date":
            if type(value) is str:
                try:
                    return float(self.dates.read(value) - self.base)
                except RowProblem as problem:
                    self._explain(value, problem)
            raise RowProblem("time missing" if value is None else OTHER_KIND, show(value))
        return self._first(value)

    def _is_date(self, text: str) -> bool:
        try:
            DateReader().read(text)
        except RowProblem:
            return False
        return True

    def _explain(self, value: str, problem: RowProblem) -> None:
        try:
            read_number(value, "time")
        except RowProblem as second:
            raise (second if second.reason != "time not a number" else problem) from None
        raise RowProblem(OTHER_KIND, show(value))

    def _first(self, value: Any) -> float:
        try:
            number = read_number(value, "time")
        except RowProblem as problem:
            if type(value) is not str or problem.reason != "time not a number":
                raise
            self.base = self.dates.read(value)
            self.kind = "date"
            return 0.0
        _check_range(number)
        self.base, self.kind = number, "number"
        return 0.0


def _epoch_class(values: np.ndarray) -> str | None:
    """Unit of a column whose numbers all look like times since 1970 (or .NET ticks), else None."""
    low, high = float(values.min()), float(values.max())
    if _DOTNET_TICKS[0] <= low and high <= _DOTNET_TICKS[1]:
        return "ticks"
    for name, least in _EPOCH_CLASSES:
        if least <= low and high < least * _EPOCH_FACTOR and high - low < _TIGHT * high:
            return name
    return None


def epoch_unit(value: float) -> str | None:
    """Unit in which a single number would be a time between 2001 and 2099, or None."""
    return next((name for name, least in _EPOCH_CLASSES if least <= value < least * _EPOCH_FACTOR), None)


def suffix_unit(column: str) -> str | None:
    """Unit that a column name states: `arrival_time_ns`, `startTimeUnixNano`, `ts_ms`, `time (s)`."""
    name = _CAMEL.sub("_", column).lower().rstrip(")] ")
    for endings, unit in (
        (("nano", "_ns", "nanos", "nanoseconds", "(ns"), "ns"),
        (("micro", "_us", "micros", "microseconds", "(us"), "us"),
        (("milli", "_ms", "millis", "milliseconds", "(ms"), "ms"),
        (("_s", "_sec", "_secs", "seconds", "(s", "_at_s"), "s"),
    ):
        if name.endswith(endings):
            return unit
    return None


def _mixed_units(raw: np.ndarray, lines: np.ndarray, base: float, source: str) -> None:
    """Refuse a column that changes its unit on the way."""
    values = raw + base
    way_out = "make the column uniform, or choose another with --column arrival=NAME"
    sizes = np.zeros(len(values), dtype=np.int8)
    for number, (_, least) in enumerate(_EPOCH_CLASSES, start=1):
        inside = (values >= least) & (values < least * _EPOCH_FACTOR)
        if inside.any() and float(np.ptp(values[inside])) < _TIGHT * float(values[inside].max()):
            sizes[inside] = number
    counts = np.bincount(sizes, minlength=5)
    if counts[1:].sum() > 0.5 * len(values) and np.count_nonzero(counts) > 1:
        common = int(counts[1:].argmax()) + 1
        odd, usual = int(np.flatnonzero(sizes != common)[0]), int(np.flatnonzero(sizes == common)[0])
        raise TraceError(
            f"{source}: line {int(lines[odd])}: time {values[odd]:.17g} is of another size than most of the column"
            f" ({values[usual]:.17g}): mixed units; {way_out}"
        )
    if len(values) < 10:
        return
    before, after = values[:-1], values[1:]
    positive = (before > 0) & (after > 0)
    ratio = np.ones(len(before))
    np.divide(after, before, out=ratio, where=positive)
    jumps = np.flatnonzero((ratio > 300) & (ratio < 3000) | (ratio < 1 / 300) & (ratio > 1 / 3000))
    if len(jumps) > max(5, len(values) // 20):
        raise TraceError(
            f"{source}: line {int(lines[jumps[0] + 1])}: times jump by about 1000 and back"
            f" ({before[jumps[0]]:g}, {after[jumps[0]]:g}): mixed units; {way_out}"
        )
    for jump in jumps[:20]:
        if jump < 4 or len(values) - jump < 5:
            continue
        gap_before = float(np.median(np.abs(np.diff(values[: jump + 1]))))
        gap_after = float(np.median(np.abs(np.diff(values[jump + 1 :]))))
        low, high = sorted((gap_before, gap_after))
        if low > 0 and 100 < high / low < 10_000:
            raise TraceError(
                f"{source}: line {int(lines[jump + 1])}: times jump from {before[jump]:g} to {after[jump]:g} and go on"
                f" with steps {high / low:.0f} times as different: mixed units; {way_out}"
            )


def _rates(raw: np.ndarray) -> tuple[float, float]:
    """(span, rows per raw unit) of a column."""
    span = float(raw.max() - raw.min())
    return span, (len(raw) - 1) / span if span > 0 else 0.0


def _refuse_absurd(rate: float, span: float, rows: int, unit: Unit, column: str, source: str) -> None:
    """Refuse a unit that makes the trace impossible while another makes it ordinary."""
    rate_per_s, span_s = rate / unit.seconds, span * unit.seconds
    fast = rows >= 10 and rate_per_s > _FASTEST_PER_S
    slow = (rows >= 2 and span_s > _YEAR_S) or (rows >= 20 and 0 < rate_per_s < _SLOWEST_PER_S)
    if not (fast or slow) or rate <= 0:
        return
    better = [
        name
        for name in ("s", "ms", "us", "ns")
        if name != unit.name and 0.05 <= rate / TIME_UNITS[name] <= 2000 and span * TIME_UNITS[name] < _YEAR_S
    ]
    if not better and not fast and span_s <= _YEAR_S:
        return
    what = f"{rate_per_s:,.3g} requests/s over {span_s:,.3g} s"
    hint = (
        f"as {better[0]} it would be {rate / TIME_UNITS[better[0]]:,.3g} requests/s: give --time-unit {better[0]},"
        f" or --time-unit {unit.name} if it is meant"
        if better
        else f"give --time-unit if {unit.name} is not meant, or --time-unit {unit.name} if it is"
    )
    raise TraceError(f"{source}: column {column} read as {unit} means {what}: suspected wrong time unit; {hint}")


def choose_unit(
    clock: Clock,
    raw: np.ndarray,
    lines: np.ndarray,
    *,
    source: str,
    column: str,
    stated: str | None,
    forced: str | None,
    mooncake: bool,
    hash_block: int | None,
) -> Unit:
    """Unit of a time column, from the user, the format, the column name or the values themselves.

    Args:
        raw: [n] values relative to `clock.base`, in file order.
        lines: [n] line numbers, for messages.
        stated: unit that the format fixes, or None.
        forced: unit that the user gave, or None.
        mooncake: keys `timestamp`, `input_length`: whole numbers are ms, fractions seconds.
        hash_block: tokens a prefix hash covers, which tells Mooncake (512, ms) from Qwen files (16, s).

    Raises:
        TraceError: mixed units, or a unit that makes the trace absurd.
    """
    if clock.kind == "date":
        return Unit(1 / TICKS_PER_S, "date", "dates and times", True)
    if forced is not None:
        return Unit(TIME_UNITS[forced], forced, "given", True)
    if not len(raw):
        return Unit(1.0, "s", "no rows", False)
    base = float(clock.base)
    _mixed_units(raw, lines, base, source)
    span, rate = _rates(raw)
    suffix = suffix_unit(column)
    size = _epoch_class(raw + base)
    said = stated or suffix
    if size is not None and size != "ticks" and said in (None, size):
        return Unit(TIME_UNITS[size], size, f"{column}: the size of the numbers since 1970", True)
    if stated == "ticks":
        unit = Unit(1 / TICKS_PER_S, "ticks", "100-ns ticks, fixed by the format", True)
    elif stated is not None:
        unit = Unit(TIME_UNITS[stated], stated, "fixed by the format", True)
    elif suffix is not None:
        unit = Unit(TIME_UNITS[suffix], suffix, f"from the column name {column}", True)
    elif size == "ticks":
        unit = Unit(1 / TICKS_PER_S, "ticks", f"{column}: 100-ns ticks since year 1", True)
    elif mooncake:
        unit = _mooncake_unit(raw, base, rate, hash_block, source)
    else:
        unit = Unit(1.0, "s", f"{column}: assumed, nothing states a unit", False)
    _refuse_absurd(rate, span, len(raw), unit, column, source)
    return unit


def _mooncake_unit(raw: np.ndarray, base: float, rate: float, hash_block: int | None, source: str) -> Unit:
    """Milliseconds or seconds for the keys that Mooncake and vLLM's timed traces share."""
    values = raw + base
    whole = bool(np.all(values == np.round(values)))
    if whole:
        if len(raw) >= 10 and rate * 1000 > 1000:
            raise TraceError(
                f"{source}: whole-number timestamps would mean {rate * 1000:,.4g} requests/s as ms and {rate:,.4g}/s"
                " as s: suspected wrong time unit; say which with --time-unit s or --time-unit ms"
            )
        return Unit(1e-3, "ms", "Mooncake: whole numbers", True)
    if hash_block is not None and hash_block <= 64:
        return Unit(1.0, "s", f"fractions and {hash_block}-token blocks, as in Qwen and vLLM timed traces", True)
    if rate > 0.1:
        return Unit(1.0, "s", f"fractions; as ms it would be {rate * 1000:,.3g} requests/s", False)
    return Unit(1e-3, "ms", f"fractions, but as s it would be only {rate:,.3g} requests/s", False)
