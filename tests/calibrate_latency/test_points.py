"""A points file keeps what was measured through kills, and refuses what is not its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.points import Point, PointFile, points_sha256, read_points, read_reference, reference_words
from specsim.errors import ProfileError
from tests.calibrate_latency.machines import make_setup

POINT = Point("body", "target", ((2, 64), (2, 70)), seconds=0.05, low_s=0.049, high_s=0.051, repeats=5, roofline=0.4)


@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(0, 4096)), max_size=4),
    st.integers(0, 512), st.integers(0, 8), st.floats(1e-9, 1e3), st.booleans(), st.booleans(),
)  # fmt: skip
def test_a_point_is_read_back_as_it_was(
    parts: list[tuple[int, int]], rows: int, drafts: int, seconds: float, prefill: bool, held: bool
) -> None:
    point = Point("body", "draft", tuple(parts), rows, drafts, is_prefill=prefill, is_holdout=held, seconds=seconds,
                  low_s=seconds * 0.9, high_s=seconds * 1.1, repeats=3, state={"clocks.sm": 1980.0})  # fmt: skip
    again = Point.from_dict(json.loads(json.dumps(point.to_dict())), "here")
    assert again.to_dict() == point.to_dict()
    assert again.key == point.key
    assert (again.seconds, again.parts) == (point.seconds, point.parts)


def test_what_was_added_is_there_after_opening_again(tmp_path: Path) -> None:
    path, setup = tmp_path / "p.jsonl", make_setup()
    with PointFile(path, setup) as file:
        file.add(POINT)
        assert read_points(path)[1] == [POINT], "it is on the disk before the file is closed"
    with PointFile(path, setup) as file:
        assert file.points == [POINT]
        file.add(replace(POINT, rows=3))
    again, points, sha256 = read_points(path)
    assert again == setup
    assert points == [POINT, replace(POINT, rows=3)]
    assert sha256 == points_sha256(setup, points)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path, cut: int) -> None:
    path, setup = tmp_path / "p.jsonl", make_setup()
    with PointFile(path, setup) as file:
        file.add(POINT)
        file.add(replace(POINT, rows=3))
    path.write_bytes(path.read_bytes()[:-cut])
    with PointFile(path, setup) as file:
        assert file.points == [POINT]
        file.add(replace(POINT, rows=4))
    assert read_points(path)[1] == [POINT, replace(POINT, rows=4)]


@pytest.mark.parametrize(
    ("field", "value"), [("target", "other"), ("device", "another"), ("dtype", "bf16"), ("tp", 2), ("clock", "wall")]
)
def test_points_of_another_setup_are_refused(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "p.jsonl"
    with PointFile(path, make_setup()) as file:
        file.add(POINT)
    with pytest.raises(ProfileError, match=f"another setup \\({field} "):
        PointFile(path, make_setup(**{field: value}))
    assert read_points(path)[1] == [POINT], "nothing was lost"


def test_versions_and_drivers_may_differ_when_a_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    PointFile(path, make_setup(facts={"torch": "2.13"})).close()
    PointFile(path, make_setup(facts={"torch": "2.14"})).close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no setup"),
        ("not json\n", ":1: not a line of JSON"),
        ("[1]\n", ":1: expected an object, got list"),
        ('{"a": 1}\n', ":1: points_version is None"),
        ('{"points_version": 99, "setup": {}}\n', "points_version is 99, this specsim reads 1"),
        ('{"points_version": 1, "setup": {"sets": 1}}\n', "unknown key 'sets' of a setup"),
        ("HEAD" + '{"kind": "bodi", "role": "target"}\n', ":2: .*kind 'bodi' is unknown \\(did you mean 'body'"),
        ("HEAD" + '{"kind": "body", "role": "tarjet"}\n', ":2: .*role 'tarjet'"),
        ("HEAD" + '{"kind": "body", "role": "target", "second": 3}\n', ":2: unknown key 'second'"),
        ("HEAD" + '{"kind": "body", "role": "target", "seconds": -3}\n', "seconds must be finite and > 0"),
        ("HEAD" + '{"kind": "body", "role": "target", "parts": 3}\n', ":2: not a measured point"),
    ],
)
def test_what_is_no_points_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    head = json.dumps({"points_version": 1, "setup": make_setup().to_dict()}) + "\n"
    path = tmp_path / "p.jsonl"
    path.write_text(text.replace("HEAD", head), encoding="utf-8")
    with pytest.raises(ProfileError, match=message):
        read_points(path)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read: No such file"):
        read_points(tmp_path / "none.jsonl")
    with pytest.raises(ProfileError, match="cannot be written"):
        PointFile(tmp_path / "no" / "folder.jsonl", make_setup())


@pytest.mark.parametrize(
    ("field", "value"),
    [("seconds", float("nan")), ("seconds", None), ("seconds", "0.05"), ("seconds", -1.0), ("drafts", "2"),
     ("drafts", -2), ("drafts", 1.5), ("drafts", True), ("rows", -1), ("layers", "all"), ("repeats", 2.5),
     ("reference_s", -0.1), ("reference_s", "fast"), ("reference", 3), ("is_holdout", 1), ("method", None),
     ("state", [1.0]), ("parts", [[1]])],
)  # fmt: skip
def test_a_value_that_no_measurement_gives_is_refused_with_its_line(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "p.jsonl"
    with PointFile(path, make_setup()) as file:
        file.add(POINT)
    setup, row = path.read_text().splitlines()
    path.write_text(f"{setup}\n{json.dumps(json.loads(row) | {field: value})}\n")
    with pytest.raises(ProfileError, match=r"p\.jsonl:2: "):
        read_points(path)


def test_a_point_without_seconds_was_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    with PointFile(path, make_setup()) as file:
        file.add(replace(POINT, seconds=float("nan")))
    with pytest.raises(ProfileError, match="has no seconds"):
        read_points(path)


def test_sizes_of_a_newer_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    with PointFile(path, make_setup()) as file:
        file.add(POINT)
    setup, row = path.read_text().splitlines()
    changed = json.loads(setup)
    changed["setup"]["shapes"] = {"draft": {"num_layer": 4}}
    path.write_text(f"{json.dumps(changed)}\n{row}\n")
    with pytest.raises(ProfileError, match=r"p\.jsonl:1: unknown size 'num_layer' of the draft.*num_layers"):
        read_points(path)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 4096)), min_size=1, max_size=4), st.integers(0, 90))
def test_a_reference_point_is_read_back_as_it_was(parts: list[tuple[int, int]], layers: int) -> None:
    point = Point("reference", "target", tuple(parts), layers=layers)
    assert read_reference(reference_words(point)) == point
