"""A table of results: raw values with a unit in every column's key, shown rounded on a page and whole in a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Column", "Table", "csv_text", "matrix"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    key: str
    """Heading in a CSV file; carries the unit."""
    title: str
    """Heading on a page."""
    show: Callable[[Any], str] = str
    """Value -> text on a page; of an interval, for each of its three numbers."""
    meaning: str = ""
    """What it is, for the reference."""
    interval: bool = False
    """Whether values are {"mean", "low", "high"}; a CSV file then has three columns."""
    left: bool = False
    """Whether a page aligns it left."""
    null: str = "-"
    """What a page shows for no value."""

    def shown(self, value: Any) -> str:
        """The text of a value on a page."""
        if value is None or (self.interval and value["mean"] is None):
            return self.null
        if not self.interval:
            return self.show(value)
        if value["low"] is None or value["high"] is None:
            return self.show(value["mean"])
        return f"{self.show(value['mean'])} ({self.show(value['low'])}–{self.show(value['high'])})"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of raw values; null where there is none."""

    name: str
    """Name of its CSV file, without the suffix."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    def only(self, *keys: str, title: str = "") -> Table:
        """The same rows with these columns, in this order."""
        at = {column.key: i for i, column in enumerate(self.columns)}
        return replace(
            self,
            title=title or self.title,
            columns=tuple(self.columns[at[key]] for key in keys),
            rows=tuple(tuple(row[at[key]] for key in keys) for row in self.rows),
        )

    def where(self, key: str, value: Any) -> Table:
        """The rows with this value in that column."""
        at = next(i for i, column in enumerate(self.columns) if column.key == key)
        return replace(self, rows=tuple(row for row in self.rows if row[at] == value))

    def shown(self) -> list[list[str]]:
        """The rows as texts for a page."""
        return [[column.shown(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]


def csv_text(table: Table) -> str:
    """The whole table with a heading; numbers as they are, empty for null."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads: list[str] = []
    for column in table.columns:
        heads += [f"{column.key}_{part}" for part in ("mean", "low", "high")] if column.interval else [column.key]
    writer.writerow(heads)
    for row in table.rows:
        cells: list[Any] = []
        for column, value in zip(table.columns, row, strict=True):
            if column.interval:
                cells += [None] * 3 if value is None else [value[part] for part in ("mean", "low", "high")]
            else:
                cells.append(str(value).lower() if isinstance(value, bool) else value)
        writer.writerow(cells)
    return out.getvalue()


def matrix(table: Table, down: str, across: str, value: str, *, title: str, head: Callable[[Any], str]) -> Table:
    """A row for each value of `down`, a column for each of `across`, both as they come; `head` names those columns."""
    picked = table.only(down, across, value)
    rows = list(dict.fromkeys(row[0] for row in picked.rows))
    columns = list(dict.fromkeys(row[1] for row in picked.rows))
    cells: Mapping[tuple[Any, Any], Any] = {(row[0], row[1]): row[2] for row in picked.rows}
    of: Sequence[Column] = picked.columns
    return Table(
        table.name,
        title,
        (of[0], *(replace(of[2], key=f"{across}_{c}", title=head(c)) for c in columns)),
        tuple((row, *(cells.get((row, c)) for c in columns)) for row in rows),
    )
