"""`specsim simulate --explain` and `--timeline` as users call them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from trace_events import read_timeline

from specsim.cli import cli

SCENARIO = """\
[workload]
isl = 300
osl = "lognormal:40:90"
rate_per_s = 30.0
requests = 150

[speculation]
num_spec_tokens = [3]

[policy]
kind = "static"
num_spec_tokens = 3

[plan]
warmup_share = 0.1
"""


@pytest.fixture
def case(tmp_path: Path) -> Path:
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def run(case: Path, *arguments: str) -> Result:
    database = [] if {"--no-store", "--db"} & set(arguments) else ["--db", str(case.parent / "runs.db")]
    return CliRunner().invoke(cli, ["simulate", str(case), *database, *arguments])


def data_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def check_side(side: dict[str, Any]) -> None:
    """Everything that must add up in one side of an explanation."""
    step = side["step_s"]
    assert math.fsum((*step["decode"].values(), *step["prefill"].values())) == pytest.approx(side["busy_s"], rel=1e-9)
    assert math.fsum(side["token_s"].values()) == pytest.approx(side["token_total_s"], rel=1e-9)
    assert math.fsum(side["round_s"].values()) == pytest.approx(side["round_total_s"], rel=1e-9)
    assert side["token_total_s"] * side["tokens_per_round"] == pytest.approx(side["round_total_s"], rel=1e-9)
    request = side["request_s"]
    assert request["queued"] + request["prompt"] + request["decode"] == pytest.approx(request["total"], rel=1e-9)


@pytest.mark.parametrize(
    "more",
    [(), ("--plain",), ("--replicas", "2"), ("--concurrency", "12"), ("--policy", "goodput:3")],
)
def test_an_explained_run_is_the_same_run_and_its_other_side_is_the_run_without(
    case: Path, more: tuple[str, ...]
) -> None:
    explained, bare = (data_of(run(case, "--json", "--no-store", *more, *flag)) for flag in (("--explain",), ()))
    why = explained.pop("explain")
    assert explained == bare
    assert set(why) == {"off", "on", "text"}
    fleet = () if "--policy" in more else more
    off = data_of(run(case, "--json", "--no-store", *fleet, "--policy", "off"))
    for side, single in ((why["on"], bare), (why["off"], off)):
        check_side(side)
        metrics = single["metrics"]
        assert side["steps"] == metrics["steps"]
        assert side["busy_share"] == pytest.approx(metrics["utilisation"], rel=1e-9)
        assert side["tokens_per_round"] == metrics["tokens_per_round"]
        assert side["request_s"]["total"] == pytest.approx(metrics["e2e_mean_s"], rel=1e-9)
        assert side["request_s"]["queued"] == pytest.approx(metrics["queue_mean_s"], rel=1e-9, abs=1e-12)
        # over tokens here, over requests there
        assert side["token_total_s"] == pytest.approx(metrics["tpot_mean_s"], rel=0.2)
    assert why["off"]["round_s"]["draft"] == why["off"]["round_s"]["speculation"] == 0
    assert why["on"]["round_s"]["draft"] > 0


def test_the_text_begins_with_the_reason_and_fits_100_columns(case: Path) -> None:
    result = run(case, "--explain")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert "…" not in result.stdout
    assert lines.index("Why") < lines.index("Where the time of an output token goes, ms") < lines.index("Latency, ms")
    assert "  Speculation helps: an output token takes" in result.stdout
    why = data_of(run(case, "--explain", "--json"))["explain"]
    for sentence in why["text"]:
        assert sentence in " ".join(result.stdout.split())
    together = next(line for line in lines if line.startswith(" together"))
    shown = [float(word) for word in together.split()[1:6]]
    sides = [why[side][kind] * 1e3 for kind in ("round_total_s", "token_total_s") for side in ("off", "on")]
    assert shown == pytest.approx([*sides, sides[3] - sides[2]], abs=5.1e-4)


def test_a_run_without_speculation_is_explained_alone(case: Path) -> None:
    result = data_of(run(case, "--json", "--explain", "--policy", "off"))
    assert set(result["explain"]) == {"off", "text"}
    check_side(result["explain"]["off"])
    text = run(case, "--explain", "--policy", "off").stdout
    assert "instead of" not in text and "difference" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_outputs_of_one_token_leave_nothing_to_explain(case: Path) -> None:
    case.write_text(SCENARIO.replace('"lognormal:40:90"', "1"), encoding="utf-8")
    result = run(case, "--explain", "--json", "--no-store")
    assert "nothing to do" in data_of(result)["explain"]["text"][0]
    assert run(case, "--explain", "--no-store").exit_code == 0


def test_a_stored_run_is_explained_and_drawn_again(case: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    first = data_of(run(case, "--json"))
    again = data_of(run(case, "--json", "--explain", "--timeline", str(target)))
    assert (first["reused"], again["reused"]) == (False, True)
    assert first["run_id"] == again["run_id"]
    assert first["metrics"] == again["metrics"]
    check_side(again["explain"]["on"])
    assert len(read_timeline(target.read_text(encoding="utf-8")).requests) == 150


def test_a_timeline_is_written_whole(case: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    data = data_of(run(case, "--json", "--no-store", "--timeline", str(target), "--replicas", "2"))
    said = data.pop("timeline")
    assert data == data_of(run(case, "--json", "--no-store", "--replicas", "2"))
    assert said["bytes"] == target.stat().st_size
    drawing = read_timeline(target.read_text(encoding="utf-8"))
    assert set(drawing.steps) == {1, 2}
    assert said["steps"] == sum(map(len, drawing.steps.values()))
    assert said["requests"] == len(drawing.requests) == 150
    assert not said["full"]
    assert drawing.names[1, None] == "replica 0" and drawing.names[1, 1] == "engine steps"
    names = {step["name"] for steps in drawing.steps.values() for step in steps}
    assert names <= {"decode k=3", "mixed k=3", "prefill k=3"} and len(names) >= 2
    step = next(step for step in drawing.steps[1] if step["name"] == "mixed k=3")["args"]
    assert set(step) == {"decode_requests", "drafts_verified", "kv_tokens", "prefill_tokens", "next_k", "us"}
    assert step["us"]["draft"] > 0
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
    text = run(case, "--no-store", "--timeline", str(target), "--force").stdout
    assert "the whole run. Open it at ui.perfetto.dev" in " ".join(text.split())


def test_a_timeline_can_be_a_window_and_ends_at_its_size(case: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    said = data_of(run(case, "--json", "--timeline", str(target), "--timeline-window", "1s:2s"))["timeline"]
    drawing = read_timeline(target.read_text(encoding="utf-8"))
    assert (said["from_s"], said["until_s"]) == (1, 2)
    assert drawing.last_ts <= 2e6 + 1e5
    assert "1 to 2 s of" in said["text"]
    said = data_of(run(case, "--json", "--timeline", str(target), "--timeline-mb", "0.1", "--force"))["timeline"]
    assert said["full"]
    assert target.stat().st_size < 0.11e6
    assert "It ended at 0.1 MB: --timeline-window START:END draws a later stretch" in said["text"]
    read_timeline(target.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--timeline", "t.txt"), "--timeline t.txt: the name must end in .json"),
        (("--timeline", "no/such/t.json"), "folder no/such does not exist"),
        (("--timeline-window", "0:5"), "--timeline-window does nothing without --timeline"),
        (("--timeline-mb", "5"), "--timeline-mb does nothing without --timeline"),
        (("--timeline", "t.json", "--timeline-mb", "nan"), "--timeline-mb 'nan' is not a finite number"),
        (("--timeline", "t.json", "--timeline-mb", "0"), "0.1..10000, got 0.0"),
        (("--timeline", "t.json", "--timeline-window", "5:2"), "window"),
        (("--timeline", "t.json", "--timeline-window", "soon"), "window"),
        (("--force",), "--force does nothing without --requests-out or --timeline"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(case, *arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout
    assert not list(tmp_path.glob("*t.json*"))


def test_an_old_timeline_stays_when_a_new_one_fails(case: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    target.write_text("mine", encoding="utf-8")
    assert "the file exists; give another name, or --force" in run(case, "--timeline", str(target)).stderr
    result = run(case, "--timeline", str(target), "--force", "--max-model-len", "50")
    assert result.exit_code == 2
    assert "every request is longer" in result.stderr
    assert target.read_text(encoding="utf-8") == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
