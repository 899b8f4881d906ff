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
from specsim.planner.executor import Key, PointRunner, RunCache
from specsim.planner.flags import vllm_config
from specsim.planner.loads import choose_loads, requests_at, steps_per_request
from specsim.planner.parts import cost_part, crossing_part, deployment_part, profile_part, trace_part
from specsim.planner.points import MIN_STRETCH, Batch, Stretch, Worker, stretches
from specsim.planner.question import PlanSettings, Question
from specsim.planner.repeat import repeated
from specsim.planner.search import narrow, search_rows
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
    log_requests: int
    """How many of the requests are the log's own; the rest repeats them."""
    capacity_per_s: float
    context_tokens: int
    """Mean tokens a decoding request has in the cache, weighted by its decode steps."""
    notes: tuple[str, ...]

    def requests_at(self, load_per_s: float, available: int) -> int:
        """How many of the `available` requests of a stretch are served at a load."""
        off = self.question.off.cost.decode_step_s(1, self.context_tokens, 0, machinery=False)
        replicas = self.question.deployment.replicas
        steps = steps_per_request(load_per_s / replicas, float(self.trace.output_tokens.mean()), off)
        own = load_per_s == self.own_per_s and self.log_requests == len(self.trace)
        count = requests_at(available, steps, own=own)
        return max(count, min(available, self.log_requests)) if load_per_s == self.own_per_s and not own else count

    def points_at(self, policy: PolicySpec, loads_per_s: Sequence[float], *, change: float = 0.0) -> list[Batch]:
        """One batch a stretch."""
        found = []
        for stretch in self.stretches:
            available = stretch.stop - stretch.first
            counts = tuple(self.requests_at(load, available) for load in loads_per_s)
            found.append(Batch(policy, stretch, tuple(loads_per_s), counts, change))
        return found

    def batches(self) -> list[Batch]:
        """Every point of the grid; stretch by stretch, so that a process keeps its luck."""
        found = [batch for policy in self.policies for batch in self.points_at(policy, self.loads_per_s)]
        found += [
            batch
            for policy in self.policies[1:2]
            for change in SENSITIVITY
            for batch in self.points_at(policy, [self.own_per_s], change=change)
        ]
        return sorted(found, key=lambda batch: batch.stretch.index)

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
    context = _decode_context(chosen)
    fit = surface.batch_limit(question, context, on=False)
    simulated, notice = _long_enough(chosen, fit * question.deployment.replicas, settings)
    notes += notice
    cut, sentence = stretches(simulated, settings)
    notes.append(sentence)
    capacity = Worker(question, simulated, settings).capacity_per_s(max(len(chosen), 4 * fit, MIN_STRETCH), fit)
    own = simulated.rate_per_s
    loads = tuple(sorted({*settings.loads_per_s, own})) or ()
    if not settings.loads_per_s:
        loads = choose_loads(own, capacity, settings.load_points)
    return PlanJob(
        question=question,
        trace=simulated,
        settings=settings,
        stretches=tuple(cut),
        policies=_policies(question, context, _batch_at(question, simulated, context)),
        loads_per_s=loads,
        own_per_s=own,
        log_requests=len(chosen),
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
    with PointRunner(job.question, job.trace, job.settings, cache=cache) as runner:
        points = runner.run(job.batches(), progress=progress)
        points |= narrow(job, points, runner)
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
    # what no engine offers is compared, but not recommended
    order = _simplest_first([policy for policy in job.policies if policy.kind != "goodput"])
    best = {load: best_policy(table, load, order) for load in job.loads_per_s}
    by_label = {policy.label: policy for policy in job.policies}
    chosen = by_label[best[job.own_per_s]]
    statistics = describe(trace)
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "trace": trace_part(trace, statistics, len(job.trace)),
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
        "config": vllm_config(question, chosen),
        "warnings": list(
            dict.fromkeys(
                _sentence(w) for w in (*trace.meta.warnings, *statistics.warnings, *_warnings(job, table, chosen.label))
            )
        ),
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


def _long_enough(trace: Trace, fit: int, settings: PlanSettings) -> tuple[Trace, list[str]]:
    """A log of few requests end to end, until a fleet in which `fit` requests run at once has a steady state."""
    n = len(trace)
    if n >= MIN_STRETCH:
        return trace, []
    long = repeated(trace, min(max(MIN_STRETCH, min(4 * fit, 2000)), settings.max_requests))
    if long is trace:
        return trace, []
    return long, [
        f"{n} requests are too few to fill this fleet: they are simulated {len(long) // n} times over, end to end at "
        f"the same rate, and share no prefix from one time to the next."
    ]


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


def _batch_at(question: Question, trace: Trace, context: int) -> int:
    """Requests that run at once in a replica at the trace's own load, by Little's law on the cost surface."""
    limit = surface.batch_limit(question, context, on=False)
    per_s = trace.rate_per_s / question.deployment.replicas
    batch = 1.0
    for _ in range(50):
        step_s = question.off.cost.decode_step_s(max(1, round(batch)), context, 0, machinery=False)
        batch = min(float(limit), max(1.0, per_s * float(trace.output_tokens.mean()) * step_s))
    return round(batch)


def _policies(question: Question, context: int, batch: int) -> tuple[PolicySpec, ...]:
    """Off, each static k, and (when k changes with the batch) the schedule and adaptive.

    Second comes the static k that is best at `batch` requests; it is the one tried with shifted acceptance.
    """
    ks = sorted(set(question.speculation.num_spec_tokens))
    found = [PolicySpec("off"), *(PolicySpec("static", k) for k in ks)]
    table = surface.best_k_table(question, context)
    if len(table) > 1:
        found.append(PolicySpec("schedule", max(k for _, _, k in table), table=table))
    found.append(PolicySpec("goodput", question.max_k))
    best = max(ks, key=lambda k: surface.speedup(question, batch, context, k))
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


def _warnings(job: PlanJob, table: LoadTable, chosen: str) -> list[str]:
    found = []
    own, slo = job.own_per_s, job.question.slo
    if table.saturated("off", own):
        replicas = job.question.deployment.replicas
        needed = math.ceil(own / job.capacity_per_s * replicas)
        if needed > replicas:
            found.append(
                f"The trace's own load of {own:.3g} requests/s is more than this fleet serves "
                f"({job.capacity_per_s:.3g} per s without speculation): plan for at least {needed} replicas "
                f"(--replicas {needed})."
            )
        else:
            found.append(
                f"At the trace's own load of {own:.3g} requests/s the fleet falls behind for a time; latencies there "
                f"depend on how long the trace is."
            )
    share = table.mean(chosen, own, "slo_share").mean
    lowest = min(table.loads_of("off"))
    least = table.mean("off", lowest, "slo_share").mean
    if least < slo.share:
        found.append(
            f"Even at {lowest:.3g} requests/s only {least:.0%} of the requests meet the objective with off: that is "
            f"their length, not the load (--ttft, --tpot, --slo-share)."
        )
    if share < slo.share:
        found.append(
            f"At the trace's own load only {share:.0%} of the requests meet the objective with {chosen} "
            f"({table.mean('off', own, 'slo_share').mean:.0%} with off); {slo.share:.0%} are asked for."
        )
    rejected = max((v for v in table.values("off", own, "rejected") if math.isfinite(v)), default=0.0)
    if rejected:
        found.append(
            f"Up to {rejected:.0f} requests of a replication were refused as longer than max_model_len "
            f"{job.question.on.limits.max_model_len} or than the whole cache; they count against the objective."
        )
    return list(dict.fromkeys([*found, *job.question.off.notes, *job.question.on.notes]))


def _sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
