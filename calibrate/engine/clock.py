"""Time for an engine: the machine's own, or one that a cost model moves. Seconds from the start of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from specsim.latency import StepCost, StepWork

__all__ = ["Clock", "ProcessorClock", "RealClock", "SampledClock", "VirtualClock"]

_SPIN_S = 0.002
"""The end of a wait is not slept through, since sleeping ends late by a good part of a small step."""

_SAMPLE_EVERY_S = 1.0
"""Often enough to follow a shared machine, whose pace changes within seconds; a sample is one pass of a few tokens."""


class Clock(Protocol):
    """What an engine asks of time. It never goes back."""

    def now(self) -> float:
        """Seconds since the run began."""
        ...

    def wait_until(self, time_s: float) -> None:
        """Nothing to do before `time_s`."""
        ...

    def carried_out(self, work: StepWork) -> None:
        """A step of this work has just been computed."""
        ...


class RealClock:
    """The monotonic clock of the machine; starts when it is first asked."""

    def __init__(self) -> None:
        self._start: float | None = None

    def now(self) -> float:
        if self._start is None:
            self._start = time.perf_counter()
        return time.perf_counter() - self._start

    def wait_until(self, time_s: float) -> None:
        time.sleep(max(0.0, time_s - self.now() - _SPIN_S))
        while self.now() < time_s:
            pass

    def carried_out(self, work: StepWork) -> None:
        """Time has passed by itself."""


class ProcessorClock:
    """Processor time of this process: what other programs take of the cores does not count, and waits take none.

    True where one thread computes and nothing else does.
    """

    def __init__(self) -> None:
        self._start: float | None = None
        self._skipped = 0.0

    def now(self) -> float:
        if self._start is None:
            self._start = time.process_time()
        return time.process_time() - self._start + self._skipped

    def wait_until(self, time_s: float) -> None:
        self._skipped += max(0.0, time_s - self.now())

    def carried_out(self, work: StepWork) -> None:
        """Time has passed by itself."""


class SampledClock:
    """Another clock that stands still while a piece of work is timed, after the first step and then now and then, so
    that it is known how fast the machine was during the run."""

    def __init__(self, clock: Clock, sample: Callable[[], float], every_s: float = _SAMPLE_EVERY_S) -> None:
        """`sample` does the work and returns its seconds."""
        self._clock, self._sample, self._every_s = clock, sample, every_s
        self._away_s = 0.0
        self._next_s = 0.0
        self.samples_s: list[float] = []

    def now(self) -> float:
        return self._clock.now() - self._away_s

    def wait_until(self, time_s: float) -> None:
        self._clock.wait_until(time_s + self._away_s)

    def carried_out(self, work: StepWork) -> None:
        self._clock.carried_out(work)
        now_s = self.now()
        if now_s < self._next_s:
            return
        self.samples_s.append(self._sample())
        self._away_s += self.now() - now_s
        self._next_s = now_s + self._every_s


class VirtualClock:
    """Stands still but for waiting, and for steps, which take what a cost model says."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wait_until(self, time_s: float) -> None:
        self._now = max(self._now, time_s)

    def carried_out(self, work: StepWork) -> None:
        self._now += self._cost.step_s(work)
