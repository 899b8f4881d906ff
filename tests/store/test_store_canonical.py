"""The one JSON form: equal values give equal bytes, and nothing is lost on the way."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_builders import make_key, save_run

from db.canonical import canonical_json, clean, content_sha256, flat_metrics, output_json
from db.store import Store
from specsim.errors import StoreError

numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(), plain, max_size=5)


@given(plain)
def test_round_trip(value: object) -> None:
    assert json.loads(canonical_json(value)) == value
    assert canonical_json(json.loads(canonical_json(value))) == canonical_json(value)


@given(objects)
def test_the_hash_ignores_the_order_of_keys(value: dict[str, object]) -> None:
    assert content_sha256(dict(reversed(value.items()))) == content_sha256(value)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    metrics=objects, point=objects, policy=objects, label=st.text(st.characters(exclude_characters="\0", codec="utf-8"))
)
def test_records_come_back_from_the_database(
    store: Store,
    metrics: dict[str, object],
    point: dict[str, object],
    policy: dict[str, object],
    label: str,
) -> None:
    if store.count()["runs"]:
        store.delete(["run-"])
    save_run(store, metrics=metrics, point=point, policy_label=label)
    found = store.find_run(make_key())
    assert found is not None
    assert (found["metrics"], found["point"], found["policy_label"]) == (metrics, point, label)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")])
def test_numbers_without_json_are_refused_or_null_by_the_rule(bad: float) -> None:
    for value, place in ((bad, "x"), ({"a": [0, bad]}, r"x\.a\[1\]"), (np.array([bad]), r"x\[0\]")):
        with pytest.raises(StoreError, match=f"{place} is -?(nan|inf); a stored setting must be a finite number"):
            canonical_json(value, place="x")
    assert output_json({"b": [0, bad, np.array([1.5, bad])], "a": 1}, place="x") == '{"b":[0,null,[1.5,null]],"a":1}'


def test_numpy_values_become_plain_ones() -> None:
    value = {"i": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True), "a": np.arange(3), 4: (1, 2)}
    assert clean(value, place="x", nulls=False) == {"i": 3, "f": 0.5, "b": True, "a": [0, 1, 2], "4": [1, 2]}
    assert type(clean(np.float64(1), place="x", nulls=False)) is float


@pytest.mark.parametrize("bad", [{(1, 2): 3}, {True: 1}, {None: 1}, {1: "a", "1": "b"}, {1, 2}, b"x", object(), 1j])
def test_what_json_cannot_hold_is_refused(bad: object) -> None:
    with pytest.raises(StoreError, match=r"^here"):
        canonical_json(bad, place="here")


def test_nested_metrics_are_joined_by_underscores() -> None:
    assert flat_metrics({"a": {"b": {"c": 1}, "d": None}, "e": [1]}) == {"a_b_c": 1, "a_d": None, "e": [1]}


def test_the_key_of_a_run_does_not_move() -> None:
    """Keys are stored; should this change, every cached run is lost to its users."""
    assert make_key() == "d238da84d1e4b2791b110293c2fa40969ca6687834ab4f720ed38881ac6a1cd1"
