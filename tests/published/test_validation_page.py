"""The page of validation: its parts from made-up figures, and the command that writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scenarios.published.misses import known_misses
from scenarios.published.rows import shipped_rows
from specsim.cli import cli
from specsim.planner.published_result import published_result
from specsim.planner.theory import Comparison
from specsim.report.validation_page import validation_page
from specsim.stats import Estimate


def nothing() -> dict[str, Any]:
    return published_result([], [], [], rows_from="", settings={"seeds": 3, "seed": 0})


def test_known_misses_name_rows_that_exist() -> None:
    ids = [row.id for row in shipped_rows()]
    for group in known_misses():
        for name in group["rows"]:
            assert any(id == name or id.startswith(f"{name}-") for id in ids), name


def made_row(id: str, errors: Sequence[tuple[str, float]], **changes: object) -> dict[str, Any]:
    predictions = [
        {
            "protocol": protocol, "speedup": 1.5 * (1 + error), "error": error, "interval": {"low": 1.0, "high": 2.0},
            "null": 2.0, "null_model": "roofline", "null_error": 0.3, "acceptance_length": 2.0, "off_error": None,
            "on_error": 0.04, "warning": None,
        }
        for protocol, error in errors
    ]  # fmt: skip
    row = {
        "id": id, "source": "made|up", "target": "t", "gpu": "g", "tp": 2, "method": "eagle", "k": 3,
        "tree_nodes": None, "isl": 100.0, "osl": 50.0, "concurrency": 4, "rate_per_s": None, "measured": 1.5,
        "sets": None,
        "assumed": ["x (assumed)"], "predictions": predictions,
    }  # fmt: skip
    return {**row, **changes}


def test_misses_are_grouped_by_their_reason_and_the_rest_is_owned_up_to() -> None:
    rows = [
        made_row("A-1", [("given", 0.2), ("anchored", -0.3)]),
        made_row("A-2", [("given", 0.05)]),
        made_row("B-1", [("catalogue", 0.4)], method="ngram"),
        made_row("B-2", [("anchor", 0.5)]),
        made_row("C-1", [("given", 0.11)]),
    ]
    published = {**nothing(), "rows": rows, "unpredictable": [{"id": "D-1", "source": "s", "reason": "why not"}]}
    misses = [
        {"rows": ["A"], "protocols": ["given"], "why": "because of A."},
        {"rows": ["A", "B"], "why": "because."},
        {"rows": ["B"], "methods": ["mtp"], "why": "never."},
    ]
    page = validation_page(published, [], [], misses)
    wrong = page.partition("### What comes out wrong")[2]
    assert "**A-1** (1 predictions, +20.0%): because of A." in wrong
    assert "**A-1, B-1** (2 predictions, -30.0% to +40.0%): because." in wrong
    assert "**C-1** (1 predictions, +11.0%): not explained yet." in wrong
    assert "never" not in page
    assert "D-1: why not" in page
    assert "| A-1 | t, g x2 | eagle k=3 | 100, 50 | 4 | given | 2.00 | 1.500 | 1.800 | +20.0% |" in page
    assert "- x (assumed): A-1 to C-1 (5 rows)" in page


def test_a_comparison_that_fails_is_shown_as_such() -> None:
    off = Comparison("a", 1.0, Estimate(2.0, 1.9, 2.1, 5), "x")
    page = validation_page(nothing(), [("T", [off])], [("a | b", "`test`")], [])
    assert "| a | 1 | 2 | 1.9 to 2.1 | **no** |" in page
    assert "| a \\| b | `test` |" in page


def test_the_command_writes_a_page_of_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("closed_forms", "queues", "little"):  # which the test above runs
        monkeypatch.setattr(f"specsim.planner.theory.{name}", lambda *sides: [])
    rows = tmp_path / "rows.csv"
    header = "id,source,target,method,k,hardware,n_gpus,isl,osl,load_kind,load,speedup"
    lines = ("m1,mine,Llama-3.1-8B,n-gram,3,H100,1,40,20,batch,1,1.2", "m2,mine,X,Y,,,,,,batch,1,1.2")
    rows.write_text("\n".join((header, *lines)), encoding="utf-8")
    page = tmp_path / "page.md"
    done = CliRunner().invoke(cli, ["validate", "published", "--rows", str(rows), "-o", str(page), "--jobs", "1"])
    assert done.exit_code == 0, done.output
    text = page.read_text(encoding="utf-8")
    assert "| m1 |" in text
    assert "m2: method 'Y' is not understood" in text
    assert "## Queues" in text
    assert "The 3" not in text, "no page of laws lies beside it"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rows", "none.csv"), "none.csv: cannot be read"),
        (("--seed", "-1"), "--seed must be >= 0, got -1"),
        (("--jobs", "-1"), "--jobs must lie in 0..1024"),
        (("-o", "x.md", "--json"), "give one of them"),
        (("-o", "nowhere/x.md"), "folder nowhere does not exist; make it first"),
    ],
)
def test_mistakes_end_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(cli, ["validate", "published", *arguments])
    assert done.exit_code == 2, done.output
    assert said in done.stderr


def test_the_page_never_replaces_the_rows_and_a_pipe_is_not_read(tmp_path: Path) -> None:
    rows = tmp_path / "mine.csv"
    rows.write_text("id\nx\n")
    for flags, words in (
        (["--rows", str(rows), "-o", str(rows)], "is the file of rows itself"),
        (["-o", str(tmp_path)], "is no file name"),
        (["-o", ""], "-o is empty"),
        (["--rows", "/dev/zero"], "is a folder, a pipe or a device"),
        (["--rows", str(tmp_path)], "is a folder, a pipe or a device"),
    ):
        result = CliRunner().invoke(cli, ["validate", "published", *flags])
        assert result.exit_code == 2 and words in result.stderr
    assert rows.read_text() == "id\nx\n"
