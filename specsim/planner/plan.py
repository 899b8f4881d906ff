"""The main job: from a prepared plan to an answer, as one JSON-able dict.

Order of work: paired simulations over load, further points that narrow brackets, then everything derived from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specsim.config import Deployment, PolicySpec
from specsim.executors import Executor
from specsim.planner import surface
from specsim.planner.compare import (
    AS_GOOD_AS,
    SATURATED_BUSY,
    LoadTable,
    best_policy,
    capacity_rows,
    capacity_within_slo,
    comparison_rows,
    decision_load,
    load_crossing,
    share_text,
)
from specsim.planner.flags import engine_config
from specsim.planner.job import SENSITIVITY, PlanJob, prepare
from specsim.planner.parts import cost_part, crossing_part, deployment_part, profile_part, settings_part, trace_part
from specsim.planner.plan_uncertainty import plan_flips
from specsim.planner.point_runner import Key, PointRunner, Progress, RunCache
from specsim.planner.search import narrow, search_rows
from specsim.planner.verdict import recommendation, settle
from specsim.policies import kind_of
from specsim.stats import paired_ratio
from specsim.traces.model import Trace
from specsim.traces.stats import describe

__all__ = ["NOT_MODELLED", "SCHEMA_VERSION", "PlanJob", "not_modelled", "prepare", "run_plan"]

SCHEMA_VERSION = 1

QUEUES_ABOVE = 1.2
"""Gain to the last token over gain per token above which shorter queues explain it, and a warning says so."""

NOT_MODELLED = (
    "priorities, LoRA, structured output, encoders, beam search, parallel sampling",
    "caching of generated tokens for the next turn of a session (only prompt hashes of the trace are shared)",
    "sessions as a closed loop: a later turn arrives when the trace says, even if the earlier one is late",
    "network, tokenisation and detokenisation outside the engine",
    "clock throttling, noisy neighbours, and other jitter of the device",
    "state-space and linear-attention layers",
)
"""Whatever the engine."""


_NOT_MODELLED_APART = (
    "prefill and decode replicas of different GPUs, parallelism or number formats",
    "layers of a cache that are sent while others are computed; prefixes that a decode replica holds already",
    "transfers that fail, and caches that a prefill replica drops when nobody reads them in time",
)
"""With prefill and decode replicas."""


def not_modelled(deployment: Deployment) -> list[str]:
    """What a plan for this deployment leaves out: of its engine, of its pools, and in general."""
    apart = _NOT_MODELLED_APART if deployment.is_disaggregated else ()
    placeholders = "first-round placeholders of vLLM"  # requests whose cache has come do enter with them
    own = [item for item in deployment.serving.leaves_out if not (apart and item == placeholders)]
    return [*own, *apart, *NOT_MODELLED]


def run_plan(
    job: PlanJob,
    trace: Trace,
    *,
    cache: RunCache | None = None,
    progress: Progress = lambda points, reused: None,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Simulate every point (or take it from `cache`) and answer; the dict that `--json` prints, without `plan_id`."""
    with PointRunner(job.question, job.trace, job.settings, cache=cache, executor=executor) as runner:
        points = runner.run(job.batches(), progress=progress)
        points |= narrow(job, points, runner)
    return answer(job, trace, points)


def answer(job: PlanJob, trace: Trace, points: dict[Key, dict[str, Any]]) -> dict[str, Any]:
    """Derive the answer from simulated points."""
    question = job.question
    labels = tuple(policy.label for policy in job.policies)
    table = LoadTable(points, labels, job.loads_per_s, len(job.stretches), job.capacity_per_s)
    contexts = _contexts(job)
    ks = sorted(set(question.speculation.num_spec_tokens))
    crossings = [surface.crossing(question, context, k) for context in contexts for k in ks]
    by_load = [load_crossing(table, label) for label in labels if label != "off"]
    capacity = capacity_rows(table, question.slo.share)
    # what no engine offers is compared, but not recommended
    order = _simplest_first([policy for policy in job.policies if question.offers(policy)])
    best = {load: best_policy(table, load, order) for load in job.loads_per_s}
    by_label = {policy.label: policy for policy in job.policies}
    at = decision_load(table, job.own_per_s)
    chosen = by_label[best[at]]
    statistics = describe(trace)
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "trace": trace_part(trace, statistics, len(job.trace)),
        "settings": settings_part(job.settings),
        "deployment": deployment_part(question),
        "profile": profile_part(question),
        "loads": {
            "own_per_s": job.own_per_s,
            "capacity_off_per_s": job.capacity_per_s,
            "simulated_per_s": list(job.loads_per_s),
            "replications": len(job.stretches),
            "policies": list(labels),
            "best": [{"load_per_s": load, "policy": policy} for load, policy in best.items()],
        },
        "comparison": comparison_rows(table),
        "crossovers": {"by_batch": [crossing_part(c) for c in crossings], "by_load": by_load},
        "break_even": surface.break_even_rows(question, contexts, ks),
        "schedule": [list(row) for row in surface.best_k_table(question, job.context_tokens)],
        "schedule_context_tokens": job.context_tokens,
        "capacity": capacity,
        "search": search_rows(job, table),
        "cost_of_speculation": cost_part(question),
        "sensitivity": _sensitivity(job, table, contexts),
        "config": engine_config(question, chosen, alternatives=_alternatives(job, table, chosen, at)),
        "warnings": list(
            dict.fromkeys(
                _sentence(w) for w in (*trace.meta.warnings, *statistics.warnings, *_warnings(job, table, chosen.label))
            )
        ),
        "not_modelled": not_modelled(question.deployment),
        "notes": [*job.notes, *question.assumed],
    }
    flips = plan_flips(job, table, chosen.label, at)
    result["recommendation"] = recommendation(job, table, chosen.label, result, at=at) | {
        name: value for name, value in flips.items() if name != "options"
    }
    result["measure_next"] = settle(job, table, chosen, flips)
    return result


def _alternatives(job: PlanJob, table: LoadTable, chosen: PolicySpec, at: float) -> list[PolicySpec]:
    """The schedule, where it is not slower than what is recommended at the load that decided."""
    found = []
    for policy in job.policies:
        if policy.kind == "schedule" and policy != chosen and chosen.kind != "off":
            a, b = (table.values(p.label, at, "e2e_mean_s") for p in (chosen, policy))
            if paired_ratio(a, b).mean > 1 / AS_GOOD_AS:
                found.append(policy)
    return found


def _simplest_first(policies: Sequence[PolicySpec]) -> list[str]:
    return [p.label for p in sorted(policies, key=lambda p: (kind_of(p.kind).rank, p.num_spec_tokens))]


def _contexts(job: PlanJob) -> list[int]:
    """The trace's own decode context, and powers of four around what it holds."""
    limit = min(job.question.on.limits.max_model_len, job.question.on.limits.num_kv_blocks * 16)
    longest = int((job.trace.prompt_tokens.astype(np.int64) + job.trace.output_tokens).max())
    usual = [c for c in (512, 2048, 8192, 32768, 131072) if c <= min(limit, max(4 * longest, 2048))]
    return sorted({*usual, min(job.context_tokens, limit)})


def _sensitivity(job: PlanJob, table: LoadTable, contexts: Sequence[int]) -> list[dict[str, Any]]:
    """Acceptance ten points lower and higher: crossover batch, best schedule, and the simulated gain at own load."""
    question = job.question
    policy = job.policies[1]
    k = policy.num_spec_tokens
    rows = []
    for change in (SENSITIVITY[0], 0.0, SENSITIVITY[1]):
        model = question.acceptance if change == 0 else question.acceptance.with_change(change)
        shifted = replace(question, acceptance=model)
        ratio = table.ratio_to_off(policy.label, job.own_per_s, "e2e_mean_s", change=change)
        tpot = table.ratio_to_off(policy.label, job.own_per_s, "tpot_mean_s", change=change)
        cross = surface.crossing(shifted, min(job.context_tokens, max(contexts)), k)
        rows.append(
            {
                "acceptance_change": change,
                "policy": policy.label,
                "acceptance_length": model.expected_length(k),
                "crossover_batch": cross.batch,
                "batch_limit": cross.limit,
                "schedule": [list(row) for row in surface.best_k_table(shifted, job.context_tokens)],
                "e2e_speedup_at_own_load": {
                    "mean": _number(ratio.mean),
                    "low": _number(ratio.low),
                    "high": _number(ratio.high),
                },
                "tpot_speedup_at_own_load": {
                    "mean": _number(tpot.mean),
                    "low": _number(tpot.low),
                    "high": _number(tpot.high),
                },
            }
        )
    return rows


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _warnings(job: PlanJob, table: LoadTable, chosen: str) -> list[str]:
    found = []
    own, slo = job.own_per_s, job.question.slo
    if table.saturated("off", own) and not job.is_too_short:
        kind, replicas = _short_of(job, table)
        needed = math.ceil(own / job.capacity_per_s * replicas)
        if needed > replicas:
            found.append(
                f"{job.whose} load of {own:.3g} requests/s is more than this fleet serves "
                f"({job.capacity_per_s:.3g} per s without speculation): it takes at least {needed} {kind}replicas to "
                f"keep up (--{kind.replace(' ', '-')}replicas {needed})"
                f"{_for_objective(table, own, replicas, slo.share, chosen)}."
            )
        else:
            found.append(
                f"At {job.whose} load of {own:.3g} requests/s the fleet falls behind for a time; latencies there "
                f"depend on how long the trace is."
            )
    share = table.mean(chosen, own, "slo_share").mean
    lowest = min(table.loads_of("off"))
    least = table.mean("off", lowest, "slo_share").mean
    if least < slo.share:
        found.append(
            f"Even at {lowest:.3g} requests/s only {share_text(least, slo.share)} of the requests meet the objective "
            f"with off: that is their length, not the load (--ttft, --tpot, --slo-share)."
        )
    if share < slo.share:
        with_off = share_text(table.mean("off", own, "slo_share").mean, slo.share)
        beside = "" if chosen == "off" else f" ({with_off} with off)"
        found.append(
            f"At {job.whose} load only {share_text(share, slo.share)} of the requests meet the objective with "
            f"{chosen}{beside}; {slo.share:.0%} are asked for."
        )
    faster = table.ratio_to_off(chosen, own, "e2e_mean_s").mean
    per_token = table.ratio_to_off(chosen, own, "tpot_mean_s").mean
    if chosen != "off" and faster > QUEUES_ABOVE * per_token:
        found.append(
            f"The gain in time to the last token ({faster:.2f}x) is larger than in time per token ({per_token:.2f}x): "
            f"without speculation requests wait {table.mean('off', own, 'queue_mean_s').mean:.3g} s in the mean to be "
            f"scheduled. Such a gain depends much on the load and on how long the trace is."
        )
    rejected = max((v for v in table.values("off", own, "rejected") if math.isfinite(v)), default=0.0)
    if rejected:
        found.append(
            f"Up to {rejected:.0f} requests of a replication were refused as longer than max_model_len "
            f"{job.question.on.limits.max_model_len} or than the whole cache; they count against the objective."
        )
    return list(dict.fromkeys([*found, *_extrapolated(job, table), *job.question.off.notes, *job.question.on.notes]))


def _extrapolated(job: PlanJob, table: LoadTable) -> list[str]:
    """Where the simulations left the range in which a profile was measured."""
    prompts = job.trace.prompt_tokens.astype(np.int64)
    longest = int((prompts + job.trace.output_tokens).max())
    found: list[str] = []
    for policy in job.policies:
        peaks = [v for load in table.loads_of(policy.label) for v in table.values(policy.label, load, "peak_batch")]
        k = policy.num_spec_tokens
        found += job.question.side(policy).extrapolated(
            requests=max((v for v in peaks if math.isfinite(v)), default=0.0),
            width=1 + job.question.verified_drafts(k) if k else 1,
            context_tokens=longest,
            prompt_tokens=int(prompts.max()),
        )
    return found[-1:]


def _short_of(job: PlanJob, table: LoadTable) -> tuple[str, int]:
    """The kind of replica of which there are too few at the trace's own load, as a word and a space, and their number.

    A decode replica is busy at any load, and one that is full stops the prefill replicas: they are short only when they
    compute all the time.
    """
    deployment = job.question.deployment
    if deployment.prefill_replicas is None:
        return "", deployment.replicas
    if table.mean("off", job.own_per_s, "prefill_utilisation").mean >= SATURATED_BUSY:
        return "prefill ", deployment.prefill_replicas
    return "decode ", deployment.decoding_replicas


def _for_objective(table: LoadTable, own: float, replicas: int, share: float, chosen: str) -> str:
    """How many replicas hold the objective, as far as a share of the load on each tells."""
    capacity = capacity_within_slo(table, chosen, share)["load_per_s"]
    if capacity is None:
        return ", and no load simulated meets the objective"
    needed = math.ceil(own / capacity * replicas)
    return f", and about {needed} for the objective with {chosen}"


def _sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
