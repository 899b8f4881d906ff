"""The loop of the reference engine: arrivals in, one step after another, records out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from calibrate.engine.clock import Clock
from calibrate.engine.records import RoundRecord, Served, StepRecord
from calibrate.engine.runner import Runner
from specsim.config import PolicySpec, ReplicaLimits
from specsim.engine.core import EngineCore
from specsim.engine.router import ClosedLoop, OpenLoop, Source
from specsim.engine.setup import engine_view, recorder_of, result_of
from specsim.errors import ScenarioError
from specsim.latency import StepCost
from specsim.policies import EngineView, make_policy
from specsim.request import State
from specsim.workload import Workload

__all__ = ["serve"]


def serve(
    workload: Workload,
    runner: Runner,
    clock: Clock,
    *,
    limits: ReplicaLimits,
    policy: PolicySpec,
    cost: StepCost | None = None,
    arrival_s: np.ndarray | None = None,
    concurrency: int | None = None,
    warmup_share: float = 0.0,
) -> Served:
    """Serve every request of a workload on one engine.

    The arguments are those of `specsim.engine.simulator.simulate`; requests emit as many tokens as the trace says,
    whatever the text.

    Args:
        runner: carries out the steps.
        clock: the machine's, or a virtual one.
        cost: what policies that weigh costs are told at the start; None: nothing, and such policies are refused.

    Raises:
        ScenarioError: counts that make no sense, a policy that needs a cost.
        InvariantError: a request was lost.
    """
    if concurrency is not None and concurrency < 1:
        raise ScenarioError(f"concurrency must be >= 1, got {concurrency}")
    arrivals = workload.trace.arrival_s if arrival_s is None else arrival_s
    recorder = recorder_of(workload, arrivals, warmup_share=warmup_share, closed_loop=concurrency is not None)
    expected = None if workload.acceptance is None else workload.acceptance.expected_length
    view = EngineView(expected)
    if cost is not None:
        view = engine_view(workload.acceptance, cost, limits, policy.num_spec_tokens)
    window_tokens = 0 if cost is None else cost.window_tokens
    core = EngineCore(0, workload, limits, make_policy(policy, view), policy.kind != "off", window_tokens, recorder)
    source: Source
    if concurrency is None:
        source = OpenLoop([core], None, recorder, arrivals)
    else:
        source = ClosedLoop([core], None, recorder, concurrency, int(warmup_share * len(arrivals)))
    books = _Books([], [], {})
    now_s = clock.now()
    while True:
        if source.next_s <= now_s:
            source.deliver(now_s)
        if core.begin(now_s):
            now_s = _step(core, runner, clock, source, now_s, books)
        elif source.next_s < math.inf:
            clock.wait_until(source.next_s)
            now_s = source.next_s
        else:
            break
    result = result_of(recorder, workload, limits, policy, end_s=now_s)
    return Served(result, books.steps, books.rounds, books.proposals)


class _Books(NamedTuple):
    """What is recorded while a run goes; see `Served`."""

    steps: list[StepRecord]
    rounds: list[RoundRecord]
    proposals: dict[tuple[int, int], int]


def _step(core: EngineCore, runner: Runner, clock: Clock, source: Source, began_s: float, books: _Books) -> float:
    """Carry out the step that has begun, apply it, record it; the time at which another can begin."""
    plan, scheduler = core.plan, core.scheduler
    running = tuple(request.request_id for request in scheduler.running)
    waiting = tuple(request.request_id for request in scheduler.waiting)
    held = frozenset(running).union(request.request_id for request in scheduler.leaving)
    used_blocks = scheduler.kv.pool.used
    scheduled_s = clock.now()
    outcome = runner.run(plan, core.next_k, held)
    emitted = outcome.emitted
    for item in plan.scheduled:
        request = item.request
        if request.is_decoding:
            books.rounds.append(
                RoundRecord(
                    step=len(books.steps),
                    request=request.request_id,
                    position=request.num_emitted_tokens,
                    drafted=item.num_draft_tokens,
                    emitted=emitted[request.request_id],
                )
            )
    clock.carried_out(core.work)
    ended_s = clock.now()
    finished = core.end(ended_s, emitted, runner.drafts)
    for index in finished:
        source.finished(index, ended_s)
    for item in plan.scheduled:
        request = item.request
        if request.num_draft_tokens and request.state is State.RUNNING:
            books.proposals[request.request_id, request.num_emitted_tokens] = request.num_draft_tokens
    record = StepRecord(
        began_s=began_s,
        ended_s=ended_s,
        work=replace(core.work),
        scheduled=tuple(
            (item.request.request_id, item.num_tokens, item.num_draft_tokens, item.context_tokens)
            for item in plan.scheduled
        ),
        preempted=tuple(request.request_id for request in plan.preempted),
        waiting=waiting,
        running=running,
        used_blocks=used_blocks,
        finished=tuple(finished),
        emitted_tokens=sum(emitted.values()),
        schedule_s=scheduled_s - began_s,
        forward_s=outcome.forward_s,
        sample_s=outcome.sample_s,
        draft_s=outcome.draft_s,
        after_s=clock.now() - ended_s,
    )
    books.steps.append(record)
    return record.ended_s + record.after_s
