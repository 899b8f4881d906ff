"""Engines with the guarantees that the store needs.

SQLite: foreign keys on, a write-ahead log where the file system allows it, locks waited for, transactions that begin
when we say (the driver would begin late and leave schema changes outside). A writer takes its lock at BEGIN, so
two writers queue and never deadlock half-way. PostgreSQL: the same wait for locks, by `lock_timeout`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import QueuePool, StaticPool

from db.failures import is_busy
from db.location import Location
from specsim.errors import StoreError

__all__ = ["connect", "use_write_ahead_log", "write"]

T = TypeVar("T")

_RETRY_S = 0.05


def connect(location: Location, *, may_create: bool, may_write: bool, timeout_s: float) -> sa.Engine:
    """Engine for `location`; opens no connection yet.

    Raises:
        StoreError: when the PostgreSQL driver is not installed.
    """
    if not location.is_sqlite:
        return _postgresql(location, timeout_s)
    target = _sqlite_uri(location, may_create=may_create, may_write=may_write)

    def creator() -> sqlite3.Connection:
        return sqlite3.connect(target, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False)

    engine = sa.create_engine(
        location.url, creator=creator, poolclass=StaticPool if location.path is None else QueuePool
    )

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        # With a write-ahead log NORMAL cannot corrupt; at worst a power cut loses the last runs, which are a cache.
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")

    return engine


def _sqlite_uri(location: Location, *, may_create: bool, may_write: bool) -> str:
    if location.path is None:
        return ":memory:"
    path = location.path.absolute()
    mode = "rwc" if may_create else "rw" if may_write else "ro"
    uri = f"file:{quote(str(path), errors='surrogateescape')}?mode={mode}"
    # A log cannot be opened without a file beside it; when nothing waits in one, the file itself is all there is.
    if not may_write and not path.with_name(path.name + "-wal").exists():
        uri += "&immutable=1"
    return uri


def _postgresql(location: Location, timeout_s: float) -> sa.Engine:
    url = location.url
    args = {} if "connect_timeout" in url.query else {"connect_timeout": max(2, round(timeout_s))}
    try:
        engine = sa.create_engine(url, connect_args=args, pool_pre_ping=True)
    except ModuleNotFoundError:
        raise StoreError(
            f"database {location.name} needs the psycopg driver; install specsim with its 'postgresql' extra"
        ) from None

    @event.listens_for(engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {max(1, round(timeout_s * 1000))}")

    return engine


def use_write_ahead_log(engine: sa.Engine) -> None:
    """Readers and one writer at once. Refused on some network disks and while others use the file: then as before."""
    with contextlib.closing(engine.raw_connection()) as raw:
        mode = raw.cursor().execute("PRAGMA journal_mode").fetchone()[0]  # type: ignore[attr-defined]
        if mode != "wal":
            with contextlib.suppress(sqlite3.OperationalError):
                raw.cursor().execute("PRAGMA journal_mode = WAL")


def write(engine: sa.Engine, work: Callable[[sa.Connection], T], *, timeout_s: float) -> T:
    """Run `work` in one transaction that can write, again when another process won a race, until `timeout_s`.

    `work` must be repeatable: every failed try is rolled back in full.
    """
    give_up = time.monotonic() + timeout_s
    while True:
        try:
            with engine.execution_options(writes=True).begin() as connection:
                return work(connection)
        except sa.exc.DBAPIError as error:
            if not is_busy(error) or time.monotonic() >= give_up:
                raise
            time.sleep(_RETRY_S)
