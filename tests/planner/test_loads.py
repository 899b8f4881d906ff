"""Which loads, how many requests at each, and short logs end to end."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_limits, make_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_tables import make_question

from specsim.errors import TraceError
from specsim.planner.loads import LEAST_REQUESTS, choose_loads, requests_at, steps_per_request
from specsim.planner.plan import prepare
from specsim.planner.points import MIN_STRETCH, Worker, stretches
from specsim.planner.question import PlanSettings
from specsim.planner.repeat import repeated


@given(st.floats(1e-4, 1e4), st.floats(1e-3, 1e4), st.integers(2, 12))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_loads_rise_hold_the_own_one_and_reach_capacity(own: float, capacity: float, points: int) -> None:
    loads = choose_loads(own, capacity, points)
    assert list(loads) == sorted(set(loads))
    assert own in loads
    assert points <= len(loads) <= points + 1
    assert max(loads) >= capacity
    assert all(abs(load / own - 1) > 0.03 for load in loads if load != own)


@given(st.floats(1e-3, 1e3), st.floats(1.0, 5000.0), st.integers(1, 10_000))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_requests_at_a_load_never_exceed_what_there_is(load: float, output: float, available: int) -> None:
    steps = steps_per_request(load, output, 0.007)
    assert 0 < steps <= output
    grid, own = requests_at(available, steps, own=False), requests_at(available, steps, own=True)
    assert 1 <= grid <= own <= available
    assert grid == available or grid * steps >= 19_000 or grid >= LEAST_REQUESTS


def test_short_outputs_are_served_whole_at_every_load() -> None:
    """5000 requests of a code log have few steps, so that no load sees other traffic than another."""
    counts = {requests_at(700, steps_per_request(load, 27, 0.007), own=False) for load in (0.1, 1, 10, 100)}
    assert counts == {700}


@given(st.integers(2, 30), st.integers(2, 200), st.integers(0, 99))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_a_log_end_to_end_keeps_rate_order_lengths_and_shares_no_prefix(n: int, at_least: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1.0, n))
    trace = make_trace(
        arrival_s=arrival_s, prompt_tokens=rng.integers(1, 99, n).tolist(),
        output_tokens=rng.integers(1, 9, n).tolist(),
        hashes=rng.integers(0, 5, (n, 2)).tolist(), hash_block_tokens=16,
    )  # fmt: skip
    long = repeated(trace, at_least)
    times = len(long) // n
    assert len(long) == times * n >= at_least
    assert times == 1 or (times - 1) * n < at_least
    assert long.rate_per_s == pytest.approx(trace.rate_per_s)
    assert (np.diff(long.arrival_s) >= 0).all()
    own = [set(long.hash_ids[i * 2 * n : (i + 1) * 2 * n].tolist()) for i in range(times)]
    assert all(len(s) == len(own[0]) for s in own), "each time has the sharing of the log ..."
    assert len(set().union(*own)) == sum(map(len, own)), "... and none with another time"
    for i in range(times):
        np.testing.assert_array_equal(long.prompt_tokens[i * n : (i + 1) * n], trace.prompt_tokens)
        np.testing.assert_array_equal(long.output_tokens[i * n : (i + 1) * n], trace.output_tokens)


def test_hash_ids_near_the_end_of_their_range_do_not_run_over() -> None:
    ids = [[2**62, -5], [7, 2**62]]
    trace = make_trace(arrival_s=(0.0, 1.0), hashes=ids, hash_block_tokens=16)
    long = repeated(trace, 6)
    first, second = long.hash_ids[:4].tolist(), long.hash_ids[4:8].tolist()
    assert len(set(first)) == len(set(second)) == 3
    assert not set(first) & set(second)
    assert first[0] == first[3]


def test_long_traces_are_cut_and_short_ones_repeated_with_other_luck() -> None:
    long = make_trace(arrival_s=np.arange(3 * MIN_STRETCH), output_tokens=2)
    cut, said = stretches(long, PlanSettings(replications=3))
    assert [(s.first, s.stop) for s in cut] == [(0, 400), (400, 800), (800, 1200)]
    assert len({s.seed for s in cut}) == 3
    assert "intervals cover traffic and acceptance" in said
    whole, said = stretches(long.rows(0, 300), PlanSettings(replications=3))
    assert {(s.first, s.stop) for s in whole} == {(0, 300)}
    assert "not traffic" in said
    repeats, said = stretches(long, PlanSettings(replications=3), repeats=True)
    assert {(s.first, s.stop) for s in repeats} == {(0, 1200)}, "the same traffic again is no other traffic"
    assert "not traffic" in said


@pytest.mark.parametrize("slots", [1, 8])
def test_capacity_is_what_a_full_fleet_completes(slots: int) -> None:
    """One slot serves one request after another; eight share every pass and do more, in all at most eight times."""
    trace = make_trace(arrival_s=np.arange(40) * 1.0, prompt_tokens=100, output_tokens=40)
    alone = Worker(make_question(limits=make_limits(max_num_seqs=1)), trace, PlanSettings()).capacity_per_s(40, 1)
    found = Worker(make_question(limits=make_limits(max_num_seqs=slots)), trace, PlanSettings()).capacity_per_s(
        40, slots
    )
    step_s = make_question().off.cost.decode_step_s(1, 120, 0, machinery=False)
    if slots == 1:
        assert found == pytest.approx(1 / (40 * step_s), rel=0.1)
    else:
        assert 4 * alone < found < 8 * alone


def test_replicas_multiply_capacity() -> None:
    from dataclasses import replace

    trace = make_trace(arrival_s=np.arange(40) * 1.0, prompt_tokens=100, output_tokens=20)
    question = make_question(limits=make_limits(max_num_seqs=4))
    three = replace(question, deployment=replace(question.deployment, replicas=3))
    one = Worker(question, trace, PlanSettings()).capacity_per_s(40, 4)
    assert Worker(three, trace, PlanSettings()).capacity_per_s(40, 4) == pytest.approx(3 * one)


def test_the_busiest_requests_are_chosen() -> None:
    arrival_s = np.concatenate([np.arange(100) * 10.0, 1000 + np.arange(50) * 0.1, 1100 + np.arange(100) * 10.0])
    trace = make_trace(arrival_s=arrival_s, output_tokens=3)
    job = prepare(make_question(limits=make_limits(max_num_seqs=8)), trace,
                  PlanSettings(max_requests=50, replications=2, loads_per_s=(1.0,)))  # fmt: skip
    assert len(job.trace) == 50
    assert job.own_per_s == pytest.approx(10.0)
    assert any("busiest 50 consecutive requests of 250" in note for note in job.notes)


@pytest.mark.parametrize("arrival_s", [(0.0,), (3.0, 3.0, 3.0)])
def test_no_rate_no_plan(arrival_s: tuple[float, ...]) -> None:
    with pytest.raises(TraceError, match="no arrival rate"):
        prepare(make_question(), make_trace(arrival_s=arrival_s), PlanSettings())
