"""Hardware what-if: for each kind of replica and policy the least number that holds the objective, at what cost.

Order of work: one search a kind of replica, which goes through the policies; then, for the options that a decision is
about, how much more traffic they take and what more traffic would need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from specsim.config import PolicySpec, Slo
from specsim.executors import Executor
from specsim.latency import StepWork
from specsim.planner import surface
from specsim.planner.compare import SATURATED_BUSY, SATURATED_GROWTH
from specsim.planner.costs import GpuCost, Ownership
from specsim.planner.fleet_runner import CacheOf, run_searches
from specsim.planner.job import decode_context
from specsim.planner.least_fleet import FleetSearch, Found, Metrics, Searching
from specsim.planner.question import PlanSettings, Question
from specsim.traces.model import Trace

__all__ = [
    "POLICIES",
    "Contender",
    "Group",
    "Option",
    "Pool",
    "Refusal",
    "WhatIfJob",
    "guess_replicas",
    "make_group",
    "search_options",
    "stress_options",
]

POLICIES = ("off", "static", "schedule", "adaptive")
"""Kinds of policies, in the order in which they are searched."""


@dataclass(frozen=True)
class Group:
    """One kind of replica."""

    question: Question
    policies: Mapping[str, tuple[PolicySpec, ...]]
    """Kind of `POLICIES` -> what of it is tried. A kind that would be another one is left out."""
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.question.names["gpu"])


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kind of replica that cannot be."""

    gpu: str
    tp: int
    weight_dtype: str | None
    reason: str


@dataclass(frozen=True)
class WhatIfJob:
    """What is compared, before anything is simulated."""

    groups: tuple[Group, ...]
    refused: tuple[Refusal, ...]
    trace: Trace
    """The window that is simulated."""
    whole: Trace
    """The log that it was cut from."""
    slo: Slo
    settings: PlanSettings
    growth: tuple[float, ...]
    prices: Mapping[str, GpuCost]
    """By the GPU's name."""
    ownership: Ownership | None
    notes: tuple[str, ...]
    pools: tuple[Pool, ...] = ()
    """Fleets of their own for parts of the requests, to compare with one fleet for all; empty: none."""

    @property
    def questions(self) -> list[Question]:
        return [group.question for group in self.groups]

    @property
    def num_options(self) -> int:
        own = sum(len(group.policies) for group in self.groups)
        return own + sum(pool.job.num_options for pool in self.pools)

    def inputs(self) -> dict[str, Any]:
        """What decides the id: same inputs, same answer."""
        pools = [
            {"name": pool.name, "tasks": pool.tasks, "slo": asdict(pool.job.slo), **pool.job.inputs()}
            for pool in self.pools
        ]
        return ({"pools": pools} if pools else {}) | {
            "questions": [question.identity() for question in self.questions],
            "policies": [
                {kind: [asdict(policy) for policy in found] for kind, found in group.policies.items()}
                for group in self.groups
            ],
            "refused": [asdict(refusal) for refusal in self.refused],
            "trace_sha256": self.trace.meta.sha256,
            "requests": len(self.trace),
            "first_arrival_s": float(self.trace.arrival_s[0]),
            "last_arrival_s": float(self.trace.arrival_s[-1]),
            "settings": asdict(self.settings) | {"jobs": 0},
            "growth": list(self.growth),
            "prices": {name: asdict(cost) for name, cost in self.prices.items()},
            "ownership": None if self.ownership is None else asdict(self.ownership),
        }


@dataclass(frozen=True)
class Pool:
    """A fleet for some of the requests."""

    name: str
    tasks: tuple[str, ...]
    """Content classes of its requests as they were given; `*`: what no other pool takes."""
    job: WhatIfJob
    """The same kinds of replicas, under this pool's policies, objective and requests."""


@dataclass(frozen=True)
class Option:
    """One kind of replica under one kind of policy, searched."""

    group: int
    kind: str
    search: FleetSearch
    found: Found

    @property
    def holds(self) -> bool:
        return self.found.verdict == "holds"


@dataclass(frozen=True, slots=True)
class Contender:
    """How far an option carries beyond the traffic of the window, and what more traffic needs."""

    holds_to: float
    """Traffic over that of the window up to which the objective was met ..."""
    fails_at: float | None
    """... and from which on it was not; None: it was at a hundred times as much."""
    keeps_up_to: float
    """The same for keeping up with the arrivals at all."""
    falls_behind_at: float | None
    growth: tuple[tuple[float, Found], ...]


def _by_gain(question: Question, trace: Trace, policies: Sequence[PolicySpec], batch: float) -> tuple[PolicySpec, ...]:
    """Fixed values of k, first what gains most by step times at a running batch."""
    context = decode_context(trace, question)
    requests = max(1, min(round(batch), surface.batch_limit(question, context)))
    return tuple(sorted(policies, key=lambda p: -surface.speedup(question, requests, context, p.num_spec_tokens)))


def make_group(question: Question, trace: Trace, kinds: Sequence[str] = POLICIES) -> Group:
    """The policies that are tried on a kind of replica.

    Raises:
        ScenarioError: a k that the acceptance model does not know.
    """
    context = decode_context(trace, question)
    ks = sorted(set(question.speculation.num_spec_tokens))
    table = surface.best_k_table(question, context)
    notes = []
    found: dict[str, tuple[PolicySpec, ...]] = {"off": (PolicySpec("off"),)}
    found["static"] = tuple(PolicySpec("static", k) for k in ks)
    if len(table) > 1:
        found["schedule"] = (PolicySpec("schedule", max(k for _, _, k in table), table=table),)
    elif "schedule" in kinds:
        k = table[0][2]
        notes.append(f"its best k is {k} at every batch, so that a schedule would be {f'k={k}' if k else 'off'}")
    found["adaptive"] = (PolicySpec("goodput", question.max_k),)
    for policies in found.values():
        for policy in policies:
            question.check_policy(policy)
    return Group(question, {kind: found[kind] for kind in kinds if kind in found}, tuple(notes))


def guess_replicas(question: Question, trace: Trace) -> int:
    """A first guess for speculation off: steady batches with their share of prompts, no queue.

    Rather too low than too high, since small fleets are simulated faster.
    """
    context = decode_context(trace, question)
    prompt = float(trace.prompt_tokens.mean())
    output = float(trace.output_tokens.mean())
    cost, slo = question.off.cost, question.slo
    chunk = max(1, min(round(prompt), question.off.limits.max_num_batched_tokens))
    best = within = 0.0
    for batch in surface.batches_up_to(surface.batch_limit(question, context, on=False)):
        step = cost.decode_step_s(batch, context, 0, machinery=False)
        work = StepWork(
            decode_requests=batch, kv_tokens=batch * context, prefill_tokens=chunk, prefill_rows=1,
            prefill_pairs=chunk * chunk // 2, windowed_kv_tokens=round(batch * min(context, cost.window_tokens)),
            prefill_windowed_pairs=chunk * chunk // 2,
        )  # fmt: skip
        prefill = (cost.step_s(work) - step) * prompt / chunk
        token = step + batch * prefill / output
        slow = slo.tpot_s is not None and token > slo.tpot_s
        late = slo.e2e_s is not None and output * token > slo.e2e_s
        rate = batch / (output * token)
        if not (slow or late):
            within = max(within, rate)
        best = max(best, rate)
    return max(1, math.ceil(trace.rate_per_s / (within or best)))


def _search_group(job: WhatIfJob, index: int, settled: Callable[[], None]) -> Searching:
    group = job.groups[index]
    search = FleetSearch(index, share=job.slo.share, seeds=job.settings.replications, requests=len(job.trace))
    guess = guess_replicas(group.question, job.trace)
    batch = 1.0
    options = []
    for kind, policies in group.policies.items():
        if kind == "static":
            policies = _by_gain(group.question, job.trace, policies, batch)
        found = yield from search.least(policies, guess)
        if found.verdict == "holds":
            guess = found.replicas
            batch = fmean(float(m["running_batch"] or 1.0) for m in search.runs(found.policy, guess))
        options.append(Option(index, kind, search, found))
        settled()
    return options


def search_options(
    job: WhatIfJob,
    *,
    cache_of: CacheOf | None = None,
    settled: Callable[[], None] = lambda: None,
    simulated: Callable[[], None] = lambda: None,
    executor: Executor | None = None,
) -> list[Option]:
    """Every option, in the order of the groups and of `POLICIES`; `settled` is told of each that is finished."""
    searches = [_search_group(job, index, settled) for index in range(len(job.groups))]
    found = run_searches(
        searches, job.questions, job.trace, job.settings, cache_of=cache_of, simulated=simulated, executor=executor
    )
    return [option for options in found for option in options]


def stress_options(
    job: WhatIfJob,
    options: Sequence[Option],
    *,
    cache_of: CacheOf | None = None,
    settled: Callable[[], None] = lambda: None,
    simulated: Callable[[], None] = lambda: None,
    executor: Executor | None = None,
) -> list[Contender]:
    """How each of some options that hold fares with more traffic."""
    searches = [_contend(job, option, settled) for option in options]
    return run_searches(
        searches, job.questions, job.trace, job.settings, cache_of=cache_of, simulated=simulated, executor=executor
    )


def _contend(job: WhatIfJob, option: Option, settled: Callable[[], None]) -> Searching:
    search, policy, replicas = option.search, option.found.policy, option.found.replicas

    def within(runs: Sequence[Metrics]) -> bool:
        return fmean(float(m["slo_share"] or 0.0) for m in runs) >= job.slo.share

    holds_to, fails_at = yield from search.headroom(policy, replicas, within)
    keeps_up_to, falls_behind_at = yield from search.headroom(policy, replicas, _keeps_up)
    if keeps_up_to < holds_to:
        # over a short window an objective can be met while a queue grows: what cannot go on does not hold
        holds_to, fails_at = keeps_up_to, falls_behind_at
    growth = []
    for factor in job.growth:
        found = yield from search.least(
            job.groups[option.group].policies[option.kind], math.ceil(replicas * factor), factor
        )
        growth.append((factor, found))
    settled()
    return Contender(holds_to, fails_at, keeps_up_to, falls_behind_at, tuple(growth))


def _keeps_up(runs: Sequence[Metrics]) -> bool:
    growth = np.mean([float(m["backlog_growth_share"] or 0.0) for m in runs])
    busy = np.mean([float(m["utilisation"] or 0.0) for m in runs])
    return bool(growth <= SATURATED_GROWTH or busy < SATURATED_BUSY)
