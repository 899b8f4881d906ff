"""What a first run of a workload costs, its luck dealt anew, beside the limits that it is held to.

Limits, in bare SimPy events: 5 a step and 40 more a request, in flight up to 512 requests; twice that under a policy
that changes k. 10,000 requests take well below a second, and a million of them 1.2 times as long each at most and less
than 600 MiB in all.
"""

from __future__ import annotations

import resource
from dataclasses import replace

import numpy as np
import pytest
from ruler import Unwritten, event_s, example, in_units

from scenarios.resolve import STAND_IN, resolve
from specsim.config import Deployment, Slo, Speculation
from specsim.engine.simulator import simulate
from specsim.planner.question import Question
from specsim.policies import parse_policy
from specsim.records import RunResult
from specsim.traces.model import Trace
from specsim.workload import Workload

ROOMY = Deployment("llama-3.1-8b", "h200-sxm", tp=2), Speculation("eagle", num_spec_tokens=(3,))
"""Where more than 512 requests have room."""
LOADS = {
    "mean of 37": (STAND_IN, 2.7, None), "near 140": (STAND_IN, 3.6, None), "40 in flight": (STAND_IN, 1.0, 40),
    "140 in flight": (STAND_IN, 1.0, 140), "512 in flight": (ROOMY, 1.0, 512),
}  # fmt: skip
"""Where, how much faster than they did requests come, and how many are in flight all the time instead."""
STEP, REQUEST = 5.0, 40.0


def first_run(question: Question, text: str, trace: Trace, speed: float, concurrency: int | None = None) -> RunResult:
    """A workload dealt and served."""
    policy = parse_policy(text)
    side = question.side(policy)
    workload = Workload(trace, question.acceptance, seed=0)
    return simulate(
        workload, side.cost, limits=side.limits, policy=policy, arrival_s=trace.arrival_s / speed,
        concurrency=concurrency,
    )  # fmt: skip


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("text", ["static:3", "goodput:5"])
def test_limit(benchmark, text: str, load: str) -> None:  # type: ignore[no-untyped-def]
    place, speed, concurrency = LOADS[load]
    question = resolve(*place, Slo())
    results: list[RunResult] = []

    def run() -> None:
        results[:] = [first_run(question, text, example(), speed, concurrency)]

    events, took = in_units(benchmark, event_s, run, rounds=5)
    totals, n = results[0].totals, len(example())
    limit = (STEP * totals.steps + REQUEST * n) * (1 if text.startswith("static") else 2)
    benchmark.extra_info["summary"] = (
        f"{events / limit:.0%} of the limit: {events / totals.steps:.1f} SimPy events a step, {events / n:.1f} a "
        f"request, luck included (mean batch {totals.batch_time / totals.busy_s:.0f}, at most {totals.peak_batch}; "
        f"{n / took:,.0f} requests/s, {took:.2f} s)"
    )


def repeated(trace: Trace, times: int) -> Trace:
    """A trace over and over again."""
    span_s = trace.span_s * (1.0 + 1.0 / len(trace))
    arrivals = [trace.arrival_s + n * span_s for n in range(times)]
    prompts, outputs = (np.tile(column, times) for column in (trace.prompt_tokens, trace.output_tokens))
    return replace(
        trace, arrival_s=np.concatenate(arrivals), prompt_tokens=prompts, output_tokens=outputs, session=None, task=None
    )


@pytest.mark.parametrize("text", ["static:3", "goodput:5"])
def test_a_million_requests(benchmark, text: str) -> None:  # type: ignore[no-untyped-def]
    question, long = resolve(*STAND_IN, Slo()), repeated(example(), 100)
    few, _ = in_units(Unwritten(), event_s, lambda: first_run(question, text, example(), 2.5), rounds=5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    many, took = in_units(benchmark, event_s, lambda: first_run(question, text, long, 2.5), rounds=1, warmup=0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    benchmark.extra_info["summary"] = (
        f"{many / len(long):.1f} SimPy events a request, {many / len(long) / (few / len(example())):.2f} times what "
        f"each of 10,000 costs ({took:.1f} s; at most {after:,.0f} MiB in memory, {before:,.0f} before)"
    )
