"""`specsim sweep --find`: capacity and crossover bracketed, the same runs as a grid has, kept and gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_cases import SCENARIO, answer, same, sweep, write_case

SLOW = (
    SCENARIO.replace("requests = 60", "requests = 200")
    + """
[deployment]
max_num_seqs = 4

[slo]
ttft_ms = 300
tpot_ms = "none"
"""
)
"""Four requests at once, so that capacity is near."""


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp("find"), SLOW)


CAPACITY = ("--grid", "k=0,2", "--find", "capacity", "--over", "load=0.2..4", "--seeds", "3", "--against", "k=0")


@pytest.fixture(scope="module")
def capacity(case: Path) -> dict:
    return answer(case, *CAPACITY, "--db", case.parent / "find.db")


def test_a_capacity_is_bracketed_and_its_ends_are_what_a_grid_finds(case: Path, capacity: dict) -> None:
    assert [row["verdict"] for row in capacity["found"]] == ["bracketed"] * 2
    for row in capacity["found"]:
        assert row["at"] == row["low"] < row["high"]
        assert row["high"] - row["low"] <= 0.03 * row["high"]
        assert len(row["looks"]) <= 12
        k, ends = row["values"]["k"], f"load={row['low']!r},{row['high']!r}"
        grid = answer(case, "--grid", f"k={k}", "--grid", ends, "--seeds", 3, "--db", case.parent / "find.db")
        low, high = (point["metrics"]["slo_share"]["mean"] for point in grid["points"])
        assert low >= 0.95 > high
        seen = {look["x"]: look for look in row["looks"]}
        for point in grid["points"]:
            look = seen[float(point["values"]["load"])]
            assert [run["run_id"] for run in look["runs"]] == [run["run_id"] for run in point["runs"]], "the same runs"
            assert look["slo_share"]["mean"] == point["metrics"]["slo_share"]["mean"]


def test_capacities_are_compared_in_pairs(capacity: dict) -> None:
    off, on = capacity["found"]
    assert (off["vs_base"], off["ratio_to_base"]["mean"]) == (None, None)
    assert on["vs_base"] in ("more", "tie")
    assert on["ratio_to_base"]["mean"] == pytest.approx(on["over_seeds"]["mean"] / off["over_seeds"]["mean"], rel=0.1)


def test_workers_store_and_repetition_change_no_byte_and_nothing_is_run_twice(case: Path, capacity: dict) -> None:
    again = sweep(case, *CAPACITY, "--json", "--db", case.parent / "find.db")
    assert again.exit_code == 0
    assert answer(case, *CAPACITY, "--jobs", 2, "--db", case.parent / "other.db")["found"] == capacity["found"]
    import json

    assert same(json.loads(again.stdout)) == same(capacity)


def test_a_crossover_lies_between_places_where_the_sides_differ(case: Path) -> None:
    words = ("--grid", "k=0,3", "--against", "k=0", "--acceptance", "0.3,0.1,0.05", "--seeds", 3, "--gpu", "l40s")
    over = ("--over", "concurrency=1..96", "--width", 0.1, "--max-num-seqs", 128)
    result = answer(case, *words, "--find", "crossover", *over)
    (row,) = result["found"]
    assert row["verdict"] in ("stops paying", "never", "always", "unclear")
    verdicts = {look["x"]: look["verdict"] for look in row["looks"]}
    if row["verdict"] == "stops paying":
        assert verdicts[row["low"]] == "faster"
        assert verdicts[row["high"]] == "slower"
    assert all(x == int(x) for x in verdicts)


def test_the_text_fits_and_prints_every_look(case: Path, capacity: dict) -> None:
    text = sweep(case, *CAPACITY, "--db", case.parent / "find.db").stdout
    assert max(map(len, text.splitlines())) <= 100
    after = text.partition("Looked at")[2].splitlines()
    assert sum("holds" in line or "fails" in line for line in after) == sum(len(r["looks"]) for r in capacity["found"])


def test_ends_that_do_not_enclose_it_are_told(case: Path) -> None:
    short = ("--grid", "k=0", "--find", "capacity", "--seeds", 2)
    assert answer(case, *short, "--over", "load=0.05..0.1")["found"][0]["verdict"] == "beyond"
    below = answer(case, *short, "--over", "load=20..30")["found"][0]
    assert (below["verdict"], below["at"], len(below["looks"])) == ("below", None, 2)


def test_an_end_at_which_nothing_is_measured_is_told_with_its_reason(case: Path) -> None:
    words = ("--grid", "k=0,2", "--against", "k=0", "--seeds", 2, "--over", "concurrency=1..256")
    said = "200 requests cannot keep 256 in flight beyond the warm-up"
    text = sweep(case, *words, "--find", "crossover").stdout
    assert "at 256 nothing was measured: " in " ".join(text.split())
    assert said in " ".join(text.split())
    assert "-..-" not in text
    assert max(map(len, text.splitlines())) <= 100
    done = sweep(case, *words, "--find", "capacity", "--json")
    import json

    assert {row["verdict"] for row in json.loads(done.stdout)["found"]} == {"not possible"}, "not a miss"
    assert all(said in row["reason"] for row in json.loads(done.stdout)["found"])


def test_what_always_and_beyond_mean_stands_below_the_table(case: Path) -> None:
    text = sweep(case, "--grid", "k=0", "--find", "capacity", "--over", "load=0.05..0.1", "--seeds", 2).stdout
    assert "beyond: the objective still holds at the upper end" in text
    assert "- where one of them does not turn between the ends" in " ".join(text.split())


def test_an_objective_that_is_searched_is_the_lowest_that_holds(case: Path) -> None:
    words = ("--grid", "k=0", "--find", "capacity", "--seeds", 2, "--tpot", "none", "--over", "ttft=1..20000")
    (row,) = answer(case, *words)["found"]
    seen = {look["x"]: look["verdict"] for look in row["looks"]}
    assert (row["verdict"], row["at"]) == ("holds from", row["high"])
    assert (seen[row["low"]], seen[row["high"]]) == ("fails", "holds")
    assert row["low"] <= row["over_seeds"]["mean"] <= row["high"] or row["over_seeds"]["low"] is not None
    assert "the lowest at which the mean share" in " ".join(sweep(case, *words).stdout.split())


def test_a_crossover_of_nothing_but_its_base_is_refused(case: Path) -> None:
    result = sweep(case, "--grid", "k=0", "--against", "k=0", "--find", "crossover", "--over", "load=1..2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--against k=0: is the whole grid" in result.stderr


def test_a_base_that_holds_commas_can_be_named(case: Path) -> None:
    grid = ("--grid", "policy=off;schedule:1-2=3,3-64=0", "--seeds", 1)
    for said in ("policy=schedule:1-2=3,3-64=0;", "policy=schedule:1-2=3,3-64=0; "):
        assert answer(case, *grid, "--against", said)["against"] == {"policy": "schedule:1-2=3,3-64=0"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--over", "load=1..2"), "--over is of a search"),
        (("--find", "capacity"), "--find capacity needs --over"),
        (("--find", "capacity", "--over", "load=2..1"), "to a higher one"),
        (("--find", "capacity", "--over", "load=0..1"), "above 0"),
        (("--find", "capacity", "--over", "load=1..2/5"), "must be AXIS=LOW..HIGH"),
        (("--find", "capacity", "--over", "gpu=a..b"), "a range is of numbers"),
        (("--find", "capacity", "--over", "k=1..3"), "the axis k twice"),
        (("--find", "crossover", "--over", "load=1..2"), "needs --against"),
        (("--find", "capacity", "--over", "load=1..2", "--width", "0.9"), "--width must be a number in 0.0001..0.5"),
        (("--find", "capacity", "--over", "load=1..2", "--metric", "kv_use"), "--metric is of a grid"),
        (("--find", "capacity", "--over", "load=1..10000000"), "--over load=10000000 must be a number > 0 and up to"),
        (("--find", "capacity", "--over", "lod=1..2"), "--over lod: unknown axis"),
        (("--find", "capacity", "--over", "load=1..2", "--ttft", "none", "--tpot", "none"), "needs an objective"),
        (("--find", "peak", "--over", "load=1..2"), "--find 'peak' is not one of"),
    ],
)
def test_what_makes_no_sense_is_refused(case: Path, words: tuple[str, ...], said: str) -> None:
    result = sweep(case, "--grid", "k=0,2", *words)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
