"""The results database: open it, look a run up before simulating it, save runs and plans, delete them.

Every save is one transaction: stored in full, or not at all. Saving the same content again changes nothing, so
any number of processes may work on one database. Leaves out: reading many rows (`db.queries`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

import sqlalchemy as sa

from db import compare, queries, schema, validations, writes
from db.canonical import canonical_json, content_sha256, output_json
from db.connect import write
from db.failures import explained
from db.location import Location, Mode, parse
from db.migrations import STEPS, Step
from db.opening import open_engine
from db.queries import RunFilter
from db.rows import checked_seed, checked_sha256, checked_status, metric_columns, text, utc_text
from specsim.records import RequestColumns

__all__ = ["BUSY_TIMEOUT_S", "Store", "plan_id_of"]

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0
"""How long to wait for another process's lock before giving up."""


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
        steps: Sequence[Step] = STEPS,
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
        return cls(open_engine(where, mode=mode, timeout_s=timeout_s, steps=steps), where, timeout_s=timeout_s)

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
            "span_s": json.loads(output_json(span_s, place="trace span")),
            "stats": output_json(stats, place="trace stats"),
            "added_utc": utc_text(),
        }
        self._write(lambda connection: writes.insert_if_new(connection, schema.trace, row))

    def save_profile(self, sha256: str, *, name: str, kind: str, body: Mapping[str, Any]) -> None:
        """Keep a latency profile whole, by its hash (`LatencyProfile.sha256`, `to_dict`)."""
        row = {
            "sha256": checked_sha256(sha256, "profile hash"),
            "name": text(name, "profile name"),
            "kind": text(kind, "profile kind"),
            "body": canonical_json(body, place="profile"),
            "added_utc": utc_text(),
        }
        self._write(lambda connection: writes.insert_if_new(connection, schema.profile, row))

    def save_scenario(self, body: Mapping[str, Any]) -> str:
        """Keep a scenario (deployment, speculation, SLO, plan settings); the hash of its canonical JSON."""
        sha256 = content_sha256(body, place="scenario")
        row = {"sha256": sha256, "body": canonical_json(body, place="scenario"), "added_utc": utc_text()}
        self._write(lambda connection: writes.insert_if_new(connection, schema.scenario, row))
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
            "seed": checked_seed(seed),
            "code_version": text(code_version, "code version"),
            "specsim_version": text(specsim_version, "specsim version"),
            "status": checked_status(status),
            "started_utc": finished if started_utc is None else utc_text(started_utc),
            "finished_utc": finished,
            "metrics": output_json(metrics, place="metrics"),
            **metric_columns(metrics),
        }

        return self._write(lambda connection: writes.put_run(connection, row, requests))

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
        kind: str = "plan",
    ) -> str:
        """Store a plan with links to its runs; its id, which depends on `inputs` alone.

        The same inputs again keep id and creation time and replace the result; only a partial result never
        replaces a complete one. The result keeps its order of keys and gets a `plan_id`, first, unless it has one.
        `run_keys` must have been saved before. `kind` is the command whose result it is: plan, whatif or sweep.
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
            "result": output_json({"plan_id": plan_id, **result}, place="plan result"),
            "code_version": text(code_version, "code version"),
            "specsim_version": text(specsim_version, "specsim version"),
            "updated_utc": now,
            "kind": text(kind, "kind of plan"),
        }
        keys = list(dict.fromkeys(run_keys))

        return self._write(lambda connection: writes.put_plan(connection, row, keys))

    # Validations.

    def save_validation(
        self,
        result: Mapping[str, Any],
        *,
        kind: str,
        subject: str,
        code_version: str,
        specsim_version: str,
        profile_sha256: str | None = None,
    ) -> str:
        """Store a prediction held against a measurement; its id, which depends on `result` alone.

        `result` has `status` and `schema_version`. The profile must have been saved before.
        """
        row = validations.row_of(
            result, kind=kind, subject=subject, profile_sha256=profile_sha256, code_version=code_version,
            specsim_version=specsim_version,
        )  # fmt: skip
        return self._write(lambda connection: validations.put(connection, row))

    def list_validations(self, *, limit: int | None = None) -> list[dict[str, Any]]:
        """Validations, newest first, without their results; with `profile_name`."""
        return self._read(lambda connection: validations.listed(connection, limit))

    def get_validation(self, id_or_prefix: str) -> dict[str, Any]:
        """The validation with this id, a unique beginning of it, or `latest`; its result parsed."""
        return self._read(lambda connection: validations.get(connection, id_or_prefix, self.name))

    def delete_validation(self, id_or_prefix: str) -> str:
        """Remove a validation; its id."""
        return self._write(lambda connection: validations.delete(connection, id_or_prefix, self.name))

    # Reading back and deleting.

    def get(self, id_or_prefix: str) -> dict[str, Any]:
        """The plan or run with this id, a unique beginning of it, or `latest` (the plan stored last).

        The dict has `type` (`plan` or `run`), every column, JSON parsed; a plan also has `run_ids`.

        Raises:
            StoreError: unknown (with the nearest id) or ambiguous (with the candidates).
        """
        return self._read(lambda connection: queries.get(connection, id_or_prefix, self.name))

    def resolve(self, id_or_prefix: str) -> str:
        """The full id that `get` would find, without reading the row.

        Raises:
            StoreError: see `get`.
        """
        return self._read(lambda connection: queries.resolve(connection, id_or_prefix, self.name))

    def list_plans(self, *, limit: int | None = None) -> list[dict[str, Any]]:
        """Plans, newest first, without inputs and result; `runs` counts their runs."""
        return self._read(lambda connection: queries.list_plans(connection, limit))

    def list_runs(self, filters: RunFilter | None = None, *, limit: int | None = None) -> list[dict[str, Any]]:
        """Runs that pass `filters`, newest first, without their JSON columns."""
        return self._read(lambda connection: queries.list_runs(connection, filters or RunFilter(), limit, self.name))

    def list_profiles(self) -> list[dict[str, Any]]:
        """Latency profiles, newest first: sha256, name, kind, body (parsed) and the time of the first storing."""
        return self._read(queries.list_profiles)

    def count(self, filters: RunFilter | None = None) -> dict[str, int]:
        """`{"plans": n, "runs": n}`; the filters apply to runs."""
        return self._read(lambda connection: queries.count(connection, filters or RunFilter(), self.name))

    def iter_full(self, ids: Sequence[str] | None, *, requests: bool = False) -> Iterator[dict[str, Any]]:
        """Everything about the plans and runs `ids` (None: all), each with a `type`, one after the other.

        A plan brings its runs; traces, profiles and scenarios that are referred to come first. `requests` adds a
        `requests` list to every run that has one.
        """
        with explained(self.name), self._own().connect() as connection:
            yield from queries.iter_full(connection, ids, self.name, requests=requests)

    def compare(self, a: str, b: str) -> dict[str, Any]:
        """Main metrics of two plans or runs, paired by policy, load and seed; see `db.compare.compare`."""
        return self._read(lambda connection: compare.compare(connection, a, b, self.name))

    def would_delete(self, ids: Sequence[str], *, keep_runs: bool = False) -> dict[str, list[str]]:
        """What `delete` with the same arguments would remove: `{"plans": [...], "runs": [...]}`."""
        return self._read(lambda connection: queries.deletion(connection, ids, self.name, keep_runs=keep_runs))

    def delete(self, ids: Sequence[str], *, keep_runs: bool = False) -> dict[str, list[str]]:
        """Remove plans and runs, all or none; the ids that are gone.

        A plan takes with it the runs that no other plan uses, unless `keep_runs`. A run takes its request rows; a
        plan that used it keeps its result. Traces, profiles and scenarios stay.
        """

        return self._write(lambda connection: writes.delete(connection, ids, self.name, keep_runs=keep_runs))


def plan_id_of(inputs: Mapping[str, Any]) -> str:
    """The id that a plan with these inputs has or will have."""
    return f"plan-{content_sha256(inputs, place='plan inputs')[:12]}"
