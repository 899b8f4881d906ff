"""Which command a stored plan answers. Frozen: never edit; add a new step instead."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = ["m003_plan_kind"]


def m003_plan_kind(connection: sa.Connection) -> None:
    """Every plan stored before this step is one of `specsim plan`."""
    connection.execute(sa.text("ALTER TABLE plan ADD COLUMN kind VARCHAR(16) DEFAULT 'plan' NOT NULL"))
