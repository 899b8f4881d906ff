"""The file of a timeline: what the reader of the tests refuses, and that drawing keeps nothing of what is over."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from builders import FixedLuck, make_cost, make_limits, make_trace
from trace_events import read_timeline

from specsim.config import PolicySpec
from specsim.engine.replica import StepView
from specsim.engine.simulator import simulate
from specsim.explain.breakdown import BreakdownObserver
from specsim.explain.timeline import Timeline
from specsim.latency import StepWork
from specsim.workload import Workload


class Weighed(Timeline):
    """Notes how much is held at once."""

    held = 0

    def step_began(self, replica: int, now_s: float, seconds: float, view: StepView) -> None:
        self.held = max(self.held, len(self._pending) + len(self._in_flight))
        super().step_began(replica, now_s, seconds, view)


def drawn(requests: int) -> tuple[Weighed, str]:
    out = io.StringIO()
    trace = make_trace(arrival_s=[0.05 * i for i in range(requests)], prompt_tokens=20, output_tokens=15)
    cost = make_cost()
    timeline = Weighed(out, cost, prompt_tokens=trace.prompt_tokens, output_tokens=trace.output_tokens, max_bytes=10**9)
    result = simulate(
        Workload(trace, FixedLuck(), seed=0),
        cost,
        limits=make_limits(),
        policy=PolicySpec("static", 2),
        observers=[timeline],
    )
    timeline.close(result.end_s)
    return timeline, out.getvalue()


def test_what_is_held_does_not_grow_with_the_run() -> None:
    short, long = drawn(60)[0], drawn(600)[0]
    assert long.steps > 8 * short.steps
    assert long.held <= 1.2 * short.held + 5


def test_slots_are_used_again() -> None:
    _, text = drawn(300)
    drawing = read_timeline(text)
    threads = {spans.tid for spans in drawing.requests.values()}
    assert len(threads) < 15
    assert {drawing.names[1, thread] for thread in threads} == {f"requests {n + 1:03d}" for n in range(len(threads))}


def broken(events: list[dict[str, Any]], how: str) -> list[dict[str, Any]]:
    first = {kind: next(i for i, e in enumerate(events) if e["ph"] == kind) for kind in "BEXC"}
    if how == "order":
        events[first["X"]]["ts"] += 1e9
    elif how == "left open":
        del events[max(i for i, e in enumerate(events) if e["ph"] == "E")]
    elif how == "overlap":
        events[first["X"]]["dur"] += 1e6
    elif how == "nameless":
        return [e for e in events if e["ph"] != "M"]
    elif how == "twice":
        events.insert(first["X"], events[0])
    elif how == "no begin":
        del events[first["B"]]
    return events


@pytest.mark.parametrize("how", ["order", "left open", "overlap", "nameless", "twice", "no begin"])
def test_the_reader_of_these_tests_refuses_a_broken_file(how: str) -> None:
    data = json.loads(drawn(20)[1])
    read_timeline(json.dumps(data))
    data["traceEvents"] = broken(data["traceEvents"], how)
    with pytest.raises((AssertionError, IndexError)):
        read_timeline(json.dumps(data))


def test_a_request_that_another_replica_takes_over_stays_one_row() -> None:
    """As where one replica reads prompts and another decodes."""
    out = io.StringIO()
    cost = make_cost()
    trace = make_trace(arrival_s=[0.0], prompt_tokens=20, output_tokens=15)
    timeline = Timeline(
        out, cost, prompt_tokens=trace.prompt_tokens, output_tokens=trace.output_tokens, max_bytes=10**9
    )
    timeline.submitted(0, 0, 0.0, True)
    timeline.scheduled(0, 0.1)
    timeline.first_token(0, 0.2)
    timeline.submitted(0, 1, 0.2, True)
    timeline.finished(0, 0.9)
    timeline.close(1.0)
    spans = read_timeline(out.getvalue()).requests[0]
    assert [name for name, _, _ in spans.phases] == ["queued", "prefill", "decode"]
    assert [name for name, _ in spans.marks] == ["first token", "to replica 1"]


def test_what_another_replica_takes_over_stalls_there_and_not_here() -> None:
    observer = BreakdownObserver(make_cost())
    view = StepView(StepWork(decode_requests=1, kv_tokens=20), running=1, waiting=0, used_blocks=1, rounds=1,
                    draft_tokens=0)  # fmt: skip
    for request in (0, 1):
        observer.submitted(request, 0, 0.0, True)
        observer.first_token(request, 0.1)
    observer.submitted(0, 1, 0.1, True)
    for replica in (0, 1):
        observer.step_began(replica, 0.1, 0.5, view)
        observer.step_ended(replica, 0.6, True, view)
    assert observer.breakdown.request_stalled_s == 0
    observer.submitted(1, 1, 0.6, True)
    observer.step_began(1, 0.6, 0.5, view)
    observer.step_ended(1, 1.1, True, view)
    assert observer.breakdown.request_stalled_s == pytest.approx(0.5)
