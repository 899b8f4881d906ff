"""Where something turns between two ends: bracketed by bisection until the bracket is narrow enough.

Models: a quantity that is positive on one side of the turn and negative on the other, known with an interval at every
place that is looked at. Bisection follows its mean; where the interval holds zero the sides cannot be told apart, and
the bracket is then closed in from outside, so that its ends are the last places where they can.
Leaves out: turns between two ends of the same sign, which are not looked for. Numbers: none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

__all__ = ["Bracket", "Look", "Looking", "find_turn"]

MOST_LOOKS = 60


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one place."""

    x: float
    mean: float
    """The quantity whose sign turns."""
    side: int
    """1 or -1 where the interval tells the sign, else 0."""
    seen: Any = None
    """Whatever the caller wants to keep."""


Looking = Generator[Any, Any, Look]
"""Yields what it needs to be told, and returns the look."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """The end of a search. `verdict`:

    rises, falls    it turns at `at`, from - to + or from + to -; `low` and `high` are the separable places next to it
    above, below    positive, or negative, at both ends
    unclear         neither, since it cannot be told from zero at an end
    """

    verdict: str
    looks: tuple[Look, ...]
    """In the order in which they were made."""
    at: float | None = None
    low: float | None = None
    high: float | None = None


def find_turn(
    look: Callable[[float], Looking], low: float, high: float, *, width: float, whole: bool = False
) -> Generator[Any, Any, Bracket]:
    """The bracket of a turn in `low..high`, both above 0; it is left when `high - low` is at most `width` of `high`, or
    1 where only `whole` numbers are places.

    At most `MOST_LOOKS` looks are made.
    """
    looks: list[Look] = []

    def at(x: float) -> Looking:
        known = next((seen for seen in looks if seen.x == x), None)
        if known is not None:
            return known
        found = yield from look(x)
        looks.append(found)
        return found

    first = yield from at(low)
    last = yield from at(high)
    if math.isnan(first.mean) or math.isnan(last.mean) or (first.mean > 0) == (last.mean > 0):
        same = first.side == last.side != 0
        return Bracket({1: "above", -1: "below"}[first.side] if same else "unclear", tuple(looks))
    a, b = first, last
    while not _narrow(a.x, b.x, width, whole) and len(looks) < MOST_LOOKS:
        seen = yield from at(_middle(a.x, b.x, whole))
        if (seen.mean > 0) == (first.mean > 0):
            a = seen
        else:
            b = seen
    share = abs(a.mean) / (abs(a.mean) + abs(b.mean)) if a.mean != b.mean else 0.5
    turn = a.x + share * (b.x - a.x)
    sides = (1, -1) if first.mean > 0 else (-1, 1)
    outer_low = yield from _close_in(at, looks, a, sides[0], -1, width, whole)
    outer_high = yield from _close_in(at, looks, b, sides[1], 1, width, whole)
    return Bracket("falls" if first.mean > 0 else "rises", tuple(looks), turn, outer_low, outer_high)


def _close_in(
    at: Callable[[float], Looking], looks: list[Look], inner: Look, side: int, direction: int, width: float, whole: bool
) -> Generator[Any, Any, float | None]:
    """The separable place nearest to the turn on one of its sides; None: there is none up to the end."""
    beyond = [seen for seen in looks if seen.side == side and (seen.x - inner.x) * direction >= 0]
    if not beyond:
        return None
    outer = min(beyond, key=lambda seen: abs(seen.x - inner.x))
    while not _narrow(min(outer.x, inner.x), max(outer.x, inner.x), width, whole) and len(looks) < MOST_LOOKS:
        seen = yield from at(_middle(min(outer.x, inner.x), max(outer.x, inner.x), whole))
        if seen.side == side:
            outer = seen
        else:
            inner = seen
    return outer.x


def _narrow(low: float, high: float, width: float, whole: bool) -> bool:
    if high - low <= max(1.0 if whole else 0.0, width * high):
        return True
    return not low < _middle(low, high, whole) < high  # no number is left between them


def _middle(low: float, high: float, whole: bool) -> float:
    """The geometric middle, to four digits, or the whole number next to it."""
    middle = math.sqrt(low * high)
    if whole:
        return float(min(max(round(middle), int(low) + 1), int(high) - 1))
    short = float(f"{middle:.4g}")
    return short if low < short < high else middle
