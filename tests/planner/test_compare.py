"""Crossings, capacity and the best policy on hand-made tables, and properties over made-up ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_tables import make_table

from specsim.planner.compare import (
    LoadTable,
    best_policy,
    capacity_rows,
    capacity_within_slo,
    comparison_rows,
    load_crossing,
)

OFF = [[1.0, 1.0, 1.0]] * 4
NOISE = (0.999, 1.0, 1.001)


def on(*speedups: float | None) -> LoadTable:
    """A table of off at 1 s and one policy with these speedups, a little noise, at loads 1, 2, ..."""
    rows = [[None] * 3 if s is None else [x / s for x in NOISE] for s in speedups]
    return make_table({"off": [[1.0] * 3] * len(rows), "k=3": rows})


@pytest.mark.parametrize(
    ("speedups", "verdict", "low", "high", "turn"),
    [
        ((1.5, 1.4, 1.3, 1.2), "always", None, None, None),
        ((0.9, 0.8, 0.8, 0.7), "never", None, None, None),
        ((1.5, 1.2, 0.8, 0.7), "crosses", 2.0, 3.0, 2.45),
        ((0.8, 0.9, 1.1, 1.2), "begins", 2.0, 3.0, 2.525),
        ((1.2, 1.0, 1.0, 0.8), "crosses", 1.0, 4.0, None),
        ((1.2, 0.9, 1.2, 0.8), "crosses", 3.0, 4.0, 3.45),
        ((1.2, 0.9, 0.9, 1.2), "begins", 3.0, 4.0, 3.366),
        ((1.2, 1.2, 1.0, 1.0), "faster", None, None, None),
        ((1.0, 1.0, 0.8, 0.8), "slower", None, None, None),
        ((1.0, 1.0, 1.0, 1.0), "tie", None, None, None),
        ((None, None, None, None), "unknown", None, None, None),
        ((None, 1.2, 0.8, None), "crosses", 2.0, 3.0, 2.45),
    ],
)
def test_load_crossing(
    speedups: tuple[float | None, ...], verdict: str, low: float | None, high: float | None, turn: float | None
) -> None:
    found = load_crossing(on(*speedups), "k=3")
    assert (found["verdict"], found["low_per_s"], found["high_per_s"]) == (verdict, low, high)
    if turn is not None:
        assert found["load_per_s"] == pytest.approx(turn, abs=0.01)
    elif low is not None:
        assert low < found["load_per_s"] < high, "ties between: the means turn somewhere there"
    else:
        assert found["load_per_s"] is None


def test_one_replication_separates_nothing() -> None:
    table = make_table({"off": [[1.0], [1.0]], "k=3": [[0.5], [2.0]]})
    assert load_crossing(table, "k=3")["verdict"] == "tie"
    assert best_policy(table, 1.0, ["off", "k=3"]) == "off"


def test_a_policy_that_was_simulated_at_more_loads_than_another() -> None:
    table = on(1.5, 0.8)
    extra = {("off", 1.5, r, 0.0): {"e2e_mean_s": 1.0} for r in range(3)}
    extra |= {("k=3", 1.5, r, 0.0): {"e2e_mean_s": x / 1.1} for r, x in enumerate(NOISE)}
    extra |= {("off", 1.7, r, 0.0): {"e2e_mean_s": 1.0} for r in range(3)}
    finer = LoadTable({**table.points, **extra}, table.policies, table.loads_per_s, 3)
    found = load_crossing(finer, "k=3")
    assert (found["low_per_s"], found["high_per_s"]) == (1.5, 2.0)
    assert finer.loads_of("off") == [1.0, 1.5, 1.7, 2.0]
    assert finer.loads_of("off", "k=3") == [1.0, 1.5, 2.0]
    assert finer.loads_per_s == (1.0, 2.0), "the comparison keeps its grid"


@pytest.mark.parametrize(
    ("shares", "verdict", "low", "high", "capacity"),
    [
        ((1.0, 1.0, 0.99), "beyond the loads simulated", 3.0, None, 3.0),
        ((1.0, 1.0, 0.90), "bracketed", 2.0, 3.0, 2.5),
        ((0.95, 0.94, 0.0), "bracketed", 1.0, 2.0, 1.0),
        ((0.94, 0.5, 0.0), "below the loads simulated", None, 1.0, None),
        ((0.90, 0.99, 0.2), "not monotone", None, 1.0, None),
        ((1.0, 0.90, 0.99), "not monotone", 1.0, 2.0, 1.5),
        ((1.0, None, 0.2), "bracketed", 1.0, 2.0, 1.0),
        ((None, None, None), "not measurable", None, None, None),
    ],
)
def test_capacity_within_slo(
    shares: tuple[float | None, ...], verdict: str, low: float | None, high: float | None, capacity: float | None
) -> None:
    table = make_table({"off": [[1.0, 1.0]] * 3}, metrics=lambda policy, load, r: {"slo_share": shares[int(load) - 1]})
    found = capacity_within_slo(table, "off", 0.95)
    assert (found["verdict"], found["low_per_s"], found["high_per_s"]) == (verdict, low, high)
    assert found["load_per_s"] == (None if capacity is None else pytest.approx(capacity))


@pytest.mark.parametrize(
    ("last", "interval"),
    [
        ((0.90, 0.90, 0.90), {"mean": 2.5, "low": 2.5, "high": 2.5}),
        ((0.90, 0.90, 0.99), {"mean": None, "low": None, "high": None}),
        ((0.90, 0.99, None), {"mean": None, "low": None, "high": None}),
    ],
)
def test_capacity_has_an_interval_only_where_every_replication_has_one(
    last: tuple[float | None, ...], interval: dict[str, float | None]
) -> None:
    """The replications that fail within the loads simulated are the hard ones: their mean is not that of all."""
    table = make_table(
        {"off": [[1.0] * 3] * 3}, metrics=lambda policy, load, r: {"slo_share": last[r] if load == 3.0 else 1.0}
    )
    assert capacity_rows(table, 0.95)[0]["interval"] == pytest.approx(interval)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=5))
def test_no_capacity_is_below_nothing(last_met: list[int]) -> None:
    """However far the replications lie apart: a load cannot be negative."""
    table = make_table(
        {"off": [[1.0] * len(last_met)] * 6},
        metrics=lambda policy, load, r: {"slo_share": 1.0 if load <= last_met[r] else 0.5},
    )
    low, high = (capacity_rows(table, 0.95)[0]["interval"][end] for end in ("low", "high"))
    assert 0.0 <= low <= high


def test_best_policy_keeps_off_unless_the_gain_is_separable() -> None:
    noisy = make_table({"off": [[1.0, 2.0, 1.0]], "k=1": [[0.4, 2.5, 0.9]]})
    assert best_policy(noisy, 1.0, ["off", "k=1"]) == "off"


def test_best_policy_takes_the_simpler_of_two_that_hardly_differ() -> None:
    table = make_table({"off": [[1.0] * 3], "k=1": [[0.703, 0.702, 0.701]], "k=3": [[0.7, 0.699, 0.698]]})
    assert best_policy(table, 1.0, ["off", "k=1", "k=3"]) == "k=1"
    assert best_policy(table, 1.0, ["off", "k=3", "k=1"]) == "k=3"


def test_best_policy_does_not_trade_a_large_gain_for_simplicity() -> None:
    """k=1 and k=3 cannot be told apart with so few replications, but off can, and the means differ by a tenth."""
    table = make_table({"off": [[1.0, 1.0]], "k=1": [[0.75, 0.752]], "k=3": [[0.66, 0.69]]})
    assert best_policy(table, 1.0, ["off", "k=1", "k=3"]) == "k=3"


def test_best_policy_of_nothing_measured_is_off() -> None:
    assert best_policy(make_table({"off": [[None] * 3], "k=3": [[None] * 3]}), 1.0, ["off", "k=3"]) == "off"


@pytest.mark.parametrize(
    ("growth", "busy", "saturated"), [(0.01, 1.0, False), (0.1, 1.0, True), (0.1, 0.6, False), (-0.2, 1.0, False)]
)
def test_saturated_is_to_fall_behind_without_ever_resting(growth: float, busy: float, saturated: bool) -> None:
    table = make_table(
        {"off": [[1.0, 1.0]]},
        metrics=lambda policy, load, r: {"backlog_growth_share": growth, "utilisation": busy},
    )
    assert table.saturated("off", 1.0) is saturated


@pytest.mark.parametrize(("capacity", "saturated"), [(0.8, True), (1.0, True), (1.3, False), (math.nan, True)])
def test_the_capacity_of_a_full_fleet_decides_away_from_it(capacity: float, saturated: bool) -> None:
    table = make_table(
        {"off": [[1.0, 1.0]]}, metrics=lambda policy, load, r: {"backlog_growth_share": 0.1, "utilisation": 1.0}
    )
    assert replace(table, capacity_off_per_s=capacity).saturated("off", 1.0) is saturated


def test_growth_that_replications_do_not_agree_on_is_a_burst() -> None:
    table = make_table(
        {"off": [[1.0] * 3]},
        metrics=lambda policy, load, r: {"backlog_growth_share": (0.4, -0.1, 0.0)[r], "utilisation": 1.0},
    )
    assert not table.saturated("off", 1.0)


def test_a_load_below_one_that_is_kept_up_with_is_kept_up_with() -> None:
    table = make_table(
        {"off": [[1.0] * 2, [1.0] * 2, [1.0] * 2]},
        metrics=lambda policy, load, r: {"backlog_growth_share": {1: 0.1, 2: 0.0, 3: 0.2}[load], "utilisation": 1.0},
    )
    assert [table.saturated("off", load) for load in table.loads_per_s] == [False, False, True]


times = st.lists(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3), min_size=4, max_size=4)


@given(times, times, times)
@settings(max_examples=100, derandomize=True, deadline=None)
def test_rows_crossings_and_choice_never_contradict_one_another(
    off: list[list[float]], k1: list[list[float]], k3: list[list[float]]
) -> None:
    table = make_table({"off": off, "k=1": k1, "k=3": k3})
    rows = {(row["policy"], row["load_per_s"]): row for row in comparison_rows(table)}
    json.dumps(list(rows.values()), allow_nan=False)
    for policy in ("k=1", "k=3"):
        found = load_crossing(table, policy)
        verdicts = {load: rows[policy, load]["verdict"] for load in table.loads_per_s}
        expected = {
            "always": set(verdicts.values()) == {"faster"},
            "never": set(verdicts.values()) == {"slower"},
            "tie": set(verdicts.values()) == {"tie"},
            "faster": set(verdicts.values()) == {"faster", "tie"},
            "slower": set(verdicts.values()) == {"slower", "tie"},
            "crosses": {"faster", "slower"} <= set(verdicts.values()),
            "begins": {"faster", "slower"} <= set(verdicts.values()),
        }
        assert expected[found["verdict"]]
        if found["verdict"] in ("crosses", "begins"):
            before, after = ("faster", "slower") if found["verdict"] == "crosses" else ("slower", "faster")
            assert verdicts[found["low_per_s"]] == before
            assert verdicts[found["high_per_s"]] == after
            assert found["low_per_s"] <= found["load_per_s"] <= found["high_per_s"]
            assert not {before, after} & {
                v for load, v in verdicts.items() if found["low_per_s"] < load < found["high_per_s"]
            }
    for load in table.loads_per_s:
        chosen = best_policy(table, load, ["off", "k=1", "k=3"])
        faster = [p for p in ("k=1", "k=3") if rows[p, load]["verdict"] == "faster"]
        assert chosen in (faster or ["off"])
        for p in faster:
            assert table.mean(chosen, load, "e2e_mean_s").mean <= 1.0101 * table.mean(p, load, "e2e_mean_s").mean


def test_the_paired_speedup_is_off_over_policy() -> None:
    (row,) = [r for r in comparison_rows(on(1.25)) if r["policy"] == "k=3"]
    assert row["e2e_speedup"]["mean"] == pytest.approx(1.25, rel=1e-3)
    assert row["verdict"] == "faster"
    assert math.isclose(row["metrics"]["e2e_mean_s"]["mean"], 0.8, rel_tol=1e-3)


def test_capacities_whose_brackets_share_no_load_are_still_compared_in_pairs() -> None:
    """The one fails between 2 and 3, and was simulated no higher; the other between 4 and 5, where off was not."""
    table = make_table({"off": [[1.0] * 2] * 3, "k=3": [[1.0] * 2] * 3}, metrics=lambda policy, load, r: {
        "slo_share": 0.90 if (policy, load) == ("off", 3.0) else 1.0})  # fmt: skip
    beyond = {("k=3", load, r, 0.0): {"slo_share": 1.0 if load < 5 else 0.9} for load in (4.0, 5.0) for r in (0, 1)}
    (_, row) = capacity_rows(replace(table, points={**table.points, **beyond}), 0.95)
    assert row["ratio_to_off"]["mean"] == pytest.approx(4.5 / 2.5)
    assert row["vs_off"] == "more"
