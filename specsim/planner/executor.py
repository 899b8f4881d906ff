"""Run batches of points on local processes, remember each in the store, and reuse what is there.

Results do not depend on the number of processes or the order in which they finish. Stopping keeps what is finished;
worker processes end with the process that started them, however it ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from types import TracebackType
from typing import Any, Protocol

from specsim.errors import SpecsimError
from specsim.planner.points import Batch, Worker
from specsim.planner.processes import prepare_worker, without_interrupts
from specsim.planner.question import PlanSettings, Question
from specsim.traces.model import Trace

__all__ = ["Key", "PointRunner", "RunCache", "run_batches"]

Key = tuple[str, float, int, float]
"""(policy label, load per s, replication, acceptance change)."""


class RunCache(Protocol):
    """Where finished points are kept between commands; `db` has one, and a dict will do in tests."""

    def find(self, batch: Batch) -> list[dict[str, Any]] | None:
        """The metrics of every load of a batch, or None when one is missing."""
        ...

    def save(self, batch: Batch, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Keep the metrics of a batch."""
        ...


_worker: Worker | None = None


def _start(question: Question, trace: Trace, settings: PlanSettings) -> None:
    global _worker
    prepare_worker()
    _worker = Worker(question, trace, settings)


def _run(batch: Batch) -> list[dict[str, Any]]:
    if _worker is None:
        raise RuntimeError("worker process was not initialised")
    return _worker.run(batch)


class PointRunner:
    """Runs batches on up to `settings.jobs` processes, which live until the context is left.

    `cache` is asked first and told of every batch that was simulated.
    """

    def __init__(
        self, question: Question, trace: Trace, settings: PlanSettings, *, cache: RunCache | None = None
    ) -> None:
        self._setup = (question, trace, settings)
        self._cache = cache
        self._jobs = settings.jobs or len(os.sched_getaffinity(0))
        self._alone: Worker | None = None
        self._pool: ProcessPoolExecutor | None = None
        self._others: set[Any] = set()

    def __enter__(self) -> PointRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._pool is None:
            return
        if kind is not None:
            for child in set(active_children()) - self._others:
                child.terminate()
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def run(
        self, batches: Sequence[Batch], *, progress: Callable[[int], None] = lambda points: None
    ) -> dict[Key, dict[str, Any]]:
        """Metrics of every point. `progress` is told how many points were finished, reused ones included.

        Raises:
            SpecsimError: when a worker process was killed.
        """
        results: dict[Key, dict[str, Any]] = {}
        todo: list[Batch] = []
        for batch in batches:
            known = self._cache.find(batch) if self._cache is not None else None
            if known is None:
                todo.append(batch)
            else:
                _put(results, batch, known)
                progress(len(batch.loads_per_s))
        for batch, metrics in self._compute(todo):
            if self._cache is not None:
                self._cache.save(batch, metrics)
            _put(results, batch, metrics)
            progress(len(batch.loads_per_s))
        return results

    def _compute(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[dict[str, Any]]]]:
        if self._pool is None and min(self._jobs, len(batches)) <= 1:
            self._alone = self._alone or Worker(*self._setup)
            for batch in batches:
                yield batch, self._alone.run(batch)
            return
        if self._pool is None:
            self._others = set(active_children())
            self._pool = ProcessPoolExecutor(
                self._jobs, mp_context=get_context("forkserver"), initializer=_start, initargs=self._setup
            )
        waiting: dict[Future[list[dict[str, Any]]], Batch] = {}
        queue = list(reversed(batches))
        try:
            while queue or waiting:
                while queue and len(waiting) <= self._jobs:
                    batch = queue.pop()
                    with without_interrupts():
                        waiting[self._pool.submit(_run, batch)] = batch
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool as error:
            raise SpecsimError(
                "a worker process was killed, perhaps for want of memory; what was finished is kept: run the same "
                "command again, with --jobs 1 or fewer --max-requests"
            ) from error


def run_batches(
    batches: Sequence[Batch],
    question: Question,
    trace: Trace,
    settings: PlanSettings,
    *,
    cache: RunCache | None = None,
    progress: Callable[[int], None] = lambda points: None,
) -> dict[Key, dict[str, Any]]:
    """`PointRunner.run` once."""
    with PointRunner(question, trace, settings, cache=cache) as runner:
        return runner.run(batches, progress=progress)


def _put(results: dict[Key, dict[str, Any]], batch: Batch, metrics: Sequence[Mapping[str, Any]]) -> None:
    for load, values in zip(batch.loads_per_s, metrics, strict=True):
        results[(batch.policy.label, load, batch.stretch.index, batch.acceptance_change)] = dict(values)
