"""The time left that a bar shows, and the bar itself on a real terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_cases import GRID, write_case

from specsim.cli.progress import time_left


@pytest.mark.parametrize(
    ("done", "reused", "total", "elapsed_s", "left_s"),
    [
        (10, 0, 40, 5.0, 15.0),
        (30, 20, 40, 5.0, 5.0),  # ten were simulated in these five seconds, and ten are left
        (20, 20, 40, 3.0, None),  # nothing was simulated yet
        (0, 0, 40, 3.0, None),
        (41, 0, 40, 5.0, 0.0),
    ],
)
def test_points_that_were_stored_say_nothing_of_the_rest(
    done: int, reused: int, total: int, elapsed_s: float, left_s: float | None
) -> None:
    assert time_left(done, reused, total, elapsed_s) == left_s


def test_a_terminal_gets_one_bar_on_standard_error_and_none_of_it_in_the_output(tmp_path: Path) -> None:
    case = write_case(tmp_path)
    leader, terminal = pty.openpty()
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "specsim", "sweep", str(case), *GRID, "--no-store", "--jobs", "1", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "100"}
    with (tmp_path / "out.json").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=terminal, env=environment)
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait(timeout=120) == 0
    assert len(json.loads((tmp_path / "out.json").read_text())["points"]) == 9
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "simulating" in text
    assert "/18 points on 1 process" in text
