"""The plan command, and others on its results, on logs small enough for a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from specsim.cli import cli

__all__ = ["QUICK", "leaves", "plan", "plan_process", "write_log"]

QUICK = ["--max-requests", "40", "--replications", "3", "--k", "1,3", "--loads", "4,40", "--max-num-seqs", "16",
         "--jobs", "1"]  # fmt: skip
"""Flags under which a plan takes a second or two."""


_MAPS = ("trace.dropped", "trace.dropped_examples")
"""Maps whose keys are words of the log."""


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Paths of everything that is no further object; an interval is one leaf."""
    if path in _MAPS:
        yield path
    elif isinstance(value, dict) and value and set(value) != {"mean", "low", "high"}:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inner in value:
            yield from leaves(inner, path + "[]")
    else:
        yield path


def write_log(path: Path, *, requests: int = 40, gap_s: float = 0.25, output: int = 12) -> Path:
    """A Vidur-style CSV with lengths that differ from row to row."""
    rows = [f"{i * gap_s:.3f},{50 + 37 * i % 300},{max(1, output // 2 + 7 * i % output)}" for i in range(requests)]
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(rows) + "\n")
    return path


def plan(*arguments: object, command: str = "plan") -> Result:
    """Run in this process, as a user would see it; an exception that is not an exit fails the test."""
    result = CliRunner().invoke(cli, [command, *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def plan_process(*arguments: object, folder: Path, command: str = "plan") -> subprocess.Popen[str]:
    """Run in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "specsim", command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        start_new_session=True,
    )
