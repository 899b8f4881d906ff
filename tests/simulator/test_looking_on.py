"""Breakdown and timeline of random worlds, against the record of the same run."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from builders import FixedLuck, make_limits, make_profile, make_trace
from hypothesis import example, given, settings
from strategies import CROWDED, KINDS, World, run, worlds
from test_observers import assert_same
from trace_events import Drawing, read_timeline

from specsim.config import PolicySpec
from specsim.engine.simulator import simulate
from specsim.explain.breakdown import BreakdownObserver
from specsim.explain.timeline import Timeline
from specsim.latency import StepCost
from specsim.memory import tree_limits
from specsim.records import RunResult
from specsim.trees import cut, grown_tree
from specsim.workload import Workload


def drawn(world: World, plain: bool, **changes: float) -> tuple[RunResult, Drawing, Timeline]:
    out = io.StringIO()
    options = {"max_bytes": 10**9, **changes}
    timeline = Timeline(
        out,
        world.cost,
        prompt_tokens=world.trace.prompt_tokens,
        output_tokens=world.trace.output_tokens,
        **options,
    )
    result = run(world, plain=plain, observers=[timeline])
    timeline.close(result.end_s)
    assert timeline.bytes == len(out.getvalue())
    drawing = read_timeline(out.getvalue())
    assert timeline.steps == sum(map(len, drawing.steps.values()))
    assert timeline.requests == len(drawing.requests)
    return result, drawing, timeline


def us(seconds: float) -> float:
    return pytest.approx(seconds * 1e6, abs=2e-3)


@KINDS
@settings(max_examples=30, deadline=None)
@given(world=worlds())
@example(world=CROWDED)
def test_seconds_by_cause_are_those_of_the_steps_and_of_the_requests(plain: bool, world: World) -> None:
    observer = BreakdownObserver(world.cost)
    result = run(world, plain=plain, observers=[observer])
    assert_same(run(world, plain=plain), result)
    sums, totals, rows = observer.breakdown, result.totals, result.requests
    assert (sums.steps, sums.rounds) == (totals.steps, totals.rounds)
    if computes_for_nobody(world):
        assert sums.verified_tokens >= totals.rounds + totals.drafted_tokens
    else:
        assert sums.verified_tokens == totals.rounds + totals.drafted_tokens
    assert sums.busy_s == pytest.approx(totals.busy_s, rel=1e-9)
    assert math.fsum((*sums.decode_s.values(), *sums.prefill_s.values())) == pytest.approx(sums.busy_s, rel=1e-9)
    assert sums.request_stalled_s >= -1e-12
    # What requests live past their first token is spent in steps that serve them, or that leave them out.
    lived = float(np.nansum(rows.finish_s - rows.first_token_s))
    spent = math.fsum((*sums.request_decode_s.values(), sums.request_prefill_s, sums.request_stalled_s))
    if not math.isfinite(result.measure_from_s):
        return
    if world.concurrency is None:
        assert spent == pytest.approx(lived, rel=1e-9, abs=1e-12)
    else:
        assert spent <= lived * (1 + 1e-9) + 1e-12  # requests that drain at the end do not count


@KINDS
def test_steps_with_trees_add_up_and_count_their_nodes(plain: bool) -> None:
    trees = cut(grown_tree((0.7,), nodes=12, topk=3, depth=3)[0])
    cost = StepCost(make_profile(speculation_host_s=2e-4, mixed_s=1e-4), trees)
    workload = Workload(make_trace(arrival_s=[0.01 * i for i in range(30)], prompt_tokens=200, output_tokens=40),
                        FixedLuck(), seed=0)  # fmt: skip
    observer = BreakdownObserver(cost)
    result = simulate(
        workload,
        cost,
        limits=tree_limits(make_limits(), trees),
        policy=PolicySpec("static", 3),
        plain=plain,
        observers=[observer],
    )
    sums = observer.breakdown
    assert math.fsum((*sums.decode_s.values(), *sums.prefill_s.values())) == pytest.approx(sums.busy_s, rel=1e-9)
    assert sums.busy_s == pytest.approx(result.totals.busy_s, rel=1e-9)
    assert result.totals.drafted_tokens == 12 * result.totals.rounds
    assert sums.verified_tokens == (1 + 12) * result.totals.rounds


@KINDS
@settings(max_examples=30, deadline=None)
@given(world=worlds())
@example(world=CROWDED)
def test_a_timeline_is_the_record(plain: bool, world: World) -> None:
    result, drawing, timeline = drawn(world, plain)
    assert_same(run(world, plain=plain), result)
    rows = result.requests
    served = np.flatnonzero(~rows.rejected).tolist()
    assert set(drawing.requests) == set(served)
    assert drawing.refused == set(np.flatnonzero(rows.rejected).tolist())
    for i in served:
        spans = drawing.requests[i]
        moments = [rows.arrival_s[i], rows.first_scheduled_s[i], rows.first_token_s[i], rows.finish_s[i]]
        assert (spans.begin, spans.end) == (us(moments[0]), us(moments[3]))
        assert [name for name, _, _ in spans.phases] == ["queued", "prefill", "decode"]
        for (_, begin, end), first, last in zip(spans.phases, moments[:-1], moments[1:], strict=True):
            assert (begin, end) == (us(first), us(last))
        assert spans.pid == rows.replica[i] + 1
        assert spans.args["prompt_tokens"] == rows.prompt_tokens[i]
        marks = [name for name, _ in spans.marks]
        assert marks.count("first token") == 1
        assert marks.count("preempted") == rows.preemptions[i]
    everything = [step for steps in drawing.steps.values() for step in steps]
    if world.concurrency is None:  # in closed loop the last steps may not be measured
        assert sum(step["dur"] for step in everything) == pytest.approx(result.totals.busy_s * 1e6, abs=1e-2)
        assert sum(step["args"]["prefill_tokens"] for step in everything) == result.totals.prefill_tokens
        drafted = sum(step["args"]["drafts_verified"] for step in everything)
        if computes_for_nobody(world):
            assert drafted >= result.totals.drafted_tokens
        else:
            assert drafted == result.totals.drafted_tokens
    for step in everything:
        assert sum(step["args"]["us"].values()) == pytest.approx(step["dur"], abs=1.0)
    for (pid, name), values in drawing.counters.items():
        assert all(value >= 0 for _, value in values)
        if name.startswith("requests "):
            assert values[-1][1] == 0, f"{name} of process {pid} at the end"
    assert not timeline.full
    assert timeline.facts()["until_s"] == result.end_s


def computes_for_nobody(world: World) -> bool:
    """Whether steps have rows of finished requests, padding or placeholders."""
    rules = world.limits.discipline
    return rules.extra_step or rules.first_round_placeholders or rules.order == "batch"


@settings(max_examples=30, deadline=None)
@given(world=worlds())
@example(world=CROWDED)
def test_a_window_shows_the_same_spans_cut_at_its_ends(world: World) -> None:
    whole, everything, _ = drawn(world, plain=False)
    start_s, end_s = whole.end_s * 0.3141592653, whole.end_s * 0.6180339887  # meets no step exactly
    if not start_s < end_s:
        return
    _, part, timeline = drawn(world, plain=False, start_s=start_s, end_s=end_s)
    low, high = start_s * 1e6, end_s * 1e6
    for pid, steps in everything.steps.items():
        shown = [s for s in part.steps.get(pid, []) if s["ts"] < high - 1e-3]
        assert shown == [s for s in steps if low <= s["ts"] < high - 1e-3]
    for i, spans in everything.requests.items():
        if spans.end < low - 1e-3 or spans.begin > high + 1e-3:
            assert i not in part.requests
        elif spans.begin < high - 1e-3 and spans.end > low + 1e-3:
            cut = part.requests[i]
            assert cut.begin == pytest.approx(max(spans.begin, low), abs=2e-3)
            assert cut.end == pytest.approx(min(spans.end, high), abs=2e-3)
            phases = [p for p in spans.phases if p[1] < high - 1e-3 and p[2] > low + 1e-3]
            longer = [p for p in cut.phases if p[2] - p[1] > 2e-3]
            assert {name for name, _, _ in longer} <= {name for name, _, _ in phases}
    assert timeline.until_s == end_s


@pytest.mark.parametrize("most", [3000, 20_000])
def test_a_timeline_ends_at_its_limit_of_bytes(most: int) -> None:
    result, drawing, timeline = drawn(CROWDED, plain=False, max_bytes=most)
    assert timeline.full
    assert most <= timeline.bytes < most + 5000
    assert timeline.until_s < result.end_s
    assert all(spans.end <= timeline.until_s * 1e6 + 1e-3 for spans in drawing.requests.values())
    assert "It ended at" in timeline.facts()["text"]
