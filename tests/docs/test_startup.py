"""The command line starts light: asking for help loads no heavy library. Counts what is loaded, not seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"numba", "numpy", "scipy", "simpy", "sqlalchemy", "torch", "rich"}

PROGRAM = """
import json, runpy, sys
sys.argv = ["specsim", *sys.argv[1:]]
try:
    runpy.run_module("specsim", run_name="__main__")
except SystemExit as end:
    code = end.code
loaded = sorted({name.split(".")[0] for name in sys.modules})
print("\\n" + json.dumps({"code": code, "loaded": loaded}))
"""


def run(*arguments: str) -> tuple[str, set[str]]:
    """What the command wrote, and the top-level packages that it had loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    text, _, last = done.stdout.rstrip().rpartition("\n")
    state = json.loads(last)
    assert state["code"] in (0, None), done.stderr
    return text, set(state["loaded"])


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("--version",)], ids=" ".join)
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    text, loaded = run(*arguments)
    assert "specsim" in text
    assert {"click", "specsim"} <= loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("command", ["plan", "crossover", "simulate", "runs", "report"])
def test_help_of_a_command_does_not_load_torch_or_the_simulator(command: str) -> None:
    text, loaded = run(command, "--help")
    assert f"specsim {command}" in text
    assert loaded & {"torch", "simpy", "scipy", "numba"} == set()


def test_the_probe_sees_what_is_loaded() -> None:
    """The guard: a command that computes does load numpy, so an empty answer above means something."""
    _, loaded = run("crossover", "--concurrency", "1", "--seeds", "3", "--osl", "20", "--isl", "20")
    assert {"numpy", "simpy"} <= loaded
    assert "torch" not in loaded
    assert "sqlalchemy" not in loaded
