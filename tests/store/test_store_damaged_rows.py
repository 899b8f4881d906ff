"""A stored value that somebody or something broke: one line with the row and the way out, which works."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from store_builders import TRACE, save_plan, save_run

from db.store import Store
from specsim.cli import cli

JSON_COLUMNS = [
    ("plan", "inputs"),
    ("plan", "result"),
    ("run", "point"),
    ("run", "policy"),
    ("run", "metrics"),
    ("trace", "stats"),
]


def damaged(tmp_path: Path, table: str, column: str, value: object) -> tuple[Path, str]:
    """A database with one value replaced, and the id of the row."""
    path = tmp_path / "x.db"
    with Store.open(path) as store:
        keys = [save_run(store, seed=seed) for seed in range(2)]
        plan = save_plan(store, {"a": 1}, run_keys=keys, trace_sha256=TRACE)
        run = store.get(plan)["run_ids"][0]
    with closing(sqlite3.connect(path)) as raw:
        where = "" if table != "run" else f" where id = '{run}'"
        assert raw.execute(f"update {table} set {column} = ?{where}", (value,)).rowcount >= 1
        raw.commit()
    return path, run if table == "run" else plan


@pytest.mark.parametrize("value", ["{broken", "", "null", "[1]", "3", '{"a": ' * 100_000, 7, b"\xff\xfe"])
@pytest.mark.parametrize(("table", "column"), JSON_COLUMNS)
def test_damaged_json_is_one_line(tmp_path: Path, table: str, column: str, value: object) -> None:
    path, row = damaged(tmp_path, table, column, value)
    result = CliRunner().invoke(cli, ["runs", "export", "--all", "--db", str(path)])
    assert result.exit_code == 2, result.output
    error = result.stderr.splitlines()[-1]
    assert error.startswith("Error: row ")
    assert f"column {column} is damaged" in error
    assert "--db" in error
    if table == "trace":
        return
    assert f"specsim runs delete {row}" in error
    shown = CliRunner().invoke(cli, ["runs", "show", row, "--db", str(path)])
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert f"column {column} is damaged" in shown.stderr
    gone = CliRunner().invoke(cli, ["runs", "delete", row, "--yes", "--db", str(path)])
    assert gone.exit_code == 0, gone.output
    assert CliRunner().invoke(cli, ["runs", "export", "--all", "--db", str(path)]).exit_code == 0


def test_the_newest_report_of_a_damaged_plan_is_one_line(tmp_path: Path) -> None:
    path, _ = damaged(tmp_path, "plan", "result", "{broken")
    result = CliRunner().invoke(cli, ["report", "latest", "--db", str(path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: row plan-")
    assert result.stderr.count("\n") == 1
