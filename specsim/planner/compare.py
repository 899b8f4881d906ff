"""Policies compared over load: intervals, paired differences, ties, crossovers and capacity within the objective."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specsim.planner.executor import Key
from specsim.stats import Estimate, estimate, paired_ratio

__all__ = ["SHOWN_METRICS", "LoadTable", "capacity_within_slo", "comparison_rows", "load_crossing"]

SHOWN_METRICS = (
    "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "tpot_mean_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s",
    "itl_chunk_p50_s", "itl_chunk_p95_s", "itl_chunk_p99_s", "itl_token_p50_s", "itl_token_p95_s", "itl_token_p99_s",
    "e2e_mean_s", "e2e_p95_s", "output_tokens_per_s", "served_requests_per_s", "goodput_per_s", "slo_share",
    "running_batch", "kv_use", "preemptions", "rejected", "utilisation", "tokens_per_round", "mean_acceptance_length",
    "draft_acceptance_rate", "wasted_draft_share", "mean_k", "queue_mean_s", "prefill_share",
)  # fmt: skip
"""Metrics of `specsim.metrics.RunMetrics` that a comparison reports."""

SATURATED_BELOW = 0.93
"""Served over offered requests below which a load is called saturated."""


@dataclass(frozen=True)
class LoadTable:
    """All simulated points: metrics by policy, load and replication."""

    points: Mapping[Key, Mapping[str, Any]]
    policies: tuple[str, ...]
    loads_per_s: tuple[float, ...]
    replications: int

    def values(self, policy: str, load: float, metric: str, *, change: float = 0.0) -> list[float]:
        """One value a replication, nan where there was nothing to measure."""
        found = (self.points[(policy, load, r, change)].get(metric) for r in range(self.replications))
        return [math.nan if value is None else float(value) for value in found]

    def mean(self, policy: str, load: float, metric: str) -> Estimate:
        return estimate(self.values(policy, load, metric))

    def ratio_to_off(self, policy: str, load: float, metric: str, *, change: float = 0.0) -> Estimate:
        """Paired ratio off / policy of a time (above 1: the policy is faster)."""
        return paired_ratio(self.values("off", load, metric), self.values(policy, load, metric, change=change))

    def saturated(self, policy: str, load: float) -> bool:
        """Whether the fleet fell behind the arrivals."""
        served = self.mean(policy, load, "served_requests_per_s").mean
        offered = self.mean(policy, load, "offered_requests_per_s").mean
        return served < SATURATED_BELOW * offered


def interval(e: Estimate) -> dict[str, float | None]:
    """JSON form of an estimate."""
    return {name: value if math.isfinite(value) else None for name, value in
            (("mean", e.mean), ("low", e.low), ("high", e.high))}  # fmt: skip


def comparison_rows(table: LoadTable) -> list[dict[str, Any]]:
    """One row a policy and load: every metric with its interval, paired speedups, verdict against off."""
    rows = []
    for load in table.loads_per_s:
        for policy in table.policies:
            row: dict[str, Any] = {"policy": policy, "load_per_s": load, "saturated": table.saturated(policy, load)}
            row["metrics"] = {name: interval(table.mean(policy, load, name)) for name in SHOWN_METRICS}
            if policy != "off":
                tpot = table.ratio_to_off(policy, load, "tpot_mean_s")
                e2e = table.ratio_to_off(policy, load, "e2e_mean_s")
                row["tpot_speedup"] = interval(tpot)
                row["e2e_speedup"] = interval(e2e)
                row["verdict"] = {"higher": "faster", "lower": "slower"}.get(e2e.compared_to(1.0), "tie")
            rows.append(row)
    return rows


def load_crossing(table: LoadTable, policy: str) -> dict[str, Any]:
    """The load at which a policy stops paying in mean end-to-end time, with the bracket that could not be separated.

    `load_per_s` None with `verdict` "always" or "never" when the sign never turns in the loads simulated.
    """
    ratios = [(load, table.ratio_to_off(policy, load, "e2e_mean_s")) for load in table.loads_per_s]
    ratios = [(load, r) for load, r in ratios if math.isfinite(r.mean)]
    faster = [load for load, r in ratios if r.compared_to(1.0) == "higher"]
    slower = [load for load, r in ratios if r.compared_to(1.0) == "lower"]
    low = max(faster, default=None)
    high = min((load for load in slower if low is None or load > low), default=None)
    found: dict[str, Any] = {"policy": policy, "load_per_s": None, "low_per_s": low, "high_per_s": high}
    if not ratios or (low is None and high is None):
        return found | {"verdict": "tie"}
    if high is None:
        return found | {"verdict": "always" if len(faster) == len(ratios) else "not separated"}
    if low is None:
        return found | {"verdict": "never" if len(slower) == len(ratios) else "not separated"}
    for (load_a, a), (load_b, b) in itertools.pairwise(ratios):
        if load_a >= low and load_b <= high and a.mean >= 1.0 > b.mean:
            share = math.log(a.mean) / (math.log(a.mean) - math.log(b.mean))
            found["load_per_s"] = load_a + share * (load_b - load_a)
            break
    return found | {"verdict": "crosses"}


def capacity_within_slo(table: LoadTable, policy: str, share: float) -> dict[str, Any]:
    """The highest load at which at least `share` of the requests meet the objective, and the loads around it."""
    shares = [(load, table.mean(policy, load, "slo_share").mean) for load in table.loads_per_s]
    meets = [load for load, value in shares if value >= share]
    found: dict[str, Any] = {"policy": policy, "load_per_s": None, "low_per_s": None, "high_per_s": None}
    broken = next((i for i, (_, value) in enumerate(shares) if not value >= share), None)
    if broken is None:
        return found | {
            "load_per_s": shares[-1][0],
            "low_per_s": shares[-1][0],
            "verdict": "beyond the loads simulated",
        }
    if broken == 0:
        return found | {
            "high_per_s": shares[0][0],
            "verdict": "below the loads simulated" if not meets else "not monotone",
        }
    (load_a, a), (load_b, b) = shares[broken - 1], shares[broken]
    estimate_per_s = load_a + (a - share) / (a - b) * (load_b - load_a) if a > b else load_a
    return found | {
        "load_per_s": estimate_per_s,
        "low_per_s": load_a,
        "high_per_s": load_b,
        "verdict": "bracketed" if all(load < load_b for load in meets) else "not monotone",
    }


def best_policy(table: LoadTable, load: float, order: Sequence[str]) -> str:
    """The policy with the lowest mean end-to-end time; among those not separable from it, the first in `order`."""
    means = {p: table.mean(p, load, "e2e_mean_s").mean for p in order}
    best = min(order, key=lambda p: means[p] if math.isfinite(means[p]) else math.inf)
    for policy in order:
        ratio = paired_ratio(table.values(policy, load, "e2e_mean_s"), table.values(best, load, "e2e_mean_s"))
        if policy == best or ratio.compared_to(1.0) == "tie" or ratio.mean < 1.005:
            return policy
    return best
