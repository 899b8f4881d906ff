"""The answer of a what-if as one JSON-able dict: options with proof and cost, the front, and what speculation buys.

Leaves out: simulating (`specsim.planner.whatif`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specsim.executors import Executor
from specsim.planner.compare import interval
from specsim.planner.costs import FleetCost, fleet_cost
from specsim.planner.fleet_runner import CacheOf
from specsim.planner.least_fleet import FleetPoint, Found, Metrics
from specsim.planner.parts import settings_part, trace_part
from specsim.planner.plan import not_modelled
from specsim.planner.whatif import Contender, Option, WhatIfJob, search_options, stress_options
from specsim.planner.whatif_pools import Pooled, pools_part
from specsim.planner.whatif_rank import Ranking
from specsim.planner.whatif_uncertainty import uncertainty_part
from specsim.planner.whatif_verdict import verdict_part
from specsim.stats import estimate
from specsim.traces.stats import describe

__all__ = ["SCHEMA_VERSION", "run_whatif"]

SCHEMA_VERSION = 1

_SHOWN = (
    "slo_share", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s", "e2e_p50_s",
    "e2e_p95_s", "e2e_p99_s", "output_tokens_per_s", "running_batch", "kv_use", "utilisation", "preemptions",
    "rejected", "mean_acceptance_length", "mean_k", "backlog_growth_share",
)  # fmt: skip
"""Metrics of `specsim.metrics.RunMetrics` of a fleet that was simulated."""

RunIds = Callable[[FleetPoint], str | None]
"""The id under which a point is stored; None: it is not."""


def run_whatif(
    job: WhatIfJob,
    *,
    cache_of: CacheOf | None = None,
    run_id: RunIds = lambda point: None,
    pool_stores: Sequence[tuple[CacheOf, RunIds]] = (),
    settled: Callable[[], None] = lambda: None,
    simulated: Callable[[], None] = lambda: None,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Search every option, look closer at those that a decision is about, and answer; without `plan_id`.

    `pool_stores`: cache and ids of each pool, in their order; empty: nothing is stored.
    """
    hooks = {"cache_of": cache_of, "settled": settled, "simulated": simulated, "executor": executor}
    options = search_options(job, **hooks)  # type: ignore[arg-type]
    rows = [_option_row(job, option, run_id) for option in options]
    order = Ranking(rows, {name: _cost(job, name, 1).to_dict() for name in job.prices})
    chosen = order.contenders()
    further = stress_options(job, [options[i] for i in chosen], **hooks)  # type: ignore[arg-type]
    for index, contender in zip(chosen, further, strict=True):
        rows[index]["beyond"] = _beyond_part(job, options[index], contender)
    statistics = describe(job.whole)
    uncertainty = uncertainty_part(job, options, rows, order)
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "trace": trace_part(job.whole, statistics, len(job.trace)),
        "window": {
            "first_s": float(job.trace.arrival_s[0]),
            "last_s": float(job.trace.arrival_s[-1]),
            "requests": len(job.trace),
            "rate_per_s": job.trace.rate_per_s,
            "mean_prompt_tokens": float(job.trace.prompt_tokens.mean()),
            "mean_output_tokens": float(job.trace.output_tokens.mean()),
        },
        "settings": _settings_part(job),
        "slo": asdict(job.slo),
        "target": job.groups[0].question.names["target"],
        "engine": f"{job.groups[0].question.deployment.engine} {job.groups[0].question.deployment.version}",
        "speculation": asdict(job.groups[0].question.speculation),
        "acceptance": _acceptance_part(job),
        "prices": [_price_part(name, cost) for name, cost in job.prices.items()],
        "ownership": None if job.ownership is None else asdict(job.ownership),
        "options": rows,
        "refused": [asdict(refusal) for refusal in job.refused],
        "ranked_by": order.basis,
        "pareto": order.pareto(),
        "uncertainty": uncertainty,
        "notes": [*job.notes, *job.groups[0].question.assumed, *_group_notes(job)],
        "warnings": list(dict.fromkeys((*job.whole.meta.warnings, *statistics.warnings))),
        "not_modelled": not_modelled(job.groups[0].question.deployment),
    }
    result["verdict"] = verdict_part(result, order)
    result["pools"] = None
    if job.pools:
        found = []
        for n, pool in enumerate(job.pools):
            cache, ids = pool_stores[n] if pool_stores else (None, run_id)
            searched = search_options(pool.job, **{**hooks, "cache_of": cache})  # type: ignore[arg-type]
            own = [_option_row(pool.job, option, ids) for option in searched]
            ranking = Ranking(own, order.units, basis=order.basis)
            found.append(Pooled(pool, own, ranking, uncertainty_part(pool.job, searched, own, ranking)))
        result["pools"] = pools_part(job, found, order)
    return result


def _settings_part(job: WhatIfJob) -> dict[str, Any]:
    given = settings_part(job.settings)
    about_loads = ("loads_per_s", "load_points")
    return {name: value for name, value in given.items() if name not in about_loads} | {"growth": list(job.growth)}


def _acceptance_part(job: WhatIfJob) -> dict[str, Any]:
    question = job.groups[0].question
    ks = sorted(set(question.speculation.num_spec_tokens))
    return {
        "source": question.acceptance_source,
        "relative_error": question.acceptance_error,
        "mean_acceptance_length_by_k": {str(k): question.acceptance.expected_length(k) for k in ks},
    }


def _price_part(name: str, cost: Any) -> dict[str, Any]:
    rent = cost.rent
    return {
        "gpu": name,
        "usd_per_gpu_h": None if rent is None else rent.usd_per_gpu_h,
        "provider": None if rent is None else rent.provider,
        "source": None if rent is None else rent.source,
        "date": None if rent is None else rent.date,
        "doubtful": None if rent is None else rent.doubtful,
        "purchase_usd": cost.purchase_usd,
        "watts": cost.watts,
        "watts_source": cost.watts_source,
    }


def _group_notes(job: WhatIfJob) -> list[str]:
    found = []
    for group in job.groups:
        d = group.question.deployment
        where = f"{group.name} tp {d.tp} {d.weight_dtype or 'as published'}"
        profiles = (*group.question.off.profile.notes, *group.question.on.profile.notes)
        found += [f"{where}: {note}" for note in (*group.notes, *group.question.off.notes, *group.question.on.notes)]
        found += profiles
    return list(dict.fromkeys(found))


def _option_row(job: WhatIfJob, option: Option, run_id: RunIds) -> dict[str, Any]:
    group, found = job.groups[option.group], option.found
    question = group.question
    deployment = question.deployment
    runs = option.search.runs(found.policy, found.replicas)
    row: dict[str, Any] = {
        "gpu": group.name,
        "tp": deployment.tp,
        "weight_dtype": deployment.weight_dtype,
        "policy_kind": option.kind,
        "policy": found.policy.label,
        "offered": question.offers(found.policy),
        "verdict": found.verdict,
        "replicas": found.replicas if option.holds else None,
        "gpus": found.replicas * deployment.tp if option.holds else None,
        "profile_kind": question.on.profile.kind,
        "profile_sha256": question.on.profile.sha256,
        "profile_error": question.on.profile.relative_error,
        "proof": {
            "at": _side(option, found.replicas, runs, run_id),
            "below": None,
            "alone": _alone(option),
        },
        "close": False,
        "cost": None,
        "spare": None,
        "beyond": None,
    }
    if found.below is not None:
        closest, replicas = found.below[0], found.replicas - 1
        below = option.search.runs(closest, replicas)
        row["proof"]["below"] = _side(option, replicas, below, run_id, policy=closest)
    row["close"] = any(_is_close(side, job.slo.share) for side in (row["proof"]["at"], row["proof"]["below"]))
    if option.holds:
        row["cost"] = _cost(job, group.name, row["gpus"]).to_dict()
        spare = row["gpus"] + deployment.tp
        row["spare"] = {"replicas": found.replicas + 1, "gpus": spare, "cost": _cost(job, group.name, spare).to_dict()}
    return row


def _side(
    option: Option, replicas: int, runs: Sequence[Metrics], run_id: RunIds, policy: Any = None
) -> dict[str, Any] | None:
    """What was simulated with some replicas; null where it was not, since one request alone told enough."""
    if not runs:
        return None
    policy = policy or option.found.policy
    points = [option.search.point(policy, replicas, i) for i in range(len(runs))]
    return {
        "replicas": replicas,
        "policy": policy.label,
        "replications": len(runs),
        "runs": [run_id(point) for point in points],
        "metrics": {
            name: interval(
                estimate([math.nan if m.get(name) is None else float(m[name]) for m in runs]),
                within=(0.0, 1.0) if name in ("slo_share", "kv_use", "utilisation") else None,
            )
            for name in _SHOWN
        },
    }


def _alone(option: Option) -> dict[str, Any] | None:
    metrics = option.search.alone(option.found.policy)
    return (
        None
        if metrics is None
        else {name: metrics[name] for name in ("slo_share", "ttft_p95_s", "tpot_p95_s", "e2e_p95_s")}
    )


def _is_close(side: Mapping[str, Any] | None, share: float) -> bool:
    if side is None:
        return False
    found = side["metrics"]["slo_share"]
    return found["low"] is not None and found["low"] <= share <= found["high"] and found["low"] < found["high"]


def _cost(job: WhatIfJob, gpu: str, gpus: int, factor: float = 1.0) -> FleetCost:
    peak = job.trace.rate_per_s * float(job.trace.output_tokens.mean()) * factor
    mean = job.whole.rate_per_s * float(job.whole.output_tokens.mean()) * factor
    return fleet_cost(gpus, job.prices[gpu], peak_tokens_per_s=peak, mean_tokens_per_s=mean, ownership=job.ownership)


def _beyond_part(job: WhatIfJob, option: Option, contender: Contender) -> dict[str, Any]:
    tp = job.groups[option.group].question.deployment.tp
    gpu = job.groups[option.group].name

    def grown(factor: float, found: Found) -> dict[str, Any]:
        holds = found.verdict == "holds"
        gpus = found.replicas * tp if holds else None
        return {
            "factor": factor,
            "verdict": found.verdict,
            "policy": found.policy.label,
            "replicas": found.replicas if holds else None,
            "gpus": gpus,
            "cost": None if gpus is None else _cost(job, gpu, gpus, factor).to_dict(),
        }

    return {
        "holds_to": contender.holds_to,
        "fails_at": contender.fails_at,
        "keeps_up_to": contender.keeps_up_to,
        "falls_behind_at": contender.falls_behind_at,
        "growth": [grown(factor, found) for factor, found in contender.growth],
    }
