"""Every way to the current schema: from nothing, from each earlier one with rows in it, and through a failing step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from store_builders import file_hash, save_plan, save_run

from db import migrations, schema
from db.location import parse
from db.migrations import STEPS, Step
from db.store import Store
from specsim.errors import StoreError

ROWS = {
    "m001_first": [
        "INSERT INTO trace VALUES ('aa', 'old.csv', 'azure', 5, 1.5, '{}', '2026-01-01T00:00:00.000000Z')",
        "INSERT INTO run (id, key, trace_sha256, point, policy, policy_label, seed, code_version, specsim_version, "
        "status, started_utc, finished_utc, metrics, ttft_p95_s) VALUES ('run-01', '01', 'aa', '{}', '{}', 'off', 7, "
        "'c', '0', 'complete', '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z', '{\"rounds\": 3}', 0.25)",
        "INSERT INTO plan (id, inputs_sha256, inputs, trace_sha256, profile_sha256, scenario_sha256, status, "
        "schema_version, result, code_version, specsim_version, created_utc, updated_utc) VALUES ('plan-02', '02', "
        "'{}', 'aa', NULL, NULL, 'complete', 1, '{\"answer\": 4}', 'c', '0', "
        "'2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z')",
        "INSERT INTO plan_run VALUES ('plan-02', 'run-01')",
    ],
    "m002_run_request": ["INSERT INTO run_request VALUES ('run-01', 0, 0.0, 0.1, 0.2, NULL, 9, 3, 0, 0, FALSE, 0)"],
    "m003_plan_kind": ["UPDATE plan SET kind = 'whatif' WHERE id = 'plan-02'"],
    "m004_validation": [
        "INSERT INTO validation VALUES ('val-04', 'serve', 'a model', NULL, 'complete', 1, '{\"rows\": []}', 'c', '0', "
        "'2026-01-01T00:00:00.000000Z')"
    ],
}
"""What was stored when the step was the last one; written as SQL, so that it does not follow the code."""


def engine_of(location: str) -> sa.Engine:
    return sa.create_engine(parse(location).url)


def run_sql(location: str, statements: Sequence[str]) -> None:
    engine = engine_of(location)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def shape(location: str) -> dict[str, Any]:
    """Tables with columns, types, keys, references, checks and indexes, as the database reports them."""
    engine = engine_of(location)
    with engine.connect() as connection:
        seen = sa.inspect(connection)
        out = {
            table: {
                "columns": [(c["name"], str(c["type"]), c["nullable"]) for c in seen.get_columns(table)],
                "key": (seen.get_pk_constraint(table)["constrained_columns"], seen.get_pk_constraint(table)["name"]),
                "references": sorted(str(sorted(f.items(), key=str)) for f in seen.get_foreign_keys(table)),
                "checks": sorted((c["name"], c["sqltext"]) for c in seen.get_check_constraints(table)),
                "unique": sorted((u["name"], u["column_names"]) for u in seen.get_unique_constraints(table)),
                "indexes": sorted((i["name"], i["column_names"]) for i in seen.get_indexes(table)),
            }
            for table in seen.get_table_names()
            if table != migrations.TABLE
        }
    engine.dispose()
    return out


def content(location: str) -> dict[str, list[tuple[Any, ...]]]:
    engine = engine_of(location)
    with engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        out = {t: sorted(map(tuple, connection.exec_driver_sql(f"SELECT * FROM {t}"))) for t in tables}
    engine.dispose()
    return out


def test_every_step_has_rows_to_start_from() -> None:
    assert list(ROWS) == [step.__name__ for step in STEPS]
    assert list(ROWS) == sorted(set(ROWS))


def test_from_empty_gives_the_schema_of_the_code(location: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    Store.open(location).close()
    migrated = shape(location)
    assert set(migrated) == set(schema.metadata.tables)
    if location.startswith("postgresql"):
        fresh = request.getfixturevalue("postgresql_url")
        run_sql(location, [f"DROP TABLE {t} CASCADE" for t in [*migrated, migrations.TABLE]])
        fresh = location  # the same schema, so that reported names are equal
    else:
        fresh = str(tmp_path / "direct.db")
    engine = engine_of(fresh)
    schema.metadata.create_all(engine)
    engine.dispose()
    assert shape(fresh) == migrated
    every = [
        name for table in migrated.values() for name, _ in (table["key"][::-1], *table["checks"], *table["indexes"])
    ]
    assert None not in every


@pytest.mark.parametrize("last", range(len(STEPS)), ids=lambda i: STEPS[i].__name__)
def test_from_every_earlier_schema_with_rows(location: str, last: int) -> None:
    Store.open(location, steps=STEPS[: last + 1]).close()
    for step in STEPS[: last + 1]:
        run_sql(location, ROWS[step.__name__])
    before = content(location)
    with Store.open(location) as store:
        run = store.get("run-01")
        assert (run["seed"], run["metrics"], run["ttft_p95_s"]) == (7, {"rounds": 3}, 0.25)
        plan = store.get("plan-02")
        assert (plan["result"], plan["run_ids"], plan["trace_sha256"]) == ({"answer": 4}, ["run-01"], "aa")
        assert plan["kind"] == ("whatif" if last >= 2 else "plan")
    after = content(location)
    for table, rows in before.items():
        if table != migrations.TABLE:
            assert [kept[: len(row)] for kept, row in zip(after[table], rows, strict=True)] == rows
    assert [name for name, _ in after[migrations.TABLE]] == list(ROWS)
    with Store.open(location) as store:
        save_plan(store, {"a": 1}, run_keys=[save_run(store)])
        assert store.count() == {"plans": 2, "runs": 2}


def m998_adds(connection: sa.Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE half (a INTEGER)")
    connection.exec_driver_sql("INSERT INTO half VALUES (1)")
    connection.exec_driver_sql("ALTER TABLE run ADD COLUMN more TEXT")
    connection.exec_driver_sql("UPDATE run SET policy_label = 'broken', more = 'x'")


def m999_raises(connection: sa.Connection) -> None:
    connection.exec_driver_sql("DELETE FROM plan")
    raise RuntimeError("power cut")


def m999_bad_sql(connection: sa.Connection) -> None:
    connection.exec_driver_sql("DELETE FROM plan")
    connection.exec_driver_sql("INSERT INTO no_such_table VALUES (1)")


@pytest.mark.parametrize(("step", "error"), [(m999_raises, RuntimeError), (m999_bad_sql, StoreError)])
def test_a_failing_step_leaves_nothing(location: str, step: Step, error: type[Exception]) -> None:
    with Store.open(location) as store:
        save_plan(store, {"a": 1}, run_keys=[save_run(store)])
    before, shape_before = content(location), shape(location)
    with pytest.raises(error):
        Store.open(location, steps=(*STEPS, m998_adds, step))
    assert content(location) == before
    assert shape(location) == shape_before
    with Store.open(location) as store:
        assert store.count() == {"plans": 1, "runs": 1}


def test_a_failing_first_step_leaves_no_table(location: str) -> None:
    def m000_breaks(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE half (a INTEGER)")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        Store.open(location, steps=(STEPS[0], m000_breaks))
    assert content(location) == {}
    Store.open(location).close()


def test_a_newer_schema_is_refused_and_left_alone(location: str) -> None:
    with Store.open(location, steps=(*STEPS, m998_adds)) as store:
        store.save_scenario({"a": 1})
    before = content(location)
    digest = None if location.startswith("postgresql") else file_hash(Path(location))
    for mode in ("create", "write", "read"):
        with pytest.raises(StoreError, match=r"written by a newer specsim \(it has m998_adds.*update specsim"):
            Store.open(location, mode=mode)  # type: ignore[arg-type]
    assert content(location) == before
    assert digest is None or file_hash(Path(location)) == digest


def test_a_database_of_another_program_is_refused_and_left_alone(location: str) -> None:
    run_sql(location, ["CREATE TABLE plan (title TEXT)", "INSERT INTO plan VALUES ('holidays')"])
    before = content(location)
    for mode in ("create", "write", "read"):
        with pytest.raises(StoreError, match="tables of another program"):
            Store.open(location, mode=mode)  # type: ignore[arg-type]
    assert content(location) == before


def test_postgresql_may_hold_other_tables_beside_ours(postgresql_url: str) -> None:
    run_sql(postgresql_url, ["CREATE TABLE invoices (n INTEGER)"])
    with Store.open(postgresql_url) as store:
        save_run(store)
    assert content(postgresql_url)["invoices"] == []


def test_opening_twice_applies_nothing_again(location: str, reopen: Callable[[], Store]) -> None:
    reopen().close()
    before = content(location)
    reopen().close()
    assert content(location) == before
