"""Local worker processes: how they start, end with the process that started them, and share out independent jobs.

Results do not depend on the number of processes or the order in which they finish.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process, resource_tracker
from typing import TypeVar

from specsim.errors import SpecsimError

__all__ = ["prepare_worker", "run_jobs", "without_interrupts"]

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def prepare_worker() -> None:
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
    pool = ProcessPoolExecutor(count, mp_context=get_context("forkserver"), initializer=prepare_worker)
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
