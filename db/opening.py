"""Opening a database: first every check that only reads, then damage, then migrations; the file is touched last."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from db import migrations
from db.connect import connect, use_write_ahead_log, write
from db.failures import explained
from db.location import Location, Mode, check_file
from specsim.errors import StoreError

__all__ = ["open_engine"]

CHECK_LIMIT_BYTES = 32 * 2**20
"""Databases up to this size are checked for damage before the first write (about 1 ms per MiB)."""


def open_engine(
    where: Location, *, mode: Mode, timeout_s: float, steps: Sequence[migrations.Step] = migrations.STEPS
) -> sa.Engine:
    """An engine on a database that is ours, whole and of the current schema.

    Raises:
        StoreError: see `Store.open`; the database is left as it was.
    """
    writable = check_file(where, mode) if where.is_sqlite else True
    engine = connect(where, may_create=mode == "create", may_write=writable, timeout_s=timeout_s)
    try:
        with explained(where.name):
            _prepare(engine, where, mode, writable=writable, timeout_s=timeout_s, steps=steps)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _prepare(
    engine: sa.Engine,
    where: Location,
    mode: Mode,
    *,
    writable: bool,
    timeout_s: float,
    steps: Sequence[migrations.Step],
) -> None:
    with engine.connect() as connection:
        migrations.check(connection, where.name, steps=steps)
        empty = migrations.applied_names(connection) is None
        todo = migrations.pending(connection, steps=steps)
    if empty and mode != "create":
        raise StoreError(f"database {where.name} is empty; `specsim plan` fills it, or use another with --db")
    if mode == "read" and not todo:
        return
    if not writable:
        raise StoreError(f"database {where.name} has an older schema and is read-only; copy it to a writable place")
    if where.path is not None:
        _check_health(engine, where)
        use_write_ahead_log(engine)

    if todo:
        write(engine, lambda connection: migrations.apply(connection, where.name, steps=steps), timeout_s=timeout_s)


def _check_health(engine: sa.Engine, where: Location) -> None:
    if where.path is None or not where.path.exists() or where.path.stat().st_size > CHECK_LIMIT_BYTES:
        return
    with engine.connect() as connection:
        verdict = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
    if verdict != "ok":
        raise StoreError(
            f"database {where.name} is damaged (left as it is): {verdict.splitlines()[-1]}; "
            f"restore a copy or start a new one with --db"
        )
