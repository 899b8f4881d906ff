"""Wire replicas, router and clock together, and run a workload to its end.

Time is in seconds. At one instant, arrivals come before the step that begins then; replicas act in order of their
index. Two runs with the same inputs give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import simpy

from specsim.admission import never_fits
from specsim.config import PolicySpec, ReplicaLimits, RouterName
from specsim.disaggregation import Disaggregation
from specsim.engine.choosers import Chooser, make_chooser
from specsim.engine.fast_pools import FastDecode, FastPrefill
from specsim.engine.fast_replica import FastReplica
from specsim.engine.handover import Handover, Side, decode_chooser
from specsim.engine.observe import Observer, Onlookers
from specsim.engine.plain_pools import PlainDecode, PlainPrefill
from specsim.engine.plain_replica import PlainReplica
from specsim.engine.pools import decode_limits, prefill_limits, prefill_policy, prefill_workload
from specsim.engine.recorder import FollowingRecorder, Recorder
from specsim.engine.replica import Replica
from specsim.engine.router import ClosedLoop, OpenLoop, Source
from specsim.engine.setup import engine_view, recorder_of, result_of
from specsim.errors import ScenarioError
from specsim.latency import StepCost
from specsim.policies import EngineView, make_policy
from specsim.records import HandoverColumns, PrefillPool, RunResult
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
    disaggregation: Disaggregation | None = None,
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
        disaggregation: prefill and decode replicas, instead of `replicas` that do both.
        warmup_share: share of requests at the start whose steps and statistics do not count.
        plain: walk request by request (the oracle) instead of the fast path; same result, slower. So does a cost that
            follows no law.
        observers: told of every step and request while the run goes; same result.

    Raises:
        ScenarioError: when counts are below 1, or the discipline of `limits` has no two pools.
        InvariantError: when a request was lost.
    """
    arrivals = workload.trace.arrival_s if arrival_s is None else arrival_s
    if replicas < 1 or (concurrency is not None and concurrency < 1):
        raise ScenarioError(f"replicas and concurrency must be >= 1, got {replicas} and {concurrency}")
    recorder = recorder_of(workload, arrivals, warmup_share=warmup_share, closed_loop=concurrency is not None)
    env = simpy.Environment()
    onlookers = Onlookers(observers) if observers else None
    if onlookers is not None:
        onlookers.tell_of_rows(recorder.rows)
    setup = _Setup(
        env=env, workload=workload, cost=cost, limits=limits, policy=policy, recorder=recorder, router=router,
        view=engine_view(workload.acceptance, cost, limits, policy.num_spec_tokens), arrival_s=arrivals,
        concurrency=concurrency, warmup_requests=int(warmup_share * len(arrivals)), plain=plain, onlookers=onlookers,
    )  # fmt: skip
    if disaggregation is None:
        _one_fleet(setup, replicas)
        env.run()
        return result_of(recorder, workload, limits, policy, end_s=float(env.now), replicas=replicas)
    prompts, decoding, columns = _two_pools(setup, disaggregation)
    env.run()
    columns.freeze()
    pool = PrefillPool(prompts.totals(), disaggregation.prefill_replicas, columns)
    everyone = disaggregation.prefill_replicas + disaggregation.decode_replicas
    result = result_of(recorder, workload, limits, policy, end_s=float(env.now), replicas=everyone)
    return replace(result, totals=decoding.totals(), gaps=decoding.gaps(), prefill=pool)


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a run is made of, whichever way its replicas are arranged."""

    env: simpy.Environment
    workload: Workload
    cost: StepCost
    limits: ReplicaLimits
    policy: PolicySpec
    view: EngineView
    recorder: Recorder
    router: RouterName
    arrival_s: np.ndarray
    concurrency: int | None
    warmup_requests: int
    plain: bool
    onlookers: Onlookers | None

    def source(self, fleet: Sequence[Replica], chooser: Chooser | None, bells: _Bells) -> Source:
        """Where requests come from."""
        if self.concurrency is not None:
            return ClosedLoop(fleet, chooser, self.recorder, self.concurrency, self.warmup_requests, bells.ring)
        source = OpenLoop(fleet, chooser, self.recorder, self.arrival_s, bells.ring)
        if chooser is not None:
            self.env.process(_arrivals(self.env, source))
        return source


def _one_fleet(setup: _Setup, replicas: int) -> None:
    """Replicas that compute prompts and decode."""
    make = PlainReplica if setup.plain or not setup.cost.by_law else FastReplica
    machinery = setup.policy.kind != "off"
    fleet: list[Replica] = [
        make(
            index, setup.workload, setup.limits, make_policy(setup.policy, setup.view), setup.cost, machinery,
            setup.recorder,
        )
        for index in range(replicas)
    ]  # fmt: skip
    if setup.onlookers is not None:
        fleet = setup.onlookers.replicas(fleet, setup.recorder)
    chooser = make_chooser(setup.router, fleet, setup.workload.trace, setup.limits) if replicas > 1 else None
    bells = _Bells(setup.env, replicas, alone=replicas == 1)
    source = setup.source(fleet, chooser, bells)
    if replicas == 1 and isinstance(fleet[0], FastReplica):
        fleet[0].follow(source)
    for index, replica in enumerate(fleet):
        setup.env.process(_serve(setup.env, index, replica, source, bells))


def _two_pools(setup: _Setup, plan: Disaggregation) -> tuple[Recorder, Recorder, HandoverColumns]:
    """Replicas that compute prompts, and others that decode; the books of both, and of what goes between them."""
    workload, cost, rows, trace = setup.workload, setup.cost, setup.recorder.rows, setup.workload.trace
    p, looked_at = plan.prefill_replicas, setup.onlookers
    columns, unused = (HandoverColumns.empty(len(rows.arrival_s)) for _ in range(2))
    if looked_at is not None:
        columns.prefill_end_s = looked_at.column(columns.prefill_end_s, "computed")
    first = FollowingRecorder(
        replace(rows, first_token_s=columns.prefill_end_s, finish_s=unused.prefill_end_s), setup.recorder
    )
    hits = np.zeros_like(rows.cached_tokens)
    there = replace(rows, first_scheduled_s=columns.decode_start_s, cached_tokens=hits)
    second = FollowingRecorder(there, setup.recorder)
    before, after = prefill_limits(setup.limits), decode_limits(setup.limits)
    prompts, one = prefill_workload(workload), prefill_policy(setup.policy, cost)
    too_long = never_fits(trace.prompt_tokens, trace.output_tokens, after, setup.policy.num_spec_tokens)
    refused = frozenset(np.flatnonzero(too_long).tolist())
    machinery = setup.policy.kind != "off"
    make_first, make_second = (
        (PlainPrefill, PlainDecode) if setup.plain or not cost.by_law else (FastPrefill, FastDecode)
    )
    bells = _Bells(setup.env, p), _Bells(setup.env, plan.decode_replicas)
    handover = Handover(
        setup.env, plan, setup.limits, rows, columns, (bells[0].ring, bells[1].ring),
        looked_at.observers if looked_at else (),
    )  # fmt: skip
    prefill: list[Any] = [
        make_first(
            index, prompts, before, make_policy(one, setup.view), cost, one.kind != "off", first, refused=refused
        )
        for index in range(p)
    ]
    decode: list[Any] = [
        make_second(
            p + index, workload, after, make_policy(setup.policy, setup.view), cost, machinery, second,
            pull=handover.pull,
        )
        for index in range(plan.decode_replicas)
    ]  # fmt: skip
    if looked_at is not None:
        prefill = looked_at.replicas(prefill, first)
        decode = looked_at.replicas(decode, second, first=p, handed_on=True)
    source = setup.source(prefill, make_chooser(setup.router, prefill, trace, before), bells[0])
    sides = handover.connect(prefill, decode, decode_chooser(setup.router, decode), source)
    for fleet, side, rings in zip((prefill, decode), sides, bells, strict=True):
        for index, replica in enumerate(fleet):
            setup.env.process(_serve(setup.env, index, replica, side, rings))
    return first, second, columns


class _Bells:
    """What idle replicas wait for: a replica `alone` for the next arrival, others until they are sent something."""

    def __init__(self, env: simpy.Environment, replicas: int, *, alone: bool = False) -> None:
        self._env = env
        self.alone = alone
        self._waiting: list[simpy.Event | None] = [None] * replicas

    def ring(self, index: int) -> None:
        """Replica `index` may have something to do."""
        event = self._waiting[index]
        if event is not None:
            self._waiting[index] = None
            event.succeed()

    def wait(self, index: int, source: Source | Side) -> simpy.Event | None:
        """An event to wait for; None when nothing will come."""
        if not self.alone:
            self._waiting[index] = event = self._env.event()
            return event
        return None if source.next_s == math.inf else self._env.timeout(source.next_s - self._env.now)


def _arrivals(env: simpy.Environment, source: Source) -> Generator[simpy.Event, None, None]:
    while source.next_s < math.inf:
        yield env.timeout(max(0.0, source.next_s - env.now))
        source.deliver(env.now)


def _serve(
    env: simpy.Environment, index: int, replica: Replica, source: Source | Side, bells: _Bells
) -> Generator[simpy.Event, None, None]:
    """One replica: sleep when idle, otherwise one step after another."""
    while True:
        now_s = env.now
        if source.next_s <= now_s:
            source.deliver(now_s)
        seconds = replica.begin_step(now_s, source.next_s if bells.alone else now_s)
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
