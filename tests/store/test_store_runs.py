"""Saving and finding: what goes in comes out, once, on SQLite and PostgreSQL."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest
from store_builders import PROFILE, TRACE, make_key, make_requests, save_plan, save_run

from db.canonical import run_key
from db.queries import RunFilter
from db.store import Store, plan_id_of
from specsim.errors import StoreError


def test_a_saved_run_is_found_by_its_key_after_reopening(store: Store, reopen: Callable[[], Store]) -> None:
    key = save_run(store, seed=3, point={"limits": {"max_num_seqs": 8}})
    with reopen() as again:
        found = again.find_run(key)
        assert again.find_run(make_key(seed=4)) is None
    assert found is not None
    assert found["id"] == f"run-{key[:16]}"
    assert found["seed"] == 3
    assert found["metrics"]["rounds"] == 7
    assert found["ttft_p95_s"] == 0.5
    assert found["point"] == {"limits": {"max_num_seqs": 8}}


def test_a_complete_run_is_never_replaced_and_a_partial_one_is(store: Store) -> None:
    key = save_run(store, metrics={"rounds": 1}, status="partial")
    assert store.find_run(key) is None
    save_run(store, metrics={"rounds": 2})
    save_run(store, metrics={"rounds": 3})
    save_run(store, metrics={"rounds": 4}, status="partial")
    found = store.find_run(key)
    assert found is not None
    assert found["metrics"] == {"rounds": 2}
    assert store.count()["runs"] == 1


def test_nan_and_infinity_become_null_in_metrics(store: Store) -> None:
    key = save_run(store, metrics={"tpot_p95_s": math.nan, "odd": [math.inf, -math.inf, 1.0], "ttft_p95_s": 1})
    found = store.find_run(key)
    assert found is not None
    assert found["metrics"] == {"tpot_p95_s": None, "odd": [None, None, 1.0], "ttft_p95_s": 1}
    assert found["tpot_p95_s"] is None
    assert found["ttft_p95_s"] == 1.0


def test_nested_metrics_fill_the_columns(store: Store) -> None:
    key = save_run(store, metrics={"ttft": {"p95_s": 0.25}, "slo_share": 0.5})
    found = store.find_run(key)
    assert found is not None
    assert (found["ttft_p95_s"], found["slo_share"]) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"load_per_s": math.nan}, "load is nan"),
        ({"point": {"kind": math.inf}}, "point.kind is inf"),
        ({"seed": 2**63}, "seed is 9223372036854775808; it must be a whole number below"),
        ({"status": "done"}, "status 'done'"),
        ({"metrics": {"ttft_p95_s": "fast"}}, "metric ttft_p95_s is 'fast'"),
        ({"metrics": {"x": object()}}, "metrics.x is a object"),
        ({"trace_sha256": "c" * 64}, "refused the rows"),
        ({"finished_utc": "yesterday"}, "is not UTC"),
    ],
)
def test_what_cannot_be_stored_is_refused_in_one_line(store: Store, changed: dict, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        save_run(store, **changed)
    assert "\n" not in str(caught.value)
    assert store.count() == {"plans": 0, "runs": 0}


def test_every_part_of_the_key_counts() -> None:
    base = {
        "trace_sha256": TRACE, "trace_slice": {}, "profile_sha256": PROFILE, "limits": {"a": 1},
        "policy": {"kind": "off"}, "acceptance": [0.5], "load": 1.0, "seed": 0, "code_version": "c",
    }  # fmt: skip
    other = {
        "trace_sha256": PROFILE, "trace_slice": {"limit": 5}, "profile_sha256": TRACE, "limits": {"a": 2},
        "policy": {"kind": "static"}, "acceptance": [0.6], "load": 2.0, "seed": 1, "code_version": "d", "extra": 1,
    }  # fmt: skip
    keys = {run_key(**base)} | {run_key(**{**base, name: value}) for name, value in other.items()}
    assert len(keys) == len(other) + 1
    assert run_key(**base) == run_key(**dict(reversed(base.items())))


def test_request_rows_are_stored_when_asked_and_go_with_the_run(store: Store) -> None:
    n = 5001  # one more than a chunk
    key = save_run(store, requests=make_requests(n))
    run_id = f"run-{key[:16]}"
    items = list(store.iter_full([run_id], requests=True))
    rows = items[-1]["requests"]
    assert [row["request_index"] for row in rows] == list(range(n))
    assert rows[0]["finish_s"] == 1.0
    assert rows[-1]["finish_s"] is None
    assert rows[-1]["rejected"] is True
    assert store.delete([run_id]) == {"plans": [], "runs": [run_id]}
    save_run(store)
    assert list(store.iter_full([run_id], requests=True))[-1]["requests"] == []


def test_a_plan_keeps_its_id_and_partial_never_replaces_complete(store: Store) -> None:
    key = save_run(store)
    inputs = {"trace": TRACE, "rates": [1.0, 2.0]}
    first = save_plan(store, inputs, {"answer": 1}, status="partial")
    created = store.get(first)["created_utc"]
    assert save_plan(store, inputs, {"answer": 2, "low": math.nan}, run_keys=[key]) == first == plan_id_of(inputs)
    save_plan(store, inputs, {"answer": 3}, status="partial")
    got = store.get(first)
    assert got["result"] == {"answer": 2, "low": None, "plan_id": first}
    assert (got["status"], got["created_utc"], got["schema_version"]) == ("complete", created, 1)
    assert got["run_ids"] == [f"run-{key[:16]}"]
    assert save_plan(store, {**inputs, "rates": [1.0]}) != first


def test_a_plan_with_an_unknown_run_is_not_stored_at_all(store: Store) -> None:
    with pytest.raises(StoreError, match="is not stored; save it first"):
        save_plan(store, {"a": 1}, run_keys=[make_key()])
    assert store.count() == {"plans": 0, "runs": 0}


def test_ids_may_be_shortened_while_unique(store: Store) -> None:
    with pytest.raises(StoreError, match=r"nothing is stored in .* yet"):
        store.get("plan-1")
    with pytest.raises(StoreError, match="no plan is stored"):
        store.get("latest")
    plans = [save_plan(store, {"a": i}) for i in range(30)]
    run_id = f"run-{save_run(store)[:16]}"
    assert store.get(plans[7][:12])["id"] == plans[7]
    assert store.get(plans[7].removeprefix("plan-").upper())["id"] == plans[7]
    assert store.get("run-")["id"] == run_id
    assert store.get("latest")["id"] == plans[-1]
    with pytest.raises(StoreError, match=r"fits 30 ids .*plan-.*, \.\.\.\); give more digits"):
        store.get("plan-")
    typo = plans[7][:-1] + ("0" if plans[7][-1] != "0" else "1")
    with pytest.raises(StoreError, match=f"nearest: {plans[7]}"):
        store.get(typo)
    for odd in ("plan_%", "", "%", "plan-' OR 1=1", "\x00", "\udc80"):
        with pytest.raises(StoreError, match="no plan or run"):
            store.get(odd)


def test_deleting_a_plan_takes_only_runs_that_no_other_plan_uses(store: Store) -> None:
    keys = [save_run(store, seed=seed) for seed in range(4)]
    runs = [f"run-{key[:16]}" for key in keys]
    one = save_plan(store, {"a": 1}, run_keys=keys[:2])
    two = save_plan(store, {"a": 2}, run_keys=keys[1:3])
    assert store.would_delete([one]) == {"plans": [one], "runs": [runs[0]]}
    assert store.count() == {"plans": 2, "runs": 4}
    with pytest.raises(StoreError, match="no plan or run 'run-zz'"):
        store.delete([one, "run-zz"])
    assert store.count() == {"plans": 2, "runs": 4}
    assert store.delete([one]) == {"plans": [one], "runs": [runs[0]]}
    assert store.delete([two], keep_runs=True) == {"plans": [two], "runs": []}
    assert {run["id"] for run in store.list_runs()} == set(runs[1:])
    third = save_plan(store, {"a": 3}, run_keys=keys[1:3])
    store.delete([runs[1]])
    assert store.get(third)["run_ids"] == [runs[2]]


def test_runs_are_listed_newest_first_and_filtered(store: Store) -> None:
    for i, (policy, load) in enumerate([("off", 1.0), ("k=3", 1.0), ("k=3", 2.0)]):
        save_run(store, policy=policy, load=load, seed=i, finished_utc=f"2026-01-0{i + 1}T00:00:00.000000Z")
    plan = save_plan(store, {"a": 1}, run_keys=[make_key(seed=1, policy="k=3")], trace_sha256=TRACE)
    assert [run["seed"] for run in store.list_runs()] == [2, 1, 0]
    assert [run["seed"] for run in store.list_runs(limit=1)] == [2]

    def seeds(**wanted: object) -> list[int]:
        return [run["seed"] for run in store.list_runs(RunFilter(**wanted))]  # type: ignore[arg-type]

    assert seeds(policy="k=3") == [2, 1]
    assert seeds(policy="k=3", load_per_s=1.0) == [1]
    assert seeds(plan=plan[:9]) == [1]
    assert seeds(trace="aaaa") == seeds(trace="prod") == [2, 1, 0]
    assert seeds(trace="p%d") == seeds(profile="b200") == seeds(status="partial") == []
    assert seeds(seed=0) == [0]
    assert store.count(RunFilter(policy="k=3")) == {"plans": 1, "runs": 2}
    assert [(p["id"], p["runs"], p["trace_source"]) for p in store.list_plans()] == [(plan, 1, "prod.jsonl")]
    with pytest.raises(StoreError, match="give the id of a plan"):
        seeds(plan="run-" + make_key(seed=0)[:16])


def test_file_names_that_are_no_unicode_can_be_stored(store: Store) -> None:
    store.save_trace(
        "d" * 64, source="bad\udcff\x00name", format="csv", rows=1, span_s=math.nan, stats={"x": "\udcff\x00"}
    )
    save_run(store, trace_sha256="d" * 64)
    assert store.list_runs()[0]["trace_source"] == "bad\\udcff\\x00name"


def test_scenarios_are_stored_once_by_content(store: Store) -> None:
    one = store.save_scenario({"a": 1, "b": [1, 2]})
    assert store.save_scenario({"b": (1, 2), "a": 1}) == one
    assert store.save_scenario({"a": 2}) != one
    with pytest.raises(StoreError, match=r"scenario\.a is nan"):
        store.save_scenario({"a": math.nan})
    save_run(store, scenario_sha256=one)
    kinds = [item["type"] for item in store.iter_full(None)]
    assert kinds == ["trace", "profile", "scenario", "run"]


def test_a_forked_child_uses_its_own_connection(store: Store) -> None:
    save_run(store, seed=1)
    mine = store._read(lambda connection: connection.connection.dbapi_connection)
    assert store._read(lambda connection: connection.connection.dbapi_connection) is mine
    child = os.fork()
    if child == 0:
        try:
            own = store._read(lambda connection: connection.connection.dbapi_connection)
            save_run(store, seed=2)
            os._exit(0 if own is not mine and store.count()["runs"] == 2 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    save_run(store, seed=3)
    assert store.count()["runs"] == 3
