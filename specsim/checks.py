"""Numbers that users give: read from text strictly, and held to bounds by one-line errors that name place and value.

Models: nothing. Leaves out: bounds across fields, which belong to the record that has them. Numbers: none.
"""

from __future__ import annotations

import math

from specsim.errors import ScenarioError

__all__ = ["number", "plain", "positive", "read_number", "read_whole", "whole"]

_MOST_DIGITS = 18


def plain(text: str) -> str:
    """`text` itself.

    Raises:
        ValueError: it holds what only Python takes for part of a number: `1_000`, digits of other scripts.
    """
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def read_whole(text: str) -> int:
    """The whole number that a flag or a cell says, at most 18 digits; blanks around it do not count.

    Raises:
        ValueError: it is none.
    """
    value = int(plain(text))
    if abs(value) >= 10**_MOST_DIGITS:
        raise ValueError(text)
    return value


def read_number(text: str) -> float:
    """The finite number that a flag or a cell says; blanks around it do not count.

    Raises:
        ValueError: it is none.
    """
    value = float(plain(text))
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def whole(place: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse what is not a whole number in `low..high`.

    Raises:
        ScenarioError: place, bounds and value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ScenarioError(f"{place} must be a whole number >= {low}, got {value!r}")
    if high is not None and value > high:
        raise ScenarioError(f"{place} must be a whole number in {low}..{high}, got {value!r}")


def positive(place: str, value: object) -> None:
    """Refuse what is not a finite number > 0.

    Raises:
        ScenarioError: place and value.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ScenarioError(f"{place} must be a finite number > 0, got {value!r}")


def number(place: str, value: object, low: float, high: float) -> None:
    """Refuse what is not a number in `low..high`.

    Raises:
        ScenarioError: place, bounds and value.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ScenarioError(f"{place} must be a number in {low:g}..{high:g}, got {value!r}")
