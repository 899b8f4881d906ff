"""Every format that the readers know, through plan: an answer, or one line that says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan_cli import plan, write_log

from specsim.planner.points import Worker
from specsim.report.plan import plan_text

LOGS = sorted((Path(__file__).parents[1] / "traces" / "fixtures").iterdir())
QUICKEST = ["--max-requests", 60, "--replications", 2, "--k", 2, "--loads", 2, "--max-num-seqs", 8, "--jobs", 1,
            "--no-store", "--json"]  # fmt: skip


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.name)
def test_a_log_of_every_format(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "capacity_per_s", lambda worker, requests, fit: 5.0)  # the slow part, tested elsewhere
    result = plan("--trace", log, *QUICKEST[2:], "--max-requests", 12)
    if result.exit_code == 2:
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
        return
    assert result.exit_code == 0
    made = json.loads(result.stdout, parse_constant=lambda text: pytest.fail(f"{text} in JSON"))
    assert made["trace"]["rows_kept"] >= 2
    text = plan_text(made, full=True)
    assert not [line for line in text.splitlines() if len(line) > 100 and not line.startswith("vllm serve")]
    assert "…" not in text


def test_most_of_them_can_be_planned() -> None:
    assert len(LOGS) > 20, "the fixtures have moved; this file would test nothing"


def test_sessions_without_starts_need_a_rate(tmp_path: Path) -> None:
    rows = [{"session_id": i % 4, "timestamp": None, "input_length": 100, "output_length": 4} for i in range(8)]
    log = tmp_path / "sessions.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = plan("--trace", log, *QUICKEST)
    assert (result.exit_code, result.stdout) == (2, "")
    drawn = plan("--trace", log, *QUICKEST, "--arrivals", "poisson:2")
    assert drawn.exit_code == 0, drawn.stderr
    assert any("poisson" in note for note in json.loads(drawn.stdout)["trace"]["notes"])


def test_a_prefill_bound_log_of_short_outputs_is_warned_about(tmp_path: Path) -> None:
    log = tmp_path / "short.csv"
    rows = [f"{i * 0.2:.1f},2000,{1 + i % 3}" for i in range(60)]
    log.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(rows) + "\n")
    warnings = json.loads(plan("--trace", log, *QUICKEST).stdout)["warnings"]
    assert any("prompt tokens" in w for w in warnings)
    assert any("shorter than 8 tokens" in w for w in warnings)


def test_outputs_of_one_token_have_no_tpot_and_no_gain(tmp_path: Path) -> None:
    log = tmp_path / "one.csv"
    log.write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(f"{i},300,1" for i in range(60)) + "\n"
    )
    result = plan("--trace", log, *QUICKEST)
    assert result.exit_code == 0, result.stderr
    made = json.loads(result.stdout)
    assert made["recommendation"]["policy"] == "off"
    assert made["recommendation"]["tpot_speedup"] == {"mean": None, "low": None, "high": None}
    assert "None" not in plan_text(made)


def test_a_slice_is_planned_as_the_same_log_cut_by_hand(tmp_path: Path) -> None:
    whole = write_log(tmp_path / "whole.csv", requests=50)
    part = tmp_path / "part.csv"
    part.write_text("\n".join(whole.read_text().splitlines()[:31]) + "\n")
    sliced, cut = (json.loads(plan("--trace", path, *QUICKEST, *flags).stdout) for path, flags in
                   ((whole, ["--limit", 30]), (part, [])))  # fmt: skip
    assert sliced["comparison"] == cut["comparison"]
    assert any("first 30 of 50" in note for note in sliced["trace"]["notes"])
