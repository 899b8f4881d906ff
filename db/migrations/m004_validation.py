"""Predictions held against real serving. Frozen: never edit; add a new step instead."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = ["m004_validation"]

_NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def m004_validation(connection: sa.Connection) -> None:
    """Nothing was stored before this step."""
    metadata = sa.MetaData(naming_convention=_NAMING)
    sa.Table("profile", metadata, sa.Column("sha256", sa.String(64), primary_key=True))
    validation = sa.Table(
        "validation",
        metadata,
        sa.Column("id", sa.String(24), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("profile_sha256", sa.ForeignKey("profile.sha256"), index=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("schema_version", sa.Integer, nullable=False),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("code_version", sa.Text, nullable=False),
        sa.Column("specsim_version", sa.Text, nullable=False),
        sa.Column("created_utc", sa.String(27), nullable=False, index=True),
        sa.CheckConstraint("kind IN ('serve', 'bench')", name="kind"),
        sa.CheckConstraint("status IN ('complete', 'partial')", name="status"),
    )
    validation.create(connection, checkfirst=False)
