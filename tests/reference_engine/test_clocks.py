"""Clocks of the reference engine."""

from __future__ import annotations

from calibrate.engine.clock import SampledClock
from specsim.latency import StepWork


class _Wall:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.waited_for: list[float] = []

    def now(self) -> float:
        return self.time_s

    def wait_until(self, time_s: float) -> None:
        self.waited_for.append(time_s)
        self.time_s = max(self.time_s, time_s)

    def carried_out(self, work: StepWork) -> None:
        """The test moves time."""


def test_time_stands_still_while_the_reference_is_timed() -> None:
    wall, samples = _Wall(), iter([0.25, 0.5, 0.125])

    def sample() -> float:
        taken = next(samples)
        wall.time_s += taken
        return taken

    clock = SampledClock(wall, sample, every_s=1.0)
    moments = []
    for _ in range(5):
        wall.time_s += 0.5
        clock.carried_out(StepWork())
        moments.append(clock.now())
    assert moments == [0.5, 1.0, 1.5, 2.0, 2.5], "steps of half a second, whatever came between them"
    assert clock.samples_s == [0.25, 0.5, 0.125], "after the first step, then every second"


def test_waits_end_when_the_run_says() -> None:
    wall = _Wall()

    def sample() -> float:
        wall.time_s += 3.0
        return 3.0

    clock = SampledClock(wall, sample)
    clock.carried_out(StepWork())
    clock.wait_until(2.0)
    assert (clock.now(), wall.waited_for) == (2.0, [5.0])
