"""Run batches of points on an executor, remember each in the store, and reuse what is there.

Results do not depend on the executor or the order in which points finish. Stopping keeps what is finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from specsim.executors import Executor, LocalProcesses
from specsim.planner.points import Batch, Worker
from specsim.planner.question import PlanSettings, Question
from specsim.traces.model import Trace

__all__ = ["Key", "PointRunner", "Progress", "RunCache", "run_batches"]

Key = tuple[str, float, int, float]
"""(policy label, load per s, replication, acceptance change)."""
Progress = Callable[[int, bool], None]
"""Told how many points were finished, and whether they were reused; those take no time."""


class RunCache(Protocol):
    """Where finished points are kept between commands; `db` has one, and a dict will do in tests."""

    def find(self, batch: Batch) -> list[dict[str, Any]] | None:
        """The metrics of every load of a batch, or None when one is missing."""
        ...

    def save(self, batch: Batch, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Keep the metrics of a batch."""
        ...


def _start(question: Question, trace: Trace, settings: PlanSettings) -> Callable[[Batch], list[dict[str, Any]]]:
    return Worker(question, trace, settings).run


def _luck_of(batch: Batch) -> tuple[int, float]:
    """Batches that share a workload."""
    return batch.stretch.index, batch.acceptance_change


def _nobody(points: int, reused: bool) -> None:
    """Nobody wants to know."""


class PointRunner:
    """Runs batches on an executor, up to `settings.jobs` local processes by default; it lives until the context is
    left.

    `cache` is asked first and told of every batch that was simulated.
    """

    def __init__(
        self,
        question: Question,
        trace: Trace,
        settings: PlanSettings,
        *,
        cache: RunCache | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._cache = cache
        where = executor or LocalProcesses(settings.jobs)
        self._crew = where.crew(_start, (question, trace, settings), alike=_luck_of)

    def __enter__(self) -> PointRunner:
        self._crew.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._crew.__exit__(kind, value, tb)

    def run(self, batches: Sequence[Batch], *, progress: Progress = _nobody) -> dict[Key, dict[str, Any]]:
        """Metrics of every point.

        Raises:
            SpecsimError: when the workers of a batch were killed again and again.
        """
        results: dict[Key, dict[str, Any]] = {}
        todo: deque[Batch] = deque()
        for batch in batches:
            known = self._cache.find(batch) if self._cache is not None else None
            if known is None:
                todo.append(batch)
            else:
                _put(results, batch, known)
                progress(len(batch.loads_per_s), True)
        if todo:
            progress(0, False)
        for done in self._crew.run(todo):
            batch, metrics = done.job, done.result()
            if self._cache is not None:
                self._cache.save(batch, metrics)
            _put(results, batch, metrics)
            progress(len(batch.loads_per_s), False)
        return results


def run_batches(
    batches: Sequence[Batch],
    question: Question,
    trace: Trace,
    settings: PlanSettings,
    *,
    cache: RunCache | None = None,
    progress: Progress = _nobody,
) -> dict[Key, dict[str, Any]]:
    """`PointRunner.run` once."""
    with PointRunner(question, trace, settings, cache=cache) as runner:
        return runner.run(batches, progress=progress)


def _put(results: dict[Key, dict[str, Any]], batch: Batch, metrics: Sequence[Mapping[str, Any]]) -> None:
    for load, values in zip(batch.loads_per_s, metrics, strict=True):
        results[(batch.policy.label, load, batch.stretch.index, batch.acceptance_change)] = dict(values)
