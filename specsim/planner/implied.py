"""Acceptance that a measured speed-up implies: the one at which the simulation of that point gives it.

Models: `scaled_to_length` of a vector is solved for its mean acceptance length, by regula falsi inside a bracket, on
the simulated speed-up of the very requests and luck with which the other points are then predicted.
Leaves out: errors of the measurement. The interval covers luck alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from specsim.acceptance import PerPosition
from specsim.acceptance.scaled import longest_length, scaled_to_length, vector_of
from specsim.errors import ScenarioError
from specsim.planner.concurrency import CrossoverSettings, PairedLoop, Point
from specsim.planner.question import Question
from specsim.stats import Estimate

__all__ = ["Implied", "Metric", "gain", "implied_acceptance", "with_implied"]

Metric = Literal["throughput", "tpot", "latency"]
"""Which ratio is meant: output tokens per second on over off; time per output token, or from arrival to last token, off
over on."""

_CLOSE = 5e-4
"""Relative distance to the measured speed-up at which the search ends."""
_MOST_STEPS = 16
_SOLVED_ERROR = 0.05
"""One-sigma error of a solved length: noise of a published speed-up, below which two measurements do not differ."""


@dataclass(frozen=True, slots=True)
class Implied:
    """A solved acceptance."""

    acceptance: PerPosition
    length: float
    """Mean acceptance length, bonus included."""
    low: float
    high: float
    """Interval of the length: that of the simulated speed-up, carried over by the slope between the two."""
    point: Point
    """The point it was solved at, under this acceptance."""
    reached: bool
    """False: no acceptance gives the measured speed-up; the nearest end of 0..1 is taken."""


def gain(point: Point, metric: Metric) -> Estimate:
    """The speed-up that a metric means."""
    found = {"tpot": point.tpot_speedup, "latency": point.latency_speedup}
    return found.get(metric, point.speedup)


def with_implied(
    question: Question, settings: CrossoverSettings, concurrency: int, speedup: float
) -> tuple[Question, Implied]:
    """The question with the acceptance at which its throughput gains `speedup` at `concurrency`, and the solution.

    Raises:
        ScenarioError: no acceptance gives it; the message says what can be had.
    """
    base, k = vector_of(question.acceptance), settings.num_spec_tokens
    loop = PairedLoop(question, settings, concurrency)
    solved = implied_acceptance(loop, base, k, speedup)
    if not solved.reached:
        none, all_of_it = (
            loop.point(scaled_to_length(base, length, k)).speedup.mean for length in (1.0, longest_length(base, k))
        )
        raise ScenarioError(
            f"--speedup-at {concurrency}:{speedup:g}: no acceptance gives that; with nothing accepted the speed-up is "
            f"{none:.3f} there, with everything {all_of_it:.3f}; check the conditions, or the step times"
        )
    said = (
        f"solved from a speed-up of {speedup:g} at {concurrency} in flight: {solved.length:.3f} tokens a round "
        f"({solved.low:.3f} to {solved.high:.3f}, luck alone)"
    )
    found = replace(question, acceptance=solved.acceptance, acceptance_source=said, acceptance_error=_SOLVED_ERROR)
    return found, solved


def implied_acceptance(
    loop: PairedLoop, base: PerPosition, num_spec_tokens: int, speedup: float, metric: Metric = "throughput"
) -> Implied:
    """Solve for the acceptance at which `loop` simulates `speedup`.

    Raises:
        ScenarioError: the speed-up is not a positive number, k is 0, or outputs are so short that nothing is measured.
    """
    k = num_spec_tokens
    if not (math.isfinite(speedup) and speedup > 0):
        raise ScenarioError(f"measured speed-up must be a finite number > 0, got {speedup!r}")
    if k < 1:
        raise ScenarioError("with k = 0 nothing is drafted, so that no acceptance follows from a speed-up")

    def simulated(length: float) -> tuple[float, Point, PerPosition]:
        model = scaled_to_length(base, length, k)
        point = loop.point(model)
        value = gain(point, metric).mean
        if not math.isfinite(value):
            raise ScenarioError("outputs are too short: no time per output token can be measured at this point")
        return value, point, model

    low, high = 1.0, longest_length(base, k)
    length = min(high, max(low, base.expected_length(k)))
    tried: dict[float, tuple[float, Point, PerPosition]] = {}
    below: float | None = None
    above: float | None = None
    for _ in range(_MOST_STEPS):
        found = tried.get(length) or tried.setdefault(length, simulated(length))
        if abs(found[0] / speedup - 1.0) <= _CLOSE:
            break
        if found[0] < speedup:
            if length >= high:
                break
            below = length
        else:
            if length <= low:
                break
            above = length
        length = _next(tried, below, above, speedup, low, high)
    length = min(tried, key=lambda at: abs(math.log(tried[at][0] / speedup)))
    value, point, model = tried[length]
    slope = _slope(tried, length)
    spread = gain(point, metric)
    return Implied(
        acceptance=model,
        length=length,
        low=max(low, length - (spread.high - spread.mean) / slope),
        high=min(high, length + (spread.mean - spread.low) / slope),
        point=point,
        reached=abs(value / speedup - 1.0) <= 20 * _CLOSE,
    )


def _next(
    tried: dict[float, tuple[float, Point, PerPosition]],
    below: float | None,
    above: float | None,
    speedup: float,
    low: float,
    high: float,
) -> float:
    """Where to look next: in proportion while one side is open, else between the two, never close to either."""
    if below is None or above is None:
        known = above if below is None else below
        assert known is not None
        return min(high, max(low, known * speedup / tried[known][0]))
    here, there = tried[below][0], tried[above][0]
    share = (speedup - here) / (there - here) if there > here else 0.5
    return below + min(0.95, max(0.05, share)) * (above - below)


def _slope(tried: dict[float, tuple[float, Point, PerPosition]], length: float) -> float:
    """Speed-up per token of acceptance length near `length`; in proportion when only that was tried."""
    value = tried[length][0]
    others = [at for at in tried if at != length]
    if others:
        near = min(others, key=lambda at: abs(at - length))
        slope = (tried[near][0] - value) / (near - length)
        if slope > 0:
            return slope
    return value / length
