"""A plan before it is run: which requests, replications, policies and loads are simulated, and why.

Nothing is simulated here but the capacity of the fleet without speculation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specsim.config import PolicySpec
from specsim.errors import TraceError
from specsim.planner import surface
from specsim.planner.loads import choose_loads, requests_at, steps_per_request
from specsim.planner.points import MIN_STRETCH, Batch, Stretch, Worker, stretches
from specsim.planner.question import PlanSettings, Question
from specsim.planner.repeat import repeated
from specsim.traces.model import Trace

__all__ = ["SENSITIVITY", "PlanJob", "busiest", "decode_context", "prepare"]

SENSITIVITY = (-0.1, 0.1)
"""Shifts of every conditional acceptance probability that are tried."""

FEWEST_TO_ANSWER = 30
"""Requests of a log below which a plan recommends nothing."""


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
    is_whole: bool = True
    """Whether every request of the trace is simulated, not only its busiest stretch."""
    is_window: bool = False
    """Whether the trace is a part of its log."""

    @property
    def is_too_short(self) -> bool:
        """Whether the log has too few requests to tell a policy or a capacity by."""
        return self.log_requests < FEWEST_TO_ANSWER

    @property
    def whose(self) -> str:
        """Of what `own_per_s` is the load, for sentences."""
        if not self.is_whole:
            return "the busiest stretch's"
        return "the window's" if self.is_window else "the trace's own"

    def requests_at(self, load_per_s: float, available: int) -> int:
        """How many of the `available` requests of a stretch are served at a load."""
        off = self.question.off.cost.decode_step_s(1, self.context_tokens, 0, machinery=False)
        replicas = self.question.deployment.decoding_replicas
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
            "policies": [asdict(policy) for policy in self.policies],
        }


def prepare(
    question: Question, trace: Trace, settings: PlanSettings, *, policies: Sequence[PolicySpec] = ()
) -> PlanJob:
    """Choose requests, replications, policies and loads; `policies` are compared beside the planner's own.

    Raises:
        TraceError: when the trace has no rate (fewer than two arrival times), or nothing of it can be served.
        ScenarioError: when a policy drafts more than the acceptance model knows.
    """
    for policy in policies:
        question.check_policy(policy)
    if len(trace) < 2 or trace.span_s <= 0:
        raise TraceError(
            f"{trace.meta.source}: {len(trace)} request(s) over {trace.span_s:g} s have no arrival rate to plan for; "
            f"give a longer trace, or use `specsim crossover` for fixed lengths and concurrency"
        )
    notes = []
    served, notice = _servable(trace, question)
    notes += notice
    chosen, notice = busiest(served, settings.max_requests)
    notes += notice
    context = decode_context(chosen, question)
    fit = surface.batch_limit(question, context, on=False)
    simulated, notice = _long_enough(chosen, fit * question.deployment.decoding_replicas, settings)
    notes += notice
    cut, sentence = stretches(simulated, settings, repeats=len(simulated) > len(chosen))
    notes.append(sentence)
    if question.deployment.is_disaggregated:
        notes.append(
            "Crossovers by batch, break-even lengths and the best k by batch are those of a decode replica, in whose "
            "steps there are no prompts; loads and figures of the comparison are those of the whole fleet."
        )
        fit *= question.deployment.decoding_replicas
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
        policies=_policies(question, context, _batch_at(question, simulated, context), policies),
        loads_per_s=loads,
        own_per_s=own,
        log_requests=len(chosen),
        capacity_per_s=capacity,
        context_tokens=context,
        notes=tuple(notes),
        is_whole=len(chosen) == len(trace),
        is_window=len(trace) < trace.meta.rows_kept,
    )


def _servable(trace: Trace, question: Question) -> tuple[Trace, list[str]]:
    """Refuse a trace of which nothing fits; requests that are too long stay in and are counted as rejected."""
    total = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    limit = min(question.off.limits.max_model_len, question.on.limits.max_model_len)
    too_long = int(np.count_nonzero(total > limit))
    if too_long == len(trace):
        raise TraceError(
            f"{trace.meta.source}: every request is longer than the {limit} tokens that {question.names['target']} "
            f"serves here (shortest {int(total.min())}); raise --max-model-len where it is given, or choose "
            f"a model with a longer context"
        )
    if too_long:
        return trace, [
            f"{too_long} of {len(trace)} requests ({too_long / len(trace):.0%}) are longer than {limit} tokens and are "
            f"refused by the simulated engine; they count against the objective."
        ]
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


def busiest(trace: Trace, most: int) -> tuple[Trace, list[str]]:
    """The densest run of `most` consecutive requests."""
    if len(trace) <= most:
        return trace, []
    spans = trace.arrival_s[most - 1 :] - trace.arrival_s[: len(trace) - most + 1]
    first = int(np.argmin(spans))
    chosen = trace.rows(first, first + most)
    return chosen, [
        f"Simulated: the busiest {most:,} consecutive requests of {len(trace):,} "
        f"({chosen.rate_per_s:.3g} per s from {float(chosen.arrival_s[0]):.0f} s on; the whole trace has "
        f"{trace.rate_per_s:.3g} per s). Raise --max-requests for more."
    ]


def decode_context(trace: Trace, question: Question) -> int:
    """Mean tokens in the cache of a decoding request, over the requests that are served."""
    served = trace.prompt_tokens.astype(np.int64) + trace.output_tokens <= question.off.limits.max_model_len
    prompts, outputs = trace.prompt_tokens[served], trace.output_tokens[served].astype(np.float64)
    return max(1, round(float(np.sum((prompts + outputs / 2) * outputs) / np.sum(outputs))))


def _batch_at(question: Question, trace: Trace, context: int) -> int:
    """Requests that run at once in a replica at the trace's own load, by Little's law on the cost surface."""
    limit = surface.batch_limit(question, context, on=False)
    per_s = trace.rate_per_s / question.deployment.decoding_replicas
    batch = 1.0
    for _ in range(50):
        step_s = question.off.cost.decode_step_s(max(1, round(batch)), context, 0, machinery=False)
        batch = min(float(limit), max(1.0, per_s * float(trace.output_tokens.mean()) * step_s))
    return round(batch)


def _policies(question: Question, context: int, batch: int, further: Sequence[PolicySpec]) -> tuple[PolicySpec, ...]:
    """Off, each static k, (when k changes with the batch) the schedule, adaptive, and what else was asked for.

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
    return tuple({policy.label: policy for policy in (*found, *further)}.values())
