"""Bounds of numbers that users give, as one-line errors that name place and value.

Models: nothing. Leaves out: bounds across fields, which belong to the record that has them. Numbers: none.
"""

from __future__ import annotations

import math

from specsim.errors import ScenarioError

__all__ = ["number", "positive", "whole"]


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
