"""When the next request comes, and handing it on: open loop by arrival times, closed loop by completions."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

import numpy as np
import simpy

from specsim.engine.choosers import Chooser
from specsim.engine.recorder import Recorder
from specsim.engine.replica import Replica

__all__ = ["ClosedLoop", "OpenLoop"]


class _Router:
    """Hands requests to replicas and wakes the idle ones. `chooser` None: there is one replica only."""

    def __init__(
        self, env: simpy.Environment, replicas: Sequence[Replica], chooser: Chooser | None, recorder: Recorder
    ) -> None:
        self.env = env
        self.replicas = replicas
        self.recorder = recorder
        self._chooser = chooser
        self._tells = chooser is not None and chooser.watches
        if chooser is None:
            recorder.rows.replica[:] = 0
        self._wake: list[simpy.Event | None] = [None] * len(replicas)
        self.next_s = 0.0
        """From when on `deliver` has something to do."""

    def dispatch(self, request: int, now_s: float) -> bool:
        """Route one request; False when it was refused."""
        if self._chooser is None:
            if self.replicas[0].submit(request, now_s):
                return True
            self.recorder.rows.rejected[request] = True
            return False
        index = self._chooser.choose(request)
        rows = self.recorder.rows
        rows.replica[request] = index
        if not self.replicas[index].submit(request, now_s):
            rows.rejected[request] = True
            self._chooser.finished(request)
            return False
        self.wake(index)
        return True

    def sleep(self, index: int) -> simpy.Event:
        """An event that fires when replica `index` has something to do."""
        self._wake[index] = event = self.env.event()
        return event

    def wake(self, index: int) -> None:
        """Replica `index` may have something to do."""
        event = self._wake[index]
        if event is not None:
            self._wake[index] = None
            event.succeed()


class OpenLoop(_Router):
    """Requests come at their arrival times, whatever the state of the fleet."""

    def __init__(
        self,
        env: simpy.Environment,
        replicas: Sequence[Replica],
        chooser: Chooser | None,
        recorder: Recorder,
        arrival_s: np.ndarray,
    ) -> None:
        super().__init__(env, replicas, chooser, recorder)
        self._arrival_s: list[float] = [*arrival_s.tolist(), math.inf]
        self._next = 0
        self.next_s = self._arrival_s[0]
        if chooser is not None:
            env.process(self._arrivals())

    def deliver(self, now_s: float) -> None:
        """Dispatch everything that has arrived by now."""
        arrivals, request = self._arrival_s, self._next
        while arrivals[request] <= now_s:
            self.dispatch(request, now_s)
            request += 1
        self._next, self.next_s = request, arrivals[request]

    def idle(self, index: int) -> simpy.Event | None:
        """What an idle replica waits for; None when nothing will come."""
        if self._chooser is not None:
            return self.sleep(index)
        if self.next_s == math.inf:
            return None
        return self.env.timeout(self.next_s - self.env.now)

    def finished(self, request: int, now_s: float) -> None:
        """Nothing follows from a completion, but for routers that count them."""
        if self._tells and self._chooser is not None:
            self._chooser.finished(request)

    def _arrivals(self) -> Generator[simpy.Event, None, None]:
        while self.next_s < math.inf:
            yield self.env.timeout(max(0.0, self.next_s - self.env.now))
            self.deliver(self.env.now)


class ClosedLoop(_Router):
    """A fixed number of requests is in flight: each completion brings the next; measured from warm-up to the end."""

    def __init__(
        self,
        env: simpy.Environment,
        replicas: Sequence[Replica],
        chooser: Chooser | None,
        recorder: Recorder,
        concurrency: int,
        warmup_requests: int,
    ) -> None:
        super().__init__(env, replicas, chooser, recorder)
        self._concurrency = concurrency
        self._warmup_requests = warmup_requests
        self._in_flight = 0
        self._next = 0
        self._completed = 0
        self._was_full = False
        recorder.measure_from_s = 0.0 if warmup_requests == 0 else float("inf")

    def deliver(self, now_s: float) -> None:
        """Top up to the wanted concurrency; the measured window ends when requests run out.

        With too few requests to reach it at all the whole run is measured.
        """
        rows = self.recorder.rows
        while self._in_flight < self._concurrency and self._next < len(rows.arrival_s):
            request = self._next
            self._next += 1
            rows.arrival_s[request] = now_s
            if self.dispatch(request, now_s):
                self._in_flight += 1
        short = self._in_flight < self._concurrency and self._next == len(rows.arrival_s)
        if short and self._was_full and self.recorder.measure_until_s == float("inf"):
            self.recorder.measure_until_s = now_s
        self._was_full = self._was_full or not short
        self.next_s = math.inf

    def idle(self, index: int) -> simpy.Event | None:
        """What an idle replica waits for; None when nothing will come."""
        return self.sleep(index) if self._chooser is not None else None

    def finished(self, request: int, now_s: float) -> None:
        """A place is free."""
        if self._tells and self._chooser is not None:
            self._chooser.finished(request)
        self._in_flight -= 1
        self.next_s = 0.0
        self._completed += 1
        if self._completed == self._warmup_requests:
            self.recorder.measure_from_s = now_s
