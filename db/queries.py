"""Questions to the database; everything here only reads. A store gives the connection."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from db import schema
from db.rows import decoded
from specsim.errors import StoreError

__all__ = [
    "RunFilter",
    "count",
    "deletion",
    "get",
    "iter_full",
    "list_plans",
    "list_profiles",
    "list_runs",
    "parts",
    "resolve",
    "run_ids_by_key",
    "runs_by_key",
]

_IN_MAX = 500
"""Values in one IN list; drivers limit the number of parameters."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs; None: any. Text fields match as said, hashes by their beginning."""

    plan: str | None = None
    """Id of a plan, or a unique beginning."""
    trace: str | None = None
    """Beginning of the trace's hash, or a piece of its source."""
    profile: str | None = None
    """Beginning of the profile's hash, or a piece of its name."""
    policy: str | None = None
    """Label of the policy, e.g. `k=3`."""
    load_per_s: float | None = None
    seed: int | None = None
    status: str | None = None


def parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """`values` in pieces that fit one IN list."""
    for low in range(0, len(values), _IN_MAX):
        yield values[low : low + _IN_MAX]


def runs_by_key(connection: sa.Connection, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Complete runs by key."""
    table = schema.run
    out: dict[str, dict[str, Any]] = {}
    for part in parts(keys):
        query = sa.select(table).where(table.c.key.in_(part), table.c.status == "complete")
        for row in connection.execute(query).mappings():
            out[row["key"]] = decoded(row)
    return out


def run_ids_by_key(connection: sa.Connection, keys: Sequence[str]) -> dict[str, str]:
    """Ids of stored runs, partial ones included, by key."""
    table = schema.run
    out: dict[str, str] = {}
    for part in parts(keys):
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
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.0)
    raise StoreError(f"no plan or run '{id_or_prefix}' in {name}; nearest: {', '.join(near)}; see `specsim runs list`")


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


def _run_query(connection: sa.Connection, columns: Sequence[Any], filters: RunFilter, name: str) -> sa.Select[Any]:
    run, trace, profile = schema.run, schema.trace, schema.profile
    query = (
        sa.select(*columns)
        .select_from(run)
        .outerjoin(trace, trace.c.sha256 == run.c.trace_sha256)
        .outerjoin(profile, profile.c.sha256 == run.c.profile_sha256)
    )
    if filters.plan is not None:
        plan_id = resolve(connection, filters.plan, name)
        if not plan_id.startswith("plan-"):
            raise StoreError(f"--plan {filters.plan} is the run {plan_id}; give the id of a plan")
        link = schema.plan_run
        query = query.where(run.c.id.in_(sa.select(link.c.run_id).where(link.c.plan_id == plan_id)))
    for wanted, digest, label in (
        (filters.trace, trace.c.sha256, trace.c.source),
        (filters.profile, profile.c.sha256, profile.c.name),
    ):
        if wanted is not None:
            query = query.where(
                digest.startswith(wanted.lower(), autoescape=True) | label.contains(wanted, autoescape=True)
            )
    for value, column in (
        (filters.policy, run.c.policy_label),
        (filters.load_per_s, run.c.load_per_s),
        (filters.seed, run.c.seed),
        (filters.status, run.c.status),
    ):
        if value is not None:
            query = query.where(column == value)
    return query


def list_runs(connection: sa.Connection, filters: RunFilter, limit: int | None, name: str) -> list[dict[str, Any]]:
    """Runs, newest first, without JSON columns; with `trace_source` and `profile_name`."""
    run = schema.run
    columns: list[Any] = [column for column in run.c if column.name not in ("point", "policy", "metrics")]
    columns += [schema.trace.c.source.label("trace_source"), schema.profile.c.name.label("profile_name")]
    query = _run_query(connection, columns, filters, name).order_by(run.c.finished_utc.desc(), run.c.id).limit(limit)
    return [{"type": "run", **row} for row in connection.execute(query).mappings()]


def list_plans(connection: sa.Connection, limit: int | None) -> list[dict[str, Any]]:
    """Plans, newest first, without JSON columns; with `trace_source`, `profile_name` and the number of `runs`."""
    plan, link = schema.plan, schema.plan_run
    runs = sa.select(sa.func.count()).where(link.c.plan_id == plan.c.id).scalar_subquery().label("runs")
    columns: list[Any] = [column for column in plan.c if column.name not in ("inputs", "result")]
    query = (
        sa.select(
            *columns, runs, schema.trace.c.source.label("trace_source"), schema.profile.c.name.label("profile_name")
        )
        .outerjoin(schema.trace, schema.trace.c.sha256 == plan.c.trace_sha256)
        .outerjoin(schema.profile, schema.profile.c.sha256 == plan.c.profile_sha256)
        .order_by(plan.c.updated_utc.desc(), plan.c.id)
        .limit(limit)
    )
    return [{"type": "plan", **row} for row in connection.execute(query).mappings()]


def list_profiles(connection: sa.Connection) -> list[dict[str, Any]]:
    """Latency profiles, newest first, with their bodies parsed."""
    table = schema.profile
    query = sa.select(table).order_by(table.c.added_utc.desc(), table.c.sha256)
    return [decoded(row) for row in connection.execute(query).mappings()]


def count(connection: sa.Connection, filters: RunFilter, name: str) -> dict[str, int]:
    """Numbers of plans (all) and of runs (that pass `filters`)."""
    plans = connection.scalar(sa.select(sa.func.count()).select_from(schema.plan)) or 0
    runs = connection.scalar(_run_query(connection, [sa.func.count()], filters, name)) or 0
    return {"plans": plans, "runs": runs}


def _split(connection: sa.Connection, ids: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    full = list(dict.fromkeys(resolve(connection, wanted, name) for wanted in ids))
    return [i for i in full if i.startswith("plan-")], [i for i in full if i.startswith("run-")]


def _runs_of(connection: sa.Connection, plans: Sequence[str]) -> list[str]:
    link = schema.plan_run
    found: set[str] = set()
    for part in parts(plans):
        found.update(connection.scalars(sa.select(link.c.run_id).where(link.c.plan_id.in_(part))))
    return sorted(found)


def deletion(connection: sa.Connection, ids: Sequence[str], name: str, *, keep_runs: bool) -> dict[str, list[str]]:
    """Ids of plans and runs that go when `ids` are deleted; see `Store.delete`."""
    plans, runs = _split(connection, ids, name)
    if not keep_runs and plans:
        link = schema.plan_run
        others = set(connection.scalars(sa.select(link.c.run_id).where(link.c.plan_id.not_in(plans))))
        runs += [run for run in _runs_of(connection, plans) if run not in others and run not in runs]
    return {"plans": plans, "runs": runs}


def iter_full(
    connection: sa.Connection, ids: Sequence[str] | None, name: str, *, requests: bool
) -> Iterator[dict[str, Any]]:
    """See `Store.iter_full`."""
    if ids is None:
        plans = list(connection.scalars(sa.select(schema.plan.c.id).order_by(schema.plan.c.id)))
        runs = list(connection.scalars(sa.select(schema.run.c.id).order_by(schema.run.c.id)))
    else:
        plans, chosen = _split(connection, ids, name)
        runs = chosen + [run for run in _runs_of(connection, plans) if run not in set(chosen)]
    for label, table in (("trace", schema.trace), ("profile", schema.profile), ("scenario", schema.scenario)):
        wanted: set[str] = set()
        for user, users in ((schema.plan, plans), (schema.run, runs)):
            for part in parts(users):
                query = sa.select(user.c[f"{label}_sha256"]).where(user.c.id.in_(part))
                wanted.update(digest for digest in connection.scalars(query) if digest is not None)
        for part in parts(sorted(wanted)):
            for row in connection.execute(sa.select(table).where(table.c.sha256.in_(part))).mappings():
                yield {"type": label, **decoded(row)}
    for full in (*plans, *runs):
        item = get(connection, full, name)
        if requests and item["type"] == "run":
            rows = schema.run_request
            query = sa.select(rows).where(rows.c.run_id == full).order_by(rows.c.request_index)
            item["requests"] = [dict(row) for row in connection.execute(query).mappings()]
        yield item
