"""What changes the database; every function runs inside a transaction that the store began, and can be repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from db import queries, schema
from db.rows import request_chunks
from specsim.errors import StoreError
from specsim.records import RequestColumns

__all__ = ["delete", "insert_if_new", "put_plan", "put_run"]


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    maker = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return maker(table).on_conflict_do_nothing()


def insert_if_new(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """Insert `row` unless its key is there; whether it was inserted."""
    statement = _insert(connection, table).values(row)
    # Without the option an INSERT may report -1 rows (PostgreSQL).
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount > 0


def put_run(connection: sa.Connection, row: Mapping[str, Any], requests: RequestColumns | None) -> str:
    """A run with its request rows; a complete one that is there stays, a partial one is replaced."""
    table, run_id = schema.run, row["id"]
    if not insert_if_new(connection, table, row):
        replaced = connection.execute(
            sa.update(table).where(table.c.key == row["key"], table.c.status == "partial").values(row)
        )
        if not replaced.rowcount:
            return str(run_id)
        connection.execute(sa.delete(schema.run_request).where(schema.run_request.c.run_id == run_id))
    if requests is not None:
        for chunk in request_chunks(run_id, requests):
            connection.execute(sa.insert(schema.run_request), chunk)
    return str(run_id)


def put_plan(connection: sa.Connection, row: Mapping[str, Any], run_keys: Sequence[str]) -> str:
    """A plan linked to stored runs; a partial result never replaces a complete one.

    Raises:
        StoreError: when a run is not stored.
    """
    table, plan_id = schema.plan, row["id"]
    if not insert_if_new(connection, table, {**row, "created_utc": row["updated_utc"]}):
        change = sa.update(table).where(table.c.id == plan_id)
        if row["status"] == "partial":
            change = change.where(table.c.status == "partial")
        connection.execute(change.values(row))
    run_ids = queries.run_ids_by_key(connection, run_keys)
    missing = [key for key in run_keys if key not in run_ids]
    if missing:
        raise StoreError(f"plan {plan_id} refers to run {missing[0][:16]}..., which is not stored; save it first")
    if run_ids:
        links = [{"plan_id": plan_id, "run_id": run_id} for run_id in run_ids.values()]
        connection.execute(_insert(connection, schema.plan_run), links)
    return str(plan_id)


def delete(connection: sa.Connection, ids: Sequence[str], name: str, *, keep_runs: bool) -> dict[str, list[str]]:
    """See `Store.delete`."""
    gone = queries.deletion(connection, ids, name, keep_runs=keep_runs)
    for table, rows in ((schema.plan, gone["plans"]), (schema.run, gone["runs"])):
        for part in queries.parts(rows):
            connection.execute(sa.delete(table).where(table.c.id.in_(part)))
    return gone
