"""Speculation that is loaded and never used beside none at all: two points that differ, and a table that says how."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_cases import answer, sweep, write_case

IDLE = "Policy static:0 is speculation that is loaded and never used"


@pytest.mark.parametrize("method", ["eagle", "ngram"])
def test_an_idle_drafter_costs_something_and_the_table_says_so(tmp_path: Path, method: str) -> None:
    case = write_case(tmp_path)
    words = ("--grid", "policy=off;static:0", "--seeds", 1, "--method", method)
    result = answer(case, *words)
    off, idle = (row["metrics"]["e2e_mean_s"]["mean"] for row in result["points"])
    assert [row["policy"] for row in result["points"]] == ["off", "k=0"]
    assert idle > 1.005 * off, "loaded machinery is not free, so that the two are not one value"
    assert sum(note.startswith(IDLE) for note in result["notes"]) == 1
    assert IDLE in " ".join(sweep(case, *words).stdout.split())


def test_other_grids_say_nothing_of_it(tmp_path: Path) -> None:
    case = write_case(tmp_path)
    for grid in ("k=0,2", "policy=off;static:2"):
        assert not any(IDLE in note for note in answer(case, "--grid", grid, "--seeds", 1)["notes"])
