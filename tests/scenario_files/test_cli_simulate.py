"""`specsim simulate` as users call it: metrics, store, overruling flags, files of requests."""

from __future__ import annotations

import csv
import json
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specsim.cli import cli
from specsim.metrics import POOL_METRICS, RunMetrics
from specsim.records import RequestColumns

SCENARIO = """\
[workload]
isl = 80
osl = "lognormal:30:80"
rate_per_s = 20.0
requests = 300

[speculation]
num_spec_tokens = [2]

[policy]
kind = "static"
num_spec_tokens = 2

[plan]
warmup_share = 0.2
"""


@pytest.fixture
def case(tmp_path: Path) -> Path:
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def run(case: Path, *arguments: str) -> Result:
    database = [] if {"--no-store", "--db"} & set(arguments) else ["--db", str(case.parent / "runs.db")]
    return CliRunner().invoke(cli, ["simulate", str(case), *database, *arguments])


def data_of(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_has_every_metric_and_says_where_numbers_are_from(case: Path) -> None:
    data = data_of(run(case, "--json"))
    assert data["schema_version"] == 1
    assert set(data["metrics"]) == {f.name for f in fields(RunMetrics)}
    assert data["profile"]["kind"] == "analytic"
    assert "arXiv 2601.11580" in data["acceptance"]["source"]
    assert data["metrics"]["requests"] + data["metrics"]["rejected"] <= 300
    assert data["load"]["requests"] == 300


@pytest.mark.parametrize("pools", [(), ("--prefill-replicas", "1", "--decode-replicas", "1")])
def test_text_shows_every_metric_in_100_columns(case: Path, pools: tuple[str, ...]) -> None:
    result = run(case, *pools)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 100
    for f in fields(RunMetrics):
        stem = f.name.removesuffix("_s")
        shown = stem.rpartition("_")[0] if stem.endswith(("_mean", "_p50", "_p95", "_p99")) else f.name
        if f.name not in POOL_METRICS or pools:
            assert shown in result.stdout, f.name
        else:
            assert f" {f.name} " not in result.stdout
    assert "…" not in result.stdout


def test_an_identical_call_is_reused_and_another_seed_is_not(case: Path) -> None:
    first, again, other = (data_of(run(case, "--json", *more)) for more in ((), (), ("--seed", "5")))
    assert (first["reused"], again["reused"], other["reused"]) == (False, True, False)
    assert first["run_id"] == again["run_id"] != other["run_id"]
    assert first["metrics"] == again["metrics"] != other["metrics"]
    assert f"Run {first['run_id']}, reused from the store" in run(case).stdout


def test_the_oracle_gives_the_same_metrics(case: Path) -> None:
    fast, plain = (data_of(run(case, "--json", "--no-store", *more)) for more in ((), ("--plain",)))
    assert (fast["engine"], plain["engine"]) == ("fast", "plain")
    assert fast["run_id"] is None
    assert fast["metrics"] == plain["metrics"]


def test_a_stored_run_can_be_shown_again(case: Path) -> None:
    data = data_of(run(case, "--json"))
    shown = CliRunner().invoke(cli, ["runs", "show", data["run_id"], "--json", "--db", str(case.parent / "runs.db")])
    assert shown.exit_code == 0, shown.output
    assert data["run_id"] in shown.stdout


@pytest.mark.parametrize(
    ("policy", "label"),
    [
        ("off", "off"),
        ("static:4", "k=4"),
        ("schedule:1-16=5,17-64=3,65-1024=0", "schedule 5/3@17/0@65"),
        ("off_above:3:64", "k=3 to 64"),
        ("goodput:5", "adaptive<=5"),
    ],
)
def test_every_policy_can_be_written_on_the_command_line(case: Path, policy: str, label: str) -> None:
    data = data_of(run(case, "--json", "--no-store", "--policy", policy))
    assert data["policy"]["label"] == label
    assert (data["metrics"]["mean_k"] == 0) == (policy == "off")


def test_flags_overrule_the_file(case: Path) -> None:
    data = data_of(run(case, "--json", "--no-store", "--gpu", "h200", "--max-num-seqs", "7", "--tpot", "9",
                       "--ttft", "none", "--acceptance-length", "1.5", "--concurrency", "4"))  # fmt: skip
    assert data["deployment"]["names"]["gpu"] == "H200 SXM" or "H200" in data["deployment"]["names"]["gpu"]
    assert data["limits"]["max_num_seqs"] == 7
    assert data["slo"] == {"ttft_s": None, "tpot_s": 0.009, "share": 0.95, "e2e_s": None}
    assert data["acceptance"]["expected_length"] == pytest.approx(1.5)
    assert data["load"]["concurrency"] == 4
    assert data["metrics"]["running_batch"] == pytest.approx(4, rel=0.05)


def test_a_log_overrules_the_workload_and_reading_flags_apply(case: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = "".join(f"{t},50,20\n" for t in range(200))
    log.write_text("arrival,prompt_tokens,output_tokens\n" + rows, encoding="utf-8")
    data = data_of(run(case, "--json", "--no-store", "--trace", str(log), "--limit", "120", "--rate-scale", "10"))
    assert data["load"]["requests"] == 120
    assert data["load"]["rate_per_s"] == pytest.approx(10)
    written = f"[workload]\ntrace = '{log.name}'\n"
    case.write_text(written, encoding="utf-8")
    data = data_of(run(case, "--json", "--no-store", "--window", "0:50"))
    assert data["load"]["requests"] == 50
    assert data["policy"]["label"] == "k=3"
    assert data["assumed"] == ["No policy is given: static k=3 is assumed."]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_requests_are_written_one_a_row(case: Path, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"requests.{suffix}"
    data_of(run(case, "--json"))
    data = data_of(run(case, "--json", "--requests-out", str(target)))
    assert data["reused"] is True
    text = target.read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines())) if suffix == "csv" else [json.loads(x) for x in text.splitlines()]
    assert len(rows) == 300
    assert set(rows[0]) == {"request", *(f.name for f in fields(RequestColumns))}
    assert all(float(row["finish_s"]) > float(row["arrival_s"]) for row in rows)
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "statik:3"), "policy 'statik:3': unknown kind (did you mean 'static'?)"),
        (("--policy", "static"), "policy 'static' must be static:K, e.g. static:3"),
        (
            ("--method", "eagle2", "--policy", "budget:3"),
            "policy budget<=3 trims chains of drafts, and drafts form a tree",
        ),
        (("--policy", "static:-1"), "policy.num_spec_tokens must be a whole number >= 0, got -1"),
        (("--policy", "static:40"), "policy k=40: k 40 is more than the acceptance model"),
        (("--policy", "schedule:5-9=2"), "first range starts at 1"),
        (("--tpot", "0"), "--tpot '0' must be a number of milliseconds > 0, or none"),
        (("--ttft", "soon"), "--ttft 'soon' must be finite numbers"),
        (("--slo-share", "1.5"), "slo.share must be <= 1, got 1.5"),
        (("--warmup-share", "1"), "plan.warmup_share must lie in 0..0.9, got 1.0"),
        (("--window", "0:5"), "--window is about reading a log, but workload.trace is missing"),
        (("--trace", "no-such.csv"), "no-such.csv"),
        (("--concurrency", "0"), "--concurrency must be a whole number in 1..65536, got 0"),
        (("--requests-out", "out.txt"), "the name must end in .csv or .jsonl"),
        (("--requests-out", "no/such/out.csv"), "folder no/such does not exist"),
        (("--gpu", "h10"), "did you mean 'H100 SXM'?"),
        (("--db", "."), "directory"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(case: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run(case, *arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_a_file_of_requests_is_not_replaced_unasked(case: Path, tmp_path: Path) -> None:
    target = tmp_path / "kept.csv"
    target.write_text("mine", encoding="utf-8")
    result = run(case, "--no-store", "--requests-out", str(target))
    assert result.exit_code == 2
    assert "the file exists; give another name, or --force" in result.stderr
    assert target.read_text(encoding="utf-8") == "mine"
    assert run(case, "--no-store", "--requests-out", str(target), "--force").exit_code == 0
    assert target.read_text(encoding="utf-8").startswith("request,arrival_s")


def test_a_scenario_without_workload_asks_for_one(case: Path) -> None:
    case.write_text("[slo]\nshare = 0.9\n", encoding="utf-8")
    result = run(case)
    assert result.exit_code == 2
    assert "has no [workload]; add one, or give --trace" in result.stderr


def test_a_trace_of_which_nothing_fits_is_refused(case: Path) -> None:
    result = run(case, "--json", "--no-store", "--max-model-len", "50")
    assert result.exit_code == 2
    assert "every request is longer than is served here" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("policy", "other"),
    [
        ("ema:2", "ema:2:ema_alpha=0.3"),
        ("ema:2", "ema:2:candidates=1=1/2"),
        ("gate:2:0.4", "gate:2:0.4:reprobe_steps=9"),
        ("trt_gate:2:0.4:9", "trt_gate:2:0.4:9:over=requests"),
        ("budget:2", "budget:2:memory_steps=50"),
        ("context:0/1-9=2", "context:0/1-9=2;90/1-9=1"),
    ],
)
def test_every_setting_of_a_policy_makes_another_run(case: Path, policy: str, other: str) -> None:
    runs = [data_of(run(case, "--json", "--policy", text)) for text in (policy, other, policy)]
    assert [r["reused"] for r in runs] == [False, False, True]
    assert runs[0]["run_id"] == runs[2]["run_id"] != runs[1]["run_id"]
    assert runs[0]["policy"]["label"] != runs[1]["policy"]["label"]


def test_a_scenario_of_several_policies_has_to_be_told_which(case: Path) -> None:
    text = SCENARIO.replace('[policy]\nkind = "static"\nnum_spec_tokens = 2\n', "")
    case.write_text('policy = ["static:2", "ema:2"]\n' + text, encoding="utf-8")
    result = run(case, "--json")
    assert result.exit_code == 2
    assert "has several policies (k=2, ema<=2), and simulate runs one: name it with --policy" in result.stderr
    assert data_of(run(case, "--json", "--policy", "ema:2"))["policy"]["label"] == "ema<=2"


IDLE = [
    (("--policy", "OFF", "--task", "chat"), "--task"),
    (("--policy", " off", "--draft-tp", "1"), "--draft-tp"),
    (("--policy", "off", "--tree-nodes", "9"), "--tree-nodes"),
    (("--policy", "off", "--acceptance", "0.5"), "--acceptance"),
    (("--policy", "static:3", "--k", "5"), "--k"),
]


@pytest.mark.parametrize(("flags", "named"), IDLE)
def test_flags_that_the_policy_makes_idle_are_refused(flags: tuple[str, ...], named: str) -> None:
    result = CliRunner().invoke(cli, ["simulate", "llama-8b-h100-eagle", "--no-store", *flags])
    assert result.exit_code == 2
    assert f"{named} does nothing" in result.stderr and result.stderr.count("\n") == 1


def test_k_beside_the_policy_of_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        "[workload]\nisl = 64\nosl = 16\nconcurrency = 2\nrequests = 8\n"
        "[policy]\nkind = 'static'\nnum_spec_tokens = 3\n"
    )
    result = CliRunner().invoke(cli, ["simulate", str(path), "--no-store", "--k", "5"])
    assert result.exit_code == 2 and "own.toml has the policy 'k=3'" in result.stderr
    path.write_text(path.read_text().replace("num_spec_tokens = 3\n", ""))
    result = CliRunner().invoke(cli, ["simulate", str(path), "--no-store"])
    assert result.exit_code == 2 and "num_spec_tokens is missing" in result.stderr
