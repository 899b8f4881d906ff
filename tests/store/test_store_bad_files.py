"""Whatever `--db` points at: one clear line, and the file exactly as it was."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from store_builders import as_nobody, file_hash, open_folder, save_plan, save_run

import db.opening
from db.location import parse
from db.store import Store
from specsim.errors import InputError, StoreError

MODES = ("create", "write", "read")


def refusal(location: object, *, mode: str = "create", timeout_s: float = 0.2) -> str:
    """The message with which a database is refused: one line, exit code 2."""
    with pytest.raises(StoreError) as caught:
        Store.open(location, mode=mode, timeout_s=timeout_s)  # type: ignore[arg-type]
    message = str(caught.value)
    assert isinstance(caught.value, InputError)
    assert caught.value.exit_code == 2
    assert "\n" not in message
    return message


def filled(path: Path, *, runs: int = 30) -> Path:
    with Store.open(path) as store:
        keys = [save_run(store, seed=seed, metrics={"pad": "x" * 2000}) for seed in range(runs)]
        save_plan(store, {"a": 1}, run_keys=keys)
    return path


@pytest.mark.parametrize(
    "content",
    [b"arrival,prompt\n0.0,10\n", b"SQLite format 2\x00" + b"x" * 4000, b"\x00" * 4096, "{}".encode("utf-16"), b"x"],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes, mode: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    assert "is not a SQLite database (left untouched)" in refusal(path, mode=mode)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", MODES)
def test_only_the_header_is_right(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"SQLite format 3\x00" + b"nonsense" * 1000)
    assert str(path) in refusal(path, mode=mode)
    assert path.read_bytes() == b"SQLite format 3\x00" + b"nonsense" * 1000


@pytest.mark.parametrize("keep", [17, 1000, 4096, 5000, 20000, 60000])
def test_a_truncated_database(tmp_path: Path, keep: int) -> None:
    path = filled(tmp_path / "x.db")
    assert path.stat().st_size > keep
    with path.open("r+b") as file:
        file.truncate(keep)
    before = file_hash(path)
    for mode in MODES[:2]:
        assert "damaged" in (message := refusal(path, mode=mode)) or "not a SQLite" in message
    assert file_hash(path) == before


@pytest.mark.parametrize("page", range(2, 20))
def test_a_database_with_a_page_of_garbage_is_not_written_to(tmp_path: Path, page: int) -> None:
    path = filled(tmp_path / "x.db")
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)
    before = file_hash(path)
    assert "is damaged (left as it is)" in refusal(path, mode="write")
    assert file_hash(path) == before


def test_damage_met_while_reading_or_in_a_database_too_large_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(tmp_path / "x.db")
    with closing(sqlite3.connect(path)) as raw:
        page = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'run'").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)
    before = file_hash(path)
    monkeypatch.setattr(db.opening, "CHECK_LIMIT_BYTES", 0)
    for mode in ("read", "write"):
        with Store.open(path, mode=mode) as store:  # type: ignore[arg-type]
            with pytest.raises(StoreError, match="is damaged"):
                store.list_runs()
            with pytest.raises(StoreError, match="is damaged"):
                save_run(store, seed=99)
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT count(*) FROM plan").fetchone() == (1,)
    assert before == file_hash(path)


def test_directory_missing_folder_and_device(tmp_path: Path) -> None:
    assert f"is a directory; name a file in it, e.g. --db {tmp_path}/specsim.db" in refusal(tmp_path)
    assert "does not exist; create it first" in refusal(tmp_path / "no" / "x.db")
    (tmp_path / "file").write_text("")
    assert "file" in refusal(tmp_path / "file" / "x.db")
    assert "not a regular file" in refusal("/dev/null")
    assert "name too long" in refusal(tmp_path / ("x" * 300)).lower()


@pytest.mark.parametrize("mode", ["write", "read"])
def test_a_missing_or_empty_database_is_not_created_by_looking(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "x.db"
    assert "no database at" in refusal(path, mode=mode)
    assert not path.exists()
    path.touch()
    assert "is an empty file" in refusal(path, mode=mode)
    assert path.read_bytes() == b""
    closing(sqlite3.connect(path)).__enter__().execute("PRAGMA user_version = 1").connection.close()
    assert "is empty; `specsim plan` fills it" in refusal(path, mode=mode)


def test_an_empty_file_may_become_a_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    filled(tmp_path / "x.db", runs=1)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "--db is empty"),
        ("a\x00b", "NUL"),
        ("://", "not a readable URL"),
        ("postgresql://u:secret@host:port/x", "not a readable URL"),
        ("postgres+psycop://u:secret@h/x", "'postgres+psycop' database"),
        ("mysql://u:secret@h/x", "specsim stores in SQLite"),
        ("sqlite+aiosqlite:///x.db", "'sqlite+aiosqlite' database"),
        ("sqlite://x.db", "a SQLite URL has no host"),
        ("sqlite:///x.db?mode=ro", "option 'mode' is not supported"),
        ("sqlite:///x.db?timeout=soon", "timeout is 'soon'"),
        ("sqlite:///x.db?timeout=-1", "timeout is '-1'"),
        ("sqlite:///x.db?timeout=nan", "timeout is 'nan'"),
        ("sqlite:///x.db?timeout=1&timeout=2", "timeout is"),
    ],
)
def test_a_wrong_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(url)
    assert message in said
    assert "secret" not in said
    assert list(tmp_path.iterdir()) == []


def test_the_location_comes_from_the_flag_then_the_environment_then_the_default() -> None:
    assert parse("a.db", environ={"SPECSIM_DB": "b.db"}).name == "a.db"
    assert parse(None, environ={"SPECSIM_DB": "b.db"}).name == "b.db"
    assert parse(None, environ={"SPECSIM_DB": ""}).name == "specsim.db"
    assert parse(None, environ={}).path == Path("specsim.db")
    assert parse("sqlite:///a.db?timeout=2.5", environ={}).timeout_s == 2.5


def test_odd_characters_in_the_name_are_taken_literally(tmp_path: Path) -> None:
    for name in ("a b?mode=memory#x%20.db", "ä\udcff.db", "'; DROP.db"):
        path = tmp_path / name
        filled(path, runs=1)
        with Store.open(path, mode="read") as store:
            assert store.count()["runs"] == 1
        assert path.exists()


def test_a_locked_database(tmp_path: Path) -> None:
    path = filled(tmp_path / "x.db", runs=1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, Store.open(path, timeout_s=0.2) as store:
        other.execute("BEGIN IMMEDIATE")
        assert store.count()["runs"] == 1  # readers need not wait
        with pytest.raises(StoreError, match="is locked by another process; try again or use another with --db"):
            save_run(store, seed=5)
        other.execute("ROLLBACK")
        save_run(store, seed=5)
        assert store.count()["runs"] == 2
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        for mode in MODES:
            assert "is locked by another process" in refusal(path, mode=mode)
            assert "is locked by another process" in refusal(f"sqlite:///{path}?timeout=0.1", mode=mode, timeout_s=60)


def test_a_lock_that_is_released_in_time_is_waited_for(tmp_path: Path) -> None:
    path = filled(tmp_path / "x.db", runs=1)
    hold = (
        "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); time.sleep(0.5); c.execute('ROLLBACK')"
    )
    with (
        Store.open(path) as store,
        subprocess.Popen([sys.executable, "-c", hold, str(path)], stdout=subprocess.PIPE, text=True) as other,
    ):
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        save_run(store, seed=9)
        assert store.count()["runs"] == 2


def test_a_read_only_database_can_be_read_and_not_written() -> None:
    with open_folder() as folder:
        path = filled(Path(folder) / "x.db", runs=3)
        os.chmod(path, 0o444)
        os.chmod(folder, 0o555)
        before = file_hash(path)

        def look() -> str:
            with Store.open(path, mode="read") as store:
                return f"{store.count()['runs']} runs"

        def change(mode: str = "write") -> str:
            try:
                Store.open(path, mode=mode).close()  # type: ignore[arg-type]
            except StoreError as error:
                return str(error)
            return "opened"

        assert as_nobody(look) == "3 runs"
        assert "x.db is read-only; choose another with --db" in as_nobody(change)
        os.chmod(folder, 0o777)
        assert "x.db is read-only; choose another with --db" in as_nobody(change)
        assert as_nobody(look) == "3 runs"
        os.chmod(folder, 0o555)
        os.chmod(path, 0o666)
        assert as_nobody(look) == "3 runs"
        assert "lies in the read-only folder" in as_nobody(lambda: change("create"))
        os.chmod(path, 0o000)
        assert "cannot be read (permission denied)" in as_nobody(lambda: change("read"))
        os.chmod(path, 0o644)
        os.chmod(folder, 0o755)
        assert sorted(os.listdir(folder)) == ["x.db"]
        assert file_hash(path) == before


def test_a_folder_that_cannot_be_written_or_entered() -> None:
    with open_folder() as folder:
        (Path(folder) / "closed").mkdir(mode=0o500)
        os.chmod(folder, 0o555)

        def make(path: Path) -> str:
            try:
                Store.open(path).close()
            except StoreError as error:
                return str(error)
            return "opened"

        assert "is not writable; choose another" in as_nobody(lambda: make(Path(folder) / "x.db"))
        said = as_nobody(lambda: make(Path(folder) / "closed" / "x.db"))
        assert "ermission denied" in said or "not writable" in said
        os.chmod(folder, 0o755)


def test_a_full_disk_stores_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path / "x.db")
    with Store.open(path) as store:

        @sa.event.listens_for(store._engine, "checkout")
        def limit(connection: sqlite3.Connection, *_: object) -> None:
            connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size

        with pytest.raises(StoreError, match="cannot grow, the disk is full"):
            save_run(store, seed=500, metrics={"pad": "x" * 300_000})
        assert store.count() == {"plans": 1, "runs": 30}
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_an_unreachable_postgresql_server(postgresql_server: str) -> None:
    said = refusal("postgresql://me:secret@127.0.0.1:1/specsim")
    assert "cannot reach database postgresql://me:***@127.0.0.1:1/specsim" in said
    assert "secret" not in said
    assert '"nowhere" does not exist' in refusal(postgresql_server.replace("/postgres?", "/nowhere?"))
    assert "invalid connection option" in refusal(postgresql_server + "&nonsense=1")


def test_a_locked_postgresql_table(postgresql_url: str) -> None:
    with Store.open(postgresql_url, timeout_s=0.2) as store:
        save_run(store)
        engine = sa.create_engine(parse(postgresql_url).url)
        with engine.begin() as other:
            other.exec_driver_sql("LOCK TABLE run IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(StoreError, match="is locked by another process"):
                save_run(store, seed=2)
        engine.dispose()
        save_run(store, seed=2)
        assert store.count()["runs"] == 2


def test_postgresql_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "install specsim with its 'postgresql' extra" in refusal("postgresql://me@127.0.0.1/x")
