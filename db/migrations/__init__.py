"""From any earlier schema to the current one: numbered functions that are never edited again.

All pending functions and their records run in one transaction, so that a database is either fully up to date or as it
was. There is no way back: an older specsim refuses a newer database with a clear line and leaves it alone.
A later change adds a module and one entry in STEPS; it never imports `db.schema`, which moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import sqlalchemy as sa

from db.migrations.m001_first import m001_first
from db.migrations.m002_run_request import m002_run_request
from db.migrations.m003_plan_kind import m003_plan_kind
from db.migrations.m004_validation import m004_validation
from specsim.errors import StoreError

__all__ = ["STEPS", "TABLE", "applied_names", "apply", "check", "pending"]

Step = Callable[[sa.Connection], None]

STEPS: tuple[Step, ...] = (m001_first, m002_run_request, m003_plan_kind, m004_validation)

TABLE = "specsim_migration"

_applied = sa.Table(
    TABLE,
    sa.MetaData(),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("applied_utc", sa.String(27), nullable=False),
    sa.PrimaryKeyConstraint("name", name=f"pk_{TABLE}"),
)

_LOCK = 0x73706563
"""Number of the PostgreSQL advisory lock that serialises migrations."""


def applied_names(connection: sa.Connection) -> list[str] | None:
    """Names of applied steps in order; None when the database has no tables of specsim yet."""
    if TABLE not in sa.inspect(connection).get_table_names():
        return None
    return list(connection.scalars(sa.select(_applied.c.name).order_by(_applied.c.name)))


def check(connection: sa.Connection, name: str, *, steps: Sequence[Step] = STEPS) -> None:
    """Refuse a database that is not ours or from a newer specsim.

    Raises:
        StoreError: with the database's `name` and the way out.
    """
    known = [step.__name__ for step in steps]
    tables = sa.inspect(connection).get_table_names()  # asked once: another process may be creating them right now
    if TABLE not in tables:
        ours = {"trace", "profile", "scenario", "run", "plan"}
        if tables if connection.dialect.name == "sqlite" else ours & set(tables):
            raise StoreError(
                f"database {name} holds tables of another program ({', '.join(sorted(tables)[:3])}); "
                f"it is left untouched, choose another with --db"
            )
        return
    done = applied_names(connection) or []
    unknown = [step for step in done if step not in known]
    if unknown:
        raise StoreError(
            f"database {name} was written by a newer specsim (it has {unknown[-1]}, this one ends at {known[-1]}); "
            f"update specsim or use another with --db"
        )
    if done != known[: len(done)]:
        raise StoreError(
            f"database {name} has a broken migration record ({', '.join(done)}); restore a copy or use --db"
        )


def pending(connection: sa.Connection, *, steps: Sequence[Step] = STEPS) -> list[Step]:
    """Steps that are still to be applied. Reads only."""
    done = set(applied_names(connection) or ())
    return [step for step in steps if step.__name__ not in done]


def apply(connection: sa.Connection, name: str, *, steps: Sequence[Step] = STEPS) -> list[str]:
    """Check again, then apply what is pending, inside the caller's transaction; names of the steps applied.

    The caller holds SQLite's write lock; in PostgreSQL a lock is taken here, so that two processes take turns.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    check(connection, name, steps=steps)
    todo = pending(connection, steps=steps)
    if todo:
        _applied.create(connection, checkfirst=True)
    for step in todo:
        step(connection)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        connection.execute(sa.insert(_applied).values(name=step.__name__, applied_utc=now))
    return [step.__name__ for step in todo]
