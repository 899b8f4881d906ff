"""A sweep before and while it is run: cells of a grid, each with the same seeds, and the worker that simulates them.

A seed stands for the same arrivals and the same luck in every cell, so that cells are compared in pairs.
Leaves out: what a cell is in words (`specsim.cli.sweep_input`), and what comes of it (`specsim.planner.sweep_answer`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from specsim.config import PolicySpec
from specsim.executors import Crew, Executor
from specsim.planner.question import Question
from specsim.planner.single import SingleRun
from specsim.traces.model import Trace
from specsim.workload import Workload

__all__ = ["Cell", "Metrics", "Outcome", "ShippedPoint", "SweepCache", "SweepJob", "SweepPoint", "outcome_of",
           "run_points", "sweep_crew"]  # fmt: skip

Metrics = dict[str, Any]

_KEPT_WORKLOADS = 2


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One run: the questions and traces are indices into those of the job."""

    question: int
    trace: int
    policy: PolicySpec
    seed: int
    rate_scale: float
    """How many times as fast as in the trace requests arrive."""
    concurrency: int | None
    warmup_share: float

    @property
    def of_scenario(self) -> tuple[Any, ...]:
        """What a point has from the scenario of its cell; equal for points of one scenario."""
        return self.question, self.trace, self.policy, self.concurrency, self.warmup_share


@dataclass(frozen=True)
class Cell:
    """One combination of the grid's values, with all seeds."""

    values: tuple[tuple[str, str], ...]
    """(axis, value) as they are shown."""
    points: tuple[SweepPoint, ...] = ()
    """One a seed; none where it is refused."""
    refused: str | None = None
    """Why it cannot be, such as a model that does not fit its GPU."""
    base: int | None = None
    """The cell that it is compared with, by its place; None: with none, or it is one itself."""


@dataclass(frozen=True)
class SweepJob:
    """Everything that a sweep simulates; a search lets questions and traces grow."""

    cells: tuple[Cell, ...]
    questions: Sequence[Question]
    traces: Sequence[Trace]
    seeds: tuple[int, ...]

    def run_of(self, point: SweepPoint) -> SingleRun:
        """The run of a point.

        Raises:
            ScenarioError: a policy that the question does not allow, or an empty trace.
        """
        return SingleRun(
            question=self.questions[point.question],
            trace=self.traces[point.trace],
            policy=point.policy,
            seed=point.seed,
            warmup_share=point.warmup_share,
            concurrency=point.concurrency,
            rate_scale=point.rate_scale,
        )

    def points(self) -> list[SweepPoint]:
        """Every point once, seed by seed, so that a worker keeps the luck of a seed."""
        found = dict.fromkeys(point for cell in self.cells for point in cell.points)
        return sorted(found, key=lambda point: (point.seed, point.trace))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a point: metrics, or why there are none."""

    metrics: Metrics | None = None
    error: str | None = None


class SweepCache(Protocol):
    """Where finished points are kept between commands."""

    def find(self, points: Sequence[SweepPoint]) -> dict[SweepPoint, Metrics]:
        """Those of the points that are there."""
        ...

    def save(self, point: SweepPoint, metrics: Mapping[str, Any]) -> None:
        """Keep a point."""
        ...

    def run_id(self, point: SweepPoint) -> str | None:
        """The id under which a point is kept."""
        ...


@dataclass(frozen=True, slots=True)
class ShippedPoint:
    """A point with its run, for a worker that was set up before the run was known."""

    point: SweepPoint
    run: SingleRun = field(compare=False)


class _Worker:
    """Simulates points in one process; keeps the last workloads, whose luck many cells share."""

    def __init__(self, job: SweepJob) -> None:
        self._job = job
        self._workloads: OrderedDict[tuple[int, int, int], Workload] = OrderedDict()

    def run(self, asked: SweepPoint | ShippedPoint) -> Metrics:
        if isinstance(asked, ShippedPoint):
            return asked.run.metrics(asked.run.simulate())
        point = asked
        run = self._job.run_of(point)
        # questions of equal acceptance share the object, so that its id tells the luck
        key = (id(run.question.acceptance), point.trace, point.seed)
        if key not in self._workloads:
            self._workloads[key] = Workload(run.trace, run.question.acceptance, seed=run.seed)
            if len(self._workloads) > _KEPT_WORKLOADS:
                self._workloads.popitem(last=False)
        self._workloads.move_to_end(key)
        return run.metrics(run.simulate(workload=self._workloads[key]))


def _start(job: SweepJob) -> Callable[[Any], Metrics]:
    return _Worker(job).run


def sweep_crew(job: SweepJob, executor: Executor) -> Crew[Any, Metrics]:
    """Workers for the points of a job, as they are or shipped."""
    return executor.crew(_start, (replace(job, cells=()),), alike=_luck_of)


def _luck_of(asked: SweepPoint | ShippedPoint) -> tuple[int, int]:
    """Points that share a workload, but for their acceptance."""
    point = asked.point if isinstance(asked, ShippedPoint) else asked
    return point.seed, point.trace


def outcome_of(done: Any, cache: SweepCache | None) -> Outcome:
    """What came of a point that was run, kept if it has metrics; a failure is told and stops nothing."""
    if done.error is not None:
        return Outcome(error=str(done.error) or type(done.error).__name__)
    if cache is not None:
        cache.save(done.job, done.value)
    return Outcome(done.value)


def run_points(
    job: SweepJob,
    executor: Executor,
    *,
    cache: SweepCache | None = None,
    progress: Callable[[int, bool], None] = lambda points, reused: None,
) -> dict[SweepPoint, Outcome]:
    """Every point of the grid, from `cache` or simulated; each is kept as soon as it is finished."""
    points = job.points()
    known = {} if cache is None else cache.find(points)
    found = {point: Outcome(metrics) for point, metrics in known.items()}
    if known:
        progress(len(known), True)
    if len(known) < len(points):
        progress(0, False)
    with sweep_crew(job, executor) as crew:
        for done in crew.run(deque(point for point in points if point not in known)):
            found[done.job] = outcome_of(done, cache)
            progress(1, False)
    return found
