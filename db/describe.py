"""The tables as Markdown, for docs/reference/database.md."""

from __future__ import annotations

import sqlalchemy as sa

from db import schema

__all__ = ["markdown"]


def markdown() -> str:
    """One section per table: column, type, key or reference, meaning; the many metric columns on one line."""
    out: list[str] = []
    for table in schema.metadata.tables.values():
        out += [f"### {table.name}", "", "| column | type | | meaning |", "| --- | --- | --- | --- |"]
        for column in table.columns:
            if column.name in schema.METRIC_COLUMNS and table is schema.run:
                continue
            out.append(f"| `{column.name}` | {_kind(column)} | {_role(column)} | {column.comment} |")
        if table is schema.run:
            names = ", ".join(f"`{name}`" for name in schema.METRIC_COLUMNS)
            out += ["", f"Metric columns (real, null when it did not happen): {names}."]
        out.append("")
    return "\n".join(out)


def _kind(column: sa.Column[object]) -> str:
    kind = column.type
    if isinstance(kind, sa.types.NullType) and column.foreign_keys:
        kind = next(iter(column.foreign_keys)).column.type
    name = {
        sa.String: "text",
        sa.Text: "text",
        sa.Double: "real",
        sa.BigInteger: "integer",
        sa.Integer: "integer",
        sa.Boolean: "boolean",
    }[type(kind)]
    return name if column.primary_key or not column.nullable else f"{name}, may be null"


def _role(column: sa.Column[object]) -> str:
    roles = ["key"] if column.primary_key else []
    if column.unique:
        roles.append("unique")
    for foreign in column.foreign_keys:
        roles.append(f"-> {foreign.target_fullname}" + (", deleted with it" if foreign.ondelete else ""))
    return "; ".join(roles)
