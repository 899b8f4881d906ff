"""Wire replicas, router and clock together, and run a workload to its end.

Time is in seconds. At one instant, arrivals come before the step that begins then; replicas act in order of their
index. Two runs with the same inputs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
import simpy

from specsim.config import PolicySpec, ReplicaLimits, RouterName
from specsim.engine.choosers import make_chooser
from specsim.engine.curves import StartUpCurves
from specsim.engine.fast_replica import FastReplica
from specsim.engine.observe import Observer, observed
from specsim.engine.plain_replica import PlainReplica
from specsim.engine.recorder import Recorder
from specsim.engine.replica import Replica
from specsim.engine.router import ClosedLoop, OpenLoop
from specsim.errors import InvariantError, ScenarioError
from specsim.latency import StepCost
from specsim.policies import EngineView, make_policy
from specsim.records import RequestColumns, RunResult
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
    n = len(arrivals)
    if n > len(workload):
        raise ScenarioError(f"{n} arrivals were given for {len(workload)} requests")
    if replicas < 1 or (concurrency is not None and concurrency < 1):
        raise ScenarioError(f"replicas and concurrency must be >= 1, got {replicas} and {concurrency}")
    if not 0 <= warmup_share < 1:
        raise ScenarioError(f"warmup_share must lie in 0..1, got {warmup_share!r}")
    rows = RequestColumns.empty(arrivals, workload.trace.prompt_tokens[:n], workload.trace.output_tokens[:n])
    recorder = Recorder(rows)
    if concurrency is None and n:
        recorder.measure_from_s = float(arrivals[int(warmup_share * n)]) if warmup_share else 0.0
        recorder.measure_until_s = float(arrivals[-1]) if warmup_share else float("inf")
    # The engine has loaded speculation when an adaptive policy weighs k = 0, so that k = 0 pays for it too.
    acceptance = workload.acceptance

    def step_s(batch: int, context_tokens: float, num_spec_tokens: int) -> float:
        drafts = None if acceptance is None else acceptance.expected_drafts(num_spec_tokens)
        return cost.decode_step_s(batch, context_tokens, num_spec_tokens, machinery=True, drafts_per_request=drafts)

    expected_length = None if acceptance is None else acceptance.expected_length
    view = EngineView(expected_length, step_s, StartUpCurves(cost, limits, policy.num_spec_tokens))
    make = PlainReplica if plain else FastReplica
    machinery = policy.kind != "off"
    env = simpy.Environment()
    fleet: list[Replica] = [
        make(index, workload, limits, make_policy(policy, view), cost, machinery, recorder) for index in range(replicas)
    ]
    if observers:
        fleet = observed(fleet, recorder, observers)
    chooser = make_chooser(router, fleet, workload.trace, limits) if replicas > 1 else None
    source: OpenLoop | ClosedLoop
    if concurrency is None:
        source = OpenLoop(env, fleet, chooser, recorder, arrivals)
    else:
        source = ClosedLoop(env, fleet, chooser, recorder, concurrency, int(warmup_share * n))
    for index, replica in enumerate(fleet):
        env.process(_serve(env, index, replica, source))
    env.run()
    rows.freeze()
    lost = int(np.count_nonzero(np.isnan(rows.finish_s) & ~rows.rejected))
    if lost:
        raise InvariantError(f"{lost} of {n} requests were neither finished nor rejected (seed {workload.seed})")
    return RunResult(
        requests=rows,
        totals=recorder.totals,
        gaps=recorder.gaps,
        end_s=float(env.now),
        measure_from_s=recorder.measure_from_s,
        measure_until_s=min(recorder.measure_until_s, float(env.now)),
        policy=policy.label,
        seed=workload.seed,
        num_replicas=replicas,
        num_kv_blocks=limits.num_kv_blocks,
    )


def _serve(
    env: simpy.Environment, index: int, replica: Replica, source: OpenLoop | ClosedLoop
) -> Generator[simpy.Event, None, None]:
    """One replica: sleep when idle, otherwise one step after another."""
    while True:
        now_s = env.now
        if source.next_s <= now_s:
            source.deliver(now_s)
        seconds = replica.begin_step(now_s)
        if seconds is None:
            wake = source.idle(index)
            if wake is None:
                return
            yield wake
            continue
        yield env.timeout(seconds)
        now_s = env.now
        for request in replica.end_step(now_s):
            source.finished(request, now_s)
