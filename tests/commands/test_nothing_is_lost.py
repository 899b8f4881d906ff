"""Flags that would be lost or change nothing are refused in one line; output that cannot be written is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specsim.cli import cli

LOG = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i * 0.5},100,20\n" for i in range(20))


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECSIM_DB", raising=False)
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return str(path)


@pytest.mark.parametrize(
    "flags",
    [
        ["--seed", "1", "--seed", "2"],
        ["--seed=1", "--seed", "1"],
        ["--gpu", "h100-sxm", "--gpu", "a100-80-sxm"],
        ["--db", "x.db", "--no-store"],
        ["--acceptance-length-k", "3"],
        ["--acceptance", "0.5", "--acceptance-length-k", "3"],
        ["--acceptance", "0.5", "--acceptance-length", "2", "--acceptance-length-k", "3"],
        ["--acceptance", "0.5", "--task", "chat"],
        ["--draft", "llama-3.1-8b"],
        ["--method", "draft_model", "--draft", "eagle-llama-3.1-8b"],
        ["--method", "ngram", "--draft", "llama-3.2-1b"],
    ],
)
def test_flags_of_plan_that_would_be_lost(log: str, flags: list[str]) -> None:
    found = run("plan", "--trace", log, *flags)
    assert found.exit_code == 2
    assert "Error: " in found.stderr.splitlines()[-1]
    assert found.stdout == ""
    assert not os.path.exists("specsim.db")


@pytest.mark.parametrize(
    "flags",
    [
        ["--replicas", "9" * 26],
        ["--replicas", "4097"],
        ["--max-num-seqs", "9" * 26],
        ["--block-size", "100000"],
        ["--jobs", "9" * 26],
        ["--replications", "9" * 26],
        ["--max-requests", "9" * 26],
        ["--loads", "1e308"],
        ["--loads", "1e-320"],
        ["--engine-version", ""],
        ["--engine-version", "foo"],
        ["--engine-version", "1,,2"],
    ],
)
def test_figures_far_out_of_range(log: str, flags: list[str]) -> None:
    """Refused before anything is allocated or simulated."""
    found = run("plan", "--trace", log, "--no-store", *flags)
    assert found.exit_code == 2
    assert found.stderr.startswith(("Error: ", "Usage: "))
    assert "Error: " in found.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "flags",
    [
        ["--policy", "static:5", "--k", "3"],
        ["--policy", "off", "--acceptance", "0.5"],
        ["--force"],
        ["--db", "x.db", "--no-store"],
        ["--max-model-len", "1"],
        ["--concurrency", "100000000"],
        ["--limit", "5", "--limit", "10"],
    ],
)
def test_flags_of_simulate_that_would_be_lost(log: str, flags: list[str]) -> None:
    found = run(
        "simulate", "chat-ngram", "--trace", log, *(["--no-store"] if "--no-store" not in flags else []), *flags
    )
    assert found.exit_code == 2
    assert "Error: " in found.stderr.splitlines()[-1]


def test_requests_never_replace_the_log_they_come_from(log: str) -> None:
    found = run("simulate", "chat-ngram", "--trace", log, "--no-store", "--requests-out", log, "--force")
    assert found.exit_code == 2
    assert Path(log).read_text() == LOG


def test_a_subcommand_refuses_repeats_and_keeps_repeatable_options(log: str) -> None:
    assert run("trace", "inspect", log, "--limit", "3", "--limit", "4").exit_code == 2
    twice = ["--column", "arrival=arrival_s", "--column", "prompt_tokens=prompt_tokens"]
    assert run("trace", "inspect", log, *twice).exit_code == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "specsim", "hardware", "list", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("Error: standard output: ")


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m specsim hardware list --json | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""
