"""Pools of a what-if: who belongs where, each sized as if alone, summed, and compared with one fleet for all."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_trace
from plan_cli import plan

from specsim.traces.slices import chosen

QUICK = ["--k", "3", "--jobs", "1", "--price", "l40s=1.1", "--price", "h100=3", "--gpu", "l40s,h100"]
TWO = ["--pool", "fast=chat,code:speculative", "--pool", "slow=*:off:tpot=200,ttft=9000"]


def whatif(log: Path, *arguments: object) -> Any:
    return plan("--trace", log, *QUICK, *arguments, "--no-store", "--json", command="whatif")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 requests, half of them chat, a quarter code, the others without a task or of `batch`."""
    draws = np.random.default_rng(4)
    arrivals = np.cumsum(draws.exponential(0.05, 200))
    tasks = [("chat", "code", "chat", ("batch", "")[i % 8 // 4])[i % 4] for i in range(200)]
    lines = [f"{t:.3f},{100 + 7 * i % 500},{20 + 3 * i % 60},{tasks[i]}" for i, t in enumerate(arrivals)]
    path = tmp_path_factory.mktemp("pools") / "log.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,task\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def split(log: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(whatif(log, "--tpot", "26", *TWO).stdout)
    return found


def only(log: Path, tasks: tuple[str, ...], tmp_path: Path) -> Path:
    head, *rows = log.read_text().splitlines()
    path = tmp_path / f"{'-'.join(tasks) or 'none'}.csv"
    path.write_text("\n".join([head, *(row for row in rows if row.rsplit(",", 1)[1] in tasks)]) + "\n")
    return path


def test_each_pool_is_sized_as_its_requests_alone_would_be(log: Path, split: dict[str, Any], tmp_path: Path) -> None:
    fast, slow = split["pools"]["each"]
    assert (fast["request_share"], slow["request_share"]) == (0.75, 0.25)
    assert fast["slo"]["tpot_s"] == 0.026
    assert (slow["slo"]["tpot_s"], slow["slo"]["ttft_s"]) == (0.2, 9.0)
    assert {row["policy_kind"] for row in fast["options"]} <= {"static", "schedule", "adaptive"}
    assert {row["policy_kind"] for row in slow["options"]} == {"off"}
    alone = json.loads(whatif(only(log, ("chat", "code"), tmp_path), "--tpot", "26", "--policies",
                              "static,schedule,adaptive").stdout)  # fmt: skip
    assert [row["gpus"] for row in fast["options"]] == [row["gpus"] for row in alone["options"]]
    plain = json.loads(whatif(only(log, ("batch", ""), tmp_path), "--tpot", "200", "--ttft", "9000", "--policies",
                              "off").stdout)  # fmt: skip
    assert [row["gpus"] for row in slow["options"]] == [row["gpus"] for row in plain["options"]]
    for row in (*fast["options"], *slow["options"]):
        assert row["proof"]["at"]["replicas"] == row["replicas"]


def test_pools_are_summed_and_compared_with_one_fleet(log: Path, split: dict[str, Any]) -> None:
    result = split
    pools = result["pools"]["each"]
    combined = result["pools"]["combined"]
    assert [it["gpu"] for it in combined] == [None, "L40S", "H100 SXM"]
    prices = {"L40S": 1.1, "H100 SXM": 3.0}
    for it in combined:
        rows = [pool["options"][index] for pool, index in zip(pools, it["options"], strict=True)]
        assert it["gpus"] == sum(row["gpus"] for row in rows)
        assert it["cost"] == pytest.approx(sum(row["gpus"] * prices[row["gpu"]] for row in rows))
        assert it["gpu"] is None or {row["gpu"] for row in rows} == {it["gpu"]}
        shared = result["options"][it["shared_option"]]
        assert (it["shared_gpus"], it["shared_cost"]) == (shared["gpus"], pytest.approx(shared["cost"]["usd_per_h"]))
    assert combined[0]["cost"] == min(it["cost"] for it in combined), "any GPU is no dearer than one GPU"
    text = " ".join(result["pools"]["text"])
    assert f"take {combined[0]['gpus']} GPUs" in text
    assert ("less than one fleet" in text) == (combined[0]["cost"] < combined[0]["shared_cost"])
    unsplit = json.loads(whatif(log, "--tpot", "26", "--policies", "off").stdout)
    assert unsplit["pools"] is None
    off = [row["gpus"] for row in result["options"] if row["policy_kind"] == "off"]
    assert [row["gpus"] for row in unsplit["options"]] == off


def test_they_are_stored_reported_and_written(log: Path, tmp_path: Path) -> None:
    db = tmp_path / "x.db"
    call = ("--trace", log, *QUICK, "--tpot", "26", *TWO, "--db", db)
    first = plan(*call, command="whatif")
    assert first.exit_code == 0, first.stderr
    assert max(map(len, first.stdout.splitlines())) <= 100
    numbers = [int(n) for n in re.findall(r"^(\d+)\. [A-Z]", first.stdout, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1)), "sections are numbered as they come"
    assert f"{numbers[-1]}. Pools" in first.stdout
    assert plan(*call, command="whatif").stdout == first.stdout
    stored = json.loads(plan("latest", "--json", "--db", db, command="report").stdout)
    ids = {run for pool in stored["pools"]["each"] for row in pool["options"] for run in row["proof"]["at"]["runs"]}
    shown = json.loads(plan("show", "latest", "--json", "--db", db, command="runs").stdout)
    assert None not in ids
    assert ids <= set(shown["plan"]["run_ids"])
    assert plan("latest", "--db", db, command="report").stdout == first.stdout
    markdown = plan("latest", "--markdown", "--db", db, command="report").stdout
    assert "## Pools" in markdown
    assert plan("latest", "--csv", "-o", tmp_path / "t", "--db", db, command="report").exit_code == 0
    rows = (tmp_path / "t" / "pool_options.csv").read_text().splitlines()
    assert len(rows) == 1 + sum(len(pool["options"]) for pool in stored["pools"]["each"])


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        (["fast=chat:speculative"], "second pool"),
        (["fast=chat", "slow=*:off"], "must be NAME=TASKS:POLICIES"),
        (["=chat:off", "slow=*:off"], "must be NAME=TASKS:POLICIES"),
        (["fast=chat:of", "slow=*:off"], "one of off, speculative, any"),
        (["fast=chat:off", "fast=*:off"], "the name fast twice"),
        (["fast=chat:off", "slow=chat,*:off"], "the task chat twice"),
        (["fast=chat:off", "slow=math:off"], "no task 'math'"),
        (["fast=chat:off", "slow=code:off"], "belong to no pool"),
        (["fast=chat,code,batch:off", "slow=*:off:tpot=x"], "tpot"),
        (["fast=chat:off", "slow=*:off:ttft=none,tpot=none"], "no objective"),
        (["fast=chat:off", "slow=*:off:tpt=3"], "an objective is"),
        (["fast=chat,:off", "slow=*:off"], "separated by commas"),
    ],
)
def test_what_makes_no_sense_is_one_line(pools: list[str], words: str, log: Path) -> None:
    result = whatif(log, *(part for pool in pools for part in ("--pool", pool)))
    assert result.exit_code == 2, result.stdout
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_log_without_tasks_cannot_be_split(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(f"{i},50,9" for i in range(40)))
    result = whatif(path, *TWO)
    assert result.exit_code == 2
    assert "names none" in result.stderr


def test_chosen_requests_keep_their_prefixes_and_tasks() -> None:
    trace = make_trace(arrival_s=np.arange(6.0), prompt_tokens=[16, 32, 16, 48, 16, 16], output_tokens=5)
    ids = np.arange(9, dtype=np.int64)
    offsets = np.array([0, 1, 3, 4, 7, 8, 9], dtype=np.int64)
    trace = replace(trace, hash_block_tokens=16, hash_ids=ids, hash_offsets=offsets,
                    task=np.array([0, 1, 0, 1, -1, 0], dtype=np.int16), task_names=("a", "b"))  # fmt: skip
    mask = np.array([True, False, True, True, False, False])
    found = chosen(trace, mask)
    assert found.arrival_s.tolist() == [0.0, 2.0, 3.0]
    assert [found.hashes(i).tolist() for i in range(3)] == [trace.hashes(i).tolist() for i in (0, 2, 3)]
    assert found.task is not None
    assert found.task.tolist() == [0, 0, 1]
