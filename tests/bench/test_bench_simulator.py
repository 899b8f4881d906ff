"""Cost of a simulated engine step on the Azure conversation example, as a ratio to a bare SimPy timeout event.

Event and simulation are timed in turn, by processor time, and the median of the ratios is printed: a ratio of 15 means
that a step costs as much as 15 events. One second of a shared machine is worth nothing as a figure. Every policy at two
loads, then every drafter and every engine at one, on fewer requests. Luck has been dealt before, as in every plan but
for the first run of its workload; `test_bench_limits` deals it anew.
"""

from __future__ import annotations

import pytest
from ruler import event_s, example, in_units

from scenarios.resolve import STAND_IN, resolve
from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.drafters import drafter, method_names
from specsim.engine.simulator import simulate
from specsim.planner.question import Question
from specsim.policies import KINDS, parse_policy
from specsim.records import RunResult
from specsim.serving import ENGINES
from specsim.workload import Workload

FEW = 3_000
"""Requests of the runs by drafter and by engine."""


def measure(
    benchmark, question: Question, policy: PolicySpec, speed: float, *, requests: int | None = None, rounds: int = 5
) -> None:  # type: ignore[no-untyped-def]
    """Time a policy on the example's first `requests`, which come `speed` times as fast as they did."""
    workload = Workload(example(), question.acceptance, seed=0)
    side = question.side(policy)
    arrivals = example().arrival_s[:requests] / speed
    results: list[RunResult] = []

    def run() -> None:
        results[:] = [simulate(workload, side.cost, limits=side.limits, policy=policy, arrival_s=arrivals)]

    events, took = in_units(benchmark, event_s, run, rounds=rounds)
    totals, n = results[0].totals, len(arrivals)
    benchmark.extra_info["summary"] = (
        f"{events / totals.steps:.1f} SimPy events a step, {events / n:.1f} a request ({totals.steps:,} steps, mean "
        f"batch {totals.batch_time / totals.busy_s:.0f}; {totals.steps / took:,.0f} steps/s, "
        f"{n / took:,.0f} requests/s)"
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
