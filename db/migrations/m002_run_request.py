"""Per-request rows of a run, stored when asked for. Frozen: never edit; add a new step instead."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = ["m002_run_request"]

_NAMING = {
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def m002_run_request(connection: sa.Connection) -> None:
    """Runs stored before this step have no rows here."""
    metadata = sa.MetaData(naming_convention=_NAMING)
    sa.Table("run", metadata, sa.Column("id", sa.String(24), primary_key=True))
    request = sa.Table(
        "run_request",
        metadata,
        sa.Column("run_id", sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("request_index", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("arrival_s", sa.Double),
        sa.Column("first_scheduled_s", sa.Double),
        sa.Column("first_token_s", sa.Double),
        sa.Column("finish_s", sa.Double),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("preemptions", sa.BigInteger, nullable=False),
        sa.Column("rejected", sa.Boolean, nullable=False),
        sa.Column("replica", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,  # the key is long, so the table is its own index
    )
    request.create(connection, checkfirst=False)
