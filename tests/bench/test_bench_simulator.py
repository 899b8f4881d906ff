"""Cost of one simulated engine step on the Azure conversation example, as a ratio to a bare SimPy timeout event.

Event and simulation are timed in turn, by processor time, and the median of the ratios is printed: a ratio of 15 means
that a step costs as much as 15 events. One second of a shared machine is worth nothing as a figure.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator
from pathlib import Path

import pytest
import simpy

from scenarios.resolve import STAND_IN, resolve
from specsim.config import PolicySpec, Slo
from specsim.engine.simulator import simulate
from specsim.planner.question import Question
from specsim.policies import parse_policy
from specsim.traces import ReadOptions, read_trace
from specsim.workload import Workload

EXAMPLE = Path(__file__).parents[2] / "examples" / "azure_llm_2023_conv_rows1-10000.csv"
EVENTS = 50_000
ROUNDS = 5


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


@pytest.fixture(scope="module")
def question() -> Question:
    return resolve(*STAND_IN, Slo())


CASES = {
    "off, batch near 40": (PolicySpec("off"), 2.1),
    "static k=3, batch near 40": (PolicySpec("static", 3), 2.5),
    "static k=3, batch near 140": (PolicySpec("static", 3), 3.6),
    "schedule, batch near 40": (PolicySpec("schedule", 3, table=((1, 30, 3), (31, 60, 2), (61, 1024, 0))), 2.5),
    "adaptive, batch near 40": (PolicySpec("goodput", 5), 2.5),
    "by context, batch near 40": (parse_policy("context:0/1-30=3,31-1024=2;1500/1-40=2,41-1024=1"), 2.5),
    "verification budget, batch near 40": (parse_policy("budget:5"), 2.5),
    "moving average, batch near 40": (parse_policy("ema:5"), 2.5),
    "gate, batch near 40": (parse_policy("gate:3:0.38"), 2.5),
    "TensorRT-LLM's gate, batch near 40": (parse_policy("trt_gate:3:1.2:100:over=requests"), 2.5),
}


@pytest.mark.parametrize("name", CASES)
def test_step_cost(benchmark, question: Question, name: str) -> None:  # type: ignore[no-untyped-def]
    policy, speed = CASES[name]
    trace = read_trace(EXAMPLE, ReadOptions())
    workload = Workload(trace, question.acceptance, seed=0)
    side = question.side(policy)
    arrivals = trace.arrival_s / speed
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

    benchmark.pedantic(run, rounds=ROUNDS, warmup_rounds=1)
    steps, batch = benchmark.extra_info["totals"]
    took = statistics.median(seconds)
    benchmark.extra_info["summary"] = (
        f"{statistics.median(ratios):.1f} SimPy events a step ({steps:,} steps, mean batch {batch:.0f}; "
        f"{steps / took:,.0f} steps/s, {len(trace) / took:,.0f} requests/s)"
    )
