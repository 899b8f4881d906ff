"""Validations in the database: put, list, get, delete; the store gives the connection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from db import schema, writes
from db.canonical import content_sha256, output_json
from db.rows import checked_status, decoded, text, utc_text
from specsim.errors import StoreError

__all__ = ["delete", "get", "listed", "put", "row_of"]


def row_of(
    result: Mapping[str, Any],
    *,
    kind: str,
    subject: str,
    profile_sha256: str | None,
    code_version: str,
    specsim_version: str,
) -> dict[str, Any]:
    """A row; its id follows from the result, so that the same measurement is stored once."""
    return {
        "id": f"val-{content_sha256(result, place='validation result')[:12]}",
        "kind": kind,
        "subject": text(subject, "subject"),
        "profile_sha256": profile_sha256,
        "status": checked_status(str(result["status"])),
        "schema_version": int(result["schema_version"]),
        "result": output_json(result, place="validation result"),
        "code_version": text(code_version, "code version"),
        "specsim_version": text(specsim_version, "specsim version"),
        "created_utc": utc_text(),
    }


def put(connection: sa.Connection, row: Mapping[str, Any]) -> str:
    """Insert a row unless it is there; its id."""
    writes.insert_if_new(connection, schema.validation, row)
    return str(row["id"])


def listed(connection: sa.Connection, limit: int | None) -> list[dict[str, Any]]:
    """All rows without their results, newest first; with `profile_name`."""
    table = schema.validation
    columns: list[Any] = [column for column in table.c if column.name != "result"]
    query = (
        sa.select(*columns, schema.profile.c.name.label("profile_name"))
        .outerjoin(schema.profile, schema.profile.c.sha256 == table.c.profile_sha256)
        .order_by(table.c.created_utc.desc(), table.c.id)
        .limit(limit)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def get(connection: sa.Connection, id_or_prefix: str, name: str) -> dict[str, Any]:
    """The row of an id, of a unique beginning of one (`val-` may be left out), or of `latest`.

    Raises:
        StoreError: unknown or ambiguous.
    """
    table = schema.validation
    wanted = id_or_prefix.strip().lower()
    query = sa.select(table).order_by(table.c.created_utc.desc(), table.c.id)
    if wanted == "latest":
        query = query.limit(1)
    elif re.fullmatch(r"[a-z0-9-]+", wanted):
        start = wanted if wanted.startswith("val-") else f"val-{wanted}"
        query = query.where(table.c.id.startswith(start, autoescape=True)).limit(4)
    else:
        query = query.where(sa.false())
    rows = [decoded(row) for row in connection.execute(query).mappings()]
    if len(rows) == 1:
        return rows[0]
    if not rows:
        raise StoreError(f"no validation '{id_or_prefix}' in {name}; see `specsim validate list`")
    shown = ", ".join(row["id"] for row in rows[:3])
    raise StoreError(f"'{id_or_prefix}' fits several validations in {name} ({shown}); give more digits")


def delete(connection: sa.Connection, id_or_prefix: str, name: str) -> str:
    """Remove one; its id."""
    full = str(get(connection, id_or_prefix, name)["id"])
    connection.execute(sa.delete(schema.validation).where(schema.validation.c.id == full))
    return full
