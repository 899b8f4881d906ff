"""Looking on while a run goes: steps, and what becomes of each request, told to observers as it happens.

Models nothing: an observed run is the same run. Replicas know nothing of observers; the moments of a request are taken
from the columns that replicas write anyway, so they hold for every discipline. Without observers nothing here is used.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specsim.engine.recorder import Recorder
from specsim.engine.replica import Replica, StepView
from specsim.records import RequestColumns

__all__ = ["Observer", "Onlookers"]


class Observer:
    """What a run tells; a subclass overrides what it wants to know. Times are in seconds and never go back, but for
    arrivals: one that came during a step is told when the step has ended."""

    def submitted(self, request: int, replica: int, arrival_s: float, accepted: bool) -> None:
        """A request was routed to a replica, which queued or refused it."""

    def scheduled(self, request: int, now_s: float) -> None:
        """Its first step begins."""

    def preempted(self, request: int, now_s: float) -> None:
        """It lost its blocks and waits again."""

    def computed(self, request: int, now_s: float) -> None:
        """Its prompt is done, on a prefill replica. It is then submitted to a decode replica as well."""

    def transfer_began(self, request: int, now_s: float) -> None:
        """Its cache begins to be sent."""

    def transferred(self, request: int, now_s: float) -> None:
        """Its cache is on its decode replica."""

    def first_token(self, request: int, now_s: float) -> None:
        """Its first token is out."""

    def finished(self, request: int, now_s: float) -> None:
        """Its last token is out."""

    def step_began(self, replica: int, now_s: float, seconds: float, view: StepView) -> None:
        """A step begins that will take `seconds`. `view.work` is used again for the next step: copy what is kept."""

    def step_ended(self, replica: int, now_s: float, measured: bool, view: StepView) -> None:
        """The step that began is over; `measured`: it counts in the totals. `view` is that of after the step."""


class Onlookers:
    """The observers of a run: they are told by its columns and by its replicas, both made such as tell."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers
        self._clock = [0.0]

    def tell_of_rows(self, rows: RequestColumns) -> None:
        """Change the columns of a run, of which nothing has been written yet."""
        for name in ("first_scheduled_s", "first_token_s", "finish_s"):
            setattr(rows, name, self.column(getattr(rows, name), _MOMENTS[name]))
        counts = rows.preemptions.view(_TellingCounts)
        counts.clock, counts.told = self._clock, [observer.preempted for observer in self.observers]
        rows.preemptions = counts

    def column(self, times: Any, moment: str) -> Any:
        """A column of times, for which observers have the method `moment`."""
        return _TellingTimes(times, [getattr(observer, moment) for observer in self.observers])

    def replicas(
        self, fleet: Sequence[Any], recorder: Recorder, *, first: int = 0, handed_on: bool = False
    ) -> list[Any]:
        """The same replicas, numbered from `first` on; `handed_on`: requests come to them from another pool."""
        return [
            _Observed(first + index, replica, recorder, self.observers, self._clock, handed_on)
            for index, replica in enumerate(fleet)
        ]


_MOMENTS = {"first_scheduled_s": "scheduled", "first_token_s": "first_token", "finish_s": "finished"}


class _TellingTimes(array):  # type: ignore[type-arg]
    """A column of times that tells of every one written."""

    told: Sequence[Callable[[int, float], None]]

    def __new__(cls, times: array[float], told: Sequence[Callable[[int, float], None]]) -> _TellingTimes:
        column: _TellingTimes = super().__new__(cls, "d", times)  # type: ignore[assignment]
        column.told = told
        return column

    def __setitem__(self, request: Any, time_s: Any) -> None:
        super().__setitem__(request, time_s)
        for tell in self.told:
            tell(request, time_s)


class _TellingCounts(np.ndarray):
    """A column of counts that tells of every increment; the time is that of the step in which it happens."""

    clock: list[float]
    told: Sequence[Callable[[int, float], None]]

    def __setitem__(self, request: Any, count: Any) -> None:
        super().__setitem__(request, count)
        for tell in self.told:
            tell(request, self.clock[0])


class _Observed:
    """A replica whose calls are told. See `specsim.engine.replica.Replica`; whatever else it has is passed on."""

    def __init__(
        self,
        index: int,
        replica: Replica,
        recorder: Recorder,
        observers: Sequence[Observer],
        clock: list[float],
        handed_on: bool,
    ) -> None:
        self._index = index
        self._replica = replica
        self._recorder = recorder
        self._observers = observers
        self._clock = clock
        self._handed_on = handed_on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)

    @property
    def outstanding_tokens(self) -> int:
        return self._replica.outstanding_tokens

    def view(self) -> StepView:
        return self._replica.view()

    def submit(self, request: int, now_s: float) -> bool:
        accepted = self._replica.submit(request, now_s)
        arrival_s = now_s if self._handed_on else float(self._recorder.rows.arrival_s[request])
        for observer in self._observers:
            observer.submitted(request, self._index, arrival_s, accepted)
        return accepted

    def begin_step(self, now_s: float, until_s: float = 0.0) -> float | None:
        self._clock[0] = now_s
        seconds = self._replica.begin_step(now_s)
        if seconds is not None:
            view = self._replica.view()
            for observer in self._observers:
                observer.step_began(self._index, now_s, seconds, view)
        return seconds

    def end_step(self, now_s: float) -> Sequence[int]:
        self._clock[0] = now_s
        measured = self._recorder.measures(now_s)
        finished = self._replica.end_step(now_s)
        view = self._replica.view()
        for observer in self._observers:
            observer.step_ended(self._index, now_s, measured, view)
        return finished
