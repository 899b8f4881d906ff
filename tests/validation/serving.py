"""Small worlds to validate in: a tiny real model, virtual clocks, and profiles that are right or planted wrong."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from builders import make_limits, make_pass, make_profile, make_trace

sys.path.insert(0, str(Path(__file__).parent.parent / "reference_engine"))

from served import DRAFTERS, prompts_of, target

from calibrate.engine import ModelRunner, RecordedRunner, Served, VirtualClock, serve
from calibrate.engine.replay import RecordedRounds
from calibrate.validation.runs import Serve
from calibrate.validation.watching import watched_acceptance
from calibrate.validation.world import Load, Trial, World
from specsim.acceptance import Empirical
from specsim.config import PolicySpec
from specsim.latency import StepCost
from specsim.planner.question import Side
from specsim.profiles import LatencyProfile
from specsim.traces.model import Trace
from specsim.workload import Workload

__all__ = [
    "LIMITS", "OFF", "ON", "OTHER", "SERVED", "acceptance", "make_world", "really_serving", "requests", "serving",
    "slower",
]  # fmt: skip

LIMITS = make_limits(max_num_seqs=6, max_num_batched_tokens=40, enable_prefix_caching=False)
SERVED, OTHER = 3, 9
"""Seeds of the prompts that are served, and of those that acceptance is known of."""
OFF, ON = PolicySpec("off"), PolicySpec("static", 3)


def requests(n: int = 12, seed: int = 1) -> Trace:
    rng = np.random.default_rng(seed)
    return make_trace(
        arrival_s=np.cumsum(rng.exponential(0.02, n)).tolist(),
        prompt_tokens=rng.integers(8, 25, n).tolist(),
        output_tokens=rng.integers(6, 25, n).tolist(),
    )


@cache
def acceptance(seed: int) -> Empirical:
    """Of n-gram lookup, on prompts of the usual lengths."""
    trace = requests()
    return watched_acceptance(
        target(), DRAFTERS["ngram"](), prompts_of(trace.prompt_tokens, seed=seed), trace,
        num_spec_tokens=3, limits=LIMITS, concurrency=6,
    )  # fmt: skip


def side(profile: LatencyProfile) -> Side:
    return Side(profile, LIMITS)


def slower(factor: float) -> LatencyProfile:
    """The usual lookup profile with weights that take longer."""
    cost = make_pass()
    return make_profile(lookup=True, target=replace(cost, weights_s=cost.weights_s * factor))


def make_world(known: Empirical, *, profile: LatencyProfile | None = None, **changes: Any) -> World:
    usual = side(profile or make_profile(lookup=True))
    values: dict[str, Any] = {
        "policies": (OFF, ON), "loads": (Load(concurrency=2), Load(concurrency=5)), "acceptance": known, "repeats": 2,
    }  # fmt: skip
    return World(requests(), usual, usual, **{**values, **changes})


def serving(world: World, own: Empirical, truth: LatencyProfile | None = None, noise: float = 0.0) -> Serve:
    """Serves in the virtual time of a machine that the profile `truth` describes; rounds accept what the drafter was
    seen to have right of the prompts that are served (`own`), which a test holds against rounds of the real model."""
    rng = np.random.default_rng(5)
    luck = RecordedRounds(own.runs, own.max_spec_tokens, drafts=own.drafts)

    def run(trial: Trial, arrival_s: np.ndarray) -> Served:
        load, policy = trial.load, trial.policy
        cost = StepCost(truth or make_profile(lookup=True))
        workload = Workload(world.trace, luck, seed=0)
        clock = _Paced(cost, float(np.exp(rng.normal(0, noise))))
        return serve(
            workload, RecordedRunner(workload), clock, limits=LIMITS, policy=policy, cost=cost, arrival_s=arrival_s,
            concurrency=load.concurrency,
        )  # fmt: skip

    return run


def really_serving(world: World) -> Serve:
    """Serves with the tiny model, in virtual time."""
    prompts = prompts_of(world.trace.prompt_tokens, seed=SERVED)

    def run(trial: Trial, arrival_s: np.ndarray) -> Served:
        load, policy = trial.load, trial.policy
        workload = Workload(world.trace, None, seed=0)
        drafter = DRAFTERS["ngram"]() if policy.num_spec_tokens else None
        runner = ModelRunner(
            target(), prompts, workload, LIMITS, drafter=drafter, num_spec_tokens=policy.num_spec_tokens
        )
        cost = world.side(policy).cost
        return serve(
            workload, runner, VirtualClock(cost), limits=LIMITS, policy=policy, cost=cost, arrival_s=arrival_s,
            concurrency=load.concurrency,
        )  # fmt: skip

    return run


class _Paced(VirtualClock):
    """A machine that is slower or faster as a whole."""

    def __init__(self, cost: StepCost, pace: float) -> None:
        super().__init__(cost)
        self._cost_of, self._pace = cost, pace

    def carried_out(self, work: Any) -> None:
        self._now += self._pace * self._cost_of.step_s(work)
