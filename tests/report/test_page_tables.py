"""Tables of text pages: whatever they hold, nothing of it is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specsim.report.text import Page

CELL = st.text("0123456789.,xk=", min_size=1, max_size=30)


@given(st.integers(1, 8).flatmap(lambda n: st.lists(st.lists(CELL, min_size=n, max_size=n), min_size=2, max_size=5)))
def test_a_table_shows_every_cell_on_its_row(lines: list[list[str]]) -> None:
    page = Page()
    page.table(lines[0], lines[1:])
    assert [line.split() for line in page.text().splitlines()] == lines
