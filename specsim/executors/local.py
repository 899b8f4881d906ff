"""Jobs on processes of this machine: how they start, and how they end with the process that started them."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process, resource_tracker
from typing import Any, TypeVar

from specsim.executors.base import TRIES, Answer, Done, Job, Result, Setup, Task, WorkerCrew, WorkerDied

__all__ = ["LocalProcesses", "run_jobs", "without_interrupts"]

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")

_task: Task | None = None


@dataclass(frozen=True, slots=True)
class LocalProcesses:
    """Up to `processes` processes, 0: one a core. One, or a single job to begin with, is no other process at all."""

    processes: int = 0

    @property
    def count(self) -> int:
        return self.processes or len(os.sched_getaffinity(0))

    @property
    def said(self) -> str:
        return "1 process" if self.count == 1 else f"{self.count:,} processes"

    def crew(
        self,
        start: Callable[..., Callable[[Job], Result]],
        setup: tuple[Any, ...],
        *,
        alike: Callable[[Job], Hashable] | None = None,
    ) -> LocalCrew[Job, Result]:
        """See `specsim.executors.base.Executor.crew`."""
        return LocalCrew(self.count, (start, setup), alike)


class _Process:
    """A pool of one process, which breaks alone and with the job that broke it."""

    def __init__(self, setup: Setup) -> None:
        self.pool = ProcessPoolExecutor(1, mp_context=get_context("forkserver"), initializer=_begin, initargs=(setup,))

    def begin(self, job: Any) -> Future[Answer]:
        with without_interrupts():
            return self.pool.submit(_call, job)


class LocalCrew(WorkerCrew[Job, Result]):
    """Processes of this machine; see `LocalProcesses`."""

    def __init__(self, count: int, setup: Setup, alike: Callable[[Job], Hashable] | None) -> None:
        super().__init__(count, alike)
        self._setup = setup
        self._alone: Task | None = None
        self._processes: list[_Process] = []
        self._others: set[Any] = set()

    def run(self, queue: deque[Job]) -> Iterator[Done[Job, Result]]:
        if self._processes or min(self._count, len(queue)) > 1:
            yield from super().run(queue)
            return
        while queue:
            self._alone = self._alone or Task(self._setup)
            job = queue.popleft()
            yield Done(job, *self._alone(job))

    def _new_worker(self) -> _Process:
        if not self._processes:
            self._others = set(active_children())
        worker = _Process(self._setup)
        self._processes.append(worker)
        return worker

    def _wait(self, tickets: Sequence[Future[Answer]]) -> Sequence[Future[Answer]]:
        done = wait(tickets, return_when=FIRST_COMPLETED).done
        return [ticket for ticket in tickets if ticket in done]

    def _take(self, ticket: Future[Answer]) -> Answer:
        try:
            return ticket.result()
        except BrokenProcessPool as error:
            raise WorkerDied(
                f"its worker process was killed {TRIES} times, perhaps for want of memory; try --jobs 1, or fewer "
                f"requests"
            ) from error

    def _leave(self, *, finished: bool) -> None:
        if not finished and self._processes:
            for child in set(active_children()) - self._others:
                child.terminate()
        for worker in self._processes:
            worker.pool.shutdown(wait=finished, cancel_futures=True)


def _begin(setup: Setup) -> None:
    global _task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _task = Task(setup)


def _end_with_parent() -> None:
    """A parent that was killed cannot say so; without it nobody wants the results."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(job: Any) -> Answer:
    if _task is None:
        raise RuntimeError("worker process was not initialised")
    return _task(job)


def run_jobs(
    function: Callable[[_Job], _Result],
    jobs: Sequence[_Job],
    *,
    processes: int = 0,
    done: Callable[[_Job], None] = lambda job: None,
) -> list[_Result]:
    """`function` of every job, in their order; `processes` 0: one a core. Function and jobs must pickle.

    `done` is told of every job that is finished, in the order in which they finish.

    Raises:
        SpecsimError: when a worker process was killed under the same job `TRIES` times.
    """
    found: dict[int, _Result] = {}
    with LocalProcesses(processes).crew(_numbered, (function,)) as crew:
        for over in crew.run(deque(enumerate(jobs))):
            index, job = over.job
            found[index] = over.result()
            done(job)
    return [found[index] for index in range(len(jobs))]


def _numbered(function: Callable[[_Job], _Result]) -> Callable[[tuple[int, _Job]], _Result]:
    return lambda numbered: function(numbered[1])


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back until a process has started; that process never sees it, not even while it imports.

    The mask is for the process that starts, which inherits it; the handler is for this one, of which another thread
    may take the signal.
    """
    resource_tracker.ensure_running()  # starting it later would lift the mask
    seen: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number)) if in_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if in_main:
            signal.signal(signal.SIGINT, handler)
    if seen:
        raise KeyboardInterrupt
