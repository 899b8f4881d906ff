"""A run drawn over time, as a Chrome trace that Perfetto opens: steps, counters and requests of every replica.

Models nothing: it writes down what an observer is told. One process a replica; in it a thread of engine steps,
counters, and one thread a slot, in which requests follow one another without overlap. Times in microseconds, as the
format has them; events in order of time. Written while the run goes, so that memory does not grow with it, and ended
early at a limit of bytes.
Leaves out: single tokens of a request, and waiting again after a preemption (it is marked, not drawn as a span).
"""

from __future__ import annotations

import heapq
import json
import math
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np

from specsim.engine.observe import Observer
from specsim.engine.replica import StepView
from specsim.latency import StepCost

__all__ = ["Timeline"]

_FIRST_SLOT = 10_000
"""Thread of the first slot. Perfetto takes thread numbers for unique, and shows the thread first that has the number of
its process: the steps."""
_QUEUED, _PREFILL, _DECODE, _HANDOVER, _TRANSFER, _JOINING = range(6)
_PHASES = ("queued", "prefill", "decode", "handover", "transfer", "joining")
"""The last three only where prefill and decode replicas are apart: a prompt waits for room and the link, its cache is
sent, it waits for its first token there."""


@dataclass(slots=True)
class _InFlight:
    """A request between arrival and finish."""

    replica: int
    phase: int
    began_s: float
    arrival_s: float
    slot: int | None = None
    """Its place among those of the replica; None while it is not drawn."""
    thread: int = 0


@dataclass(slots=True)
class _Slots:
    """Threads of one replica's requests: the lowest free one is taken."""

    free: list[int] = field(default_factory=list)
    freed: list[tuple[float, int]] = field(default_factory=list)
    """Slots that are free from a time on, in order of time."""
    threads: list[int] = field(default_factory=list)
    """Thread of each slot."""

    def take(self, now_s: float) -> int:
        """A slot; one that has no thread yet has the number 0."""
        while self.freed and self.freed[0][0] <= now_s:
            heapq.heappush(self.free, heapq.heappop(self.freed)[1])
        if self.free:
            return heapq.heappop(self.free)
        self.threads.append(0)
        return len(self.threads) - 1

    def give(self, slot: int, now_s: float) -> None:
        heapq.heappush(self.freed, (now_s, slot))


class Timeline(Observer):
    """Hand one to `simulate`, then call `close`.

    Args:
        out: where to write; opened and closed by the caller.
        cost: what the run's steps are priced by, for their seconds by cause.
        prompt_tokens, output_tokens: of each request, for its label.
        start_s, end_s: simulated time to draw; requests under way at its start are drawn from there.
        max_bytes: the drawing ends when it has grown to this.
        prefill_replicas: how many of the replicas, the first, only compute prompts; what they hand on stays their row.
    """

    def __init__(
        self,
        out: TextIO,
        cost: StepCost,
        *,
        prompt_tokens: np.ndarray,
        output_tokens: np.ndarray,
        start_s: float = 0.0,
        end_s: float = math.inf,
        max_bytes: int,
        prefill_replicas: int = 0,
    ) -> None:
        self._out = out
        self._cost = cost
        self._prompt, self._output = prompt_tokens, output_tokens
        self._start_s, self._end_s = start_s, end_s
        self._max_bytes = max_bytes
        self._prefill_replicas = prefill_replicas
        self._in_flight: dict[int, _InFlight] = {}
        self._slots: dict[int, _Slots] = {}
        self._next_thread = _FIRST_SLOT
        self._pending: list[tuple[float, str]] = []
        """Events that an arrival, told late, may still come before."""
        self._pending_bytes = 0
        self._counters: dict[tuple[int, str], dict[str, int]] = {}
        self._entered = False
        self._over = False
        self.bytes = self.steps = self.requests = 0
        """Written so far."""
        self.run_end_s = math.inf
        self.until_s = start_s
        """End of what is drawn."""
        self.full = False
        """Whether the drawing ended at `max_bytes`."""
        self._write('{"displayTimeUnit":"ms","traceEvents":[\n')
        self._separator = ""

    def submitted(self, request: int, replica: int, arrival_s: float, accepted: bool) -> None:
        if self._over:
            return
        known = self._in_flight.get(request)
        if known is not None:  # handed on from another replica
            self._mark(known, arrival_s, f"to {self._title(replica)}")
            return
        self._enter(arrival_s)
        if not accepted:
            if self._draws(arrival_s):
                args = {"request": request, **self._lengths(request)}
                self._replica(replica)
                self._event(arrival_s, "i", replica, replica + 1, "refused", {"s": "t", "args": args})
            return
        item = self._in_flight[request] = _InFlight(replica, _QUEUED, arrival_s, arrival_s)
        if self._entered and arrival_s < self._end_s:
            self._open(request, item)

    def scheduled(self, request: int, now_s: float) -> None:
        self._move(request, _PREFILL, now_s)

    def computed(self, request: int, now_s: float) -> None:
        self._move(request, _HANDOVER, now_s)

    def transfer_began(self, request: int, now_s: float) -> None:
        self._move(request, _TRANSFER, now_s)

    def transferred(self, request: int, now_s: float) -> None:
        self._move(request, _JOINING, now_s)

    def first_token(self, request: int, now_s: float) -> None:
        self._move(request, _DECODE, now_s)
        item = self._in_flight.get(request)
        if item is not None:
            self._mark(item, now_s, "first token")

    def preempted(self, request: int, now_s: float) -> None:
        item = self._in_flight.get(request)
        if item is not None:
            self._mark(item, now_s, "preempted")

    def finished(self, request: int, now_s: float) -> None:
        self._enter(now_s)
        item = self._in_flight.get(request)
        if item is None or now_s >= self._end_s:
            return
        del self._in_flight[request]
        if item.slot is not None:
            self._end(item, now_s)
            self._end(item, now_s)
            self._slots[item.replica].give(item.slot, now_s)

    def step_began(self, replica: int, now_s: float, seconds: float, view: StepView) -> None:
        if self._over:
            return
        self._enter(now_s)
        self._flush(now_s)
        if self.bytes + self._pending_bytes >= self._max_bytes:
            self.full = True
            self._stop(now_s)
        elif now_s >= self._end_s:
            self._stop(self._end_s)
        elif self._entered:
            self._step(replica, now_s, seconds, view)

    def step_ended(self, replica: int, now_s: float, measured: bool, view: StepView) -> None:
        if view.running == 0 and self._draws(now_s):
            self._count(replica, now_s, view, next_k=0)

    def close(self, run_end_s: float) -> None:
        """Write the end of the file; `run_end_s` is the simulated time of the last event."""
        self.run_end_s = run_end_s
        if not self._over:
            self._stop(min(self._end_s, max(run_end_s, self._start_s)))
        self._write("\n]}\n")

    def facts(self) -> dict[str, Any]:
        """What is drawn and what is left out, after `close`."""
        size = f"{self.bytes / 1e6:.1f} MB, {self.steps:,} steps, {self.requests:,} requests"
        whole = self._start_s <= 0 and self.until_s >= self.run_end_s
        drawn = f"{self._start_s:.6g} to {self.until_s:.6g} s of {self.run_end_s:.6g} s simulated"
        text = f"{size}, {'the whole run' if whole else drawn}. Open it at ui.perfetto.dev or chrome://tracing."
        if self.full:
            text += (
                f" It ended at {self._max_bytes / 1e6:.6g} MB: --timeline-window START:END draws a later stretch, "
                f"--timeline-mb a longer one."
            )
        elif not self.steps:
            text += " No step lies in that window."
        return {"bytes": self.bytes, "steps": self.steps, "requests": self.requests, "from_s": self._start_s,
                "until_s": self.until_s, "run_end_s": self.run_end_s, "full": self.full, "text": text}  # fmt: skip

    def _draws(self, now_s: float) -> bool:
        return self._entered and not self._over and now_s < self._end_s

    def _enter(self, now_s: float) -> None:
        """Once time has come to the start: draw what is under way."""
        if not self._entered and now_s >= self._start_s:
            self._entered = True
            for request, item in self._in_flight.items():
                self._open(request, item)

    def _stop(self, now_s: float) -> None:
        self._enter(now_s)
        for item in self._in_flight.values():
            if item.slot is not None:
                self._end(item, now_s)
                self._end(item, now_s)
        self._in_flight.clear()
        self._flush(math.inf)
        self._over = True
        self.until_s = now_s

    def _open(self, request: int, item: _InFlight) -> None:
        at_s = max(item.arrival_s, self._start_s)
        slots = self._replica(item.replica)
        item.slot = slots.take(at_s)
        if not slots.threads[item.slot]:
            slots.threads[item.slot] = self._next_thread
            self._next_thread += 1
            self._name(item.replica, slots.threads[item.slot], f"requests {item.slot + 1:03d}")
        item.thread = slots.threads[item.slot]
        args = {"request": request, **self._lengths(request), "arrival_s": item.arrival_s}
        self._event(at_s, "B", item.replica, item.thread, f"request {request}", {"args": args})
        self._phase(item, max(item.began_s, self._start_s))
        self.requests += 1

    def _lengths(self, request: int) -> dict[str, int]:
        return {"prompt_tokens": int(self._prompt[request]), "output_tokens": int(self._output[request])}

    def _phase(self, item: _InFlight, at_s: float) -> None:
        assert item.slot is not None
        self._event(at_s, "B", item.replica, item.thread, _PHASES[item.phase])

    def _move(self, request: int, phase: int, now_s: float) -> None:
        self._enter(now_s)
        item = self._in_flight.get(request)
        if item is None or now_s >= self._end_s:
            return
        item.phase, item.began_s = phase, now_s
        if item.slot is not None:
            self._end(item, now_s)
            self._phase(item, now_s)

    def _end(self, item: _InFlight, now_s: float) -> None:
        assert item.slot is not None
        self._event(now_s, "E", item.replica, item.thread)

    def _mark(self, item: _InFlight, now_s: float, name: str) -> None:
        if item.slot is not None and self._draws(now_s):
            self._event(now_s, "i", item.replica, item.thread, name, {"s": "t"})

    def _step(self, replica: int, now_s: float, seconds: float, view: StepView) -> None:
        work = view.work
        k = work.next_num_spec_tokens
        args = {
            "decode_requests": work.decode_requests,
            "drafts_verified": self._cost.drafts_verified(work),
            "kv_tokens": work.kv_tokens,
            "prefill_tokens": work.prefill_tokens,
            "next_k": k,
            "us": {cause: round(part * 1e6, 1) for cause, part in self._cost.parts(work).items() if part},
        }
        kind = (
            "mixed" if work.prefill_tokens and work.decode_requests else "prefill" if work.prefill_tokens else "decode"
        )
        self._replica(replica)
        # The end is rounded, not the duration, so that a step never reaches into the next.
        length = round(_us(now_s + seconds) - _us(now_s), 3)
        self._event(now_s, "X", replica, replica + 1, f"{kind} k={k}" if work.machinery else kind,
                    {"dur": length, "args": args})  # fmt: skip
        self._count(replica, now_s, view, next_k=k)
        self.steps += 1

    def _count(self, replica: int, now_s: float, view: StepView, *, next_k: int) -> None:
        counters = {
            "requests": {"running": view.running, "waiting": view.waiting},
            "KV blocks": {"used": view.used_blocks},
            "drafts": {"k": next_k},
        }
        for name, values in counters.items():
            if self._counters.get((replica, name)) != values:
                self._counters[replica, name] = values
                self._event(now_s, "C", replica, None, name, {"args": values})

    def _replica(self, replica: int) -> _Slots:
        slots = self._slots.get(replica)
        if slots is None:
            slots = self._slots[replica] = _Slots()
            self._name(replica, None, self._title(replica))
            self._name(replica, replica + 1, "engine steps")
        return slots

    def _title(self, replica: int) -> str:
        first = self._prefill_replicas
        if not first:
            return f"replica {replica}"
        return f"prefill replica {replica}" if replica < first else f"decode replica {replica - first}"

    def _name(self, replica: int, thread: int | None, name: str) -> None:
        """Name a process or thread, and give it its place from top to bottom."""
        kind, order = ("process", replica) if thread is None else ("thread", thread)
        self._event(-math.inf, "M", replica, thread, f"{kind}_name", {"args": {"name": name}})
        self._event(-math.inf, "M", replica, thread, f"{kind}_sort_index", {"args": {"sort_index": order}})

    def _event(
        self,
        now_s: float,
        kind: str,
        replica: int,
        thread: int | None,
        name: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        event: dict[str, Any] = {"ph": kind, "pid": replica + 1}
        if thread is not None:
            event["tid"] = thread
        if now_s > -math.inf:
            event["ts"] = _us(now_s)
        if name is not None:
            event["name"] = name
        text = json.dumps(event | (more or {}), separators=(",", ":"), allow_nan=False)
        self._pending.append((now_s, text))
        self._pending_bytes += len(text) + 2

    def _flush(self, now_s: float) -> None:
        """Write the events up to now: whatever is told from here on is not earlier."""
        self._pending.sort(key=lambda item: item[0])  # stable, so that spans that meet stay in their order
        kept = [item for item in self._pending if item[0] > now_s]
        for _, text in self._pending[: len(self._pending) - len(kept)]:
            self._write(self._separator + text)
            self._separator = ",\n"
        self._pending = kept
        self._pending_bytes = sum(len(text) + 2 for _, text in kept)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self.bytes += len(text)


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
