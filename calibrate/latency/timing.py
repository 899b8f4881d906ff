"""Repeats of several pieces of work, taken in turn, until each median is known well enough or the time is up.

Turns instead of one after the other: when the machine slows down for a second, every piece has a slow repeat and none
has only slow ones. The reference is timed in every turn, so that drift shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Repeats", "Timed", "time_in_turns"]

TimeIt = Callable[[Callable[[], object]], float]


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often work is repeated."""

    least: int = 5
    most: int = 25
    width: float = 0.02
    """Half width of the interval of the median, relative to it, at which repeating ends."""
    warm_up: int = 1
    """Calls before the first that counts."""
    seconds: float = math.inf
    """Seconds after which repeating ends at `least` repeats."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Median of repeats, its 95 % interval, and the median of the reference beside them."""

    seconds: float
    low_s: float
    high_s: float
    repeats: int
    reference_s: float


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the 95 % interval of a median by order statistics, whatever the distribution.

    The k-th smallest and k-th largest value hold the median with a probability of 1 - 2 P(Binomial(n, 1/2) < k); k is
    the largest for which that is 95 %, at least 1. Never narrower than a thousandth, since few repeats may agree by
    chance.
    """
    ordered = sorted(values)
    count, rank, below = len(ordered), 0, 0.0
    while rank + 1 <= count // 2:
        below += math.comb(count, rank) / 2**count
        if 2 * below > 0.05 and rank >= 1:
            break
        rank += 1
    middle, least = float(np.median(ordered)), 5e-4
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (ordered[0], ordered[-1])
    return middle, min(low, middle * (1 - least)), max(high, middle * (1 + least))


def time_in_turns(
    works: Sequence[Callable[[], object]],
    time_it: TimeIt,
    repeats: Repeats,
    *,
    reference: Callable[[], object] | None = None,
) -> list[Timed]:
    """Time every piece of work in turns; one `Timed` each, in order."""
    for work in works:
        for _ in range(repeats.warm_up):
            work()
    if reference is not None:
        reference()
    taken: list[list[float]] = [[] for _ in works]
    beside: list[list[float]] = [[] for _ in works]
    open_ones = set(range(len(works)))
    used = 0.0
    while open_ones:
        before = time_it(reference) if reference is not None else 0.0
        for n in sorted(open_ones):
            seconds = time_it(works[n])
            taken[n].append(seconds)
            beside[n].append(before)
            used += seconds
        used += before
        for n in sorted(open_ones):
            count = len(taken[n])
            if count < repeats.least:
                continue
            middle, low, high = median_interval(taken[n])
            if count >= repeats.most or (high - low) / 2 <= repeats.width * middle or used > repeats.seconds:
                open_ones.discard(n)
    results = []
    for seconds_list, references in zip(taken, beside, strict=True):
        middle, low, high = median_interval(seconds_list)
        results.append(Timed(middle, low, high, len(seconds_list), float(np.median(references))))
    return results
