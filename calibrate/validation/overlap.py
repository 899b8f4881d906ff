"""Whether a profile has seen what it is to predict: batches of its fitted points among the loads that are served.

Leaves out: prompts. A profile is measured on drawn tokens, so that it has seen no prompt of anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calibrate.points import Point
from calibrate.validation.world import Load

__all__ = ["fitted_batches", "overlap_sentences", "shared_loads"]


def fitted_batches(points: Iterable[Point]) -> dict[int, int]:
    """Requests in a batch -> points of the fit that decoded so many; held-out points do not count."""
    found: dict[int, int] = {}
    for point in points:
        decodes = point.kind in ("body", "whole", "host") and point.role != "draft" and not point.is_prefill
        if decodes and not point.is_holdout and point.parts:
            found[len(point.parts)] = found.get(len(point.parts), 0) + 1
    return dict(sorted(found.items()))


def shared_loads(loads: Sequence[Load], points: Iterable[Point]) -> tuple[int, ...]:
    """Requests in flight that are batches of the fit."""
    batches = fitted_batches(points)
    return tuple(load.concurrency for load in loads if load.concurrency is not None and load.concurrency in batches)


def overlap_sentences(loads: Sequence[Load], points: Sequence[Point] | None) -> list[str]:
    """What is said of it in the result."""
    if points is None:
        return [
            "Not checked: the profile comes without its points, so that nothing is known of the batches of its fit."
        ]
    batches = fitted_batches(points)
    shared = shared_loads(loads, points)
    found = [f"The fit knows batches of {_listed(batches)} requests; its prompts were drawn tokens."]
    closed = [load.concurrency for load in loads if load.concurrency is not None and load.concurrency not in shared]
    if closed:
        found.append(f"{_listed(closed)} in flight are batches that it has not seen.")
    if shared:
        count = sum(batches[n] for n in shared)
        found.append(f"NOT INDEPENDENT: {_listed(shared)} in flight are batches of the fit ({count} points).")
    if any(load.rate_per_s is not None for load in loads):
        found.append("An open loop goes through many batches, some of which the fit knows.")
    return found


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
