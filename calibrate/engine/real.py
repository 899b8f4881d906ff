"""Serve for real: a model, the machine's own clock, and everything warm before the first request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from calibrate.drafters import Drafter
from calibrate.engine.clock import Clock, RealClock, SampledClock
from calibrate.engine.engine import serve
from calibrate.engine.forced import ForcedRunner
from calibrate.engine.model_runner import ModelRunner
from calibrate.engine.records import Served
from calibrate.engine.verify import Sampling
from calibrate.models import FlatModel
from specsim.config import PolicySpec, ReplicaLimits
from specsim.errors import ScenarioError
from specsim.latency import StepCost
from specsim.policies import kind_of
from specsim.workload import Workload

__all__ = ["serve_real"]


def serve_real(
    model: FlatModel,
    prompts: Sequence[Sequence[int]],
    workload: Workload,
    *,
    limits: ReplicaLimits,
    policy: PolicySpec,
    drafter: Drafter | None = None,
    sampling: Sampling | None = None,
    cost: StepCost | None = None,
    arrival_s: np.ndarray | None = None,
    concurrency: int | None = None,
    warmup_share: float = 0.0,
    clock: Clock | None = None,
    forced: bool = False,
    reference: Callable[[], float] | None = None,
) -> tuple[Served, ModelRunner]:
    """Serve a workload with a model, in real time; what ran, and the runner, which has the texts.

    Args:
        prompts: token ids of each request, as long as the workload says.
        drafter: a fresh one; it learns from what it sees.
        cost: what policies that weigh costs are told.
        clock: a fresh one; None: time on the wall.
        forced: rounds emit what the workload's acceptance model deals, whatever the drafts are.
        reference: does and times a piece of work that a profile knows; it is asked now and then, while `clock` stands
            still.

    Other arguments as `calibrate.engine.serve`.

    Raises:
        ScenarioError: what the engine does not do, or what does not fit together.
    """
    if limits.tree_nodes and kind_of(policy.kind).chains_only:
        raise ScenarioError(
            f"policy {policy.label} trims chains of drafts, and drafts form trees here; choose another policy or leave "
            f"the tree out"
        )
    clock = clock or RealClock()
    sampled = None if reference is None else SampledClock(clock, reference)
    clock = clock if sampled is None else sampled
    runner = (ForcedRunner if forced else ModelRunner)(
        model,
        prompts,
        workload,
        limits,
        drafter=drafter,
        num_spec_tokens=policy.num_spec_tokens,
        sampling=sampling,
        timer=clock.now,
    )
    runner.warm_up(limits)
    served = serve(
        workload,
        runner,
        clock,
        limits=limits,
        policy=policy,
        cost=cost,
        arrival_s=arrival_s,
        concurrency=concurrency,
        warmup_share=warmup_share,
    )
    if sampled is not None:
        served.reference_s = sampled.samples_s
    return served, runner
