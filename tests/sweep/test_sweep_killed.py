"""A sweep that is killed at random moments: the store stays sound, and what comes out at last is the same.

The kills are SIGKILL, at moments drawn evenly from the whole life of the command. SPECSIM_KILLS=50 makes them fifty,
which takes a minute or two; by default they are few.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from sweep_cases import SCENARIO, same, sweep_process, write_case

from db.store import Store

KILLS = int(os.environ.get("SPECSIM_KILLS", "3"))
POINTS = 40
GRID = ("--grid", "k=0,1,2,3,4", "--grid", "load=0.5..3/4", "--seeds", "2", "--against", "k=0", "--jobs", "2",
        "--json")  # fmt: skip
PATIENCE_S = 300


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp("killed"), SCENARIO.replace("requests = 60", "requests = 300"))


def finish(case: Path, database: str) -> tuple[dict, str]:
    process = sweep_process(case, *GRID, "--db", database)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return json.loads(out), err


def runs_in(database: Path) -> set[str]:
    """Keys of the runs of a database that is sound."""
    if not database.exists():
        return set()
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'run'").fetchone()[0]:
            return set()  # killed before the tables were made
        return {key for (key,) in connection.execute("SELECT key FROM run")}


def test_kills_at_random_moments_lose_nothing_that_was_finished(case: Path) -> None:
    start = time.monotonic()
    undisturbed, _ = finish(case, "whole.db")
    life_s = time.monotonic() - start
    moments = random.Random(0)
    kills = sweeps = in_the_middle = 0
    while kills < KILLS:
        sweeps += 1
        database = f"killed-{sweeps}.db"
        before: set[str] = set()
        while kills < KILLS:
            process, start = sweep_process(case, *GRID, "--db", database), time.monotonic()
            try:
                out, err = process.communicate(timeout=moments.uniform(0.0, life_s))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                out, err = process.communicate(timeout=PATIENCE_S)
            if process.returncode == 0:  # faster than the kill: another sweep
                before = runs_in(case.parent / database)
                life_s = min(life_s, time.monotonic() - start)  # the first run may have compiled loops
                break
            assert process.returncode == -signal.SIGKILL, (out, err)
            kills += 1
            kept = runs_in(case.parent / database)
            assert before <= kept, "nothing that was finished is gone"
            in_the_middle += 0 < len(kept) < POINTS
            before = kept
        ended, err = finish(case, database)
        assert same(ended) == same(undisturbed)
        assert f"{len(before)} of {POINTS} points were stored already" in err or not before
        assert runs_in(case.parent / database) == runs_in(case.parent / "whole.db")
    assert kills == KILLS
    assert in_the_middle > 0 or KILLS < 10, "the guard: some kills hit a sweep between its points"


def test_what_was_finished_before_a_kill_is_not_run_again(case: Path) -> None:
    process = sweep_process(case, *GRID, "--db", "again.db")
    path = case.parent / "again.db"
    until = time.monotonic() + PATIENCE_S
    while not (path.exists() and count(path)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    with Store.open(path) as store:
        before = {run["id"]: run["finished_utc"] for run in store.list_runs()}
    _, err = finish(case, "again.db")
    assert f"{len(before)} of {POINTS} points were stored already" in err
    with Store.open(path) as store:
        after = {run["id"]: run["finished_utc"] for run in store.list_runs()}
    assert {run: after[run] for run in before} == before
    assert len(after) == POINTS


def count(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM run").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(case: Path) -> None:
    process = sweep_process(case, *GRID, "--db", "stopped.db")
    path = case.parent / "stopped.db"
    while not (path.exists() and count(path)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    if process.returncode == 0:
        pytest.skip("the sweep was over before it could be stopped")
    assert (process.returncode, out) == (130, "")
    assert f"of {POINTS} points are kept in stopped.db as plan-" in err
    assert "Traceback" not in err
    with Store.open(path, mode="read") as store:
        (plan,) = store.list_plans()
    assert (plan["kind"], plan["status"]) == ("sweep", "partial")
