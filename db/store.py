"""The results database: open it, look a run up before simulating it, save runs and plans, delete them.

Every save is one transaction: stored in full, or not at all. Saving the same content again changes nothing, so
any number of processes may work on one database. Leaves out: reading many rows (`db.queries`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from db import migrations, queries, schema
from db.canonical import canonical_json, content_sha256
from db.connect import connect, use_write_ahead_log, write
from db.failures import explained
from db.location import Location, Mode, check_file, parse
from db.rows import checked_sha256, checked_status, metric_columns, request_chunks, text, utc_text
from specsim.errors import StoreError
from specsim.records import RequestColumns

__all__ = ["BUSY_TIMEOUT_S", "Store"]

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0
"""How long to wait for another process's lock before giving up."""

_CHECK_LIMIT_BYTES = 32 * 2**20
"""Databases up to this size are checked for damage before the first write (about 1 ms per MiB)."""


class Store:
    """An open database; use it as a context manager, in the process that opened it.

    A new or older SQLite file is brought to the current schema on opening. Nothing is kept in memory: two stores
    on one database see each other's rows at once.
    """

    def __init__(self, engine: sa.Engine, location: Location, *, timeout_s: float) -> None:
        self._engine = engine
        self._location = location
        self._timeout_s = timeout_s
        self._pid = os.getpid()

    @classmethod
    def open(
        cls,
        location: str | os.PathLike[str] | None = None,
        *,
        mode: Mode = "create",
        timeout_s: float = BUSY_TIMEOUT_S,
        steps: Sequence[migrations.Step] = migrations.STEPS,
    ) -> Store:
        """Open the database at `location` (path or URL; None: SPECSIM_DB, else `specsim.db` here).

        `mode`: `create` makes a missing one, `write` wants an existing one that can be changed, `read` takes a
        read-only one too. `timeout_s`: seconds to wait for locks.

        Raises:
            StoreError: one line for a database that is missing, locked, read-only, damaged, foreign, too new or out of
                reach; such a database is left exactly as it was.
        """
        where = parse(location)
        timeout_s = where.timeout_s if where.timeout_s is not None else timeout_s
        exists, writable = check_file(where, mode) if where.is_sqlite else (True, True)
        engine = connect(where, may_create=mode == "create", may_write=writable, timeout_s=timeout_s)
        store = cls(engine, where, timeout_s=timeout_s)
        try:
            store._prepare(mode, writable=writable, exists=exists, steps=steps)
        except BaseException:
            store.close()
            raise
        return store

    def _prepare(self, mode: Mode, *, writable: bool, exists: bool, steps: Sequence[migrations.Step]) -> None:
        with explained(self.name):
            with self._engine.connect() as connection:
                migrations.check(connection, self.name, steps=steps)
                todo = migrations.pending(connection, steps=steps)
                if not todo and mode == "read":
                    return
                if mode != "create" and migrations.applied_names(connection) is None:
                    raise StoreError(
                        f"database {self.name} is empty; `specsim plan` fills it, or use another with --db"
                    )
                if not writable:
                    raise StoreError(
                        f"database {self.name} has an older schema and is read-only; copy it to a writable place"
                    )
            if self._location.is_sqlite:
                self._check_health()
                use_write_ahead_log(self._engine)
            if todo:
                self._write(lambda connection: self._migrate(connection, steps))

    def _migrate(self, connection: sa.Connection, steps: Sequence[migrations.Step]) -> None:
        migrations.check(connection, self.name, steps=steps)  # again: now nobody else can change it
        migrations.apply(connection, steps=steps)

    def _check_health(self) -> None:
        path = self._location.path
        if path is None or not path.exists() or path.stat().st_size > _CHECK_LIMIT_BYTES:
            return
        with self._engine.connect() as connection:
            verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if verdict != "ok":
            raise StoreError(
                f"database {self.name} is damaged (left as it is): {str(verdict).splitlines()[-1]}; "
                f"restore a copy or start a new one with --db"
            )

    @property
    def name(self) -> str:
        """The database as messages call it; no password."""
        return self._location.name

    def close(self) -> None:
        """Give all connections back; SQLite then folds its log into the file."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _own(self) -> sa.Engine:
        """The engine; a forked child leaves the parent's connections alone and opens its own."""
        if os.getpid() != self._pid:
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        return self._engine

    def _write(self, work: Callable[[sa.Connection], T]) -> T:
        with explained(self.name):
            return write(self._own(), work, timeout_s=self._timeout_s)

    def _read(self, work: Callable[[sa.Connection], T]) -> T:
        with explained(self.name), self._own().connect() as connection:
            return work(connection)

    # What runs and plans refer to.

    def save_trace(
        self, sha256: str, *, source: str, format: str, rows: int, span_s: float | None, stats: Mapping[str, Any]
    ) -> None:
        """Remember a trace by the hash of its content; the requests themselves are not stored."""
        row = {
            "sha256": checked_sha256(sha256, "trace hash"),
            "source": text(source, "trace source"),
            "format": text(format, "trace format"),
            "rows": int(rows),
            "span_s": json.loads(canonical_json(span_s, place="trace span", nulls=True)),
            "stats": canonical_json(stats, place="trace stats", nulls=True),
            "added_utc": utc_text(),
        }
        self._write(lambda connection: _insert_if_new(connection, schema.trace, row))

    def save_profile(self, sha256: str, *, name: str, kind: str, body: Mapping[str, Any]) -> None:
        """Keep a latency profile whole, by its hash (`LatencyProfile.sha256`, `to_dict`)."""
        row = {
            "sha256": checked_sha256(sha256, "profile hash"),
            "name": text(name, "profile name"),
            "kind": text(kind, "profile kind"),
            "body": canonical_json(body, place="profile"),
            "added_utc": utc_text(),
        }
        self._write(lambda connection: _insert_if_new(connection, schema.profile, row))

    def save_scenario(self, body: Mapping[str, Any]) -> str:
        """Keep a scenario (deployment, speculation, SLO, plan settings); the hash of its canonical JSON."""
        sha256 = content_sha256(body, place="scenario")
        row = {"sha256": sha256, "body": canonical_json(body, place="scenario"), "added_utc": utc_text()}
        self._write(lambda connection: _insert_if_new(connection, schema.scenario, row))
        return sha256

    # Runs: a cache by key.

    def find_run(self, key: str) -> dict[str, Any] | None:
        """The complete run stored under `key` (`db.canonical.run_key`), JSON parsed, or None."""
        return self.find_runs([key]).get(key)

    def find_runs(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Complete runs by key; keys that are not stored are absent."""
        wanted = list(keys)
        return self._read(lambda connection: queries.runs_by_key(connection, wanted))

    def save_run(
        self,
        key: str,
        *,
        metrics: Mapping[str, Any],
        policy: Mapping[str, Any],
        policy_label: str,
        seed: int,
        code_version: str,
        specsim_version: str,
        load_per_s: float | None = None,
        rate_scale: float | None = None,
        trace_sha256: str | None = None,
        profile_sha256: str | None = None,
        scenario_sha256: str | None = None,
        point: Mapping[str, Any] | None = None,
        status: str = "complete",
        started_utc: datetime | str | None = None,
        finished_utc: datetime | str | None = None,
        requests: RequestColumns | None = None,
    ) -> str:
        """Store a run with its metrics and, when given, one row per request; the id of the run.

        Saved under a key that exists, a complete run is left as it is (same key, same bytes), a partial one is
        replaced. `metrics` may nest and may hold nan (stored as null); those named in `db.schema.METRIC_COLUMNS`
        become columns. The trace, profile and scenario must have been saved before.
        """
        run_id = f"run-{checked_sha256(key, 'run key')[:16]}"
        finished = utc_text(finished_utc)
        row = {
            "id": run_id,
            "key": key,
            "trace_sha256": trace_sha256,
            "profile_sha256": profile_sha256,
            "scenario_sha256": scenario_sha256,
            "point": canonical_json(point or {}, place="point"),
            "policy": canonical_json(policy, place="policy"),
            "policy_label": text(policy_label, "policy label"),
            "load_per_s": json.loads(canonical_json(load_per_s, place="load")),
            "rate_scale": json.loads(canonical_json(rate_scale, place="rate scale")),
            "seed": int(seed),
            "code_version": text(code_version, "code version"),
            "specsim_version": text(specsim_version, "specsim version"),
            "status": checked_status(status),
            "started_utc": finished if started_utc is None else utc_text(started_utc),
            "finished_utc": finished,
            "metrics": canonical_json(metrics, place="metrics", nulls=True),
            **metric_columns(metrics),
        }

        def work(connection: sa.Connection) -> str:
            table = schema.run
            old = connection.execute(sa.select(table.c.status).where(table.c.id == run_id)).scalar()
            if old == "complete":
                return run_id
            if old is None:
                if not _insert_if_new(connection, table, row):
                    return run_id  # another process was faster
            else:
                connection.execute(sa.update(table).where(table.c.id == run_id).values(row))
            if requests is not None:
                connection.execute(sa.delete(schema.run_request).where(schema.run_request.c.run_id == run_id))
                for chunk in request_chunks(run_id, requests):
                    connection.execute(sa.insert(schema.run_request), chunk)
            return run_id

        return self._write(work)

    # Plans.

    def save_plan(
        self,
        inputs: Mapping[str, Any],
        result: Mapping[str, Any],
        *,
        status: str,
        schema_version: int,
        code_version: str,
        specsim_version: str,
        trace_sha256: str | None = None,
        profile_sha256: str | None = None,
        scenario_sha256: str | None = None,
        run_keys: Iterable[str] = (),
    ) -> str:
        """Store a plan with links to its runs; its id, which depends on `inputs` alone.

        The same inputs again keep id and creation time and replace the result; only a partial result never
        replaces a complete one. `run_keys` must have been saved before.
        """
        digest = content_sha256(inputs, place="plan inputs")
        plan_id = plan_id_of(inputs)
        now = utc_text()
        row = {
            "id": plan_id,
            "inputs_sha256": digest,
            "inputs": canonical_json(inputs, place="plan inputs"),
            "trace_sha256": trace_sha256,
            "profile_sha256": profile_sha256,
            "scenario_sha256": scenario_sha256,
            "status": checked_status(status),
            "schema_version": int(schema_version),
            "result": canonical_json({**result, "plan_id": plan_id}, place="plan result", nulls=True),
            "code_version": text(code_version, "code version"),
            "specsim_version": text(specsim_version, "specsim version"),
            "updated_utc": now,
        }
        keys = list(dict.fromkeys(run_keys))

        def work(connection: sa.Connection) -> str:
            table = schema.plan
            _insert_if_new(connection, table, {**row, "created_utc": now})
            old = connection.execute(sa.select(table.c.status).where(table.c.id == plan_id)).scalar()
            if status == "complete" or old == "partial":
                connection.execute(sa.update(table).where(table.c.id == plan_id).values(row))
            run_ids = queries.run_ids_by_key(connection, keys)
            missing = [key for key in keys if key not in run_ids]
            if missing:
                raise StoreError(
                    f"plan {plan_id} refers to run {missing[0][:16]}..., which is not stored; save it first"
                )
            _insert_all_if_new(
                connection, schema.plan_run, [{"plan_id": plan_id, "run_id": run_ids[key]} for key in keys]
            )
            return plan_id

        return self._write(work)

    # Reading back and deleting.

    def get(self, id_or_prefix: str) -> dict[str, Any]:
        """The plan or run with this id, a unique beginning of it, or `latest` (the plan stored last).

        The dict has `type` (`plan` or `run`), every column, JSON parsed; a plan also has `run_ids`.

        Raises:
            StoreError: unknown (with the nearest id) or ambiguous (with the candidates).
        """
        return self._read(lambda connection: queries.get(connection, id_or_prefix, self.name))


def plan_id_of(inputs: Mapping[str, Any]) -> str:
    """The id that a plan with these inputs has or will have."""
    return f"plan-{content_sha256(inputs, place='plan inputs')[:12]}"


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    maker = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return maker(table).on_conflict_do_nothing()


def _insert_if_new(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    return bool(connection.execute(_insert(connection, table).values(row)).rowcount)


def _insert_all_if_new(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(_insert(connection, table), rows)
