"""A plan that is stopped in the middle: by Ctrl-C, by a kill, by the death of a worker."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from plan_cli import plan_process, write_log

FLAGS = ["--max-requests", "40", "--replications", "3", "--k", "1,3", "--loads", "2,40", "--max-num-seqs", "16",
         "--jobs", "2", "--json"]  # fmt: skip
PATIENCE_S = 120
SAID = "simulating 42 points on 2 processes\n"
"""The one line on stderr when that is no terminal."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "log.csv", output=250)


@pytest.fixture(scope="module")
def undisturbed(log: Path) -> dict:
    process = plan_process("--trace", log, *FLAGS, "--db", "whole.db", folder=log.parent)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, SAID)
    return json.loads(out)


def stored_runs(database: Path) -> int:
    if not database.exists():
        return 0
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            return connection.execute("select count(*) from run").fetchone()[0]
        except sqlite3.OperationalError:
            return 0


def begin(log: Path, database: str) -> subprocess.Popen[str]:
    """A plan that has stored its first runs."""
    process = plan_process("--trace", log, *FLAGS, "--db", database, folder=log.parent)
    until = time.monotonic() + PATIENCE_S
    while stored_runs(log.parent / database) == 0:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


def workers(process: subprocess.Popen[str]) -> list[int]:
    """Ids of the processes in the group of a plan that are two steps below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == process.pid and fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    return [pid for pid, parent in parents.items() if parents.get(parent) == process.pid]


def living(group: int) -> list[int]:
    """Processes of a group that still run; one that has ended and waits to be collected does not."""
    if not Path("/proc/self/stat").exists():
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return []
        return [group]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def finish(log: Path, database: str) -> dict:
    process = plan_process("--trace", log, *FLAGS, "--db", database, folder=log.parent)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    found = re.search(r"^(\d+) of 42 points were stored already$", err, re.MULTILINE)
    stored = 0 if found is None else int(found[1])
    work = "" if stored == 42 else SAID.replace("42", str(42 - stored))
    assert err == work + ("" if found is None else f"{found[0]}\n"), "what it simulates, and what it reused"
    return json.loads(out)


def sound(database: Path) -> bool:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("pragma integrity_check").fetchone()[0] == "ok"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_what_is_finished_is_kept_and_the_end_is_the_same(log: Path, undisturbed: dict, number: signal.Signals) -> None:
    database = f"{number.name}.db"
    process = begin(log, database)
    group = process.pid
    if number == signal.SIGINT:
        os.killpg(group, number)
    else:
        process.kill()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert out == ""
    assert "Traceback" not in err
    if number == signal.SIGINT:
        assert process.returncode == 130
        err = err.removeprefix(SAID).strip()
        assert err.startswith("Stopped: ")
        assert err.count("\n") == 0
    kept = stored_runs(log.parent / database)
    assert kept > 0
    assert sound(log.parent / database)
    ended = finish(log, database)
    assert ended == {**undisturbed, "database": ended["database"]}
    assert stored_runs(log.parent / database) == stored_runs(log.parent / "whole.db")
    until = time.monotonic() + PATIENCE_S
    while living(group) and time.monotonic() < until:  # orphans need a moment to notice that their parent is gone
        time.sleep(0.05)
    assert living(group) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")
def test_a_worker_that_is_killed_is_replaced_and_changes_nothing(log: Path, undisturbed: dict) -> None:
    process = begin(log, "worker.db")
    os.kill(workers(process)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, SAID)
    ended = json.loads(out)
    assert ended == {**undisturbed, "database": ended["database"]}
