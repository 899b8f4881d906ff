"""Reads a Chrome trace as a viewer would, and refuses one that is not valid: order, nesting, overlap, names."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Drawing", "RequestSpans", "read_timeline"]


@dataclass
class RequestSpans:
    """What is drawn of one request; times in microseconds."""

    pid: int
    tid: int
    args: dict[str, Any]
    begin: float
    end: float = float("nan")
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    marks: list[tuple[str, float]] = field(default_factory=list)


@dataclass
class Drawing:
    """Everything in a file."""

    steps: dict[int, list[dict[str, Any]]]
    """Process -> its steps in order; they are on the thread with the number of the process."""
    requests: dict[int, RequestSpans]
    counters: dict[tuple[int, str], list[tuple[float, float]]]
    refused: set[int]
    names: dict[tuple[int, int | None], str]
    last_ts: float


def read_timeline(text: str) -> Drawing:
    """Parse, and check all that holds for every valid file."""
    data = json.loads(text)
    assert set(data) == {"displayTimeUnit", "traceEvents"}
    steps: dict[int, list[dict[str, Any]]] = defaultdict(list)
    counters: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    stacks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    open_requests: dict[tuple[int, int], RequestSpans] = {}
    requests: dict[int, RequestSpans] = {}
    refused: set[int] = set()
    names: dict[tuple[int, int | None], str] = {}
    last = 0.0
    for event in data["traceEvents"]:
        kind, pid, tid = event["ph"], event["pid"], event.get("tid")
        if kind == "M":
            if event["name"].endswith("_name"):
                assert (pid, tid) not in names, "named twice"
                assert tid is None or tid not in {other for _, other in names}, "a thread of two processes"
                names[pid, tid] = event["args"]["name"]
            continue
        ts = event["ts"]
        assert ts >= last, f"{event} is out of order"
        last = ts
        assert (pid, None) in names and (tid is None or (pid, tid) in names), f"{event} is on a nameless track"
        place = (pid, tid)
        if kind == "X":
            assert event["dur"] >= 0 and tid == pid
            if steps[pid]:
                before = steps[pid][-1]
                assert before["ts"] + before["dur"] <= ts + 1e-3, f"{event} overlaps {before}"
            steps[pid].append(event)
        elif kind == "C":
            for key, value in event["args"].items():
                counters[pid, f"{event['name']} {key}"].append((ts, value))
        elif kind == "i":
            if event["name"] == "refused":
                refused.add(event["args"]["request"])
            else:
                assert stacks[place], f"{event} marks no request"
                open_requests[place].marks.append((event["name"], ts))
        elif kind == "B":
            stack = stacks[place]
            stack.append(event)
            assert len(stack) <= 2, f"{event} nests too deep"
            if len(stack) == 1:
                spans = open_requests[place] = RequestSpans(pid, tid, event.get("args", {}), ts)
                assert event["name"] == f"request {spans.args.get('request')}"
                assert event["args"]["request"] not in requests, "drawn twice"
                requests[event["args"]["request"]] = spans
        else:
            assert kind == "E", f"unknown kind {kind}"
            begun = stacks[place].pop()
            assert begun["ts"] <= ts
            if stacks[place]:
                open_requests[place].phases.append((begun["name"], begun["ts"], ts))
            else:
                open_requests.pop(place).end = ts
    assert not any(stacks.values()), "a span is left open"
    return Drawing(dict(steps), requests, dict(counters), refused, names, last)
