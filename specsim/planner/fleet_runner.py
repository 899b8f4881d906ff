"""Runs many searches for fleets at once: their points on local processes, each asked of the store first.

A search goes on when all points that it asked for are there; what it finds does not depend on the number of processes.
Stopping keeps what is finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specsim.planner.executor import RunCache
from specsim.planner.least_fleet import FleetPoint, Metrics, Searching
from specsim.planner.points import Batch, Stretch, Worker
from specsim.planner.processes import TaskPool
from specsim.planner.question import PlanSettings, Question
from specsim.traces.model import Trace

__all__ = ["CacheOf", "batch_of", "run_searches"]

CacheOf = Callable[[int, int], RunCache]
"""The cache for a group and a number of replicas."""

_ALONE_REQUESTS = 300
"""Requests that are served one by one to see what is possible at all."""
_ALONE_PER_S = 1e-4


def batch_of(point: FleetPoint, trace: Trace, settings: PlanSettings) -> Batch:
    """The point as the simulator's workers know it; every point has the requests of the whole trace, in order."""
    requests = min(len(trace), _ALONE_REQUESTS) if point.alone else len(trace)
    load = _ALONE_PER_S if point.alone else trace.rate_per_s * point.factor
    stretch = Stretch(point.seed_index, 0, len(trace), settings.seed + point.seed_index)
    return Batch(point.policy, stretch, (load,), (requests,))


class _FleetWorker:
    """Simulates points of any group in one process; all groups share the luck of the requests."""

    def __init__(self, questions: Sequence[Question], trace: Trace, settings: PlanSettings) -> None:
        self._questions = questions
        self._settings = settings
        self._worker = Worker(questions[0], trace, settings)

    def run(self, point: FleetPoint) -> Metrics:
        question = self._questions[point.group]
        fleet = replace(question.deployment, replicas=point.replicas)
        self._worker.question = replace(question, deployment=fleet)
        return self._worker.run(batch_of(point, self._worker.trace, self._settings))[0]


def _start(questions: Sequence[Question], trace: Trace, settings: PlanSettings) -> Callable[[FleetPoint], Metrics]:
    return _FleetWorker(questions, trace, settings).run


@dataclass
class _Running:
    """A search that waits for points."""

    search: Searching
    asked: list[FleetPoint] = field(default_factory=list)
    there: dict[FleetPoint, Metrics] = field(default_factory=dict)


def run_searches(
    searches: Sequence[Searching],
    questions: Sequence[Question],
    trace: Trace,
    settings: PlanSettings,
    *,
    cache_of: CacheOf | None = None,
    simulated: Callable[[], None] = lambda: None,
) -> list[Any]:
    """What each search returns, in their order. All questions must have the same acceptance, hence the same luck.

    `simulated` is told of every point that was finished, reused ones included.

    Raises:
        SpecsimError: when a worker process was killed.
    """
    results: dict[int, Any] = {}
    running = [_Running(search) for search in searches]
    waiting: dict[FleetPoint, list[int]] = {}
    queue: deque[FleetPoint] = deque()

    def known(point: FleetPoint) -> Metrics | None:
        if cache_of is None:
            return None
        found = cache_of(point.group, point.replicas).find(batch_of(point, trace, settings))
        return None if found is None else found[0]

    def go_on(index: int, answer: list[Metrics] | None) -> None:
        """Advance a search until it waits for a point that is not stored, or ends."""
        it = running[index]
        while True:
            try:
                it.asked = next(it.search) if answer is None else it.search.send(answer)
            except StopIteration as end:
                results[index] = end.value
                return
            it.there = {}
            for point in it.asked:
                metrics = known(point)
                if metrics is not None:
                    it.there[point] = metrics
                    simulated()
                    continue
                if point not in waiting:
                    queue.append(point)
                waiting.setdefault(point, []).append(index)
            if len(it.there) < len(it.asked):
                return
            answer = [it.there[point] for point in it.asked]

    with TaskPool[FleetPoint, Metrics](_start, (questions, trace, settings), processes=settings.jobs) as pool:
        for index in range(len(running)):
            go_on(index, None)
        while queue:
            for point, metrics in pool.run(queue):
                if cache_of is not None:
                    cache_of(point.group, point.replicas).save(batch_of(point, trace, settings), [metrics])
                simulated()
                for index in waiting.pop(point):
                    it = running[index]
                    it.there[point] = metrics
                    if len(it.there) == len(it.asked):
                        go_on(index, [it.there[p] for p in it.asked])
    return [results[index] for index in range(len(running))]
