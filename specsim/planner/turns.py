"""Where a gain changes its sign: between simulated concurrencies, and by step times alone.

Models nothing by itself: points come from `specsim.planner.concurrency`, step times from the latency profile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from specsim.planner.concurrency import CrossoverSettings, Point
from specsim.planner.question import Question
from specsim.planner.surface import batch_limit, batches_up_to

__all__ = ["Turn", "find_turns", "surface_batch"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A place where the sign of the gain turns, between two simulated concurrencies."""

    concurrency: float
    """Interpolated on logarithmic scales."""
    low: int | None
    """Largest concurrency before it at which the sides differ beyond the interval."""
    high: int | None
    """Smallest one after it."""
    stops: bool
    """True: speculation stops paying here; False: it begins to."""


def find_turns(points: Sequence[Point]) -> list[Turn]:
    """Where the mean speed-up crosses 1 between neighbouring points, each with the bracket that could not be separated.

    `points` in order of concurrency. Interpolated linearly in the logarithms of both.
    """
    turns = []
    points = [point for point in points if math.isfinite(point.speedup.mean)]
    for n, (a, b) in enumerate(itertools.pairwise(points)):
        here, there = math.log(a.speedup.mean), math.log(b.speedup.mean)
        if (here > 0) == (there > 0):
            continue
        share = here / (here - there)
        at = math.exp(math.log(a.concurrency) + share * (math.log(b.concurrency) - math.log(a.concurrency)))
        stops = here > 0
        before, after = ("faster", "slower") if stops else ("slower", "faster")
        turns.append(
            Turn(
                concurrency=at,
                low=next((p.concurrency for p in reversed(points[: n + 1]) if p.verdict == before), None),
                high=next((p.concurrency for p in points[n + 1 :] if p.verdict == after), None),
                stops=stops,
            )
        )
    return turns


def surface_batch(question: Question, settings: CrossoverSettings) -> int | None:
    """First batch from which on speculation does not pay at the mean context, by step times alone.

    None: it pays at every batch that fits. Prefill is left out, so it differs a little from the simulation.
    """
    k, context = settings.num_spec_tokens, settings.prompt.mean + settings.output.mean / 2
    cost, limits = question.on.cost, question.on.limits
    length, mean = question.acceptance.expected_length(k), question.acceptance.expected_drafts(k)
    batches = batches_up_to(min(batch_limit(question, context), limits.max_num_seqs))
    pays = [
        length * question.off.cost.decode_step_s(b, context)
        > cost.decode_step_s(b, context, k, drafts_per_request=mean)
        for b in batches
    ]
    last = max((n for n, gain in enumerate(pays) if gain), default=-1)
    return None if last == len(batches) - 1 else batches[last + 1]
