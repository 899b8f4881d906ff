"""Many searches at once: each asks for points and goes on when they are there, while the points of all share workers.

What a search finds does not depend on which of its points finishes first. Leaves out: what a point is, and where it is
kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from specsim.executors import Crew, Done

__all__ = ["Search", "run_at_once"]

Point = TypeVar("Point", bound=Hashable)
Value = TypeVar("Value")
Search = Generator[list[Point], list[Value], Any]
"""Yields points that it needs, is sent their values in the same order, and returns what it found."""


@dataclass
class _Running(Generic[Point, Value]):
    """A search that waits for points."""

    search: Generator[list[Point], list[Value], Any]
    asked: list[Point] = field(default_factory=list)
    there: dict[Point, Value] = field(default_factory=dict)


def run_at_once(
    searches: Sequence[Generator[list[Point], list[Value], Any]],
    crew: Crew[Point, Any],
    *,
    known: Callable[[Point], Value | None],
    finished: Callable[[Done[Point, Any]], Value],
    simulated: Callable[[], None] = lambda: None,
) -> list[Any]:
    """What each search returns, in their order.

    Args:
        known: the value of a point that need not be run, or None.
        finished: keeps the outcome of a point that was run, and gives the value that searches are sent.
        simulated: told of every point, known ones included.
    """
    results: dict[int, Any] = {}
    running = [_Running(search) for search in searches]
    waiting: dict[Point, list[int]] = {}
    queue: deque[Point] = deque()

    def go_on(index: int, answer: list[Value] | None) -> None:
        """Advance a search until it waits for a point that is not known, or ends."""
        it = running[index]
        while True:
            try:
                it.asked = next(it.search) if answer is None else it.search.send(answer)
            except StopIteration as end:
                results[index] = end.value
                return
            it.there = {}
            for point in it.asked:
                value = known(point)
                if value is not None:
                    it.there[point] = value
                    simulated()
                    continue
                if point not in waiting:
                    queue.append(point)
                waiting.setdefault(point, []).append(index)
            if len(it.there) < len(it.asked):
                return
            answer = [it.there[point] for point in it.asked]

    for index in range(len(running)):
        go_on(index, None)
    while queue:
        for done in crew.run(queue):
            value = finished(done)
            simulated()
            for index in waiting.pop(done.job):
                it = running[index]
                it.there[done.job] = value
                if len(it.there) == len(it.asked):
                    go_on(index, [it.there[p] for p in it.asked])
    return [results[index] for index in range(len(running))]
