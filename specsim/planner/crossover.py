"""The answer of `specsim crossover` as one JSON-able dict: points, where the sign turns, how sure that is.

Models nothing by itself: the simulations are those of `specsim.planner.concurrency`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from specsim.planner.compare import interval
from specsim.planner.concurrency import CrossoverSettings, Point, run_point
from specsim.planner.plan import not_modelled
from specsim.planner.question import Question
from specsim.planner.surface import surface_error
from specsim.planner.turns import Turn, find_turns, surface_batch

__all__ = ["SCHEMA_VERSION", "run_crossover"]

SCHEMA_VERSION = 1

_ARRIVALS = ("sessions as a closed loop", "caching of generated tokens")
"""Beginnings of sentences that are about traces only."""


def run_crossover(
    question: Question, settings: CrossoverSettings, *, progress: Callable[[int], None] = lambda points: None
) -> dict[str, Any]:
    """Simulate every concurrency off and on, and say where speculation stops paying.

    `progress` is told the number of finished points.

    Raises:
        ScenarioError: when the lengths do not fit at all.
    """
    points = []
    for concurrency in sorted(set(settings.concurrency)):
        points.append(run_point(question, settings, concurrency))
        progress(1)
    turns = find_turns(points)
    stops = [turn for turn in turns if turn.stops]
    error = surface_error(question)
    last = stops[-1] if stops else None
    surface = surface_batch(question, settings)
    left_out = [text for text in not_modelled(question.deployment) if not text.startswith(_ARRIVALS)]
    if question.on.trees:
        left_out.append("tree attention that is slower than causal attention of the same width")
    return {
        "schema_version": SCHEMA_VERSION,
        "points": [_point(point, error) for point in points],
        "crossover_concurrency": None if last is None else last.concurrency,
        "crossover": {
            "concurrency": None if last is None else last.concurrency,
            "low": None if last is None else last.low,
            "high": None if last is None else last.high,
            "verdict": _verdict(points, last),
        },
        "turns": [asdict(turn) for turn in turns],
        "surface_crossover_batch": surface,
        "text": _sentences(question, settings, points, last, surface, error),
        "settings": {
            "isl": str(settings.prompt),
            "osl": str(settings.output),
            "k": settings.num_spec_tokens,
            "tree_nodes": question.tree_nodes(settings.num_spec_tokens),
            "verify_tokens": 1 + question.verified_drafts(settings.num_spec_tokens),
            "seeds": settings.seeds,
            "seed": settings.seed,
        },
        "deployment": {**asdict(question.deployment), "names": dict(question.names)},
        "speculation": asdict(question.speculation),
        "limits": {"off": asdict(question.off.limits), "on": asdict(question.on.limits)},
        "memory": {"off": dict(question.off.memory), "on": dict(question.on.memory)},
        "profile": {"off": _profile(question.off), "on": _profile(question.on), "speedup_error": error},
        "acceptance": {
            "source": question.acceptance_source,
            "expected_length": question.acceptance.expected_length(settings.num_spec_tokens),
            "conditional": list(question.acceptance.conditional[: settings.num_spec_tokens]),
            "proposal_rate": question.acceptance.proposal_rate,
            "relative_error": question.acceptance_error,
        },
        "warnings": _warnings(question, settings, points),
        "assumed": list(question.assumed),
        "not_modelled": left_out,
    }


def _point(point: Point, error: float) -> dict[str, Any]:
    tpot_off, tpot_on = _finite(point.tpot_off_s.mean, 1e3), _finite(point.tpot_on_s.mean, 1e3)
    return {
        "concurrency": point.concurrency,
        "throughput_off": _finite(point.throughput_off.mean),
        "throughput_on": _finite(point.throughput_on.mean),
        "tpot_off_ms": tpot_off,
        "tpot_on_ms": tpot_on,
        "speedup": _finite(point.speedup.mean),
        "interval": {"low": _finite(point.speedup.low), "high": _finite(point.speedup.high)},
        "verdict": point.verdict,
        "beyond_model_error": abs(point.speedup.mean - 1.0) > error,
        "tpot_speedup": interval(point.tpot_speedup),
        "running_off": _finite(point.running_off),
        "running_on": _finite(point.running_on),
        "tokens_per_round": _finite(point.tokens_per_round),
        "preemptions": point.preemptions,
        "refused": point.refused,
    }


def _finite(value: float, scale: float = 1.0) -> float | None:
    return value * scale if math.isfinite(value) else None


def _profile(side: Any) -> dict[str, Any]:
    profile = side.profile
    return {
        "name": profile.name,
        "kind": profile.kind,
        "sha256": profile.sha256,
        "relative_error": profile.relative_error,
        "covers": dict(profile.covers),
        "notes": [*profile.notes, *side.notes],
    }


def _verdict(points: Sequence[Point], last: Turn | None) -> str:
    """One word on the whole: crosses, always, never, or what is between."""
    if last is not None:
        return "crosses"
    verdicts = {point.verdict for point in points}
    if verdicts == {"faster"}:
        return "always"
    if verdicts == {"slower"}:
        return "never"
    return "tie" if verdicts == {"tie"} else "not separated"


def _sentences(
    question: Question,
    settings: CrossoverSettings,
    points: Sequence[Point],
    last: Turn | None,
    surface: int | None,
    error: float,
) -> list[str]:
    """The answer in two sentences."""
    k = settings.num_spec_tokens
    nodes = question.verified_drafts(k)
    what = f"{question.speculation.method} k={k}"
    if question.speculation.has_tree:
        what = f"{question.speculation.method} with a tree of {nodes} nodes, depth {k},"
    elif nodes != k:
        what = f"{what}, which verifies {1 + nodes} tokens a round,"
    best = max(points, key=lambda point: point.speedup.mean)
    lowest, highest = points[0].concurrency, points[-1].concurrency
    simulated = f"simulated, {lowest} to {highest}" if lowest != highest else f"simulated (only {lowest})"
    verdict = _verdict(points, last)
    if last is not None:
        low = "an unseparated concurrency" if last.low is None else str(last.low)
        high = "an unseparated one" if last.high is None else str(last.high)
        first = (
            f"{what} stops paying near {last.concurrency:,.0f} requests in flight (between {low} and {high}); at best "
            f"it gives {best.speedup.mean:.2f}x the tokens per second, at {best.concurrency}."
        )
    elif verdict == "never":
        first = f"{what} pays at no concurrency {simulated}; at best {best.speedup.mean:.2f}x."
    elif verdict == "always":
        alone = (
            "it pays at every batch that fits"
            if surface is None
            else f"alone it would stop near {surface:,} running requests"
        )
        first = (
            f"{what} pays at every concurrency {simulated}, at best {best.speedup.mean:.2f}x; by step times {alone}."
        )
    else:
        first = f"{what} differs from off at no concurrency beyond the interval, or only at some: see the table."
    close = [point.concurrency for point in points if not abs(point.speedup.mean - 1.0) > error]
    kinds = {question.off.profile.kind, question.on.profile.kind}
    costs = "measured" if kinds == {"measured"} else " and ".join(sorted(kinds))
    if close:
        second = (
            f"Step times are {costs}: a speed-up is good to ±{error:.0%} (one sigma, acceptance included), so the "
            f"sign is not sure at {', '.join(map(str, close))}."
        )
    else:
        second = (
            f"Step times are {costs}: a speed-up is good to ±{error:.0%} (one sigma, acceptance included), and every "
            f"point lies further than that from 1."
        )
    return [first, second]


def _warnings(question: Question, settings: CrossoverSettings, points: Sequence[Point]) -> list[str]:
    found = []
    for point in points:
        if point.queued:
            found.append(
                f"At {point.concurrency} in flight only {point.running_off:,.0f} (off) and {point.running_on:,.0f} "
                f"(on) run at once; the rest waits for slots, token budget or cache."
            )
        if point.refused:
            found.append(f"At {point.concurrency} in flight {point.refused} requests were too long and left out.")
        if point.preemptions:
            found.append(f"At {point.concurrency} in flight the cache ran out {point.preemptions} times (preemptions).")
    k = settings.num_spec_tokens
    found += question.on.extrapolated(
        requests=max(max(point.running_off, point.running_on) for point in points),
        width=1 + question.verified_drafts(k),
        context_tokens=settings.prompt.mean + settings.output.mean,
        prompt_tokens=settings.prompt.mean,
    )
    if settings.output.mean < 8:
        found.append("Outputs under 8 tokens: most of the time is prefill, which speculation does not shorten.")
    return found
