"""Fields of a benchmark client's file, read strictly: a number is a finite one, and every refusal names its place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specsim.errors import ScenarioError

__all__ = ["LEAST_TOKENS_PER_S", "LONGEST_TOKENS", "Fields", "from_quantiles", "of_mean"]

LONGEST_TOKENS = 2**31 - 1
"""Most tokens of a prompt or an output."""
LEAST_TOKENS_PER_S = 1e-3
"""Least throughput of a run that went at all; what is predicted is divided by it."""
_MOST = 1e15
"""Largest number of any field: no sum of as many as a file can hold leaves the range of numbers."""
_MOST_REQUESTS = 10_000_000
"""Most requests of a run that is simulated in memory."""


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

    def number(self, name: str, *, low: float = 0.0, high: float = _MOST) -> float | None:
        """A number in low..high; None where it is missing or null.

        Raises:
            ScenarioError: something else.
        """
        value = self.data.get(name)
        if value is None:
            return None
        if not _is_number(value) or value < low:
            raise ScenarioError(f"{self.place}: {name} must be a finite number >= {low:g}, is {_shown(value)}")
        if value > high:
            raise ScenarioError(f"{self.place}: {name} must be at most {high:.10g}, is {_shown(value)}")
        return float(value)

    def needed(self, name: str, *, low: float = 0.0) -> float:
        """The same, and it must be there."""
        value = self.number(name, low=low)
        if value is None:
            raise ScenarioError(f"{self.place}: has no {name}, so the run cannot be compared")
        return value

    def whole(self, name: str, *, low: int = 0, high: float = _MOST) -> int | None:
        """A whole number in low..high."""
        value = self.number(name, low=low, high=high)
        if value is not None and value != int(value):
            raise ScenarioError(f"{self.place}: {name} must be a whole number, is {_shown(value)}")
        return None if value is None else int(value)

    def count(self, name: str) -> int | None:
        """A number of requests."""
        return self.whole(name, high=_MOST_REQUESTS)

    def text(self, name: str) -> str | None:
        """A text in one line; None where it is missing, null or empty.

        Raises:
            ScenarioError: something else.
        """
        value = self.data.get(name)
        if value is not None and not isinstance(value, str):
            raise ScenarioError(f"{self.place}: {name} must be a text, is {_shown(value)}")
        return None if value is None else " ".join(value.split())[:200] or None

    def array(self, name: str) -> list[Any]:
        """An array; empty where it is missing or null.

        Raises:
            ScenarioError: something else.
        """
        value = self.data.get(name)
        if value is not None and not isinstance(value, list):
            raise ScenarioError(f"{self.place}: {name} must be an array, is {_shown(value)}")
        return value or []

    def object(self, name: str) -> Fields | None:
        """An object within; None where it is missing or null."""
        value = self.data.get(name)
        return None if value is None else Fields(value, f"{self.place}: {name}")

    def numbers(self, name: str, count: int | None = None) -> list[float]:
        """An array of finite numbers >= 0, `count` of them; empty where it is missing.

        Raises:
            ScenarioError: something else.
        """
        values = self.data.get(name)
        if values is None:
            return []
        if not isinstance(values, list):
            raise ScenarioError(f"{self.place}: {name} must be an array of finite numbers, is {_shown(values)}")
        for number, value in enumerate(values, start=1):
            if not _is_number(value) or not 0 <= value <= _MOST:
                raise ScenarioError(f"{self.place}: {name} must be an array of finite numbers >= 0; entry {number} is "
                                    f"{_shown(value)}")  # fmt: skip
        if count is not None and len(values) != count:
            raise ScenarioError(f"{self.place}: {name} has {len(values)} entries for {count} requests")
        return [float(value) for value in values]

    def lengths(self, name: str, count: int | None = None) -> list[int]:
        """An array of numbers of tokens, likewise."""
        values = self.numbers(name, count)
        for number, value in enumerate(values, start=1):
            if value != int(value) or value > LONGEST_TOKENS:
                raise ScenarioError(f"{self.place}: {name} must be an array of whole numbers up to {LONGEST_TOKENS}; "
                                    f"entry {number} is {_shown(value)}")  # fmt: skip
        return [int(value) for value in values]


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


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
    # a mean of next to nothing is of lengths that all become 1
    scaled = drawn * (mean / drawn.mean()) if drawn.mean() > 1e-3 else drawn
    return tuple(np.maximum(1, np.rint(scaled)).astype(np.int64)[order].tolist())
