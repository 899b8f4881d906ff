"""Policies compared over load: intervals, paired differences, ties, crossovers and capacity within the objective."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specsim.metrics import POOL_METRICS
from specsim.planner.point_runner import Key
from specsim.stats import Estimate, estimate, paired_ratio

__all__ = [
    "BUSY_METRICS", "SHOWN_METRICS", "LoadTable", "capacity_within_slo", "comparison_rows", "load_crossing",
    "share_text",
]  # fmt: skip

SHOWN_METRICS = (
    "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "tpot_mean_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s",
    "itl_chunk_p50_s", "itl_chunk_p95_s", "itl_chunk_p99_s", "itl_token_p50_s", "itl_token_p95_s", "itl_token_p99_s",
    "e2e_mean_s", "e2e_p95_s", "output_tokens_per_s", "served_requests_per_s", "backlog_growth_share", "goodput_per_s",
    "slo_share",
    "running_batch", "kv_use", "preemptions", "rejected", "utilisation", "tokens_per_round", "mean_acceptance_length",
    "draft_acceptance_rate", "wasted_draft_share", "mean_k", "queue_mean_s", "prefill_share",
)  # fmt: skip
"""Metrics of `specsim.metrics.RunMetrics` that a comparison reports; with prefill and decode replicas also theirs."""

BUSY_METRICS = ("utilisation", "prefill_utilisation", "decode_utilisation", "link_use")
"""Shares of time in which something works that a fleet may be short of."""

SATURATED_GROWTH = 0.07
"""Growth of requests in flight, over arrivals, above which a load is called saturated ..."""
SATURATED_BUSY = 0.95
"""... if the fleet also computes at least this share of the time: one that idles keeps up, whatever a burst at the end
of the window leaves behind."""
CAPACITY_MARGIN = 0.1
"""How far from the capacity of a full fleet a load must be for that figure to decide alone: windows of 20 s to half an
hour of one log (Azure, conversation) gave 21.2 to 22.4 requests/s."""
AS_GOOD_AS = 1.01
"""A simpler policy is preferred to one whose mean is better by less than this."""


@dataclass(frozen=True)
class LoadTable:
    """All simulated points: metrics by policy, load and replication."""

    points: Mapping[Key, Mapping[str, Any]]
    policies: tuple[str, ...]
    loads_per_s: tuple[float, ...]
    replications: int
    capacity_off_per_s: float = math.nan
    """What a full fleet completes without speculation; nan when not known."""

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
        """Whether the fleet falls behind the arrivals.

        Without speculation the capacity of a full fleet tells, unless it is within 10 % of the load. Otherwise, from
        this load on, the fleet computes all the time and its backlog grows, by more than replications differ.
        """
        away = load / self.capacity_off_per_s - 1 if policy == "off" else math.nan
        if abs(away) > CAPACITY_MARGIN:
            return away > 0
        return all(self._backlog_grows(policy, at) for at in self.loads_of(policy) if at >= load)

    def _backlog_grows(self, policy: str, load: float) -> bool:
        growth = self.mean(policy, load, "backlog_growth_share")
        busy = (self.mean(policy, load, name).mean for name in BUSY_METRICS)
        separable = self.replications == 1 or growth.low > 0
        return growth.mean > SATURATED_GROWTH and separable and any(share >= SATURATED_BUSY for share in busy)

    def loads_of(self, *policies: str) -> list[float]:
        """Loads at which all of the policies were simulated, rising: those of the grid, and those of a search."""
        found = [
            {load for p, load, r, change in self.points if (p, r, change) == (policy, 0, 0.0)} for policy in policies
        ]
        return sorted(set.intersection(*found))


def interval(e: Estimate, *, within: tuple[float, float] | None = None) -> dict[str, float | None]:
    """JSON form of an estimate; `within` cuts an interval to what the figure can be."""
    low, high = e.low, e.high
    if within is not None:
        low, high = max(low, within[0]), min(high, within[1])
    return {name: value if math.isfinite(value) else None for name, value in
            (("mean", e.mean), ("low", low), ("high", high))}  # fmt: skip


def bounds(metric: str) -> tuple[float, float] | None:
    """What a metric can be, where it is a share."""
    return (
        (0.0, 1.0) if metric.endswith(("_share", "_use", "_rate", "utilisation")) and "growth" not in metric else None
    )


def comparison_rows(table: LoadTable) -> list[dict[str, Any]]:
    """One row a policy and load: every metric with its interval, paired speedups, verdict against off."""
    rows = []
    for load in table.loads_per_s:
        for policy in table.policies:
            row: dict[str, Any] = {"policy": policy, "load": load, "load_per_s": load}
            row["saturated"] = table.saturated(policy, load)
            row["metrics"] = {
                name: interval(table.mean(policy, load, name), within=bounds(name)) for name in SHOWN_METRICS
            }
            row["metrics"] |= {
                name: interval(mean, within=bounds(name))
                for name, mean in ((name, table.mean(policy, load, name)) for name in POOL_METRICS)
                if math.isfinite(mean.mean)
            }
            if policy != "off":
                tpot = table.ratio_to_off(policy, load, "tpot_mean_s")
                e2e = table.ratio_to_off(policy, load, "e2e_mean_s")
                row["tpot_speedup"] = interval(tpot)
                row["e2e_speedup"] = interval(e2e)
                verdict = e2e.compared_to(1.0)
                row["verdict"] = {"higher": "faster", "lower": "slower"}.get(verdict, verdict)
            rows.append(row)
    return rows


def load_crossing(table: LoadTable, policy: str) -> dict[str, Any]:
    """The load at which the sign of a policy's gain in mean end-to-end time turns.

    `verdict`:
        always, never       faster, or slower, at every load
        crosses             faster at lower loads, slower at higher ones (the last such turn, if there are several)
        begins              slower at lower loads, faster at higher ones
        faster, slower      at some loads, and no separable difference at the others
        tie                 no separable difference at any load
        unknown             nothing to compare
    `low_per_s` and `high_per_s` are the separable loads next to the turn, `load_per_s` the turn interpolated between
    them; None without a turn. `faster_per_s` and `slower_per_s`: (lowest, highest) load at which it is so, or None.
    """
    ratios = [(load, table.ratio_to_off(policy, load, "e2e_mean_s")) for load in table.loads_of("off", policy)]
    ratios = [(load, r) for load, r in ratios if math.isfinite(r.mean)]
    faster = [load for load, r in ratios if r.compared_to(1.0) == "higher"]
    slower = [load for load, r in ratios if r.compared_to(1.0) == "lower"]
    found: dict[str, Any] = {"policy": policy, "verdict": "unknown"}
    found |= dict.fromkeys(("load_per_s", "low_per_s", "high_per_s"))
    found |= {"faster_per_s": _span(faster), "slower_per_s": _span(slower)}
    if not ratios:
        return found
    if not faster or not slower:
        everywhere = len(faster or slower) == len(ratios)
        if faster:
            return found | {"verdict": "always" if everywhere else "faster"}
        return found | {"verdict": "tie" if not slower else "never" if everywhere else "slower"}
    before, after, verdict = (slower, faster, "begins") if max(slower) < max(faster) else (faster, slower, "crosses")
    high = min(load for load in after if load > max(before))
    low = max(before)
    found |= {"verdict": verdict, "low_per_s": low, "high_per_s": high}
    for (load_a, a), (load_b, b) in itertools.pairwise(ratios):
        if low <= load_a and load_b <= high and (a.mean - 1.0) * (b.mean - 1.0) <= 0 and a.mean != b.mean:
            share = math.log(a.mean) / (math.log(a.mean) - math.log(b.mean))
            return found | {"load_per_s": load_a + share * (load_b - load_a)}
    return found


def _span(loads: Sequence[float]) -> list[float] | None:
    return [min(loads), max(loads)] if loads else None


def capacity_within_slo(table: LoadTable, policy: str, share: float) -> dict[str, Any]:
    """The load up to which at least `share` of the requests meet the objective, and the loads around it.

    `verdict`: bracketed; not monotone (a higher load meets it again); beyond or below the loads simulated; not
    measurable (no request was measured at the lowest load).
    """
    shares = [(load, table.mean(policy, load, "slo_share").mean) for load in table.loads_of(policy)]
    meets = [load for load, value in shares if value >= share]
    found: dict[str, Any] = {"policy": policy, "load_per_s": None, "low_per_s": None, "high_per_s": None}
    if not shares or math.isnan(shares[0][1]):
        return found | {"verdict": "not measurable"}
    broken = next((i for i, (_, value) in enumerate(shares) if not value >= share), None)
    if broken is None:
        highest = shares[-1][0]
        return found | {"load_per_s": highest, "low_per_s": highest, "verdict": "beyond the loads simulated"}
    if broken == 0:
        verdict = "not monotone" if meets else "below the loads simulated"
        return found | {"high_per_s": shares[0][0], "verdict": verdict}
    (load_a, a), (load_b, b) = shares[broken - 1], shares[broken]
    verdict = "bracketed" if all(load < load_b for load in meets) else "not monotone"
    estimate_per_s = load_a + (a - share) / (a - b) * (load_b - load_a) if a > b else load_a
    return found | {"load_per_s": estimate_per_s, "low_per_s": load_a, "high_per_s": load_b, "verdict": verdict}


def decision_load(table: LoadTable, own_per_s: float) -> float:
    """The load at which a policy is chosen: the log's own, or else the highest that the fleet keeps up with.

    Where a fleet falls behind, times are those of a queue that grows as long as the log lasts, and say little.
    """
    if not table.saturated("off", own_per_s):
        return own_per_s
    kept_up = [load for load in table.loads_per_s if load < own_per_s and not table.saturated("off", load)]
    return max(kept_up, default=own_per_s)


def capacity_rows(table: LoadTable, share: float) -> list[dict[str, Any]]:
    """Capacity of every policy, with its interval over replications and the paired comparison with off.

    Each replication has a capacity of its own, interpolated on its own shares. The interval is null unless every
    replication has one: those that fail within the loads simulated are the hard ones, and their mean is not that of
    all. The ratio to off is paired over the replications in which both have one, over the loads that both sides share,
    or where more pairs have one so, each over its own; `vs_off` is more, less or tie, null where fewer than two do.
    """
    rows = []
    for policy in table.policies:
        row = capacity_within_slo(table, policy, share)
        each = [_capacity_of(table, policy, r, share, table.loads_of(policy)) for r in range(table.replications)]
        censored = any(math.isnan(capacity) for capacity in each)
        row["interval"] = interval(estimate([] if censored else each), within=(0.0, math.inf))
        common = table.loads_of("off", policy)
        mine, off = (
            [_capacity_of(table, p, r, share, common) for r in range(table.replications)] for p in (policy, "off")
        )
        ratio = paired_ratio(mine, off)
        if ratio.n < table.replications:  # one side's bracket lies where the other was not simulated
            base = [_capacity_of(table, "off", r, share, table.loads_of("off")) for r in range(table.replications)]
            apart = paired_ratio(each, base)
            ratio = apart if apart.n > ratio.n else ratio
        verdict = {"higher": "more", "lower": "less"}.get(ratio.compared_to(1.0), "tie")
        row["ratio_to_off"] = None if policy == "off" else interval(ratio)
        row["vs_off"] = None if policy == "off" or ratio.n < 2 else verdict
        rows.append(row)
    return rows


def share_text(share: float, asked: float) -> str:
    """A share in percent, with a decimal within a point of the share that is asked for."""
    return f"{share:.1%}" if 0 < abs(share - asked) < 0.01 else f"{share:.0%}"


def _capacity_of(table: LoadTable, policy: str, replication: int, share: float, loads: Sequence[float]) -> float:
    """Load up to which one replication meets the objective; nan when it fails at once or never."""
    before: tuple[float, float] | None = None
    for load in loads:
        value = table.values(policy, load, "slo_share")[replication]
        if math.isnan(value):
            return math.nan
        if value < share:
            if before is None:
                return math.nan
            return before[0] + (before[1] - share) / (before[1] - value) * (load - before[0])
        before = (load, value)
    return math.nan


def best_policy(table: LoadTable, load: float, order: Sequence[str]) -> str:
    """The policy to run at a load, by mean end-to-end time; `order` is from the simplest on, `off` first.

    Of the policies that are separably faster than `off`, that with the lowest mean, or a simpler one than which it is
    not better by 1 %. `off` when none is.
    """
    faster = [p for p in order if p != "off" and table.ratio_to_off(p, load, "e2e_mean_s").compared_to(1.0) == "higher"]
    means = {p: table.mean(p, load, "e2e_mean_s").mean for p in faster}
    least = min(means.values(), default=math.nan)
    return next((p for p in faster if means[p] < AS_GOOD_AS * least), "off")
