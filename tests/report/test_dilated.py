"""Slower steps are the same run in slow motion at a higher load: the law against simulations of slower machines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from builders import FixedLuck, make_limits, make_profile, make_trace

from specsim.config import PolicySpec
from specsim.engine.simulator import simulate
from specsim.latency import StepCost
from specsim.metrics import RunMetrics, summarise
from specsim.profiles import LatencyProfile, PassCost
from specsim.report.dilated import dilated
from specsim.workload import Workload


def slowed(profile: LatencyProfile, factor: float) -> LatencyProfile:
    def cost(one: PassCost) -> PassCost:
        times = {name: getattr(one, name) * factor for name in one.__dataclass_fields__ if name.endswith("_s")}
        return replace(one, **times)

    assert profile.draft is not None
    return replace(profile, target=cost(profile.target), draft=cost(profile.draft), host_s=profile.host_s * factor)


def run(profile: LatencyProfile, load_per_s: float) -> RunMetrics:
    at = np.cumsum(np.random.default_rng(3).exponential(size=300))
    trace = make_trace(arrival_s=at, prompt_tokens=300, output_tokens=40)
    workload = Workload(trace, FixedLuck(), seed=1)
    return summarise(
        simulate(workload, StepCost(profile), limits=make_limits(), policy=PolicySpec("static", 3),
                 arrival_s=at / load_per_s)
    )  # fmt: skip


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_a_slower_machine_is_the_same_machine_at_more_load_in_slow_motion(factor: float) -> None:
    loads = [4.0, 4.0 * factor, 20.0, 20.0 * factor]
    at = sorted(loads)
    base = [run(make_profile(), load) for load in at]
    slow = [run(slowed(make_profile(), factor), load) for load in at]
    for name, kind in (("tpot_p95_s", "time"), ("ttft_p95_s", "time"), ("output_tokens_per_s", "rate"),
                       ("running_batch", "count")):  # fmt: skip
        said = dict(zip(at, dilated(at, [getattr(m, name) for m in base], factor, kind), strict=True))  # type: ignore[arg-type]
        seen = dict(zip(at, (getattr(m, name) for m in slow), strict=True))
        for load in (4.0, 20.0):
            assert said[load] == pytest.approx(seen[load], rel=1e-6)


def test_nothing_is_said_beyond_the_loads() -> None:
    found = dilated([1.0, 2.0, 4.0], [10.0, 20.0, 40.0], 2.0, "count")
    assert found[:2] == [20.0, 40.0]
    assert math.isnan(found[2])
