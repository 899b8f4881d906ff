"""Wire replicas, router and clock together, and run a workload to its end.

Time is in seconds. At one instant, arrivals come before the step that begins then; replicas act in order of their
index. Two runs with the same inputs give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

import numpy as np
import simpy

from specsim.config import PolicySpec, ReplicaLimits, RouterName
from specsim.engine.choosers import make_chooser
from specsim.engine.fast_replica import FastReplica
from specsim.engine.observe import Observer, observed
from specsim.engine.plain_replica import PlainReplica
from specsim.engine.replica import Replica
from specsim.engine.router import ClosedLoop, OpenLoop, Source
from specsim.engine.setup import engine_view, recorder_of, result_of
from specsim.errors import ScenarioError
from specsim.latency import StepCost
from specsim.policies import make_policy
from specsim.records import RunResult
from specsim.workload import Workload

__all__ = ["simulate"]


def simulate(
    workload: Workload,
    cost: StepCost,
    *,
    limits: ReplicaLimits,
    policy: PolicySpec,
    arrival_s: np.ndarray | None = None,
    concurrency: int | None = None,
    replicas: int = 1,
    router: RouterName = "least_outstanding",
    warmup_share: float = 0.0,
    plain: bool = False,
    observers: Sequence[Observer] = (),
) -> RunResult:
    """Serve every request of a workload under one policy.

    Args:
        arrival_s: float64 [n], sorted; None: the trace's own. Shorter than the workload: only its first n requests.
            In closed loop only the length counts.
        concurrency: requests kept in flight (closed loop) instead of arrival times.
        warmup_share: share of requests at the start whose steps and statistics do not count.
        plain: walk request by request (the oracle) instead of the fast path; same result, slower.
        observers: told of every step and request while the run goes; same result.

    Raises:
        ScenarioError: when counts are below 1.
        InvariantError: when a request was lost.
    """
    arrivals = workload.trace.arrival_s if arrival_s is None else arrival_s
    if replicas < 1 or (concurrency is not None and concurrency < 1):
        raise ScenarioError(f"replicas and concurrency must be >= 1, got {replicas} and {concurrency}")
    recorder = recorder_of(workload, arrivals, warmup_share=warmup_share, closed_loop=concurrency is not None)
    view = engine_view(workload.acceptance, cost, limits, policy.num_spec_tokens)
    make = PlainReplica if plain else FastReplica
    machinery = policy.kind != "off"
    env = simpy.Environment()
    fleet: list[Replica] = [
        make(index, workload, limits, make_policy(policy, view), cost, machinery, recorder) for index in range(replicas)
    ]
    if observers:
        fleet = observed(fleet, recorder, observers)
    chooser = make_chooser(router, fleet, workload.trace, limits) if replicas > 1 else None
    bells = _Bells(env, replicas)
    source: Source
    if concurrency is None:
        source = OpenLoop(fleet, chooser, recorder, arrivals, bells.ring)
        if replicas > 1:
            env.process(_arrivals(env, source))
    else:
        source = ClosedLoop(fleet, chooser, recorder, concurrency, int(warmup_share * len(arrivals)), bells.ring)
    for index, replica in enumerate(fleet):
        env.process(_serve(env, index, replica, source, bells))
    env.run()
    return result_of(recorder, workload, limits, policy, end_s=float(env.now), replicas=replicas)


class _Bells:
    """What idle replicas wait for: a replica alone for the next arrival, one of many until it is sent something."""

    def __init__(self, env: simpy.Environment, replicas: int) -> None:
        self._env = env
        self._waiting: list[simpy.Event | None] = [None] * replicas

    def ring(self, index: int) -> None:
        """Replica `index` may have something to do."""
        event = self._waiting[index]
        if event is not None:
            self._waiting[index] = None
            event.succeed()

    def wait(self, index: int, source: Source) -> simpy.Event | None:
        """An event to wait for; None when nothing will come."""
        if len(self._waiting) > 1:
            self._waiting[index] = event = self._env.event()
            return event
        return None if source.next_s == math.inf else self._env.timeout(source.next_s - self._env.now)


def _arrivals(env: simpy.Environment, source: Source) -> Generator[simpy.Event, None, None]:
    while source.next_s < math.inf:
        yield env.timeout(max(0.0, source.next_s - env.now))
        source.deliver(env.now)


def _serve(
    env: simpy.Environment, index: int, replica: Replica, source: Source, bells: _Bells
) -> Generator[simpy.Event, None, None]:
    """One replica: sleep when idle, otherwise one step after another."""
    while True:
        now_s = env.now
        if source.next_s <= now_s:
            source.deliver(now_s)
        seconds = replica.begin_step(now_s)
        if seconds is None:
            wake = bells.wait(index, source)
            if wake is None:
                return
            yield wake
            continue
        yield env.timeout(seconds)
        now_s = env.now
        for request in replica.end_step(now_s):
            source.finished(request, now_s)
