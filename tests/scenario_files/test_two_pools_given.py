"""Prefill and decode replicas as users give them: refusals, scenario keys, flags over them, what is stored."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scenarios.loader import load_scenario
from scenarios.resolve import resolve
from specsim.cli import cli
from specsim.config import Deployment, Slo, Speculation
from specsim.efficiency import FACTORS
from specsim.errors import ScenarioError

POOLS = {"prefill_replicas": 2, "decode_replicas": 1}

SCENARIO = """
[deployment]
prefill_replicas = 1
decode_replicas = 2
kv_link_gb_per_s = 25.0
kv_link_latency_s = 0.002

[speculation]
num_spec_tokens = [2]

[workload]
requests = 200
rate_per_s = 5.0
isl = "400"
osl = "30"
"""


@pytest.fixture
def case(tmp_path: Path) -> Path:
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO)
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prefill_replicas": 0, "decode_replicas": 1}, r"prefill_replicas must be a whole number >= 1, got 0"),
        ({"prefill_replicas": 1, "decode_replicas": -1}, r"decode_replicas must be a whole number >= 1, got -1"),
        ({"prefill_replicas": 5000, "decode_replicas": 1}, r"prefill_replicas must be a whole number in 1..4096"),
        ({"prefill_replicas": True, "decode_replicas": 1}, r"prefill_replicas "),
        ({"prefill_replicas": 1}, r"prefill_replicas needs deployment.decode_replicas beside it; give both or neither"),
        ({"decode_replicas": 1}, r"decode_replicas needs deployment.prefill_replicas beside it"),
        ({**POOLS, "replicas": 2}, r"replicas 2 compute prompts and decode, .*give the one or the others"),
        (
            {**POOLS, "engine": "llamacpp"},
            r"prefill_replicas: llamacpp does not serve prefill and decode apart",
        ),
        ({**POOLS, "engine": "static"}, r"prefill_replicas: static does not serve prefill and decode apart"),
        ({**POOLS, "kv_link_gb_per_s": 0.0}, r"kv_link_gb_per_s must be a number in 0.001..1e\+06, got 0.0"),
        ({**POOLS, "kv_link_gb_per_s": math.inf}, r"kv_link_gb_per_s "),
        ({**POOLS, "kv_link_latency_s": -0.1}, r"kv_link_latency_s must be a number in 0..60, got -0.1"),
        ({**POOLS, "kv_link_latency_s": math.nan}, r"kv_link_latency_s "),
        ({"kv_link_gb_per_s": 25.0}, r"kv_link_gb_per_s is of the link between prefill and decode replicas, and there"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict, said: str) -> None:
    with pytest.raises(ScenarioError, match=rf"deployment.{said}"):
        Deployment(**changes)


def test_a_scenario_has_the_keys_and_gives_them_back(case: Path) -> None:
    deployment = load_scenario(str(case)).deployment
    assert (deployment.prefill_replicas, deployment.decode_replicas) == (1, 2)
    assert (deployment.decoding_replicas, deployment.all_replicas) == (2, 3)
    side = resolve(deployment, Speculation(num_spec_tokens=(2,)), Slo()).on
    pools = side.disaggregation
    assert pools is not None
    assert (pools.prefill_replicas, pools.decode_replicas) == (1, 2)
    assert (pools.link_bytes_per_s, pools.link_latency_s) == (25e9, 0.002)
    assert pools.block_bytes == side.memory["kv_bytes_per_token"] * side.limits.block_size_tokens


@pytest.mark.parametrize(("gpu", "link"), [("h100-sxm", 50e9), ("l4", 32e9)])
def test_the_link_is_the_network_or_what_is_slower(gpu: str, link: float) -> None:
    deployment = Deployment(gpu=gpu, max_model_len=4096, **POOLS)
    off, on = (getattr(resolve(deployment, Speculation(), Slo()), side).disaggregation for side in ("off", "on"))
    assert off.link_bytes_per_s == pytest.approx(FACTORS.slow_link_bandwidth * link)
    assert off.link_latency_s == FACTORS.kv_pull_latency_s
    assert on.block_bytes > off.block_bytes, "the drafter's layers are sent too"


def test_flags_overrule_either_way(case: Path) -> None:
    both = json.loads(run("simulate", case, "--replicas", 2, "--no-store", "--json").stdout)["deployment"]
    assert (both["replicas"], both["prefill_replicas"], both["kv_link"]) == (2, None, None)
    many = case.with_name("many.toml")
    many.write_text("[deployment]\nreplicas = 3\n" + SCENARIO[SCENARIO.index("[speculation]") :])
    apart = run("simulate", many, "--prefill-replicas", 1, "--decode-replicas", 1, "--kv-link-gb-per-s", 10,
                "--no-store", "--json")  # fmt: skip
    assert json.loads(apart.stdout)["deployment"]["kv_link"]["bytes_per_s"] == 10e9
    half = run("simulate", many, "--prefill-replicas", 1)
    assert half.exit_code == 2
    assert "needs deployment.decode_replicas beside it" in half.output
    two_ways = run("simulate", case, "--replicas", 2, "--prefill-replicas", 1)
    assert two_ways.exit_code == 2


def test_another_link_is_another_run(case: Path, tmp_path: Path) -> None:
    db = ("--db", tmp_path / "runs.db", "--json")
    first, again = (json.loads(run("simulate", case, *db).stdout) for _ in range(2))
    slow = json.loads(run("simulate", case, "--kv-link-gb-per-s", 0.5, *db).stdout)
    assert (first["reused"], again["reused"], slow["reused"]) == (False, True, False)
    assert again["metrics"] == first["metrics"]
    assert slow["metrics"]["ttft_mean_s"] > first["metrics"]["ttft_mean_s"] + 0.05


def test_requests_explanation_and_timeline_have_the_hand_over(case: Path, tmp_path: Path) -> None:
    rows_file, drawing = tmp_path / "rows.csv", tmp_path / "run.json"
    words = ("simulate", case, "--no-store", "--explain", "--requests-out", rows_file, "--timeline", drawing)
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    with rows_file.open() as file:
        rows = [
            {name: float(value) for name, value in row.items() if name.endswith("_s")} for row in csv.DictReader(file)
        ]
    for row in rows:
        times = [row[name] for name in ("first_scheduled_s", "prefill_end_s", "room_s", "transfer_start_s",
                                        "transfer_end_s", "decode_start_s", "first_token_s", "finish_s")]  # fmt: skip
        assert times == sorted(times)
    for side in (data["explain"]["off"], data["explain"]["on"]):
        request = side["request_s"]
        parts = [name for name in request if name != "total"]
        assert parts == ["queued", "prompt", "room", "link", "transfer", "joining", "decode"]
        assert sum(request[name] for name in parts) == pytest.approx(request["total"])
    assert data["explain"]["on"]["request_s"]["transfer"] == pytest.approx(data["metrics"]["transfer_mean_s"])
    assert any(text.startswith("A prompt that is done waits") for text in data["explain"]["text"])
    events = json.loads(drawing.read_text())["traceEvents"]
    titles = {e["args"]["name"] for e in events if e.get("name") == "process_name"}
    assert titles == {"prefill replica 0", "decode replica 0", "decode replica 1"}
    names = {e.get("name") for e in events}
    assert {"handover", "transfer", "joining", "decode"} <= names
    text = run(*words, "--force").stdout
    assert max(map(len, text.splitlines())) <= 100
    assert "its cache is sent, ms" in text
    assert "1 prefill and 2 decode replica(s)" in text


def test_a_plan_says_that_prefill_and_decode_are_apart(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i * 0.1:.1f},800,20\n" for i in range(400)))
    words = ("plan", "--trace", log, "--prefill-replicas", 1, "--decode-replicas", 2, "--loads", "5,200", "--k", 3,
             "--replications", 2, "--no-store")  # fmt: skip
    data = json.loads(run(*words, "--json").stdout)
    rows = {(row["policy"], row["load"]): row["metrics"] for row in data["comparison"]}
    assert rows["off", 5.0]["handover_mean_s"]["mean"] > 0
    assert rows["off", 200.0]["prefill_utilisation"]["mean"] > 0.95 > rows["off", 5.0]["prefill_utilisation"]["mean"]
    assert next(r for r in data["comparison"] if r["load"] == 200.0)["saturated"], "one pool that is full is enough"
    assert "--kv-transfer-config" in data["config"]["prefill_command"]
    assert any("layers of a cache" in item for item in data["not_modelled"])
    one = json.loads(run("plan", "--trace", log, "--loads", "5,200", "--k", 3, "--replications", 2, "--no-store",
                         "--json").stdout)  # fmt: skip
    # One replica spends most of its time on these prompts; a prefill replica all of it.
    assert data["loads"]["capacity_off_per_s"] > one["loads"]["capacity_off_per_s"]
    text = run(*words).stdout
    assert "disaggregated: 1 prefill and 2 decode replicas of 1 x H100 SXM" in text
    assert "Each prefill server:" in text and "Each decode server:" in text


@pytest.mark.parametrize(
    ("prompt", "output", "kind"), [(4000, 4, "prefill"), (60, 900, "decode")], ids=["prefill", "decode"]
)
def test_a_plan_says_which_kind_of_replica_is_short(tmp_path: Path, prompt: int, output: int, kind: str) -> None:
    log = tmp_path / "log.csv"
    rows = "".join(f"{i * 0.008:.3f},{prompt},{output}\n" for i in range(800))
    log.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    words = ("plan", "--trace", log, "--prefill-replicas", 1, "--decode-replicas", 1, "--loads", "125", "--k", 3)
    limits = ("--max-num-seqs", 64, "--replications", 2)
    data = json.loads(run(*words, *limits, "--no-store", "--json").stdout)
    said = [text for text in data["warnings"] if "more than this fleet serves" in text]
    assert len(said) == 1 and f"{kind} replicas to keep up (--{kind}-replicas " in said[0]
    assert any("are those of a decode replica" in note for note in data["notes"])


def test_crossover_refuses_what_it_does_not_look_at() -> None:
    refused = run("crossover", "--prefill-replicas", 1, "--decode-replicas", 1)
    assert refused.exit_code == 2
    assert "crossover looks at one replica that does both" in refused.output
