"""Cost of a simulated engine step on the Azure conversation example, as a ratio to a bare SimPy timeout event.

Event and simulation are timed in turn, by processor time, and the median of the ratios is printed: a ratio of 15 means
that a step costs as much as 15 events. One second of a shared machine is worth nothing as a figure. Every policy at two
loads, then every drafter and every engine at one, on fewer requests.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
import simpy

from scenarios.resolve import STAND_IN, resolve
from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.drafters import drafter, method_names
from specsim.engine.simulator import simulate
from specsim.planner.question import Question
from specsim.policies import KINDS, parse_policy
from specsim.serving import ENGINES
from specsim.traces import ReadOptions, read_trace
from specsim.traces.model import Trace
from specsim.workload import Workload

EXAMPLE = Path(__file__).parents[2] / "examples" / "azure_llm_2023_conv_rows1-10000.csv"
EVENTS = 50_000
FEW = 3_000
"""Requests of the runs by drafter and by engine."""


def simpy_event_s() -> float:
    """Processor seconds of one bare timeout event."""

    def process(env: simpy.Environment) -> Generator[simpy.Event, None, None]:
        for _ in range(EVENTS):
            yield env.timeout(1.0)

    env = simpy.Environment()
    env.process(process(env))
    start = time.process_time()
    env.run()
    return (time.process_time() - start) / EVENTS


@cache
def example() -> Trace:
    return read_trace(EXAMPLE, ReadOptions())


def measure(
    benchmark, question: Question, policy: PolicySpec, speed: float, *, requests: int | None = None, rounds: int = 5
) -> None:  # type: ignore[no-untyped-def]
    """Time a policy on the example's first `requests`, which come `speed` times as fast as they did."""
    trace = example()
    workload = Workload(trace, question.acceptance, seed=0)
    side = question.side(policy)
    arrivals = trace.arrival_s[:requests] / speed
    ratios, seconds = [], []

    def run() -> None:
        event = simpy_event_s()
        start = time.process_time()
        result = simulate(workload, side.cost, limits=side.limits, policy=policy, arrival_s=arrivals)
        took = time.process_time() - start
        event = (event + simpy_event_s()) / 2
        ratios.append(took / result.totals.steps / event)
        seconds.append(took)
        benchmark.extra_info["totals"] = (result.totals.steps, result.totals.batch_time / result.totals.busy_s)

    benchmark.pedantic(run, rounds=rounds, warmup_rounds=1)
    steps, batch = benchmark.extra_info["totals"]
    took, n = statistics.median(seconds), len(arrivals)
    benchmark.extra_info["summary"] = (
        f"{statistics.median(ratios):.1f} SimPy events a step ({steps:,} steps, mean batch {batch:.0f}; "
        f"{steps / took:,.0f} steps/s, {n / took:,.0f} requests/s)"
    )


POLICIES = {
    "off": ("off", 2.1, 2.9),
    "static": ("static:3", 2.5, 3.6),
    "schedule": ("schedule:1-30=3,31-60=2,61-1024=0", 2.5, 3.5),
    "off_above": ("off_above:3:64", 2.5, 3.5),
    "context": ("context:0/1-30=3,31-1024=2;1500/1-40=2,41-1024=1", 2.5, 3.6),
    "goodput": ("goodput:5", 2.5, 3.6),
    "budget": ("budget:5", 2.5, 3.8),
    "ema": ("ema:5", 2.5, 3.5),
    "gate": ("gate:3:0.38", 2.5, 3.5),
    "trt_gate": ("trt_gate:3:1.2:100:over=requests", 2.4, 3.2),
}
"""Kind -> a policy that moves, and the speeds at which its mean batch is near 40 and near 140."""


def test_every_policy_is_measured() -> None:
    assert set(POLICIES) == set(KINDS)


@pytest.mark.parametrize("load", ["near 40", "near 140"])
@pytest.mark.parametrize("kind", POLICIES)
def test_policy(benchmark, kind: str, load: str) -> None:  # type: ignore[no-untyped-def]
    text, low, high = POLICIES[kind]
    measure(benchmark, resolve(*STAND_IN, Slo()), parse_policy(text), low if load == "near 40" else high)


@pytest.mark.parametrize("method", method_names())
def test_drafter(benchmark, method: str) -> None:  # type: ignore[no-untyped-def]
    k = drafter(method).usual_k
    place = Deployment("deepseek-v3" if method == "mtp" else "llama-3.1-8b", "h200-sxm", tp=8)
    question = resolve(place, Speculation(method, num_spec_tokens=(k,)), Slo())
    measure(benchmark, question, PolicySpec("static", k), 3.5, requests=FEW, rounds=3)


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_engine(benchmark, engine: str, k: int) -> None:  # type: ignore[no-untyped-def]
    speculation = Speculation("draft_model" if engine == "llamacpp" else "eagle", num_spec_tokens=(3,))
    question = resolve(Deployment(engine=engine), speculation, Slo())
    policy = PolicySpec("static", k) if k else PolicySpec("off")
    measure(benchmark, question, policy, 1.0 if engine in ("llamacpp", "static") else 2.3, requests=FEW, rounds=3)
