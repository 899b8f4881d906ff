"""`specsim sweep` as users call it: axes, pairs, intervals, what cannot be, what failed, what is kept."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner
from sweep_cases import GRID, SCENARIO, answer, same, sweep, write_case

from db.store import Store
from scenarios.loader import library_names
from specsim.cli import cli
from specsim.stats import estimate, paired_ratio


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def done(case: Path) -> dict:
    return answer(case, *GRID, "--against", "k=0", "--db", case.parent / "done.db")


def row_of(result: dict, **values: str) -> dict:
    (row,) = [row for row in result["points"] if values.items() <= row["values"].items()]
    return row


def test_every_point_of_the_grid_is_there_with_means_and_intervals_of_its_seeds(done: dict) -> None:
    assert [row["values"] for row in done["points"]] == [
        {"k": k, "load": load} for k in ("0", "2", "3") for load in ("0.5", "1.75", "3")
    ]
    for row in done["points"]:
        assert row["status"] == "done"
        assert [run["seed"] for run in row["runs"]] == done["seeds"] == [0, 1]
        for name in ("e2e_mean_s", "output_tokens_per_s", "slo_share"):
            e = estimate([run["metrics"][name] for run in row["runs"]])
            assert row["metrics"][name]["mean"] == pytest.approx(e.mean)
        assert row["load_per_s"] == pytest.approx(fmean(run["load_per_s"] for run in row["runs"]))
    assert row_of(done, k="0", load="0.5")["policy"] == "off"
    assert row_of(done, k="3", load="0.5")["policy"] == "k=3"
    assert row_of(done, k="0", load="3")["load_per_s"] == pytest.approx(
        6 * row_of(done, k="0", load="0.5")["load_per_s"]
    )


def test_pairs_meet_the_same_requests_and_the_comparison_is_of_pairs(done: dict) -> None:
    base, other = row_of(done, k="0", load="1.75"), row_of(done, k="3", load="1.75")
    assert base["against"] is None
    assert done["points"][other["against"]["point"]] == base
    for a, b in zip(base["runs"], other["runs"], strict=True):
        assert (a["seed"], a["load_per_s"]) == (b["seed"], b["load_per_s"])
        assert a["metrics"]["requests"] == b["metrics"]["requests"]
    ratio = paired_ratio(*([run["metrics"]["e2e_mean_s"] for run in row["runs"]] for row in (base, other)))
    assert other["against"]["e2e_speedup"] == pytest.approx({"mean": ratio.mean, "low": ratio.low, "high": ratio.high})
    assert other["against"]["verdict"] in ("faster", "tie")
    times = [[run["metrics"]["e2e_mean_s"] for run in row["runs"]] for row in (base, other)]
    ratios = [a / b for a, b in zip(*times, strict=True)]
    assert max(ratios) / min(ratios) < max(times[1]) / min(times[1]), "what a seed draws is the same on both sides"


def test_a_point_is_the_run_that_simulate_makes_and_is_shared_with_it(case: Path, done: dict) -> None:
    database = case.parent / "done.db"
    flags = ("--policy", "static:2", "--seed", "1", "--json", "--db", str(database))
    one = CliRunner().invoke(cli, ["simulate", str(case), *flags])
    found = answer(case, "--grid", "k=2", "--seeds", 2, "--db", database)
    again = json.loads(CliRunner().invoke(cli, ["simulate", str(case), *flags]).stdout)
    assert again["reused"]
    assert found["points"][0]["runs"][1]["run_id"] == again["run_id"]
    assert found["points"][0]["runs"][1]["metrics"] == again["metrics"] == json.loads(one.stdout)["metrics"]


def test_the_text_fits_and_names_what_is_stored(case: Path, done: dict) -> None:
    result = sweep(case, *GRID, "--against", "k=0", "--db", case.parent / "done.db")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert done["plan_id"] in result.stdout
    assert "18 of 18 points were stored already" in result.stderr
    for words in ("TTFT p95 ms", "tokens/s", "in SLO", "speed-up over k=0", "faster"):
        assert words in result.stdout


def test_many_axes_and_metrics_still_fit(case: Path) -> None:
    grid = ("--grid", "k=1", "--grid", "max_num_seqs=8,16", "--grid", "router=round_robin,prefix_affinity",
            "--grid", "max_num_batched_tokens=4096,8192", "--grid", "gpu_memory_utilization=0.8,0.9")  # fmt: skip
    names = ("ttft_p50_s", "ttft_p99_s", "itl_chunk_p95_s", "goodput_per_s", "mean_acceptance_length", "kv_use")
    text = sweep(case, *grid, "--seeds", 1, *(word for name in names for word in ("--metric", name))).stdout
    assert max(map(len, text.splitlines())) <= 100
    assert "#15: k=1 max_num_seqs=16 router=prefix_affinity" in text
    assert text.count("#15") == 2, "a legend and a table"


def test_the_number_of_workers_and_the_store_change_no_byte(case: Path, done: dict) -> None:
    database = case.parent / "two.db"
    twice = [answer(case, *GRID, "--against", "k=0", "--jobs", jobs, "--db", database) for jobs in (2, 1)]
    assert same(twice[0]) == same(twice[1]) == same(done)
    plain = answer(case, *GRID, "--against", "k=0", "--jobs", 2)
    for row in plain["points"]:
        for run in row["runs"]:
            assert run.pop("run_id") is None
    kept = json.loads(json.dumps(done["points"]))
    for row in kept:
        for run in row["runs"]:
            run.pop("run_id")
    assert plain["points"] == kept


def test_a_grown_grid_runs_only_what_is_new(case: Path, done: dict) -> None:
    result = sweep(case, "--grid", "k=0,2,3,4", *GRID[2:], "--db", case.parent / "done.db")
    assert result.stderr.splitlines()[-1] == "18 of 24 points were stored already"


def test_the_store_lists_the_sweep_and_its_runs(case: Path, done: dict) -> None:
    with Store.open(case.parent / "done.db", mode="read") as store:
        item = store.get(done["plan_id"])
    assert (item["kind"], item["status"], len(item["run_ids"])) == ("sweep", "complete", 18)
    assert same(item["result"]) == same(done)
    shown = CliRunner().invoke(cli, ["runs", "show", done["plan_id"], "--db", str(case.parent / "done.db")])
    assert "--grid k=0,2,3 --grid load=0.5..3/3" in " ".join(shown.stdout.split())
    for command in (["runs", "list"], ["runs", "show", done["plan_id"]], ["report", done["plan_id"]]):
        shown = CliRunner().invoke(cli, [*command, "--db", str(case.parent / "done.db")])
        assert shown.exit_code == 0, shown.output
        assert "sweep" in shown.stdout.lower()
    refused = CliRunner().invoke(cli, ["config", done["plan_id"], "--db", str(case.parent / "done.db")])
    assert refused.exit_code == 2


def test_the_csv_has_a_row_for_every_point_and_seed(case: Path, done: dict, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert sweep(case, *GRID, "--csv", out).exit_code == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["k"], row["load"], row["seed"]) for row in rows] == [
        (k, load, seed) for k in ("0", "2", "3") for load in ("0.5", "1.75", "3") for seed in ("0", "1")
    ]
    assert [float(row["e2e_mean_s"]) for row in rows] == [
        run["metrics"]["e2e_mean_s"] for row in done["points"] for run in row["runs"]
    ]
    again = sweep(case, *GRID, "--csv", out)
    assert (again.exit_code, "--force to replace it" in again.stderr) == (2, True)


def test_what_cannot_be_is_refused_and_the_rest_goes_on(case: Path) -> None:
    result = answer(case, "--grid", "target=llama-3.1-8b,llama-3.3-70b", "--grid", "tp=1,4", "--seeds", 1)
    assert [row["status"] for row in result["points"]] == ["done", "done", "refused", "done"]
    assert result["refused"] == 1
    assert "does not fit" in result["points"][2]["reason"] or "GB" in result["points"][2]["reason"]
    text = sweep(case, "--grid", "target=llama-3.1-8b,llama-3.3-70b", "--grid", "tp=1,4", "--seeds", 1).stdout
    assert "Not possible: 1 of 4" in text
    assert "target=llama-3.3-70b tp=1: " in text


def test_a_failing_point_is_reported_and_the_rest_goes_on(case: Path, tmp_path: Path) -> None:
    """Prompts that no request of one point fits into: the run itself refuses them all."""
    database = tmp_path / "failed.db"
    result = sweep(case, "--grid", "max_model_len=100,4096", "--grid", "isl=80,200", "--seeds", 2, "--json", "--db",
                   database)  # fmt: skip
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [row["status"] for row in found["points"]] == ["done", "failed", "done", "done"]
    assert "every request is longer than is served here" in found["points"][1]["reason"]
    with Store.open(database, mode="read") as store:
        assert store.count()["runs"] == 6, "failures are not kept, so that they are tried again"
    text = sweep(case, "--grid", "max_model_len=100,4096", "--grid", "isl=80,200", "--seeds", 2)
    assert (text.exit_code, "Failed: 1 of 4" in text.stdout) == (1, True)


def test_one_seed_has_no_interval_and_no_verdict(case: Path) -> None:
    result = answer(case, "--grid", "k=0,2", "--seeds", 1, "--against", "k=0")
    row = result["points"][1]
    assert row["metrics"]["e2e_mean_s"]["low"] is None
    assert row["against"]["verdict"] == "unknown"


def test_a_log_keeps_its_arrivals_and_says_what_intervals_cover(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = [f"{i * 0.25:.3f},{50 + 37 * i % 300},{6 + 7 * i % 12}" for i in range(40)]
    log.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(rows) + "\n")
    case = write_case(tmp_path)
    result = answer(case, "--trace", log, "--grid", "k=0,2", "--grid", "rate=2,8", "--seeds", 3)
    assert len(result["traces"]) == 1, "read once for all seeds"
    assert any("luck alone" in note for note in result["notes"])
    for row in result["points"]:
        assert row["load_per_s"] == pytest.approx(float(row["values"]["rate"]))
    off = row_of(result, k="0", rate="2")["metrics"]["e2e_mean_s"]
    assert off["low"] == pytest.approx(off["high"]), "without speculation luck plays no part"
    assert row_of(result, k="2", rate="2")["metrics"]["e2e_mean_s"]["low"] < off["low"]


AXES = [
    ("gpu=h100,h200", ["h100", "h200"]), ("dtype=bf16,fp8", ["bf16", "fp8"]), ("tp=1..2", ["1", "2"]),
    ("replicas=1,2", ["1", "2"]), ("drafter=eagle,ngram", ["eagle", "ngram"]), ("method=eagle", ["eagle"]),
    ("policy=off;schedule:1-16=2,17-64=0", ["off", "schedule:1-16=2,17-64=0"]), ("policy=off,ema:2", ["off", "ema:2"]),
    ("engine=vllm,sglang", ["vllm", "sglang"]), ("max_num_seqs=8..16/2", ["8", "16"]),
    ("--max-num-seqs=8", ["8"]), ("ttft=10,none", ["10", "none"]), ("tpot=8", ["8"]), ("slo_share=0.5", ["0.5"]),
    ("chunked_prefill=true,false", ["true", "false"]), ("acceptance=0.9,0.8;0.5,0.4", ["0.9,0.8", "0.5,0.4"]),
    ("acceptance=0.9,0.8;", ["0.9,0.8"]), ("concurrency=1..4/3:log", ["1", "2", "4"]), ("isl=40..80/2", ["40", "80"]),
    ("workload.osl=10,lognormal:30:60", ["10", "lognormal:30:60"]), ("slo.ttft_ms=50", ["50"]),
    ("deployment.gpu_memory_utilization=0.8", ["0.8"]), ("rate=5..20/4", ["5", "10", "15", "20"]),
    ("load=0.5..3", ["0.5", "1", "1.5", "2", "2.5", "3"]), ("k=0..2", ["0", "1", "2"]),
    ("warmup_share=0,0.3", ["0", "0.3"]), ("requests=20", ["20"]), ("temperature=0,1", ["0", "1"]),
]  # fmt: skip


@pytest.mark.parametrize(("grid", "values"), AXES, ids=[grid for grid, _ in AXES])
def test_whatever_a_flag_or_a_scenario_file_can_say_is_an_axis(case: Path, grid: str, values: list[str]) -> None:
    result = answer(case, "--grid", grid, "--seeds", 1)
    assert result["axes"][0]["values"] == values
    assert [row["status"] for row in result["points"]] == ["done"] * len(values)
    figures = [json.dumps(row["runs"][0]["metrics"]) for row in result["points"]]
    same_anyway = ("replicas", "max_num_seqs", "chunked_prefill")  # at this load
    if not grid.startswith(same_anyway):
        assert len(set(figures)) == len(values), "every value makes a difference"


BAD = [
    ("gpu=h9000", "h9000"), ("kk=1", "unknown axis (did you mean 'k'?)"), ("k=x", "k=x must be a whole number"),
    ("k=-1", "k=-1 must be a whole number"), ("k=1,1", "k has 1 twice"), ("k=", "must be NAME=VALUES"),
    ("k", "must be NAME=VALUES"), ("load=0", "load=0 must be a number > 0"), ("load=3..1", "from the lower end"),
    ("load=1..2/1", "2 to 1000 values, not 1"), ("k=1..3/9", "has not 9 whole numbers"),
    ("load=0..2/3:log", "begins above 0"), ("tp=two", "'two' is not a whole number"), ("tp=0", "at tp=0: "),
    ("seed=1,2", "--seeds N"), ("slo=3", "ttft, tpot, e2e"), ("policy=statik:3", "unknown kind"),
    ("chunked_prefill=maybe", "chunked_prefill=maybe"), ("isl=many", "isl"), ("k=1,,2", "a value is empty"),
    ("num_spec_tokens=1", "the axis of drafts is k"), ("jobs=1,2", "unknown axis"),
    ("k=5000", "must be a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("grid", "said"), BAD, ids=[grid for grid, _ in BAD])
def test_a_wrong_axis_or_value_is_one_clear_line(case: Path, grid: str, said: str) -> None:
    result = sweep(case, "--grid", grid)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "sweep needs at least one axis"),
        (("--grid", "k=1", "--grid", "policy=off"), "exclude each other"),
        (("--grid", "load=1", "--grid", "rate=3"), "exclude each other"),
        (("--grid", "gpu=h100", "--gpu", "h200"), "--gpu and --grid gpu say the same"),
        (("--grid", "k=1", "--k", "3"), "--k and --grid k"),
        (("--grid", "k=1", "--policy", "off"), "--policy and --grid k exclude each other"),
        (("--grid", "k=1", "--grid", "k=2"), "the axis k twice"),
        (("--grid", "gpu=h100", "--grid", "deployment.gpu=h200"), "twice, perhaps spelt in two ways"),
        (("--grid", "k=1,2", "--against", "k=0"), "--against k=0: add 0 to --grid k=1,2"),
        (("--grid", "k=1,2", "--against", "gpu=h100"), "is on no axis of the grid"),
        (("--grid", "k=1,2", "--metric", "ttft"), "--metric ttft: no such metric"),
        (("--grid", "k=1", "--address", "here:1"), "add --executor ray"),
        (("--grid", "k=1", "--force"), "--force is for --csv"),
        (("--grid", "k=1..3", "--grid", "load=0.1..3/900", "--seeds", "10"), "at most 20,000"),
        (("--grid", "load=1,2", "--concurrency", "4"), "--concurrency and --grid load exclude each other"),
        (("--grid", "rate=1", "--grid", "rate_per_s=5,50"), "--grid rate and rate_per_s exclude each other"),
        (("--grid", "rate=1", "--find", "capacity", "--over", "rate_per_s=5..50"), "rate and rate_per_s exclude"),
        (("--grid", "concurrency=2", "--grid", "rate_per_s=5,50"), "--grid concurrency and rate_per_s exclude"),
        (("--grid", "concurrency=2", "--grid", "arrivals=poisson:5;even:5"), "--grid concurrency and arrivals exclude"),
        (("--grid", "concurrency=2", "--grid", "duration=5m,9m"), "--grid concurrency and duration exclude"),
        (("--grid", "rate_per_s=5,50", "--concurrency", "4"), "--concurrency and --grid rate_per_s exclude"),
        (("--grid", "concurrency=1,2", "--arrivals", "foo"), "--arrivals and --grid concurrency exclude each other"),
        (("--grid", "k=1", "--concurrency", "2", "--arrivals", "poisson:5"), "--arrivals poisson:5 does nothing"),
        (("--grid", "isl=80,90", "--trace", "log.csv"), "--trace replaces the workload, of which --grid isl is"),
        (("--grid", "isl=80,080"), "--grid isl has 80 and 080, which are the same"),
        (("--grid", "gpu=h100,h100-sxm"), "--grid gpu has h100 and h100-sxm, which are the same"),
        (("--grid", "policy=off;static:2", "--against", "policy=off;policy=off"), "--against names policy twice"),
        (("--grid", "policy=off;schedule:1-2=3,3-9=0", "--against", "policy=schedule:1-2=3,3-9=0"), "ends in ;"),
        (("--grid", "target=llama-3.3-70b"), "no point of the grid is possible"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(case: Path, words: tuple[str, ...], said: str) -> None:
    result = sweep(case, *words)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


@pytest.mark.parametrize("name", library_names())
def test_ready_scenarios_can_be_swept(name: str) -> None:
    result = answer(name, "--grid", "k=0,1", "--grid", "workload.requests=40", "--seeds", 1, "--against", "k=0")
    assert [row["status"] for row in result["points"]] == ["done"] * 2
    assert math.isfinite(result["points"][1]["against"]["e2e_speedup"]["mean"])


def test_a_closed_loop_has_no_load() -> None:
    refused = sweep("llama-8b-h100-eagle", "--grid", "load=1,2")
    assert refused.exit_code == 2
    assert "load and rate change arrival times, and llama-8b-h100-eagle.toml keeps 16 requests" in refused.stderr


def test_several_policies_of_a_file_are_named(tmp_path: Path) -> None:
    text = 'policy = ["off", "static:2"]\n' + SCENARIO.partition("[policy]")[0]
    case = write_case(tmp_path, text)
    assert "--grid policy=A;B" in sweep(case, "--grid", "load=1,2").stderr
    assert answer(case, "--grid", "policy=off,static:2", "--seeds", 1)["points"][0]["policy"] == "off"


def test_goodput_beside_what_is_served_says_how_they_differ(case: Path) -> None:
    words = ("--grid", "k=0", "--metric", "goodput_per_s")
    assert "goodput/s counts" in sweep(case, *words, "--metric", "served_requests_per_s").stdout
    assert "goodput/s counts" not in sweep(case, *words).stdout
