"""A PostgreSQL cluster of our own when its programs and driver are installed, and stores on both databases."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from db.store import Store

_numbers = itertools.count()


def _programs() -> Path | None:
    found = shutil.which("pg_ctl")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((f for f in folders if (f / "initdb").exists() and (f / "pg_ctl").exists()), None)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """URL of a running server, reached by a socket in its own folder; skips when it cannot be had."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL programs (initdb, pg_ctl)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed (extra: postgresql)")
    as_user: list[str] = []
    home = Path(tempfile.mkdtemp(prefix="specsim-pg-"))
    if os.geteuid() == 0:
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL refuses to run as root and there is no runuser")
        as_user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(home, "postgres")

    def call(*command: str) -> None:
        subprocess.run([*as_user, *command], check=True, cwd=home, stdout=subprocess.DEVNULL, timeout=60)

    data = str(home / "data")
    options = f"-c listen_addresses='' -c unix_socket_directories={home} -c fsync=off"
    try:
        call(str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "specsim", "-E", "UTF8", "--no-sync")
        call(str(programs / "pg_ctl"), "-D", data, "-w", "-l", str(home / "log"), "-o", options, "start")
        try:
            yield f"postgresql://specsim@/postgres?host={home}"
        finally:
            call(str(programs / "pg_ctl"), "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """URL of an empty schema of its own."""
    name = f"t{next(_numbers)}"
    engine = sa.create_engine(postgresql_server.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(name))
    engine.dispose()
    return f"{postgresql_server}&options=-csearch_path%3D{name}"


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, once of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "specsim.db")
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store.open(location) as opened:
        yield opened


@pytest.fixture
def reopen(location: str) -> Callable[[], Store]:
    return lambda: Store.open(location)
