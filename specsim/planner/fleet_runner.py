"""Runs many searches for fleets at once: their points on an executor, each asked of the store first.

What a search finds does not depend on the executor. Stopping keeps what is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specsim.executors import Done, Executor, LocalProcesses
from specsim.planner.least_fleet import FleetPoint, Metrics, Searching
from specsim.planner.point_runner import RunCache
from specsim.planner.points import Batch, Stretch, Worker
from specsim.planner.question import PlanSettings, Question
from specsim.planner.searches import run_at_once
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


def run_searches(
    searches: Sequence[Searching],
    questions: Sequence[Question],
    trace: Trace,
    settings: PlanSettings,
    *,
    cache_of: CacheOf | None = None,
    simulated: Callable[[], None] = lambda: None,
    executor: Executor | None = None,
) -> list[Any]:
    """What each search returns, in their order. All questions must have the same acceptance, hence the same luck.

    `simulated` is told of every point that was finished, reused ones included.

    Raises:
        SpecsimError: when the workers of a point were killed again and again.
    """

    def known(point: FleetPoint) -> Metrics | None:
        if cache_of is None:
            return None
        found = cache_of(point.group, point.replicas).find(batch_of(point, trace, settings))
        return None if found is None else found[0]

    def finished(done: Done[FleetPoint, Metrics]) -> Metrics:
        metrics, point = done.result(), done.job
        if cache_of is not None:
            cache_of(point.group, point.replicas).save(batch_of(point, trace, settings), [metrics])
        return metrics

    crew = (executor or LocalProcesses(settings.jobs)).crew(_start, (questions, trace, settings))
    with crew:
        return run_at_once(searches, crew, known=known, finished=finished, simulated=simulated)
