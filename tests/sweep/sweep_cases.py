"""Small sweeps: a scenario whose points take some milliseconds, and the command on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from specsim.cli import cli

__all__ = ["GRID", "SCENARIO", "answer", "same", "sweep", "sweep_process", "write_case"]

SCENARIO = """\
[workload]
isl = 80
osl = "lognormal:30:80"
rate_per_s = 20.0
requests = 60

[speculation]
num_spec_tokens = [2]

[policy]
kind = "static"
num_spec_tokens = 2
"""
GRID = ("--grid", "k=0,2,3", "--grid", "load=0.5..3/3", "--seeds", "2")


def write_case(folder: Path, text: str = SCENARIO) -> Path:
    path = folder / "case.toml"
    path.write_text(text, encoding="utf-8")
    return path


def sweep(case: Path | str, *arguments: object) -> Result:
    """Run in this process, as a user would see it; an exception that is not an exit fails the test."""
    words = [str(word) for word in arguments]
    if not {"--db", "--no-store"} & set(words):
        words.append("--no-store")
    if not {"--jobs", "--executor"} & set(words):
        words += ["--jobs", "1"]
    result = CliRunner().invoke(cli, ["sweep", str(case), *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answer(case: Path | str, *arguments: object) -> dict[str, Any]:
    result = sweep(case, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def same(result: dict[str, Any]) -> dict[str, Any]:
    """The answer without what says where it is kept."""
    return {name: value for name, value in result.items() if name not in ("database", "command")}


def sweep_process(case: Path, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Run in a process group of its own, in the folder of the scenario."""
    return subprocess.Popen(
        [sys.executable, "-m", "specsim", "sweep", case.name, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=case.parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        start_new_session=True,
    )
