"""Single values of a log row: token counts, dates and numbers, read strictly and fast.

Leaves out: which column they come from. Dates become whole ticks of 100 ns since 1970 UTC (the finest that public
logs carry); a date without an offset is taken as UTC.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

from specsim.checks import plain

__all__ = ["TICKS_PER_S", "DateReader", "RowProblem", "read_count", "read_number"]

TICKS_PER_S = 10_000_000
_MOST_TOKENS = 100_000_000
_EMPTY = frozenset({"", "-", "null", "none", "n/a", "na", "\\n", "nil", "undefined"})


class RowProblem(Exception):
    """A row that cannot become a request: a reason to count by, and what exactly was found."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def show(value: Any) -> str:
    """A value as an error message shows it: one short line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_number(value: Any, what: str) -> float | int:
    """A finite number from a JSON or CSV value.

    Raises:
        RowProblem: missing, not a number, NaN or infinite.
    """
    kind = type(value)
    if kind is str:
        text = value.strip()
        if text.lower() in _EMPTY:
            raise RowProblem(f"{what} missing", show(value))
        try:
            value = int(plain(text)) if len(text) < 40 else float(plain(text))
        except ValueError:
            try:
                value = float(plain(text))
            except ValueError:
                raise RowProblem(f"{what} not a number", show(value)) from None
    elif value is None:
        raise RowProblem(f"{what} missing")
    elif kind is not int and kind is not float:
        raise RowProblem(f"{what} not a number", show(value))
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise RowProblem(f"{what} not finite", show(value))
    return value


def read_count(value: Any, what: str) -> int:
    """A whole number of tokens, 0 allowed.

    Raises:
        RowProblem: missing, not a number, not whole, negative, NaN, or beyond any real request.
    """
    if type(value) is str:
        try:
            value = int(plain(value))
        except ValueError:
            value = read_number(value, what)
    elif type(value) is not int:
        value = read_number(value, what)
    if type(value) is float:
        if value != int(value):
            raise RowProblem(f"{what} not a whole number", show(value))
        value = int(value)
    if value < 0:
        raise RowProblem(f"{what} negative", show(value))
    if value > _MOST_TOKENS:
        raise RowProblem(f"{what} over {_MOST_TOKENS:,}", show(value))
    return value


_TAIL = re.compile(r"([0-9][0-9])(?:[.,]([0-9]+))?\s*(Z|UTC|GMT|[+-][0-9][0-9]:?(?:[0-9][0-9])?)?\s*$", re.IGNORECASE)
_HEAD = re.compile(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9][T ][0-9][0-9]:[0-9][0-9]:$")
_US = re.compile(
    r"\s*([0-9]{1,2})/([0-9]{1,2})/([0-9]{4}),?\s+"
    r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?\s*([AP]M)?\s*(Z|UTC)?$",
    re.IGNORECASE,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _fraction_ticks(digits: str | None) -> int:
    return int((digits or "0")[:7].ljust(7, "0"))


def _offset_s(text: str | None) -> int:
    if text is None or text[0] not in "+-":
        return 0
    digits = text[1:].replace(":", "").ljust(4, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return seconds if text[0] == "+" else -seconds


class DateReader:
    """Dates as ticks since 1970 UTC; remembers the minute it has seen last, since logs move slowly."""

    def __init__(self) -> None:
        self.naive_rows = 0
        """Dates without an offset, taken as UTC."""
        self.offset_rows = 0
        """Dates with one."""
        self.month_first_rows = 0
        """Dates written with slashes, read month first."""
        self._minute = ""
        self._minute_ticks = 0

    def read(self, text: str) -> int:
        """Ticks of 100 ns since 1970-01-01 UTC.

        Raises:
            RowProblem: not a date that is understood.
        """
        head = text[:17]
        match = _TAIL.match(text, 17)
        if match is None:
            return self._slow(text)
        if head != self._minute:
            if not _HEAD.match(head):
                return self._slow(text)
            try:
                moment = datetime.fromisoformat(head[:16]).replace(tzinfo=UTC)
            except ValueError:
                raise RowProblem("time not a date", show(text)) from None
            self._minute = head
            self._minute_ticks = round((moment - _EPOCH).total_seconds()) * TICKS_PER_S
        second, digits, zone = match.groups()
        if zone is None:
            self.naive_rows += 1
        else:
            self.offset_rows += 1
        shift_s = int(second) - (_offset_s(zone) if zone else 0)
        return self._minute_ticks + shift_s * TICKS_PER_S + (_fraction_ticks(digits) if digits else 0)

    def _slow(self, text: str) -> int:
        us = _US.match(text)
        try:
            if us:
                month, day, year, hour, minute, second, digits, half, zone = us.groups()
                hours = int(hour)
                if half:
                    if not 1 <= hours <= 12:
                        raise ValueError
                    hours = hours % 12 + (12 if half.upper() == "PM" else 0)
                moment = datetime(int(year), int(month), int(day), hours, int(minute), int(second or 0), tzinfo=UTC)
                self.month_first_rows += 1
                extra, aware = _fraction_ticks(digits), zone is not None
            else:
                trimmed = re.sub(r"([.,][0-9]{6})[0-9]+", r"\1", text.strip())
                moment = datetime.fromisoformat(trimmed.removesuffix(" UTC"))
                aware = moment.tzinfo is not None
                moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
                extra = 0
        except (ValueError, OverflowError):
            raise RowProblem("time not a date", show(text)) from None
        if aware:
            self.offset_rows += 1
        else:
            self.naive_rows += 1
        gap = moment - _EPOCH
        return (gap.days * 86400 + gap.seconds) * TICKS_PER_S + gap.microseconds * 10 + extra
