"""Signed errors of predictions beside the noise of what they are compared with; JSON-able, no torch.

Error: predicted over measured, less 1; measured is the median over repeats. Noise: how far a single repeat lies from
that median at most, relative to it. An error is within bounds when it is at most 5 % or the noise, whichever is larger.
At pace: the median error over repeats of a prediction that knows how much slower the machine was during that run than
when it was calibrated, by the reference point of the profile, which is timed beside the run and has nothing to do with
serving; the noise at pace is how far the error of a single repeat lies from it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from calibrate.validation.runs import FIGURES, Prediction, Run
from calibrate.validation.world import Load, World
from specsim.config import PolicySpec
from specsim.planner.judging import BOUND, JUDGED, compared, finite, middle, sign_right, within_bound

__all__ = ["REPLAY_BOUND", "judged"]

REPLAY_BOUND = 0.03
_REPLAYED = tuple(name for name in FIGURES if name.endswith("_s"))

Predict = Callable[[Load, PolicySpec, float], Prediction]


def judged(world: World, runs: Sequence[Run], predict: Predict) -> dict[str, Any]:
    """Rows, speed-ups, crossovers, replay and verdict of whatever was run; `predict` as `calibrate.validation.runs`."""
    predictions: dict[tuple[Load, str], Prediction] = {}
    rows = []
    for load in world.loads:
        for policy in world.policies:
            mine = [run for run in runs if run.trial.load == load and run.trial.policy == policy]
            if mine:
                predictions[load, policy.label] = predict(load, policy, 1.0)
                paces = [(run, _slower(world, run)) for run in mine]
                paced = [(run, predict(load, policy, pace)) for run, pace in paces if math.isfinite(pace)]
                rows.append(_row(load, policy, mine, predictions[load, policy.label], paced))
    gains = _gains(world, runs, predictions)
    crossovers = _crossovers(gains)
    return {
        "rows": rows,
        "pace": _pace(world, runs),
        "speedups": gains,
        "crossovers": crossovers,
        "replay": _replay(runs),
        "verdict": _verdict(rows, gains),
    }


def _slower(world: World, run: Run) -> float:
    """How many times longer a step took in a run than the profile says, by its reference point; nan: not known.

    Samples lie evenly in time, so that slow stretches of the same work have more of them: their harmonic mean counts
    each by its work.
    """
    evidence = world.off.profile.evidence
    if evidence is None or "target" not in evidence.references or not run.reference_s:
        return math.nan
    seconds, share = evidence.references["target"]
    if seconds <= 0:
        return math.nan
    return statistics.harmonic_mean([(sample / seconds) ** share for sample in run.reference_s])


def _pace(world: World, runs: Sequence[Run]) -> dict[str, float] | None:
    values = sorted(value for value in (_slower(world, run) for run in runs) if math.isfinite(value))
    if not values:
        return None
    return {"median": statistics.median(values), "low": values[0], "high": values[-1]}


def _row(
    load: Load, policy: PolicySpec, runs: Sequence[Run], prediction: Prediction, paced: Sequence[tuple[Run, Prediction]]
) -> dict[str, Any]:
    return {
        **_named(load),
        "policy": policy.label,
        "repeats": len(runs),
        "running_batch": statistics.median(run.running_batch for run in runs),
        "predicted_running_batch": finite(prediction.running_batch),
        "preemptions": max(run.preemptions for run in runs),
        "figures": {
            name: _compared(
                [run.figures[name] for run in runs],
                prediction.figures[name],
                prediction.spread[name],
                [(run.figures[name], at_pace.figures[name]) for run, at_pace in paced],
                decides=name in JUDGED,
            )
            for name in FIGURES
        },
    }


def _named(load: Load) -> dict[str, Any]:
    arrivals = None if load.rate_per_s is None else load.arrivals
    return {"load": load.label, "concurrency": load.concurrency, "rate_per_s": load.rate_per_s, "arrivals": arrivals}


def _compared(
    values: Sequence[float],
    predicted: float,
    luck: float,
    paced: Sequence[tuple[float, float]],
    *,
    decides: bool,
) -> dict[str, Any]:
    """`paced`: measured and predicted at the pace of each run."""
    found = compared(values, predicted, luck, decides=decides)
    if paced:
        ratio, noise = middle([expected / measured if measured else math.nan for measured, expected in paced])
        found |= {"error_at_pace": finite(ratio - 1.0), "noise_at_pace": finite(noise)}
        if decides:
            found["within_at_pace"] = within_bound(ratio - 1.0, noise)
    return found


def _gains(
    world: World, runs: Sequence[Run], predictions: Mapping[tuple[Load, str], Prediction]
) -> list[dict[str, Any]]:
    """Throughput on over off, in pairs of the same repeat."""
    off = next((policy for policy in world.policies if policy.kind == "off"), None)
    if off is None:
        return []
    by = {(run.trial.load, run.trial.policy.label, run.trial.repeat): run for run in runs}
    found = []
    for load in world.loads:
        for policy in world.policies:
            if policy == off:
                continue
            pairs = [
                (by[load, policy.label, n], by[load, off.label, n])
                for n in range(world.repeats)
                if (load, policy.label, n) in by and (load, off.label, n) in by
            ]
            if not pairs:
                continue
            measured, noise = middle([on.figures[JUDGED[0]] / without.figures[JUDGED[0]] for on, without in pairs])
            predicted = (
                predictions[load, policy.label].figures[JUDGED[0]] / predictions[load, off.label].figures[JUDGED[0]]
            )
            found.append({
                **_named(load), "policy": policy.label, "measured": measured, "noise": finite(noise),
                "measured_at_pace": _gain_at_pace(world, load, pairs), "predicted": predicted,
                "error": predicted / measured - 1.0, "sign_right": sign_right(predicted, measured, noise),
            })  # fmt: skip
    return found


def _gain_at_pace(world: World, load: Load, pairs: Sequence[tuple[Run, Run]]) -> float | None:
    """Throughput on over off had the machine been equally fast in both; in a closed loop it is inverse to the pace."""
    if load.concurrency is None:
        return None
    ratios = [
        on.figures[JUDGED[0]] * _slower(world, on) / (off.figures[JUDGED[0]] * _slower(world, off)) for on, off in pairs
    ]
    return finite(statistics.median(ratios)) if all(map(math.isfinite, ratios)) else None


def _crossovers(gains: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Requests in flight at which an arm stops paying, measured and predicted alike, by interpolation."""
    found = []
    for policy in dict.fromkeys(gain["policy"] for gain in gains):
        points = sorted(
            (gain for gain in gains if gain["policy"] == policy and gain["concurrency"] is not None),
            key=lambda gain: gain["concurrency"],
        )
        if len(points) < 2:
            continue
        found.append({
            "policy": policy,
            "loads": [point["concurrency"] for point in points],
            **{which: _crossing([(p["concurrency"], p[which]) for p in points]) for which in ("measured", "predicted")},
        })  # fmt: skip
    return found


def _crossing(points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Where the speed-up last falls through 1, linear in the logarithm of the load."""
    for (low, above), (high, below) in reversed(list(pairwise(points))):
        if above > 1.0 >= below:
            share = (above - 1.0) / (above - below)
            return {"concurrency": low * (high / low) ** share, "says": "crosses"}
    pays = {gain > 1.0 for _, gain in points}
    return {"concurrency": None, "says": "not separated" if len(pays) > 1 else "always" if pays == {True} else "never"}


def _replay(runs: Sequence[Run]) -> dict[str, Any]:
    """Worst error of each figure over all runs, given their own step times and rounds."""
    worst: dict[str, float] = {}
    for run in runs:
        for name in _REPLAYED:
            error = run.replay[name] / run.figures[name] - 1.0 if run.figures[name] else math.nan
            if math.isfinite(error) and abs(error) >= abs(worst.get(name, 0.0)):
                worst[name] = error
    largest = max((abs(error) for error in worst.values()), default=0.0)
    return {
        "runs": len(runs),
        "unmatched_steps": sum(run.unmatched for run in runs),
        "steps": sum(run.steps for run in runs),
        "worst_errors": worst,
        "bound": REPLAY_BOUND,
        "within": largest <= REPLAY_BOUND,
    }


def _verdict(rows: Sequence[Mapping[str, Any]], gains: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    judged = [row["figures"][name] for row in rows for name in JUDGED]
    compared = [figure for figure in judged if figure["measured"] is not None or figure["predicted"] is not None]
    signs = [gain["sign_right"] for gain in gains if gain["sign_right"] is not None]
    return {
        "figures": len(compared),
        "within": sum(figure["within"] for figure in compared),
        "within_at_pace": sum(figure["within_at_pace"] for figure in compared if "within_at_pace" in figure)
        if any("within_at_pace" in figure for figure in compared)
        else None,
        "bound": BOUND,
        "signs": len(signs),
        "signs_right": sum(signs),
    }
