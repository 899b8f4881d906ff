"""The main job: from a trace and a deployment to an answer, as one JSON-able dict.

Order of work: cost surface (no simulation), capacity, paired simulations over load, then everything derived from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specsim.config import PolicySpec
from specsim.errors import TraceError
from specsim.planner import surface
from specsim.planner.compare import LoadTable, best_policy, capacity_within_slo, comparison_rows, load_crossing
from specsim.planner.executor import Key, RunCache, run_batches
from specsim.planner.flags import vllm_config
from specsim.planner.loads import choose_loads, requests_at
from specsim.planner.points import Batch, Stretch, Worker, stretches
from specsim.planner.question import PlanSettings, Question
from specsim.planner.verdict import recommendation, settle
from specsim.traces.model import Trace
from specsim.traces.stats import describe

__all__ = ["NOT_MODELLED", "SCHEMA_VERSION", "PlanJob", "prepare", "run_plan"]

SCHEMA_VERSION = 1

SENSITIVITY = (-0.1, 0.1)
"""Shifts of every conditional acceptance probability that are tried."""

NOT_MODELLED = (
    "asynchronous scheduling: an engine may run a request one step past its stop token",
    "first-round padding of one-token requests to 1 + k placeholders",
    "priorities, LoRA, structured output, encoders, beam search, parallel sampling",
    "caching of generated tokens for the next turn of a session (only prompt hashes of the trace are shared)",
    "sessions as a closed loop: a later turn arrives when the trace says, even if the earlier one is late",
    "network, tokenisation and detokenisation outside the engine",
    "clock throttling, noisy neighbours, and other jitter of the device",
    "state-space and linear-attention layers",
)


@dataclass(frozen=True)
class PlanJob:
    """A plan before it is run: everything decided, nothing simulated but the capacity."""

    question: Question
    trace: Trace
    """The requests that are simulated, in order."""
    settings: PlanSettings
    stretches: tuple[Stretch, ...]
    policies: tuple[PolicySpec, ...]
    loads_per_s: tuple[float, ...]
    own_per_s: float
    capacity_per_s: float
    context_tokens: int
    """Mean tokens a decoding request has in the cache, weighted by its decode steps."""
    notes: tuple[str, ...]

    def batches(self) -> list[Batch]:
        """Every point to simulate; stretch by stretch, so that a process keeps its luck."""
        highest = max(self.loads_per_s)
        best = self.policies[1:2]
        found = []
        for stretch in self.stretches:
            available = stretch.stop - stretch.first
            counts = tuple(requests_at(load, self.own_per_s, highest, available) for load in self.loads_per_s)
            found += [Batch(policy, stretch, self.loads_per_s, counts) for policy in self.policies]
            found += [
                Batch(policy, stretch, (self.own_per_s,), (available,), change)
                for policy in best
                for change in SENSITIVITY
            ]
        return found

    @property
    def num_points(self) -> int:
        return sum(len(batch.loads_per_s) for batch in self.batches())

    def inputs(self) -> dict[str, Any]:
        """What decides the plan's id: same inputs, same plan."""
        settings = asdict(self.settings) | {"jobs": 0}
        return {
            **self.question.identity(),
            "trace_sha256": self.trace.meta.sha256,
            "requests": len(self.trace),
            "first_arrival_s": float(self.trace.arrival_s[0]),
            "last_arrival_s": float(self.trace.arrival_s[-1]),
            "trace_notes": list(self.trace.meta.notes),
            "settings": settings,
        }


def prepare(question: Question, trace: Trace, settings: PlanSettings) -> PlanJob:
    """Choose requests, replications, policies and loads.

    Raises:
        TraceError: when the trace has no rate (fewer than two arrival times), or nothing of it can be served.
    """
    if len(trace) < 2 or trace.span_s <= 0:
        raise TraceError(
            f"{trace.meta.source}: {len(trace)} request(s) over {trace.span_s:g} s have no arrival rate to plan for; "
            f"give a longer trace, or use `specsim crossover` for fixed lengths and concurrency"
        )
    notes = []
    served, notice = _servable(trace, question)
    notes += notice
    chosen, notice = _busiest(served, settings.max_requests)
    notes += notice
    cut, sentence = stretches(chosen, settings)
    notes.append(sentence)
    worker = Worker(question, chosen, settings)
    capacity = worker.capacity_per_s(cut)
    own = chosen.rate_per_s
    loads = tuple(sorted({*settings.loads_per_s, own})) or ()
    if not settings.loads_per_s:
        loads = choose_loads(own, capacity, settings.load_points)
    context = _decode_context(chosen)
    return PlanJob(
        question=question,
        trace=chosen,
        settings=settings,
        stretches=tuple(cut),
        policies=_policies(question, context),
        loads_per_s=loads,
        own_per_s=own,
        capacity_per_s=capacity,
        context_tokens=context,
        notes=tuple(notes),
    )


def run_plan(
    job: PlanJob,
    trace: Trace,
    *,
    cache: RunCache | None = None,
    progress: Callable[[int], None] = lambda points: None,
) -> dict[str, Any]:
    """Simulate every point (or take it from `cache`) and answer; the dict that `--json` prints, without `plan_id`."""
    points = run_batches(job.batches(), job.question, job.trace, job.settings, cache=cache, progress=progress)
    return answer(job, trace, points)


def answer(job: PlanJob, trace: Trace, points: dict[Key, dict[str, Any]]) -> dict[str, Any]:
    """Derive the answer from simulated points."""
    question = job.question
    labels = tuple(policy.label for policy in job.policies)
    table = LoadTable(points, labels, job.loads_per_s, len(job.stretches))
    contexts = _contexts(job)
    ks = sorted(set(question.speculation.num_spec_tokens))
    crossings = [surface.crossing(question, context, k) for context in contexts for k in ks]
    by_load = [load_crossing(table, label) for label in labels if label != "off"]
    capacity = [capacity_within_slo(table, label, question.slo.share) for label in labels]
    order = _simplest_first(job.policies)
    best = {load: best_policy(table, load, order) for load in job.loads_per_s}
    by_label = {policy.label: policy for policy in job.policies}
    chosen = by_label[best[job.own_per_s]]
    statistics = describe(trace)
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "trace": _trace_part(trace, job, statistics),
        "deployment": _deployment_part(question),
        "profile": _profile_part(question),
        "loads": {
            "own_per_s": job.own_per_s,
            "capacity_off_per_s": job.capacity_per_s,
            "simulated_per_s": list(job.loads_per_s),
            "replications": len(job.stretches),
            "policies": list(labels),
            "best": [{"load_per_s": load, "policy": policy} for load, policy in best.items()],
        },
        "comparison": comparison_rows(table),
        "crossovers": {"by_batch": [_crossing_part(c) for c in crossings], "by_load": by_load},
        "break_even": surface.break_even_rows(question, contexts, ks),
        "schedule": [list(row) for row in surface.best_k_table(question, job.context_tokens)],
        "schedule_context_tokens": job.context_tokens,
        "capacity": capacity,
        "cost_of_speculation": _cost_part(question),
        "sensitivity": _sensitivity(job, table, contexts),
        "config": vllm_config(question, chosen),
        "warnings": [*trace.meta.warnings, *statistics.warnings, *_warnings(job, table)],
        "not_modelled": list(NOT_MODELLED),
        "notes": [*job.notes, *question.assumed],
    }
    result["recommendation"] = recommendation(job, table, chosen.label, result)
    result["measure_next"] = settle(job, table, chosen, result)
    return result


def _servable(trace: Trace, question: Question) -> tuple[Trace, list[str]]:
    """Refuse a trace of which nothing fits; requests that are too long stay in and are counted as rejected."""
    total = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    limit = min(question.off.limits.max_model_len, question.on.limits.max_model_len)
    too_long = int(np.count_nonzero(total > limit))
    if too_long == len(trace):
        raise TraceError(
            f"{trace.meta.source}: every request is longer than the {limit} tokens that {question.names['target']} "
            f"serves here (shortest {int(total.min())}); choose a model or GPU with more room"
        )
    if too_long:
        return trace, [f"{too_long} of {len(trace)} requests are longer than {limit} tokens and are refused by the "
                       f"simulated engine; they count against the objective."]  # fmt: skip
    return trace, []


def _busiest(trace: Trace, most: int) -> tuple[Trace, list[str]]:
    """The densest run of `most` consecutive requests."""
    if len(trace) <= most:
        return trace, []
    spans = trace.arrival_s[most - 1 :] - trace.arrival_s[: len(trace) - most + 1]
    first = int(np.argmin(spans))
    chosen = trace.rows(first, first + most)
    return chosen, [
        f"Simulated: the busiest {most} consecutive requests of {len(trace)} "
        f"({chosen.rate_per_s:.3g} per s from {float(chosen.arrival_s[0]):.0f} s on; the whole trace has "
        f"{trace.rate_per_s:.3g} per s). Raise --max-requests for more."
    ]


def _decode_context(trace: Trace) -> int:
    outputs = trace.output_tokens.astype(np.float64)
    mean = float(np.sum((trace.prompt_tokens + outputs / 2) * outputs) / np.sum(outputs))
    return max(1, round(mean))


def _policies(question: Question, context: int) -> tuple[PolicySpec, ...]:
    """Off, each static k, and (when k changes with the batch) the schedule, off above a batch, and adaptive."""
    ks = sorted(set(question.speculation.num_spec_tokens))
    found = [PolicySpec("off"), *(PolicySpec("static", k) for k in ks)]
    table = surface.best_k_table(question, context)
    if len(table) > 1:
        found.append(PolicySpec("schedule", max(k for _, _, k in table), table=table))
    found.append(PolicySpec("goodput", question.max_k))
    # the best static k at a middling batch first: its neighbours in the list are tried with shifted acceptance
    middle = max(1, min(16, question.on.limits.max_num_seqs))
    best = max(ks, key=lambda k: surface.speedup(question, middle, context, k))
    found.sort(key=lambda p: (p.kind != "off", not (p.kind == "static" and p.num_spec_tokens == best)))
    return tuple(found)


def _simplest_first(policies: Sequence[PolicySpec]) -> list[str]:
    rank = {"off": 0, "static": 1, "off_above": 2, "schedule": 3, "goodput": 4}
    return [p.label for p in sorted(policies, key=lambda p: (rank[p.kind], p.num_spec_tokens))]


def _contexts(job: PlanJob) -> list[int]:
    """The trace's own decode context, and powers of four around what it holds."""
    limit = min(job.question.on.limits.max_model_len, job.question.on.limits.num_kv_blocks * 16)
    longest = int((job.trace.prompt_tokens.astype(np.int64) + job.trace.output_tokens).max())
    usual = [c for c in (512, 2048, 8192, 32768, 131072) if c <= min(limit, max(4 * longest, 2048))]
    return sorted({*usual, min(job.context_tokens, limit)})


def _trace_part(trace: Trace, job: PlanJob, statistics: Any) -> dict[str, Any]:
    meta = trace.meta
    return {
        "source": meta.source,
        "format": meta.format,
        "time_unit": meta.time_unit,
        "sha256": meta.sha256,
        "rows_read": meta.rows_read,
        "rows_kept": meta.rows_kept,
        "dropped": dict(meta.dropped),
        "dropped_examples": dict(meta.dropped_examples),
        "arrival_grid_s": meta.arrival_grid_s,
        "notes": list(meta.notes),
        "statistics": {k: v for k, v in asdict(statistics).items() if k != "warnings"},
        "simulated_requests": len(job.trace),
    }


def _deployment_part(question: Question) -> dict[str, Any]:
    on, off = question.on, question.off
    return {
        **asdict(question.deployment),
        "speculation": asdict(question.speculation),
        "slo": asdict(question.slo),
        "names": dict(question.names),
        "limits_off": asdict(off.limits),
        "limits_on": asdict(on.limits),
        "memory_off": dict(off.memory),
        "memory_on": dict(on.memory),
    }


def _profile_part(question: Question) -> dict[str, Any]:
    on, off = question.on.profile, question.off.profile
    lengths = {
        str(k): question.acceptance.expected_length(k) for k in sorted({1, *question.speculation.num_spec_tokens})
    }
    return {
        "kind": on.kind,
        "name": on.name,
        "name_off": off.name,
        "sha256": on.sha256,
        "sha256_off": off.sha256,
        "relative_error": on.relative_error,
        "speedup_error": surface.surface_error(question),
        "covers": dict(on.covers),
        "sources": dict(on.sources),
        "notes": list(dict.fromkeys([*off.notes, *on.notes])),
        "acceptance": {
            "name": question.acceptance.name,
            "source": question.acceptance_source,
            "relative_error": question.acceptance_error,
            "conditional": [float(a) for a in question.acceptance.conditional][: max(question.max_k, 1)],
            "proposal_rate": question.acceptance.proposal_rate,
            "mean_acceptance_length_by_k": lengths,
        },
    }


def _crossing_part(c: surface.Crossing) -> dict[str, Any]:
    return asdict(c) | {"pays": [list(r) for r in c.pays]}


def _cost_part(question: Question) -> dict[str, Any]:
    """What loading the drafter takes from the cache."""
    off, on = question.off.limits, question.on.limits
    tokens_off = off.num_kv_blocks * off.block_size_tokens
    tokens_on = on.num_kv_blocks * on.block_size_tokens
    return {
        "kv_tokens_off": tokens_off,
        "kv_tokens_on": tokens_on,
        "kv_share_lost": 1 - tokens_on / tokens_off,
        "draft_weight_bytes": question.on.memory.get("draft_weight_bytes", 0.0),
        "draft_kv_bytes_per_token": question.on.memory.get("draft_kv_bytes_per_token", 0.0),
    }


def _sensitivity(job: PlanJob, table: LoadTable, contexts: Sequence[int]) -> list[dict[str, Any]]:
    """Acceptance ten points lower and higher: crossover batch, best schedule, and the simulated gain at own load."""
    question = job.question
    policy = job.policies[1]
    k = policy.num_spec_tokens
    rows = []
    for change in (SENSITIVITY[0], 0.0, SENSITIVITY[1]):
        model = question.acceptance if change == 0 else question.acceptance.with_change(change)
        shifted = _with_acceptance(question, model)
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


def _with_acceptance(question: Question, model: Any) -> Question:
    from dataclasses import replace

    return replace(question, acceptance=model)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _warnings(job: PlanJob, table: LoadTable) -> list[str]:
    found = []
    if table.saturated("off", job.own_per_s):
        least = math.ceil(job.own_per_s / job.capacity_per_s)
        found.append(
            f"The trace's own load of {job.own_per_s:.3g} requests/s is more than this fleet serves "
            f"({job.capacity_per_s:.3g}/s without speculation): at least {least} x {job.question.deployment.replicas} "
            f"replica(s) are needed (--replicas)."
        )
    rejected = sum(v for v in table.values("off", job.own_per_s, "rejected") if math.isfinite(v))
    if rejected:
        found.append(f"{rejected:.0f} requests were refused as longer than max_model_len "
                     f"{job.question.on.limits.max_model_len}.")  # fmt: skip
    return list(dict.fromkeys([*found, *job.question.off.notes, *job.question.on.notes]))
