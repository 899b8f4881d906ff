"""Local worker processes: how they start, end with the process that started them, and share out independent jobs.

Results do not depend on the number of processes or the order in which they finish.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process, resource_tracker
from types import TracebackType
from typing import Any, Generic, TypeVar

from specsim.errors import SpecsimError

__all__ = ["TaskPool", "run_jobs", "without_interrupts"]

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


_function: Callable[[Any], Any] | None = None


def _begin(start: Callable[..., Callable[[Any], Any]], setup: tuple[Any, ...]) -> None:
    global _function
    _prepare_worker()
    _function = start(*setup)


def _call(job: Any) -> Any:
    if _function is None:
        raise RuntimeError("worker process was not initialised")
    return _function(job)


class TaskPool(Generic[_Job, _Result]):
    """Up to `processes` worker processes (0: one a core) that live until the context is left.

    Each calls `start(*setup)` once, which gives the function that it then calls with every job. One process, or a
    first queue of a single job, is no other process at all.
    """

    def __init__(
        self, start: Callable[..., Callable[[_Job], _Result]], setup: tuple[Any, ...], *, processes: int = 0
    ) -> None:
        self._start = start
        self._setup = setup
        self._processes = processes or len(os.sched_getaffinity(0))
        self._alone: Callable[[_Job], _Result] | None = None
        self._pool: ProcessPoolExecutor | None = None
        self._others: set[Any] = set()

    def __enter__(self) -> TaskPool[_Job, _Result]:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._pool is None:
            return
        if kind is not None:
            for child in set(active_children()) - self._others:
                child.terminate()
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def run(self, queue: deque[_Job]) -> Iterator[tuple[_Job, _Result]]:
        """Jobs with their results, as they finish. Jobs that the caller appends meanwhile are done as well.

        Raises:
            SpecsimError: when a worker process was killed.
        """
        if self._pool is None and min(self._processes, len(queue)) <= 1:
            self._alone = self._alone or self._start(*self._setup)
            while queue:
                job = queue.popleft()
                yield job, self._alone(job)
            return
        if self._pool is None:
            self._others = set(active_children())
            self._pool = ProcessPoolExecutor(
                self._processes,
                mp_context=get_context("forkserver"),
                initializer=_begin,
                initargs=(self._start, self._setup),
            )
        waiting: dict[Future[_Result], _Job] = {}
        try:
            while queue or waiting:
                while queue and len(waiting) <= self._processes:
                    job = queue.popleft()
                    with without_interrupts():
                        waiting[self._pool.submit(_call, job)] = job
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool as error:
            raise SpecsimError(
                "a worker process was killed, perhaps for want of memory; what was finished is kept: run the same "
                "command again, with --jobs 1 or fewer --max-requests"
            ) from error


def _prepare_worker() -> None:
    """What a worker process does first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot say so; without it nobody wants the results."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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
        SpecsimError: when a worker process was killed.
    """
    count = min(processes or len(os.sched_getaffinity(0)), len(jobs))
    if count <= 1:
        results = []
        for job in jobs:
            results.append(function(job))
            done(job)
        return results
    others = set(active_children())
    pool = ProcessPoolExecutor(count, mp_context=get_context("forkserver"), initializer=_prepare_worker)
    found: dict[int, _Result] = {}
    waiting: dict[Future[_Result], int] = {}
    queue = list(reversed(range(len(jobs))))
    try:
        while queue or waiting:
            while queue and len(waiting) <= count:
                index = queue.pop()
                with without_interrupts():
                    waiting[pool.submit(function, jobs[index])] = index
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                index = waiting.pop(future)
                found[index] = future.result()
                done(jobs[index])
    except BrokenProcessPool as error:
        raise SpecsimError("a worker process was killed, perhaps for want of memory; give --jobs 1") from error
    except BaseException:
        for child in set(active_children()) - others:
            child.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return [found[index] for index in range(len(jobs))]


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
