"""Policies: what each chooses, at the edges of its table, and that goodput really picks the best."""

from __future__ import annotations

import sys

import pytest
from builders import FixedLuck, make_cost, make_pass, make_profile, make_trace
from hypothesis import given
from hypothesis import strategies as st
from strategies import POLICIES, World, run

from specsim.config import PolicySpec
from specsim.errors import ScenarioError
from specsim.latency import StepCost
from specsim.policies import EngineView, make_policy
from specsim.policies.goodput import Goodput
from specsim.policies.schedule import Schedule
from specsim.policies.static import Static

TABLE = ((1, 2, 5), (3, 4, 2), (6, 9, 0))


@pytest.mark.parametrize(
    ("batch", "k"), [(1, 5), (2, 5), (3, 2), (4, 2), (5, 2), (6, 0), (9, 0), (10, 0), (100_000, 0)]
)
def test_schedule_carries_the_previous_k_through_gaps_and_the_tail(batch: int, k: int) -> None:
    assert Schedule(TABLE, 5).next_k(batch, 0, batch) == k


@given(data=st.data())
def test_schedule_is_the_table_read_line_by_line(data: st.DataObject) -> None:
    bounds = sorted(data.draw(st.sets(st.integers(2, 60), min_size=1, max_size=9)))
    table, first = [], 1
    for last in bounds:
        table.append((first, last, data.draw(st.integers(0, 7))))
        first = last + 1 + data.draw(st.integers(0, 3))
        if first > 60:
            break
    table = [row for row in table if row[0] <= row[1]]
    rule = Schedule(table, 7)
    expected = table[0][2]
    for batch in range(1, 80):
        for low, high, k in table:
            if low <= batch <= high:
                expected = k
        assert rule.next_k(batch, 0, batch) == expected


@pytest.mark.parametrize(("limit", "batch", "k"), [(4, 4, 3), (4, 5, 0), (0, 1, 0), (1, 1, 3), (1, 2, 0)])
def test_off_above_stops_behind_its_limit(limit: int, batch: int, k: int) -> None:
    assert make_policy(PolicySpec("off_above", 3, batch_limit=limit)).next_k(batch, 0, batch) == k


def test_a_table_to_the_largest_batch_costs_no_memory() -> None:
    """Tables as engines take them end with a huge last batch."""
    last = 2**31 - 1
    rule = make_policy(PolicySpec("schedule", 4, table=((1, 8, 4), (9, last, 1))))
    assert [rule.next_k(b, 0, b) for b in (8, 9, last, last + 1)] == [4, 1, 1, 1]
    assert make_policy(PolicySpec("off_above", 2, batch_limit=last)).next_k(last, 0, last) == 2
    assert sum(sys.getsizeof(value) for value in vars(rule).values()) < 1000


@pytest.mark.parametrize(
    ("spec", "k"), [(PolicySpec("off"), 0), (PolicySpec("static", 4), 4), (PolicySpec("static"), 0)]
)
def test_static_never_moves(spec: PolicySpec, k: int) -> None:
    rule = make_policy(spec)
    assert rule.constant
    assert {rule.next_k(batch, kv, batch) for batch in (1, 50, 900) for kv in (0, 10**6)} == {k}


def test_goodput_takes_the_best_rate() -> None:
    cost = make_cost(target=make_pass(token_s=1e-4))
    length = FixedLuck(max_run=5).expected_length
    rule = Goodput(5, length, cost.decode_step_s)
    chosen = set()
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        for context in (1, 100, 5_000):
            k = rule.next_k(batch, batch * context, batch)
            # The middle of the context's bucket, one eighth of an octave wide, is what the rule weighs.
            octave = max(0, context.bit_length() - 4)
            middle = ((context >> octave) << octave) + (1 << octave) / 2
            rates = [(length(j) if j else 1.0) / cost.decode_step_s(batch, middle, j) for j in range(6)]
            assert rates[k] == max(rates)
            chosen.add(k)
    assert len(chosen) >= 3, "the guard: the best k moves with the batch"


def test_goodput_does_not_depend_on_what_it_was_asked_before() -> None:
    cost, length = make_cost(target=make_pass(token_s=1e-4)), FixedLuck(max_run=5).expected_length
    questions = [(b, b * c, b) for b in (1, 7, 40) for c in (16, 17, 500, 501, 511)]
    one, two = Goodput(5, length, cost.decode_step_s), Goodput(5, length, cost.decode_step_s)
    forward = {q: one.next_k(*q) for q in questions}
    backward = {q: two.next_k(*q) for q in reversed(questions)}
    assert forward == backward


def test_goodput_drafts_nothing_when_nothing_is_accepted() -> None:
    cost = make_cost()
    assert Goodput(4, lambda k: 1.0, cost.decode_step_s).next_k(3, 300, 3) == 0
    assert Goodput(4, lambda k: 1.0 + k, cost.decode_step_s).next_k(3, 300, 3) == 4


def test_goodput_asks_nothing_of_an_empty_decode_batch() -> None:
    assert Goodput(2, lambda k: 1.0 + k, make_cost().decode_step_s).next_k(5, 0, 0) == 2


def test_goodput_needs_acceptance_and_costs() -> None:
    with pytest.raises(ScenarioError, match="goodput needs an acceptance model"):
        make_policy(PolicySpec("goodput", 3))


def test_k_0_pays_for_loaded_machinery_when_an_adaptive_policy_weighs_it() -> None:
    """What speculation costs merely by being loaded is no reason to choose k = 0: the engine has loaded it already."""
    world = World(
        trace=make_trace(arrival_s=[0.0] * 4, output_tokens=40),
        luck=FixedLuck(max_run=1),
        policy=PolicySpec("goodput", 1),
        profile=make_profile(loaded_host_s=0.004),
    )
    cost = StepCost(world.profile)
    rates = [
        (1.0 + 0.5 * k) / cost.decode_step_s(4, 20, k, machinery=loaded)
        for k, loaded in ((0, False), (0, True), (1, True))
    ]
    assert rates[0] > rates[2] > rates[1], "the guard: unloaded k = 0 would win, loaded k = 0 loses"
    totals = run(world, plain=False).totals
    assert set(totals.k_steps) == {1}


@given(spec=POLICIES, batch=st.integers(1, 500), context=st.integers(0, 5000))
def test_no_policy_exceeds_its_largest_k(spec: PolicySpec, batch: int, context: int) -> None:
    rule = make_policy(spec, EngineView(FixedLuck().expected_length, make_cost().decode_step_s))
    assert 0 <= rule.next_k(batch, batch * context, batch) <= rule.num_spec_tokens == spec.num_spec_tokens
    assert rule.constant == isinstance(rule, Static)
