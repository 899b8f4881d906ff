"""Tables of measurements: what is read from them, and how mistakes in them are told."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.published.rows import REQUIRED, PublishedRow, column_help, read_rows, rows_of, shipped_rows
from specsim.efficiency import factor_sources
from specsim.errors import ScenarioError

HEADER = "id,target,method,hardware,load_kind,load,speedup"
GOOD = "a,llama-3.1-8b,EAGLE,H100,batch,1,1.5"


def test_the_shipped_rows_are_read_whole() -> None:
    rows = shipped_rows()
    assert len(rows) == 91 + 34
    assert len({row.id for row in rows}) == len(rows)
    assert {row.id.partition("-")[0] for row in rows if row.sets} == {"E3T3", "V20780", "V49548"}
    assert all(row.source and row.url_or_title for row in rows)
    assert all(row.speedup and row.speedup > 0 for row in rows)
    first = rows[0]
    assert (first.id, first.k, first.load, first.speedup, first.osl) == ("SDB1-001", 3, 1.0, 1.166, 166.2)
    assert first.temperature is None


TAKEN_OTHERWISE = {"2601.11580": "the cost model of its authors' simulator was taken, not its speed-ups"}
"""Numbers of sources from which a factor was read that rows do not show."""


def test_rows_from_which_a_factor_was_read_are_no_test() -> None:
    """Whatever pull request, issue or paper the sources of the factors name, its rows are counted apart."""
    said = " ".join(factor_sources().values())
    named = set(re.findall(r"\b\d{4}\.\d{5}\b|\b\d{5}\b", said)) - set(TAKEN_OTHERWISE)
    mine = {row.id: named & set(re.findall(r"[\d.]*\d", f"{row.source} {row.url_or_title}")) for row in shipped_rows()}
    assert sum(map(bool, mine.values())) > 20, "the guard"
    for row in shipped_rows():
        if mine[row.id] and row.source != "EAGLE-3 paper, table 5":  # the factor names table 3
            assert row.sets, f"{row.id}: {mine[row.id]}"


def test_every_column_is_explained() -> None:
    explained = {name for name, _, _ in column_help()}
    assert explained == {f.name for f in dataclasses.fields(PublishedRow)} - {"line"}
    assert {name for name, needed, _ in column_help() if needed} == set(REQUIRED)


def test_columns_may_come_in_any_order_and_blanks_are_none() -> None:
    (row,) = rows_of("load,speedup,id,target,hardware,method,load_kind,k\n4,, x ,T,,EAGLE,batch,\n", "f.csv")
    assert (row.id, row.load, row.speedup, row.k, row.hardware) == ("x", 4.0, None, None, "")
    assert row.line == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f.csv: is empty; the first line names the columns"),
        (HEADER, "f.csv: has columns but no rows"),
        (f"{HEADER},speedupp\n{GOOD},1", "f.csv, line 1: unknown column 'speedupp' (did you mean 'speedup'?)"),
        (f"{HEADER},id\n{GOOD},b", "f.csv, line 1: column 'id' stands there twice"),
        ("id,target\na,b", "f.csv, line 1: column 'method' is missing; add it (cells may be blank)"),
        (
            HEADER.removesuffix(",speedup") + "\na,b,c,d,e,1",
            "no column says what was measured; add speedup, or baseline",
        ),
        (f"{HEADER}\n{GOOD}\n\n{GOOD}", "f.csv, line 4: id 'a' is that of line 2; make it unique"),
        (f"{HEADER}\n,x,y,z,batch,1,1.5", "f.csv, line 2, column 'id': is blank"),
        (f"{HEADER}\na,x,y", "f.csv, line 2: has 3 cells for 7 columns"),
        (
            f"{HEADER}\na,x,y,z,batch,one,1.5",
            "f.csv, line 2, column 'load': 'one' is not a number; write one, or leave",
        ),
        (f"{HEADER}\na,x,y,z,batch,nan,1.5", "f.csv, line 2, column 'load': 'nan' is not a number"),
        (f"{HEADER}\na,x,y,z,batch,-4,1.5", "f.csv, line 2, column 'load': -4 must lie in"),
        (f"{HEADER}\na,x,y,z,batch,1,inf", "f.csv, line 2, column 'speedup': 'inf' is not a number"),
        (f"{HEADER},k\n{GOOD},2.5", "f.csv, line 2, column 'k': 2.5 must be a whole number"),
        (f"{HEADER},k\n{GOOD},-1", "f.csv, line 2, column 'k': -1 must lie in 0..4096"),
        (f"{HEADER},acceptance_rate\n{GOOD},71", "71 must lie in 0..1; a percentage? divide it by 100"),
        (f'{HEADER}\na,"x,y,z,batch,1,1.5', "not a CSV table"),
    ],
)
def test_a_mistake_is_told_with_place_value_and_way_out(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        rows_of(text, "f.csv")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_rows(tmp_path / "none.csv")
    with pytest.raises(ScenarioError, match="is a folder, a pipe or a device"):
        read_rows(tmp_path)
    (tmp_path / "b.csv").write_bytes(b"id,\xff\xfe")
    with pytest.raises(ScenarioError, match="byte 3 is not UTF-8"):
        read_rows(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\r\n{GOOD}\r\n".encode())
    assert read_rows(tmp_path / "c.csv")[0].speedup == 1.5


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        rows = rows_of(text, "f.csv")
    except ScenarioError as refusal:
        assert "\n" not in str(refusal)
    else:
        assert rows


@given(st.sampled_from(["load", "speedup", "k", "isl"]), st.text(max_size=30))
def test_any_cell_of_a_number_is_a_number_in_range_or_refused(name: str, cell: str) -> None:
    quoted = cell.replace('"', '""')
    columns = f"{HEADER},k,isl"
    values = dict(zip(columns.split(","), (*GOOD.split(","), "3", "100"), strict=True)) | {name: f'"{quoted}"'}
    try:
        (row,) = rows_of(f"{columns}\n{','.join(values.values())}", "f.csv")
    except ScenarioError as refusal:
        assert f"column '{name}'" in str(refusal) or "CSV" in str(refusal)
    else:
        found = getattr(row, name)
        assert found is None or (math.isfinite(found) and found >= 0)
