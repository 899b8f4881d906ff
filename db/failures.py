"""Driver errors as one clear line: what happened to which database, and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from specsim.errors import StoreError

__all__ = ["DamagedRow", "explained", "is_busy"]

_SQLITE = (
    (("SQLITE_BUSY", "SQLITE_LOCKED"), "is locked by another process; try again or use another with --db"),
    (("SQLITE_READONLY",), "is read-only; choose another with --db"),
    (("SQLITE_CORRUPT",), "is damaged (left as it is); restore a copy or start a new one with --db"),
    (("SQLITE_NOTADB",), "is not a SQLite database (left untouched); choose another with --db"),
    (("SQLITE_FULL",), "cannot grow, the disk is full (nothing was stored); free space or use another with --db"),
    (("SQLITE_IOERR",), "could not be read or written (disk error or full); check the disk or use another with --db"),
    (
        ("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH"),
        "cannot be opened; check its folder and permissions, or use --db",
    ),
    (("SQLITE_TOOBIG",), "cannot take a value this large; store fewer details"),
)
_POSTGRES = {
    "55P03": "is locked by another process; try again or use another with --db",
    "40001": "is busy with another process; try again",
    "40P01": "is busy with another process; try again",
    "42501": "does not let this user write; use another user or another --db",
    "25006": "is read-only; choose another with --db",
    "53100": "has no disk space left (nothing was stored); free space or use another with --db",
    "3D000": "does not exist on that server; create it first (createdb) or use another with --db",
    "28P01": "refused the password; check the user and password in the URL",
    "28000": "refused the user; check the user and password in the URL",
}


class DamagedRow(Exception):
    """A stored value is not what specsim writes; `explained` says in which database.

    Args:
        row: id of the row, for people.
        column: the value's column.
        way_out: what to do about it.
    """

    def __init__(self, row: str, column: str, way_out: str) -> None:
        super().__init__(row, column, way_out)
        self.row = row
        self.column = column
        self.way_out = way_out


def _code(error: BaseException | None) -> str:
    return str(getattr(error, "sqlite_errorname", None) or getattr(error, "sqlstate", None) or "")


def is_busy(error: sa.exc.DBAPIError) -> bool:
    """Whether waiting may help: somebody else holds a lock, or won a race."""
    code = _code(error.orig)
    return code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or code in ("40001", "40P01", "55P03")


def _line(error: BaseException | None) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."


def explain(error: Exception, name: str) -> StoreError:
    """The StoreError for a driver error on the database called `name`."""
    orig = getattr(error, "orig", None) or error
    code = _code(orig)
    for prefixes, text in _SQLITE:
        if code.startswith(prefixes):
            return StoreError(f"database {name} {text}")
    if code in _POSTGRES:
        return StoreError(f"database {name} {_POSTGRES[code]}")
    if isinstance(error, sa.exc.IntegrityError):
        return StoreError(
            f"database {name} refused the rows: {_line(orig)}; store the trace, profile and scenario first"
        )
    if isinstance(error, sa.exc.OperationalError) and not code.startswith("SQLITE"):
        return StoreError(f"cannot reach database {name}: {_line(orig)}; check the URL and that the server runs")
    return StoreError(f"database {name}: {_line(orig)}; check the URL or file, or use another with --db")


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn what SQLAlchemy and the drivers raise inside into a StoreError about the database `name`."""
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        raise explain(error, name) from error
    except DamagedRow as error:
        raise StoreError(f"{error.row} of {name}: column {error.column} is damaged; {error.way_out}") from error
    except OverflowError as error:
        raise StoreError(
            f"database {name}: a whole number is too large to store ({error}); use one below 2**63"
        ) from error
