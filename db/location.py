"""Where the database is: a path or a URL, checked before any driver touches it.

SQLite opens almost anything and may write to it; so a directory, a file that is no database, a read-only file and
a missing one are told apart here, from the first 16 bytes and the permissions, without opening a connection.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import sqlalchemy as sa

from specsim.checks import read_number
from specsim.errors import StoreError, nearest

__all__ = ["DEFAULT_LOCATION", "ENV", "Location", "Mode", "check_file", "parse"]

Mode = Literal["create", "write", "read"]
DEFAULT_LOCATION = "specsim.db"
ENV = "SPECSIM_DB"

_SQLITE_MAGIC = b"SQLite format 3\x00"
_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}


@dataclass(frozen=True, slots=True)
class Location:
    """A database: its URL, the name that messages use (no password), the file when it is SQLite on disk."""

    url: sa.URL
    name: str
    path: Path | None = None
    timeout_s: float | None = None
    """Seconds to wait for a lock, when the URL says so (`sqlite:///x.db?timeout=30`)."""

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"


def parse(location: str | os.PathLike[str] | None, *, environ: dict[str, str] | None = None) -> Location:
    """The location that the user means: as given, else SPECSIM_DB, else `specsim.db` in the working directory.

    Text with `://` is a SQLAlchemy URL (SQLite or PostgreSQL), all else a path of a SQLite file.

    Raises:
        StoreError: for an unreadable URL, another kind of database, or options that would be ignored.
    """
    env = os.environ if environ is None else environ
    given = os.fspath(location) if location is not None else env.get(ENV) or DEFAULT_LOCATION
    if not given.strip():
        raise StoreError("--db is empty; give a path or a URL, or leave it out for specsim.db")
    if "\x00" in given:
        raise StoreError("--db contains a NUL character; give a path or a URL")
    if given == ":memory:":
        given = "sqlite://"
    if "://" not in given:
        return Location(sa.URL.create("sqlite", database=given), given, Path(given))
    try:
        url = sa.make_url(given)
    except (sa.exc.ArgumentError, ValueError):
        raise StoreError(
            "--db is not a readable URL; write sqlite:///file.db or postgresql://user@host:5432/name"
        ) from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise StoreError(
            f"--db names a '{url.drivername}' database{nearest(url.drivername, _DRIVERS)}; "
            f"specsim stores in SQLite (a path) or PostgreSQL (postgresql://...)"
        )
    name = url.render_as_string(hide_password=True)
    if driver != "sqlite":
        return Location(url.set(drivername=driver), name)
    return _sqlite_url(url, name)


def _sqlite_url(url: sa.URL, name: str) -> Location:
    if url.host or url.username or url.port:
        raise StoreError(
            f"--db {name}: a SQLite URL has no host; write sqlite:///file.db or sqlite:////absolute/file.db"
        )
    timeout_s = None
    for key, value in url.query.items():
        if key != "timeout":
            raise StoreError(f"--db {name}: option '{key}' is not supported for SQLite; only timeout=SECONDS is")
        try:
            timeout_s = read_number(str(value))
        except ValueError:
            timeout_s = -1.0
        if not 0 <= timeout_s < 1e6:
            raise StoreError(f"--db {name}: timeout is {value!r}; give seconds, 0 or more")
    plain = url.set(drivername="sqlite", query={})
    if not url.database or url.database == ":memory:":
        return Location(plain.set(database=None), "sqlite:// (in memory)", None, timeout_s)
    return Location(plain, url.database, Path(url.database), timeout_s)


def check_file(location: Location, mode: Mode) -> bool:
    """Whether a SQLite file can be written. Reads at most 16 bytes and writes nothing.

    Raises:
        StoreError: the file is not a database, or cannot be used in this mode.
    """
    path, name = location.path, location.name
    if path is None:
        return True
    try:
        return _check_path(path, name, mode)
    except OSError as error:
        raise StoreError(f"--db {name}: {error.strerror or error}; choose another with --db") from None
    except ValueError as error:
        raise StoreError(f"--db {name}: {error}; choose another with --db") from None


def _check_path(path: Path, name: str, mode: Mode) -> bool:
    folder = path.absolute().parent
    if path.is_dir():
        raise StoreError(f"--db {name} is a directory; name a file in it, e.g. --db {path / DEFAULT_LOCATION}")
    if not path.exists():
        if mode != "create":
            raise StoreError(f"no database at {name}; `specsim plan` makes one, or name another with --db")
        if not folder.is_dir():
            raise StoreError(f"--db {name}: the folder {folder} does not exist; create it first or choose another --db")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise StoreError(f"--db {name}: the folder {folder} is not writable; choose another with --db")
        return True
    if not path.is_file():
        raise StoreError(f"--db {name} is not a regular file; choose another with --db")
    if not os.access(path, os.R_OK):
        raise StoreError(f"--db {name} cannot be read (permission denied); choose another with --db")
    with path.open("rb") as file:
        head = file.read(len(_SQLITE_MAGIC))
    if head and head != _SQLITE_MAGIC:
        raise StoreError(f"--db {name} is not a SQLite database (left untouched); choose another with --db")
    # SQLite writes its journal beside the file, so the folder must be writable too.
    writable = os.access(path, os.W_OK) and os.access(folder, os.W_OK | os.X_OK)
    if not writable and mode != "read":
        what = "is read-only" if not os.access(path, os.W_OK) else f"lies in the read-only folder {folder}"
        raise StoreError(f"--db {name} {what}; choose another with --db")
    if not head and mode != "create":
        raise StoreError(f"--db {name} is an empty file; `specsim plan` fills one, or name another with --db")
    return writable
