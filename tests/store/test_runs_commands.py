"""The `runs` commands as a user meets them: data on stdout, talk on stderr, errors that name the way out."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from store_builders import TRACE, file_hash, make_requests, save_plan, save_run

from db.schema import METRIC_COLUMNS
from db.store import Store
from specsim.cli import cli
from specsim.cli.runs_view import print_list
from specsim.metrics import RunMetrics


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two plans of six runs each, the default database of the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECSIM_DB", raising=False)
    where = tmp_path / "specsim.db"
    with Store.open(where) as store:
        for code, gain in (("c1", 0.0), ("c2", 0.1)):
            keys = [
                save_run(
                    store, policy=policy, load=load, seed=seed, code_version=code,
                    metrics={"ttft_p95_s": 0.5 + seed / 100 - gain, "tpot_p95_s": None, "slo_share": 0.9, "steps": 12},
                    requests=make_requests(3) if seed == 0 else None,
                )
                for policy, load in (("off", 1.0), ("[red]k=3", 2.5))
                for seed in range(3)
            ]  # fmt: skip
            save_plan(store, {"code": code}, run_keys=keys, trace_sha256=TRACE)
    return where


def call(*arguments: str, answer: str | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["runs", *arguments], input=answer)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    if arguments[0] != "export" and code == 0:
        assert max((len(line) for line in result.output.splitlines()), default=0) <= 100
    return result


def refusal(*arguments: str) -> str:
    result = call(*arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def plan_ids(path: Path) -> tuple[str, str]:
    with Store.open(path, mode="read") as store:
        second, first = (plan["id"] for plan in store.list_plans())
    return first, second


def test_list_shows_plans_and_runs(path: Path) -> None:
    said = call("list").stdout
    for plan in plan_ids(path):
        assert plan in said
    assert said.count("run-") == 12
    assert "[red]k=3" in said
    assert "prod.jsonl" in said
    assert "90.0%" in said
    short = call("list", "--limit", "1")
    assert short.stdout.count("run-") == 1
    assert "1 of 12 runs; --limit 0 shows all" in short.stderr


class Terminal(io.StringIO):
    """A stream that says to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_narrow_terminal_crops_no_id_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long profile name the model and the GPU stay."""
    monkeypatch.setenv("COLUMNS", "40")
    plan = {
        "id": "plan-0123456789ab", "kind": "plan", "status": "complete", "runs": 12345,
        "updated_utc": "2026-01-02T03:04:05",
        "trace_source": "a/folder/of/logs/that/is/long/production_week_7.jsonl",
        "profile_name": "analytic llama-3.1-8b bf16 H100 SXM tp1 draft_model",
    }  # fmt: skip
    stream = Terminal()
    with contextlib.redirect_stdout(stream):
        print_list({"plans": [plan], "total_plans": 1, "runs": [], "total_runs": 0}, show_plans=True)
    row = click.unstyle(stream.getvalue()).splitlines()[1]
    assert len(row) <= 100
    assert "llama-3.1-8b bf16 H100 SXM" in row
    assert row.startswith("plan-0123456789ab complete 12345 ...")
    assert row.endswith("2026-01-02 03:04")


def test_list_filters_runs(path: Path) -> None:
    body = json.loads(call("list", "--policy", "off", "--load", "1", "--seed", "2", "--limit", "0", "--json").stdout)
    assert (body["schema_version"], body["total_runs"], body["plans"]) == (1, 2, [])
    assert {run["code_version"] for run in body["runs"]} == {"c1", "c2"}
    body = json.loads(call("list", "--plan", plan_ids(path)[0], "--json").stdout)
    assert {run["code_version"] for run in body["runs"]} == {"c1"}
    assert "no run matches --policy k=9; 12 stored, see `specsim runs list`" in call("list", "--policy", "k=9").stdout


def test_show_a_run_and_a_plan(path: Path) -> None:
    first, second = plan_ids(path)
    assert f"specsim report {second}" in call("show", "latest").stdout
    run = json.loads(call("show", first, "--json").stdout)["plan"]["run_ids"][0]
    said = call("show", run).stdout
    assert "TTFT p95 ms" in said
    assert "steps" in said
    assert first in said
    assert json.loads(call("show", run, "--json").stdout)["run"]["metrics"]["steps"] == 12


def test_compare_shows_paired_differences(path: Path) -> None:
    first, second = plan_ids(path)
    said = call("compare", first, second).stdout
    assert "differs in code_version: c1 -> c2" in said
    assert "6 pairs of runs" in said
    assert said.count("-20") >= 2 or "-19.6" in said
    assert "B lower" in said
    assert "tie" in said  # slo_share is the same
    rows = json.loads(call("compare", first, second, "--json").stdout)["rows"]
    row = next(r for r in rows if r["metric"] == "ttft_p95_s" and r["policy"] == "off")
    assert row["difference"] == pytest.approx(-0.1)
    assert row["low"] <= row["difference"] <= row["high"] < 0
    assert row["verdict"] == "lower"
    runs = [run["id"] for run in json.loads(call("list", "--seed", "0", "--json").stdout)["runs"]]
    assert "one pair" in call("compare", runs[0], runs[1]).stdout


def test_export_json_lines_and_csv_agree(path: Path, tmp_path: Path) -> None:
    whole = json.loads(call("export", "--all").stdout)
    assert [len(whole[name]) for name in ("traces", "profiles", "scenarios", "plans", "runs")] == [1, 1, 0, 2, 12]
    lines = [json.loads(line) for line in call("export", "--all", "--format", "jsonl").stdout.splitlines()]
    assert sorted(x["id"] for x in lines if x["type"] in ("plan", "run")) == sorted(
        x["id"] for x in whole["plans"] + whole["runs"]
    )
    target = tmp_path / "runs.csv"
    said = call("export", "--all", "-o", str(target))
    assert (said.stdout, said.stderr) == ("", "exported 12 runs\n")
    rows = list(csv.DictReader(io.StringIO(target.read_text())))
    assert {row["id"]: row["ttft_p95_s"] for row in rows} == {r["id"]: str(r["ttft_p95_s"]) for r in whole["runs"]}
    assert {row["steps"] for row in rows} == {"12"}
    assert {row["tpot_p95_s"] for row in rows} == {""}
    assert sorted(os.listdir(tmp_path)) == ["runs.csv", "specsim.db"]


def test_export_of_a_plan_and_of_request_rows(path: Path) -> None:
    first, _ = plan_ids(path)
    body = json.loads(call("export", first, "--requests").stdout)
    assert [len(body["plans"]), len(body["runs"])] == [1, 6]
    assert sorted(len(run["requests"]) for run in body["runs"]) == [0, 0, 0, 0, 3, 3]
    rows = list(csv.DictReader(io.StringIO(call("export", first, "--requests", "--format", "csv").stdout)))
    assert [row["request_index"] for row in rows] == ["0", "1", "2"] * 2
    assert rows[2]["finish_s"] == ""


def test_export_refuses_what_makes_no_sense(path: Path, tmp_path: Path) -> None:
    assert "needs ids or --all" in refusal("export")
    assert "not both" in refusal("export", "latest", "--all")
    assert "the suffix says no format" in refusal("export", "--all", "-o", "x.txt")
    before = file_hash(path)
    assert "is a database; it is left as it is" in refusal("export", "--all", "-o", "specsim.db", "--format", "json")
    assert file_hash(path) == before
    assert "No such file or directory" in refusal("export", "--all", "-o", "no/x.json")
    (tmp_path / "keep.csv").write_text("old")
    assert "the file exists; give another name, or --force" in refusal("export", "--all", "-o", "keep.csv")
    with Store.open(path) as store:
        bare = save_plan(store, {"no": "runs"})
    assert "CSV holds runs only" in refusal("export", bare, "-o", "keep.csv", "--force")
    run = json.loads(call("list", "--seed", "1", "--json").stdout)["runs"][0]["id"]
    assert "none of these runs has request rows" in refusal("export", run, "--requests", "--format", "csv")
    assert (tmp_path / "keep.csv").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["keep.csv", "specsim.db"]
    call("export", "--all", "-o", "keep.csv", "--force")
    assert len((tmp_path / "keep.csv").read_text().splitlines()) == 13


def test_delete_asks_first(path: Path) -> None:
    first, second = plan_ids(path)
    before = file_hash(path)
    for answer in ("n\n", ""):
        said = call("delete", "latest", answer=answer, code=1)
        assert f"Delete {second} and 6 runs from specsim.db?" in said.stderr
        assert said.stdout == ""
    assert file_hash(path) == before
    assert call("delete", "latest", answer="y\n").stdout == ""
    assert call("delete", first[:9], "--keep-runs", "--yes").stderr == f"deleted {first} from specsim.db\n"
    body = json.loads(call("list", "--json").stdout)
    assert (body["total_plans"], body["total_runs"]) == (0, 6)
    runs = [run["id"] for run in body["runs"]]
    assert json.loads(call("delete", *runs, "--yes", "--json").stdout)["deleted"] == {"plans": [], "runs": runs}


@pytest.mark.parametrize("command", ["list", "show x", "compare x y", "export --all", "delete x --yes"])
def test_every_command_explains_a_database_that_cannot_be_used(path: Path, tmp_path: Path, command: str) -> None:
    words = command.split()
    assert "no database at missing.db" in refusal(*words, "--db", "missing.db")
    assert not (tmp_path / "missing.db").exists()
    (tmp_path / "log.csv").write_text("a,b\n" * 10)
    assert "is not a SQLite database" in refusal(*words, "--db", "log.csv")
    assert "is a directory" in refusal(*words, "--db", str(tmp_path))
    assert (tmp_path / "log.csv").read_text() == "a,b\n" * 10


@pytest.mark.parametrize("command", ["show run-zz", "compare latest run-zz", "export run-zz", "delete run-zz --yes"])
def test_every_command_explains_an_unknown_id(path: Path, command: str) -> None:
    before = file_hash(path)
    assert "no plan or run 'run-zz' in specsim.db; nearest: run-" in refusal(*command.split())
    assert "fits 12 ids" in refusal(*command.replace("run-zz", "run-").split())
    assert file_hash(path) == before


def test_the_database_may_come_from_the_environment(
    path: Path, monkeypatch: pytest.MonkeyPatch, postgresql_url: str
) -> None:
    monkeypatch.setenv("SPECSIM_DB", "elsewhere.db")
    assert "no database at elsewhere.db" in refusal("list")
    assert "run-" in call("list", "--db", str(path)).stdout
    assert "database postgresql://" in refusal("list", "--db", postgresql_url)
    with Store.open(postgresql_url) as store:
        save_run(store)
    monkeypatch.setenv("SPECSIM_DB", postgresql_url)
    assert call("list").stdout.count("run-") == 1


def test_metric_columns_are_metrics_of_a_run() -> None:
    assert set(METRIC_COLUMNS) <= {field.name for field in fields(RunMetrics)}


def test_every_command_has_help_with_an_example() -> None:
    for name in ("list", "show", "compare", "export", "delete"):
        assert f"specsim runs {name}" in call(name, "--help").stdout


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e309"])
def test_a_load_that_is_no_number_is_refused(path: Path, value: str) -> None:
    assert f"--load '{value}' is not a finite number" in refusal("list", f"--load={value}")


@pytest.mark.parametrize("flag", ["--plan", "--trace", "--profile", "--policy"])
@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_filter_is_refused(path: Path, flag: str, value: str) -> None:
    assert f"{flag} is empty" in refusal("list", flag, value)
