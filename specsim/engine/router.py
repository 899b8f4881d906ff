"""When the next request comes, and handing it on: open loop by arrival times, closed loop by completions.

There is no clock here: whoever runs the engines calls `deliver` with the time. With prefill and decode replicas this is
the router of the prefill replicas; `specsim.engine.handover` takes a request further, and its last token completes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from specsim.engine.choosers import Chooser
from specsim.engine.recorder import Recorder

__all__ = ["ClosedLoop", "OpenLoop", "Receiver", "Source"]


class Receiver(Protocol):
    """What a source needs of a replica."""

    def submit(self, request: int, now_s: float) -> bool:
        """Queue a request; False when it can never fit, which refuses it."""
        ...


class _Router:
    """Hands requests to replicas. `chooser` None: there is one replica only."""

    def __init__(
        self,
        replicas: Sequence[Receiver],
        chooser: Chooser | None,
        recorder: Recorder,
        wake: Callable[[int], None] | None = None,
    ) -> None:
        """`wake` is told of a replica that may have something to do, where there are several."""
        self.replicas = replicas
        self.recorder = recorder
        self._chooser = chooser
        self._wake = wake
        self._tells = chooser is not None and chooser.watches
        if chooser is None:
            recorder.rows.replica[:] = 0
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
        if self._wake is not None:
            self._wake(index)
        return True

    def returned(self, request: int) -> None:
        """The replica that it was sent to is done with it."""
        if self._tells and self._chooser is not None:
            self._chooser.finished(request)


class OpenLoop(_Router):
    """Requests come at their arrival times, whatever the state of the fleet."""

    def __init__(
        self,
        replicas: Sequence[Receiver],
        chooser: Chooser | None,
        recorder: Recorder,
        arrival_s: np.ndarray,
        wake: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(replicas, chooser, recorder, wake)
        self.arrival_s = np.append(np.asarray(arrival_s, dtype=np.float64), math.inf)
        """When requests come, and at last that no more do."""
        self.next_request = 0
        self.next_s = self.arrival_s.item(0)

    def deliver(self, now_s: float) -> None:
        """Dispatch everything that has arrived by now."""
        arrival_s, request = self.arrival_s.item, self.next_request
        while arrival_s(request) <= now_s:
            self.dispatch(request, now_s)
            request += 1
        self.passed(request, 0)

    def passed(self, next_request: int, completed: int) -> None:
        """All requests before this one have been delivered, by whoever followed the source, and so many completed."""
        self.next_request, self.next_s = next_request, self.arrival_s.item(next_request)

    def finished(self, request: int, now_s: float) -> None:
        """Nothing follows from a completion, but for routers that count them."""
        self.returned(request)

    def completed(self, now_s: float) -> None:
        """A request has its last token; nothing follows from it."""


class ClosedLoop(_Router):
    """A fixed number of requests is in flight: each completion brings the next; measured from warm-up to the end."""

    def __init__(
        self,
        replicas: Sequence[Receiver],
        chooser: Chooser | None,
        recorder: Recorder,
        concurrency: int,
        warmup_requests: int,
        wake: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(replicas, chooser, recorder, wake)
        self._concurrency = concurrency
        self._warmup_requests = warmup_requests
        self.arrival_s = np.full(len(recorder.rows.arrival_s) + 1, math.inf)
        """Where who follows the source notes when requests were sent."""
        self.next_request = 0
        self._in_flight = 0
        self._completed = 0
        self._was_full = False
        recorder.measure_from_s = 0.0 if warmup_requests == 0 else float("inf")

    def deliver(self, now_s: float) -> None:
        """Top up to the wanted concurrency; the measured window ends when requests run out.

        With too few requests to reach it at all the whole run is measured.
        """
        rows = self.recorder.rows
        while self._in_flight < self._concurrency and self.next_request < len(rows.arrival_s):
            request = self.next_request
            self.next_request += 1
            rows.arrival_s[request] = now_s
            if self.dispatch(request, now_s):
                self._in_flight += 1
        short = self._in_flight < self._concurrency and self.next_request == len(rows.arrival_s)
        if short and self._was_full and self.recorder.measure_until_s == float("inf"):
            self.recorder.measure_until_s = now_s
        self._was_full = self._was_full or not short
        self.next_s = math.inf

    @property
    def before_measured(self) -> int:
        """Completions from which on statistics count; 0: they do."""
        return max(0, self._warmup_requests - self._completed)

    @property
    def was_full(self) -> bool:
        """Whether the wanted concurrency has been reached."""
        return self._was_full

    def passed(self, next_request: int, completed: int) -> None:
        """All requests before this one have been sent, by whoever followed the source, and so many completed."""
        first, rows = self.next_request, self.recorder.rows
        rows.arrival_s[first:next_request] = self.arrival_s[first:next_request]
        self._in_flight += next_request - first - int(rows.rejected[first:next_request].sum()) - completed
        self._completed += completed
        self.next_request = next_request

    def finished(self, request: int, now_s: float) -> None:
        """A request is complete on the replica that it was sent to."""
        self.returned(request)
        self.completed(now_s)

    def completed(self, now_s: float) -> None:
        """A request has its last token: a place is free."""
        self._in_flight -= 1
        self.next_s = 0.0
        self._completed += 1
        if self._completed == self._warmup_requests:
            self.recorder.measure_from_s = now_s


Source = OpenLoop | ClosedLoop
