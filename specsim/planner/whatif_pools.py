"""Pools beside one shared fleet: each sized for its own requests and objective, summed, and compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specsim.planner.whatif import Pool, WhatIfJob
from specsim.planner.whatif_rank import Ranking

__all__ = ["Pooled", "pools_part"]


@dataclass(frozen=True)
class Pooled:
    """A pool, searched."""

    pool: Pool
    rows: list[dict[str, Any]]
    order: Ranking
    uncertainty: dict[str, Any]


def pools_part(job: WhatIfJob, pools: Sequence[Pooled], shared: Ranking) -> dict[str, Any]:
    """`each` pool with its options, `combined` fleets of all pools beside the shared one, and `text`.

    Combined are the cheapest of each pool, whatever their GPUs, and the cheapest of each pool on one GPU.
    """
    gpus = list(dict.fromkeys(row["gpu"] for row in shared.rows))
    combined = [_combined(pools, shared, gpu) for gpu in (None, *(gpus if len(gpus) > 1 else ()))]
    return {
        "each": [_pool_part(job, it) for it in pools],
        "combined": combined,
        "text": _sentences(pools, shared, combined[0]),
    }


def _pool_part(job: WhatIfJob, it: Pooled) -> dict[str, Any]:
    own = it.pool.job
    return {
        "name": it.pool.name,
        "tasks": list(it.pool.tasks),
        "policies": list(dict.fromkeys(row["policy_kind"] for row in it.rows)),
        "slo": asdict(own.slo),
        "request_share": len(own.whole) / len(job.whole),
        "window": {
            "first_s": float(own.trace.arrival_s[0]),
            "last_s": float(own.trace.arrival_s[-1]),
            "requests": len(own.trace),
            "rate_per_s": own.trace.rate_per_s,
        },
        "mean_acceptance_length_by_k": {
            str(k): own.groups[0].question.acceptance.expected_length(k)
            for k in sorted(set(own.groups[0].question.speculation.num_spec_tokens))
        },
        "options": it.rows,
        "cheapest": it.order.cheapest(),
        "too_small_probability": it.uncertainty["too_small_probability"],
        "notes": list(own.notes),
    }


def _combined(pools: Sequence[Pooled], shared: Ranking, gpu: str | None) -> dict[str, Any]:
    """The cheapest of each pool, of one GPU or of any; null where one of them holds nothing."""
    chosen = [it.order.cheapest(gpu=gpu) for it in pools]
    one = shared.cheapest(gpu=gpu)
    found: dict[str, Any] = {
        "gpu": gpu,
        "options": chosen,
        "gpus": None,
        "cost": None,
        "shared_option": one,
        "shared_gpus": None if one is None else shared.rows[one]["gpus"],
        "shared_cost": None if one is None else _finite(shared.cost(one)),
    }
    if all(index is not None for index in chosen):
        pairs = [(it, index) for it, index in zip(pools, chosen, strict=True) if index is not None]
        found["gpus"] = sum(it.rows[index]["gpus"] for it, index in pairs)
        found["cost"] = _finite(sum(it.order.cost(index) for it, index in pairs))
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sentences(pools: Sequence[Pooled], shared: Ranking, found: Mapping[str, Any]) -> list[str]:
    names = " and ".join(it.pool.name for it in pools)
    lacking = [it.pool.name for it, index in zip(pools, found["options"], strict=True) if index is None]
    if lacking:
        return [f"Pools: no option holds the objective of {' and '.join(lacking)}."]
    each = " and ".join(
        f"{_fleet(it.rows[index])} for {it.pool.name}" for it, index in zip(pools, found["options"], strict=True)
    )
    money = "" if shared.basis == "gpus" or found["cost"] is None else f", ${found['cost']:,.2f} an hour"
    text = [f"Pools of their own ({names}) take {found['gpus']} GPUs: {each}{money}."]
    if found["shared_option"] is None:
        return [*text, "One fleet for all holds the objective with no number of GPUs that was tried."]
    own, one = (found[name] for name in ("cost", "shared_cost"))
    if own is None or one is None:
        return text
    fleet = _fleet(shared.rows[found["shared_option"]])
    if own < one:
        saved = f"{one - own:.0f} GPUs" if shared.basis == "gpus" else f"${one - own:,.2f} an hour"
        return [*text, f"That is {saved} less than one fleet for all ({fleet})."]
    if own > one:
        more = f"{own - one:.0f} GPUs" if shared.basis == "gpus" else f"${own - one:,.2f} an hour"
        return [*text, f"One fleet for all, held to the objective of the flags, is cheaper by {more}: {fleet}."]
    return [*text, f"One fleet for all costs the same: {fleet}."]


def _fleet(row: Mapping[str, Any]) -> str:
    dtype = f" {row['weight_dtype']}" if row["weight_dtype"] else ""
    how = "without speculation" if row["policy_kind"] == "off" else f"with {row['policy']}"
    return f"{row['gpus']} {row['gpu']} (tp {row['tp']}{dtype}) {how}"
