"""Further loads between those of the grid, where a crossing or a capacity is bracketed, so that the bracket narrows.

Models nothing new: the points are paired with the others, on the same stretches with the same luck.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from specsim.planner.compare import LoadTable, capacity_within_slo, interval, load_crossing

if TYPE_CHECKING:
    from specsim.planner.job import PlanJob
    from specsim.planner.point_runner import Key, PointRunner

__all__ = ["ROUNDS", "narrow", "search_rows"]

ROUNDS = 2
NARROW_ENOUGH = 0.03
"""Width of a bracket over its upper end below which it is left."""
STEP_OUT = 1.25
"""How far past the grid the next load lies, when an objective still holds (or already fails) at its end."""


def narrow(job: PlanJob, points: dict[Key, dict[str, Any]], runner: PointRunner) -> dict[Key, dict[str, Any]]:
    """New points: up to `ROUNDS` more loads for each bracket of off, the best static k and the schedule."""
    labels = _searched(job, points)
    found: dict[Key, dict[str, Any]] = {}
    for _ in range(ROUNDS):
        table = LoadTable(
            points | found,
            tuple(p.label for p in job.policies),
            job.loads_per_s,
            len(job.stretches),
            job.capacity_per_s,
        )
        wanted: dict[str, set[float]] = {label: set() for label in labels}
        for label in labels:
            load = _next_capacity(capacity_within_slo(table, label, job.question.slo.share))
            if load is not None:
                wanted[label].add(load)
            turn = None if label == "off" else _middle(load_crossing(table, label))
            if turn is not None:
                wanted[label].add(turn)
                wanted["off"].add(turn)
        batches = [
            batch
            for policy in job.policies
            for loads in [sorted(wanted.get(policy.label, set()) - set(table.loads_of(policy.label)))]
            if loads
            for batch in job.points_at(policy, loads)
        ]
        if not batches:
            break
        found |= runner.run(sorted(batches, key=lambda batch: batch.stretch.index))
    return found


def _searched(job: PlanJob, points: dict[Key, dict[str, Any]]) -> list[str]:
    """Off, the static k that is fastest at the trace's own load, and the schedule."""
    table = LoadTable(
        points, tuple(p.label for p in job.policies), job.loads_per_s, len(job.stretches), job.capacity_per_s
    )
    means = {p.label: table.mean(p.label, job.own_per_s, "e2e_mean_s").mean for p in job.policies if p.kind == "static"}
    best = min(means, key=lambda label: (math.isnan(means[label]), means[label]))
    return ["off", best, *(p.label for p in job.policies if p.kind == "schedule")]


def _next_capacity(found: dict[str, Any]) -> float | None:
    low, high = found["low_per_s"], found["high_per_s"]
    if low is not None and high is None:
        return _round(low * STEP_OUT)
    if low is None and high is not None:
        return _round(high / STEP_OUT**2)
    return _middle(found)


def _middle(found: dict[str, Any]) -> float | None:
    low, high = found["low_per_s"], found["high_per_s"]
    if low is None or high is None or high - low < NARROW_ENOUGH * high:
        return None
    return _round((low + high) / 2)


def _round(load_per_s: float) -> float:
    return float(f"{load_per_s:.4g}")


def search_rows(job: PlanJob, table: LoadTable) -> list[dict[str, Any]]:
    """Every point beside the grid: policy, load, share within the objective, paired gain."""
    return [
        {
            "policy": policy,
            "load_per_s": load,
            "slo_share": interval(table.mean(policy, load, "slo_share"), within=(0.0, 1.0)),
            "e2e_speedup": None
            if policy == "off" or load not in table.loads_of("off")
            else interval(table.ratio_to_off(policy, load, "e2e_mean_s")),
        }
        for policy in table.policies
        for load in table.loads_of(policy)
        if load not in job.loads_per_s
    ]
