"""Several processes on one database, and processes that die in the middle."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from store_builders import make_requests, save_run

import db.store
from db.connect import write
from db.store import Store

HERE = Path(__file__).parent
REQUESTS = 6000

WRITER = """
import sys, time
from store_builders import make_requests, save_plan, save_run
from db.store import Store
location, first, start = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
time.sleep(max(0.0, start - time.time()))
with Store.open(location) as store:
    keys = [save_run(store, seed=seed) for seed in range(first, first + 60)]
    save_plan(store, {"shared": True}, run_keys=keys)
"""

ENDLESS = """
import sys
from store_builders import make_requests, save_run
from db.store import Store
with Store.open(sys.argv[1]) as store:
    for seed in range(int(sys.argv[2]), 10**9):
        save_run(store, seed=seed, requests=make_requests(6000))
        print(seed, flush=True)
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    roots = [str(HERE), str(Path(db.store.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_processes_that_create_and_write_one_database_at_once(location: str) -> None:
    begin = str(time.time() + 1.5)
    # Seeds overlap by 30, so that the same run is also saved by two processes.
    writers = [start(WRITER, location, str(first), begin) for first in (0, 30, 60)]
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert (writer.returncode, said) == (0, "")
    with Store.open(location) as store:
        assert store.count() == {"plans": 1, "runs": 120}
        assert {run["seed"] for run in store.list_runs()} == set(range(120))
        assert len(store.get("latest")["run_ids"]) == 120


def test_killed_writers_leave_a_whole_database(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    finished: list[int] = []
    for attempt in range(6):
        writer = start(ENDLESS, str(path), str(attempt * 1000))
        assert writer.stdout is not None
        assert writer.stderr is not None
        finished.append(int(writer.stdout.readline()))
        time.sleep(0.013 * attempt)  # so that each dies at another point of its transaction
        os.kill(writer.pid, signal.SIGKILL)
        finished += [int(line) for line in writer.stdout]
        writer.wait()
        writer.stdout.close()
        writer.stderr.close()
        with closing(sqlite3.connect(path)) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
            rows = "SELECT seed, count(request_index) FROM run LEFT JOIN run_request ON run_id = id GROUP BY id"
            stored = dict(raw.execute(rows).fetchall())
        assert set(finished) <= set(stored)
        assert set(stored.values()) == {REQUESTS}
    with Store.open(path) as store:
        save_run(store, seed=-1, requests=make_requests(2))
        assert store.count()["runs"] == len(stored) + 1


def test_an_exception_in_the_middle_of_a_save_leaves_nothing(store: Store) -> None:
    broken = make_requests(7000)
    broken.replica = broken.replica[:6000]  # found out in the second chunk
    try:
        save_run(store, requests=broken)
    except ValueError:
        pass
    else:
        raise AssertionError("the columns have different lengths")
    assert store.count() == {"plans": 0, "runs": 0}
    save_run(store, requests=make_requests(3))
    assert store.count()["runs"] == 1


def test_a_writer_holds_its_lock_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with Store.open(path) as store, closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:

        def reads_first(connection: sa.Connection) -> None:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")

        write(store._engine, reads_first, timeout_s=1)
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")


def test_a_lost_race_is_tried_again_until_the_time_is_up(tmp_path: Path) -> None:
    class LostRace(Exception):
        sqlite_errorname = "SQLITE_BUSY_SNAPSHOT"

    tries = []

    def loses(connection: sa.Connection) -> str:
        tries.append(1)
        connection.exec_driver_sql("INSERT INTO scenario VALUES ('a', '{}', 'now')")  # fails if a try left anything
        if len(tries) < wins_at:
            raise sa.exc.OperationalError("INSERT", {}, LostRace())
        return "won"

    with Store.open(tmp_path / "x.db") as store:
        wins_at = 3
        assert write(store._engine, loses, timeout_s=30) == "won"
        assert len(tries) == 3
        wins_at = 10**9
        store._write(lambda connection: connection.exec_driver_sql("DELETE FROM scenario").rowcount)
        with pytest.raises(sa.exc.OperationalError):
            write(store._engine, loses, timeout_s=0.2)
        assert len(tries) > 4


def test_deleting_while_others_write(location: str) -> None:
    begin = str(time.time() + 1.0)
    with Store.open(location) as store:
        writers = [start(WRITER, location, str(first), begin) for first in (0, 30)]
        gone = 0
        while any(writer.poll() is None for writer in writers) and gone < 20:
            runs = store.list_runs(limit=1)
            if runs and store.would_delete([runs[0]["id"]])["runs"]:
                gone += len(store.delete([runs[0]["id"]])["runs"])
        said = [writer.communicate(timeout=60)[1] for writer in writers]
    # A plan whose run was deleted under it says so; nothing else may go wrong.
    for writer, words in zip(writers, said, strict=True):
        assert writer.returncode == 0 or "which is not stored; save it first" in words
    assert gone == 20
