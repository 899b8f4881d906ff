"""What comes of a grid, as one JSON-able dict: every cell with means, intervals and the comparison with its base.

Leaves out: simulating (`specsim.planner.sweep`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from specsim.planner.compare import bounds, interval
from specsim.planner.sweep import Cell, Metrics, Outcome, SweepJob, SweepPoint
from specsim.stats import Estimate, estimate, paired, paired_ratio

__all__ = ["SCHEMA_VERSION", "Pairs", "cell_rows", "compared", "grid_answer", "trace_rate", "verdict"]

SCHEMA_VERSION = 1

_SPEEDUPS = (("e2e_speedup", "e2e_mean_s"), ("tpot_speedup", "tpot_mean_s"))
"""(name, time): above 1, the cell is faster than its base."""


@dataclass(frozen=True)
class Pairs:
    """The runs of two cells, seed by seed; only seeds that both have."""

    base: Sequence[Metrics]
    cell: Sequence[Metrics]

    def faster(self, time: str) -> Estimate:
        """Paired ratio base over cell of a time."""
        return paired_ratio(_values(self.base, time), _values(self.cell, time))


def _values(runs: Sequence[Metrics], name: str) -> list[float]:
    found = (run.get(name) for run in runs)
    return [math.nan if value is None else float(value) for value in found]


def compared(base: Cell, cell: Cell, outcomes: Mapping[SweepPoint, Outcome]) -> Pairs:
    """The pairs of two cells that are finished."""
    both = [
        (a.metrics, b.metrics)
        for a, b in zip(_outcomes(base, outcomes), _outcomes(cell, outcomes), strict=True)
        if a.metrics is not None and b.metrics is not None
    ]
    return Pairs([a for a, _ in both], [b for _, b in both])


def _outcomes(cell: Cell, outcomes: Mapping[SweepPoint, Outcome]) -> list[Outcome]:
    return [outcomes.get(point, Outcome(error="not simulated")) for point in cell.points]


def verdict(ratio: Estimate) -> str:
    """`faster`, `slower` or `tie`; `unknown` where a single pair gives no interval."""
    if ratio.n < 2:
        return "unknown"
    return {"higher": "faster", "lower": "slower"}.get(ratio.compared_to(1.0), "tie")


def _against(pairs: Pairs, base: int) -> dict[str, Any]:
    """The comparison with the base: the same requests with the same luck on both sides."""
    end = pairs.faster("e2e_mean_s")
    tokens = paired_ratio(_values(pairs.cell, "output_tokens_per_s"), _values(pairs.base, "output_tokens_per_s"))
    share = paired(_values(pairs.cell, "slo_share"), _values(pairs.base, "slo_share"))
    return {
        "point": base,
        "pairs": len(pairs.cell),
        **{name: interval(pairs.faster(time)) for name, time in _SPEEDUPS},
        "output_tokens_ratio": interval(tokens),
        "slo_share_difference": interval(share),
        "verdict": verdict(end),
    }


def cell_rows(
    job: SweepJob, outcomes: Mapping[SweepPoint, Outcome], run_ids: Mapping[SweepPoint, str | None]
) -> list[dict[str, Any]]:
    """One row a cell, in the order of the grid. `status`: done, failed (a point at least), or refused."""
    rows = []
    for index, cell in enumerate(job.cells):
        row: dict[str, Any] = {"point": index, "values": dict(cell.values), "status": "done", "reason": cell.refused}
        if cell.refused is not None:
            rows.append(row | {"status": "refused"})
            continue
        ends = _outcomes(cell, outcomes)
        runs = [end.metrics for end in ends if end.metrics is not None]
        errors = [end.error for end in ends if end.error is not None]
        if errors:
            row |= {"status": "failed", "reason": errors[0]}
        first = cell.points[0]
        row |= {
            "policy": first.policy.label,
            "requests": len(job.traces[first.trace]),
            "concurrency": first.concurrency,
            "load_per_s": None
            if first.concurrency is not None
            else fmean(trace_rate(job, point) for point in cell.points),
            "metrics": _metrics(runs),
            "against": None
            if cell.base is None or job.cells[cell.base].refused is not None
            else _against(compared(job.cells[cell.base], cell, outcomes), cell.base),
            "runs": [
                {
                    "seed": point.seed,
                    "load_per_s": None if point.concurrency is not None else trace_rate(job, point),
                    "run_id": run_ids.get(point),
                    "error": end.error,
                    "metrics": end.metrics,
                }
                for point, end in zip(cell.points, ends, strict=True)
            ],
        }
        rows.append(row)
    return rows


def trace_rate(job: SweepJob, point: SweepPoint) -> float:
    """Requests per second that arrive at a point."""
    return job.traces[point.trace].rate_per_s * point.rate_scale


def _metrics(runs: Sequence[Metrics]) -> dict[str, Any]:
    """Every figure that at least one run has, with its interval over the seeds."""
    names = runs[0] if runs else ()
    found = {name: estimate(_values(runs, name)) for name in names}
    return {name: interval(e, within=bounds(name)) for name, e in found.items() if e.n}


def grid_answer(
    job: SweepJob, outcomes: Mapping[SweepPoint, Outcome], run_ids: Mapping[SweepPoint, str | None]
) -> dict[str, Any]:
    """Every cell, and how many could not be or failed."""
    rows = cell_rows(job, outcomes, run_ids)
    return {
        "points": rows,
        "refused": sum(row["status"] == "refused" for row in rows),
        "failed": sum(row["status"] == "failed" for row in rows),
    }
