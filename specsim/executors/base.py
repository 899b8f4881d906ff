"""What an executor is, and what all of them share: handing jobs to workers, replacing workers that died, trying again.

A job is a picklable description; a worker is set up once (`start(*setup)` gives the function that it then calls) and
does one job at a time, so that a worker that dies names the job it died with. Leaves out: what a job is.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from specsim.errors import SpecsimError

__all__ = ["TRIES", "Answer", "Crew", "Done", "Executor", "Setup", "Task", "Worker", "WorkerCrew", "WorkerDied"]

Job = TypeVar("Job")
Result = TypeVar("Result")

TRIES = 3
"""How often a job is begun whose worker dies under it."""

_LOOK_AHEAD = 2000
"""Jobs among which one for a worker is picked."""
Setup = tuple[Callable[..., Callable[[Any], Any]], tuple[Any, ...]]
"""(start, its arguments), as every worker gets it once."""
Answer = tuple[Any, Exception | None]
"""(result, None), or (None, what the job raised): what comes back from a worker."""


class WorkerDied(SpecsimError):
    """A worker ended in the middle of a job."""


@dataclass(frozen=True, slots=True)
class Done(Generic[Job, Result]):
    """A job that is over: with its result, or with what it raised."""

    job: Job
    value: Result | None = None
    error: Exception | None = None

    def result(self) -> Result:
        """The result.

        Raises:
            Exception: whatever the job raised; SpecsimError when its worker died `TRIES` times.
        """
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class Crew(Protocol[Job, Result]):
    """Workers that live until the context is left."""

    def __enter__(self) -> Crew[Job, Result]: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None: ...

    def run(self, queue: deque[Job]) -> Iterator[Done[Job, Result]]:
        """Jobs as they finish. Jobs that the caller appends meanwhile are done as well."""
        ...


class Executor(Protocol):
    """Where jobs run."""

    @property
    def said(self) -> str:
        """Its workers in words, such as `2 processes`."""
        ...

    def crew(
        self,
        start: Callable[..., Callable[[Job], Result]],
        setup: tuple[Any, ...],
        *,
        alike: Callable[[Job], Hashable] | None = None,
    ) -> Crew[Job, Result]:
        """Workers that each call `start(*setup)` once. Everything must pickle.

        Jobs of which `alike` gives the same rather go to one worker, where they share what it keeps.
        """
        ...


class Task:
    """The function of one worker, set up where it runs; what goes wrong in a job comes back as its answer."""

    def __init__(self, setup: Setup) -> None:
        self._function: Callable[[Any], Any] | None = None
        self._broken: Exception | None = None
        try:
            start, arguments = setup
            self._function = start(*arguments)
        except Exception as error:  # told with the first job, or it would look like a worker that was killed
            self._broken = _noted(error)

    def __call__(self, job: Any) -> Answer:
        if self._broken is not None or self._function is None:
            return None, self._broken
        try:
            return self._function(job), None
        except Exception as error:
            return None, _noted(error)


def _noted(error: Exception) -> Exception:
    """The error with the lines where it was raised, since a traceback does not leave its process."""
    error.add_note("".join(traceback.format_tb(error.__traceback__)).rstrip())
    return error


class Worker(Protocol):
    """One worker of a crew."""

    def begin(self, job: Any) -> Any:
        """Start a job; gives a ticket by which its end is waited for."""
        ...


class WorkerCrew(ABC, Generic[Job, Result]):
    """Up to `count` workers, made when there is work for them; `alike` as in `Executor.crew`."""

    def __init__(self, count: int, alike: Callable[[Job], Hashable] | None) -> None:
        self._count = count
        self._alike = alike
        self._idle: list[Worker] = []
        self._last: dict[int, Hashable] = {}
        """Worker, by its id -> what its last job was like."""

    def __enter__(self) -> WorkerCrew[Job, Result]:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._leave(finished=kind is None)

    @abstractmethod
    def _new_worker(self) -> Worker:
        """Another worker."""

    @abstractmethod
    def _wait(self, tickets: Sequence[Any]) -> Sequence[Any]:
        """Those of the tickets that are over, at least one."""

    @abstractmethod
    def _take(self, ticket: Any) -> Answer:
        """What came of a job that is over.

        Raises:
            WorkerDied: its worker is no more.
        """

    @abstractmethod
    def _leave(self, *, finished: bool) -> None:
        """End all workers; at once, unless `finished`."""

    def run(self, queue: deque[Job]) -> Iterator[Done[Job, Result]]:
        """See `Crew.run`. A worker whose job is over has its next one before the caller hears of the first."""
        again: deque[tuple[Job, int]] = deque()
        busy: dict[Any, tuple[Worker, Job, int]] = {}
        over: deque[Done[Job, Result]] = deque()
        while True:
            while (queue or again) and len(busy) < self._count:
                worker = self._idle.pop() if self._idle else self._new_worker()
                job, tries = again.popleft() if again else (self._next(queue, worker), 1)
                busy[worker.begin(job)] = (worker, job, tries)
            if over:
                yield over.popleft()
                continue
            if not busy:
                return
            for ticket in self._wait(list(busy)):
                worker, job, tries = busy.pop(ticket)
                try:
                    value, error = self._take(ticket)
                except WorkerDied as death:
                    self._last.pop(id(worker), None)
                    if tries < TRIES:
                        again.append((job, tries + 1))
                    else:
                        over.append(Done(job, error=death))
                    continue
                self._idle.append(worker)
                over.append(Done(job, value, error))

    def _next(self, queue: deque[Job], worker: Worker) -> Job:
        """The next job for a worker: one like its last, else one like no other worker's, else the first."""
        if self._alike is None:
            return queue.popleft()
        mine = self._last.get(id(worker))
        others = {like for other, like in self._last.items() if other != id(worker)}
        chosen = None
        for place, job in enumerate(islice(queue, _LOOK_AHEAD)):
            like = self._alike(job)
            if like == mine:
                chosen = place
                break
            if chosen is None and like not in others:
                chosen = place
        job = queue[chosen or 0]
        del queue[chosen or 0]
        self._last[id(worker)] = self._alike(job)
        return job
