"""Pairing: the same policy, load and seed meet; whatever has no partner is counted."""

from __future__ import annotations

import math

import pytest
from store_builders import save_plan, save_run

from db.canonical import run_key
from db.store import Store
from specsim.errors import StoreError


def two_plans(store: Store) -> tuple[str, str]:
    """Plan A: off and k=3 at 1/s, seeds 0..2, and one run at 9/s. Plan B: the same two from other code, seeds 1..3."""
    a = [save_run(store, policy=p, seed=s, metrics={"ttft_p95_s": 1.0 + s}) for p in ("off", "k=3") for s in range(3)]
    a.append(save_run(store, policy="off", load=9.0, metrics={"ttft_p95_s": 9.0}))
    b = [
        save_run(store, policy=p, seed=s, code_version="c2", metrics={"ttft_p95_s": 1.5 + 2 * s})
        for p in ("off", "k=3")
        for s in range(1, 4)
    ]
    return save_plan(store, {"plan": "a"}, run_keys=a), save_plan(store, {"plan": "b"}, run_keys=b)


def test_plans_are_paired_by_policy_load_and_seed(store: Store) -> None:
    a, b = two_plans(store)
    body = store.compare(a, b[:10])
    assert (body["pairs"], body["unpaired_a"], body["unpaired_b"]) == (4, 3, 2)
    assert body["differs"] == {"code_version": ["c1", "c2"]}
    assert [(row["policy"], row["metric"], row["seeds"]) for row in body["rows"]] == [
        ("k=3", "ttft_p95_s", [1, 2]),
        ("off", "ttft_p95_s", [1, 2]),
    ]
    row = body["rows"][1]
    assert (row["a"], row["b"], row["difference"], row["differences"]) == (2.5, 4.5, 2.0, [1.5, 2.5])


def test_the_other_way_round_changes_only_the_sign(store: Store) -> None:
    a, b = two_plans(store)
    there, back = store.compare(a, b), store.compare(b, a)
    assert there["pairs"] == back["pairs"]
    assert [r["differences"] for r in there["rows"]] == [[-d for d in r["differences"]] for r in back["rows"]]
    assert all(r["difference"] == 0 for r in store.compare(a, a)["rows"])


def test_two_single_runs_are_compared_whatever_they_are(store: Store) -> None:
    one = save_run(store, policy="off", metrics={"ttft_p95_s": 1.0, "tpot_p95_s": math.nan})
    two = save_run(store, policy="k=3", load=2.0, seed=5, metrics={"ttft_p95_s": 0.5, "tpot_p95_s": 0.1})
    body = store.compare(f"run-{one[:16]}", f"run-{two[:16]}")
    assert body["differs"] == {"policy_label": ["off", "k=3"], "load_per_s": [1.0, 2.0], "seed": [0, 5]}
    assert [(row["metric"], row["difference"]) for row in body["rows"]] == [("ttft_p95_s", -0.5)]
    assert (body["rows"][0]["policy"], body["rows"][0]["policy_b"]) == ("off", "k=3")


def test_runs_of_one_policy_and_load_that_differ_in_their_point_meet_their_like(store: Store) -> None:
    def runs(code: str, shift: float) -> list[str]:
        keys = []
        for acceptance in (0.6, 0.7):
            key = run_key(
                trace_sha256="t", trace_slice=None, profile_sha256="p", limits={}, policy={}, acceptance=acceptance,
                load=1.0, seed=0, code_version=code,
            )  # fmt: skip
            store.save_run(
                key, metrics={"ttft_p95_s": acceptance + shift}, policy={}, policy_label="k=3", seed=0,
                code_version=code, specsim_version="0", load_per_s=1.0, point={"acceptance": acceptance},
            )  # fmt: skip
            keys.append(key)
        return keys

    a = save_plan(store, {"a": 1}, run_keys=runs("c1", 0.0))
    b = save_plan(store, {"a": 2}, run_keys=runs("c2", 0.25))
    rows = store.compare(a, b)["rows"]
    assert [round(row["difference"], 9) for row in rows] == [0.25, 0.25]


def test_nothing_to_compare_is_said(store: Store) -> None:
    one = save_plan(store, {"a": 1}, run_keys=[save_run(store, seed=1)])
    two = save_plan(store, {"a": 2}, run_keys=[save_run(store, seed=2)])
    bare = save_plan(store, {"a": 3})
    with pytest.raises(
        StoreError, match="no runs with the same policy, load and seed; plan both with the same --loads"
    ):
        store.compare(one, two)
    with pytest.raises(StoreError, match=f"{bare} has no stored runs to compare"):
        store.compare(one, bare)


def test_stretches_of_one_log_are_replications_of_one_another(store: Store) -> None:
    """Each seed of a plan serves other requests of a log that is cut; the pairs still make one interval."""

    def runs(code: str, shift: float) -> list[str]:
        return [
            save_run(
                store,
                policy="k=3",
                seed=s,
                code_version=code,
                metrics={"ttft_p95_s": s + shift},
                point={"requests": [100 * s, 100 * (s + 1)], "acceptance_change": 0.0},
            )
            for s in range(3)
        ]

    a = save_plan(store, {"a": 3}, run_keys=runs("c1", 0.0))
    b = save_plan(store, {"a": 4}, run_keys=runs("c2", 0.5))
    (row,) = store.compare(a, b)["rows"]
    assert (row["seeds"], row["differences"]) == ([0, 1, 2], [0.5, 0.5, 0.5])
