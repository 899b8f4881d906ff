"""Fields of a benchmark client's file, read strictly: a number is a finite one, and every refusal names its place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specsim.errors import ScenarioError

__all__ = ["Fields", "from_quantiles", "of_mean"]


class Fields:
    """An object of a file."""

    def __init__(self, data: Any, place: str) -> None:
        """
        Raises:
            ScenarioError: `data` is no object.
        """
        if not isinstance(data, Mapping):
            raise ScenarioError(f"{place}: must be an object, is {_shown(data)}")
        self.data, self.place = data, place

    def number(self, name: str, *, low: float = 0.0) -> float | None:
        """A finite number >= low; None where it is missing or null.

        Raises:
            ScenarioError: something else.
        """
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < low:
            raise ScenarioError(f"{self.place}: {name} must be a finite number >= {low:g}, is {_shown(value)}")
        return float(value)

    def needed(self, name: str, *, low: float = 0.0) -> float:
        """The same, and it must be there."""
        value = self.number(name, low=low)
        if value is None:
            raise ScenarioError(f"{self.place}: has no {name}, so the run cannot be compared")
        return value

    def whole(self, name: str) -> int | None:
        """A whole number >= 0."""
        value = self.number(name)
        if value is not None and value != int(value):
            raise ScenarioError(f"{self.place}: {name} must be a whole number, is {_shown(value)}")
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        """A text in one line; None where there is none."""
        value = self.data.get(name)
        return " ".join(value.split())[:200] or None if isinstance(value, str) else None

    def object(self, name: str) -> Fields | None:
        """An object within; None where it is missing or null."""
        value = self.data.get(name)
        return None if value is None else Fields(value, f"{self.place}: {name}")

    def numbers(self, name: str, count: int | None = None) -> list[float]:
        """An array of finite numbers, `count` of them; empty where it is missing.

        Raises:
            ScenarioError: something else.
        """
        values = self.data.get(name)
        if values is None:
            return []
        if not isinstance(values, list) or not all(
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) for value in values
        ):
            raise ScenarioError(f"{self.place}: {name} must be an array of finite numbers")
        if count is not None and len(values) != count:
            raise ScenarioError(f"{self.place}: {name} has {len(values)} entries for {count} requests")
        return [float(value) for value in values]


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def of_mean(mean: float, count: int) -> tuple[int, ...]:
    """`count` whole lengths >= 1 with that mean, those above and below it spread evenly."""
    edges = np.floor(np.arange(count + 1) * max(mean, 1.0) + 1e-9).astype(np.int64)
    return tuple(np.diff(edges).tolist())


def from_quantiles(known: Sequence[tuple[float, float]], mean: float, count: int, order: np.ndarray) -> tuple[int, ...]:
    """`count` whole lengths >= 1 along quantiles (share, length), scaled to the mean, in the order given."""
    shares, lengths = zip(*sorted(known), strict=True)
    drawn = np.interp((np.arange(count) + 0.5) / count, shares, lengths)
    scaled = drawn * (mean / drawn.mean()) if drawn.mean() > 0 else drawn
    return tuple(np.maximum(1, np.rint(scaled)).astype(np.int64)[order].tolist())
