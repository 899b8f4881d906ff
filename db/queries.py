"""Questions to the database; everything here only reads. A store gives the connection."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from db import schema
from db.rows import decoded
from specsim.errors import StoreError, nearest

__all__ = ["get", "resolve", "run_ids_by_key", "runs_by_key"]

_IN_MAX = 500
"""Values in one IN list; drivers limit the number of parameters."""


def _parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for low in range(0, len(values), _IN_MAX):
        yield values[low : low + _IN_MAX]


def runs_by_key(connection: sa.Connection, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Complete runs by key."""
    table = schema.run
    out: dict[str, dict[str, Any]] = {}
    for part in _parts(keys):
        query = sa.select(table).where(table.c.key.in_(part), table.c.status == "complete")
        for row in connection.execute(query).mappings():
            out[row["key"]] = decoded(row)
    return out


def run_ids_by_key(connection: sa.Connection, keys: Sequence[str]) -> dict[str, str]:
    """Ids of stored runs, partial ones included, by key."""
    table = schema.run
    out: dict[str, str] = {}
    for part in _parts(keys):
        for key, run_id in connection.execute(sa.select(table.c.key, table.c.id).where(table.c.key.in_(part))):
            out[key] = run_id
    return out


def _ids(connection: sa.Connection, start: str | None) -> list[str]:
    out: list[str] = []
    for table in (schema.plan, schema.run):
        query = sa.select(table.c.id).order_by(table.c.id).limit(5000)
        if start is not None:
            query = query.where(table.c.id.startswith(start, autoescape=True))
        out += connection.scalars(query)
    return out


def resolve(connection: sa.Connection, id_or_prefix: str, name: str) -> str:
    """The full id for an id, a unique beginning of one (`plan-`, `run-` may be left out), or `latest`."""
    wanted = id_or_prefix.strip().lower()
    if wanted == "latest":
        table = schema.plan
        newest = connection.scalar(sa.select(table.c.id).order_by(table.c.updated_utc.desc(), table.c.id).limit(1))
        if newest is None:
            raise StoreError(f"no plan is stored in {name}; run `specsim plan` first or use another with --db")
        return str(newest)
    hits: list[str] = []
    if re.fullmatch(r"[a-z0-9-]+", wanted):
        starts = [wanted] if wanted.startswith(("plan-", "run-")) else [f"plan-{wanted}", f"run-{wanted}"]
        hits = [hit for start in starts for hit in _ids(connection, start)]
    if wanted in hits or len(hits) == 1:
        return wanted if wanted in hits else hits[0]
    if hits:
        shown = ", ".join(hits[:3]) + (", ..." if len(hits) > 3 else "")
        raise StoreError(f"'{id_or_prefix}' fits {len(hits)} ids in {name} ({shown}); give more digits")
    known = _ids(connection, None)
    if not known:
        raise StoreError(
            f"no '{id_or_prefix}': nothing is stored in {name} yet; run `specsim plan` or use another --db"
        )
    raise StoreError(
        f"no plan or run '{id_or_prefix}' in {name}{nearest(wanted, known)}; `specsim runs list` shows what is stored"
    )


def get(connection: sa.Connection, id_or_prefix: str, name: str) -> dict[str, Any]:
    """The plan or run, whole; see `Store.get`."""
    full = resolve(connection, id_or_prefix, name)
    kind = full.partition("-")[0]
    table = schema.plan if kind == "plan" else schema.run
    row = connection.execute(sa.select(table).where(table.c.id == full)).mappings().one()
    out = {"type": kind, **decoded(row)}
    link = schema.plan_run
    if kind == "plan":
        query = sa.select(link.c.run_id).where(link.c.plan_id == full).order_by(link.c.run_id)
        out["run_ids"] = list(connection.scalars(query))
    else:
        query = sa.select(link.c.plan_id).where(link.c.run_id == full).order_by(link.c.plan_id)
        out["plan_ids"] = list(connection.scalars(query))
    return out
