"""One progress bar for every command that simulates many points, on standard error when it is a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ProgressBar", "time_left"]


def time_left(done: int, reused: int, total: int, elapsed_s: float) -> float | None:
    """Seconds for the rest, if it goes on as it went; None while nothing was simulated.

    Reused points took no time and say nothing of the rest.
    """
    simulated = done - reused
    if simulated <= 0 or elapsed_s <= 0:
        return None
    return max(0, total - done) * elapsed_s / simulated


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ProgressBar:
    """A bar over `total` things; where standard error is no terminal, one line when the work starts.

    In the end a line says how many were reused.

    Args:
        doing: what is done, such as `simulating`.
        things: of what, such as `points`.
        said: where, such as `2 processes`.
        timed: whether a time left is shown, and the line waits for the first that is not reused: not where a search
            decides how much there is.
    """

    def __init__(self, total: int, *, doing: str, things: str, said: str, timed: bool = True) -> None:
        self._total, self._doing, self._things, self._said, self._timed = total, doing, things, said, timed
        self.done = self._reused = 0
        self._bar: Any = None
        self._task: Any = None
        self._started_s = 0.0
        self._announced = False

    def __enter__(self) -> ProgressBar:
        self._started_s = time.monotonic()
        if not sys.stderr.isatty():
            if not self._timed:
                self._announce()
            return self
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn(self._doing),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(f"{self._things} on {self._said}"),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=self._total, left="")
        return self

    def advance(self, count: int = 1, reused: bool = False) -> None:
        """So many more are finished; more than were announced make the bar longer. None: the first begins."""
        if self._bar is None and not reused:
            self._announce()
        self.done += count
        self._reused += count if reused else 0
        if self._bar is None:
            return
        now = time.monotonic() - self._started_s
        left = time_left(self.done, self._reused, self._total, now) if self._timed else None
        shown = f"{_clock(now)} so far" if not self._timed else "" if left is None else f"about {_clock(left)} left"
        self._bar.update(self._task, total=max(self._total, self.done), completed=self.done, left=shown)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._reused and kind is None:
            click.echo(f"{self._reused:,} of {self._total:,} {self._things} were stored already", err=True)

    def _announce(self) -> None:
        if not self._announced:
            self._announced = True
            count = self._total - self._reused
            things = self._things if count != 1 else self._things.removesuffix("s")
            click.echo(f"{self._doing} {count:,} {things} on {self._said}", err=True)
