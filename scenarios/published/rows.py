"""Rows of published measurements as people write them down: one CSV line each, checked, nothing interpreted yet.

Models: the columns of a table; a blank means that the source does not say.
Leaves out: what the words of a cell mean (`words`) and what is assumed where it is blank (`conditions`).
Numbers: those of the files; those that come with specsim name the source of every row.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path

from scenarios.lookup import one_line
from specsim.checks import read_number
from specsim.errors import ScenarioError, nearest

__all__ = ["REQUIRED", "SHIPPED", "PublishedRow", "column_help", "read_rows", "rows_of", "shipped_rows"]

REQUIRED = ("id", "target", "method", "hardware", "load_kind", "load")
"""Columns that a file must have; cells of all but the first may be blank."""
SHIPPED = ("measured.csv", "eagle3_paper.csv")
"""Files of rows that come with specsim: collected from many sources, and tables 3 and 5 of the EAGLE-3 paper."""
_MOST_BYTES = 64 << 20
_MOST_CELL = 4000


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One published point. Text as it stands in the file; numbers checked to be finite and in range."""

    id: str
    source: str = ""
    url_or_title: str = ""
    target: str = ""
    target_params_b: float | None = None
    """Parameters, in billions."""
    draft: str = ""
    method: str = ""
    k: int | None = None
    """Draft tokens a round; 0: the machinery is loaded and drafts nothing."""
    tree: str = ""
    hardware: str = ""
    n_gpus: int | None = None
    dtype: str = ""
    engine: str = ""
    dataset: str = ""
    isl: float | None = None
    """Mean prompt tokens."""
    osl: float | None = None
    """Mean output tokens."""
    temperature: float | None = None
    load_kind: str = ""
    load: float | None = None
    acceptance_rate: float | None = None
    """Accepted over drafted tokens."""
    mean_accepted_len: float | None = None
    """Tokens a round, bonus included."""
    baseline_value: float | None = None
    spec_value: float | None = None
    unit: str = ""
    """Of the two values before it."""
    speedup: float | None = None
    sets: str = ""
    """What in specsim was set by this row, so that its prediction is no test."""
    notes: str = ""
    line: int = 0
    """Where it stands in the file."""


_COLUMNS = tuple(f.name for f in fields(PublishedRow) if f.name != "line")
_WHOLE = {"k": (0, 4096), "n_gpus": (1, 4096)}
_REAL: Mapping[str, tuple[float, float]] = {
    "target_params_b": (1e-3, 1e5),
    "isl": (1.0, 1e8),
    "osl": (1.0, 1e8),
    "temperature": (0.0, 100.0),
    "load": (1e-6, 1e6),
    "acceptance_rate": (0.0, 1.0),
    "mean_accepted_len": (0.0, 4097.0),
    "baseline_value": (1e-6, 1e9),
    "spec_value": (1e-6, 1e9),
    "speedup": (1e-3, 1e3),
}
"""Numbers and the range in which a measurement can lie."""


_TEXTS: Mapping[str, str] = {
    "id": "a name of its own for every row",
    "source": "who published it; groups rows in reports",
    "url_or_title": "where",
    "target": "model that is served",
    "draft": "draft model, head, or none",
    "method": "how drafts are made",
    "tree": "shape of a round's drafts",
    "hardware": "GPU",
    "dtype": "of the weights",
    "engine": "with its version or month",
    "dataset": "prompts",
    "load_kind": "what `load` counts",
    "unit": "of the values",
    "sets": "what in specsim this row helped to set; it is then predicted, but counted apart",
    "notes": "for readers; not used",
}
"""What a text column holds."""
_NUMBERS: Mapping[str, str] = {
    "target_params_b": "parameters in billions",
    "k": "draft tokens a round; 0: loaded, but drafting nothing",
    "n_gpus": "GPUs of one replica",
    "isl": "mean prompt tokens",
    "osl": "mean output tokens",
    "temperature": "of sampling",
    "load": "requests in flight, or per second",
    "acceptance_rate": "accepted over drafted tokens",
    "mean_accepted_len": "tokens a round, bonus included",
    "baseline_value": "measured without speculation",
    "spec_value": "measured with it",
    "speedup": "above 1 where speculation helps",
}


def column_help() -> list[tuple[str, bool, str]]:
    """(column, whether it must be there, what its cells hold), in the usual order."""
    found = []
    for name in _COLUMNS:
        text = _TEXTS.get(name)
        if text is None:
            low, high = _WHOLE.get(name) or _REAL[name]
            text = f"{_NUMBERS[name]}; {'whole number' if name in _WHOLE else 'number'} in {low:g} to {high:g}"
        found.append((name, name in REQUIRED, text))
    return found


def shipped_rows() -> tuple[PublishedRow, ...]:
    """The rows that come with specsim, of all of its files.

    Raises:
        ScenarioError: two files have a row of the same id.
    """
    found: dict[str, PublishedRow] = {}
    for name in SHIPPED:
        for row in rows_of(files("scenarios").joinpath("published", name).read_text(encoding="utf-8"), name):
            if row.id in found:
                raise ScenarioError(f"{name}, line {row.line}: id '{row.id}' is that of another file; make it unique")
            found[row.id] = row
    return tuple(found.values())


def read_rows(path: Path) -> tuple[PublishedRow, ...]:
    """The rows of a CSV file.

    Raises:
        ScenarioError: the file cannot be read, or a row is malformed (see `rows_of`).
    """
    try:
        if path.exists() and not path.is_file():  # reading a pipe could wait for ever
            raise ScenarioError(f"{path}: is a folder, a pipe or a device; give a CSV file on the disk")
        if path.is_file() and path.stat().st_size > _MOST_BYTES:
            raise ScenarioError(f"{path}: larger than {_MOST_BYTES >> 20} MiB, which no table of measurements is")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror or error}); give a CSV file") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    return rows_of(text, str(path))


def rows_of(text: str, place: str) -> tuple[PublishedRow, ...]:
    """The rows of CSV text; `place` names it in messages.

    Raises:
        ScenarioError: unknown, repeated or missing columns; a cell that is no number or out of range; an id that is
            blank or used twice; a line with another number of cells; no rows at all.
    """
    try:
        lines = list(_lines(text))
    except csv.Error as error:
        raise ScenarioError(f"{place}: not a CSV table ({error}); quote cells that hold commas or quotes") from error
    if not lines:
        raise ScenarioError(f"{place}: is empty; the first line names the columns, e.g. {','.join(REQUIRED)},speedup")
    _, header = lines[0]
    names = [name.strip() for name in header]
    _check_columns(names, place)
    rows, seen = [], dict[str, int]()
    for number, cells in lines[1:]:
        where = f"{place}, line {number}"
        if len(cells) != len(names):
            raise ScenarioError(
                f"{where}: has {len(cells)} cells for {len(names)} columns; quote cells that hold commas"
            )
        row = _row(dict(zip(names, cells, strict=True)), where, number)
        if row.id in seen:
            raise ScenarioError(f"{where}: id '{one_line(row.id)}' is that of line {seen[row.id]}; make it unique")
        seen[row.id] = number
        rows.append(row)
    if not rows:
        raise ScenarioError(f"{place}: has columns but no rows")
    return tuple(rows)


def _lines(text: str) -> Iterable[tuple[int, list[str]]]:
    """(line number, cells) of every line that holds anything."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    for cells in reader:
        if any(cell.strip() for cell in cells):
            yield reader.line_num, cells


def _check_columns(names: list[str], place: str) -> None:
    for name in names:
        if name not in _COLUMNS:
            raise ScenarioError(
                f"{place}, line 1: unknown column '{one_line(name)}'{nearest(name, _COLUMNS)}; known are "
                f"{', '.join(_COLUMNS)}"
            )
        if names.count(name) > 1:
            raise ScenarioError(f"{place}, line 1: column '{name}' stands there twice; keep one")
    for name in REQUIRED:
        if name not in names:
            raise ScenarioError(f"{place}, line 1: column '{name}' is missing; add it (cells may be blank)")
    if "speedup" not in names and not {"baseline_value", "spec_value", "unit"} <= set(names):
        raise ScenarioError(
            f"{place}, line 1: no column says what was measured; add speedup, or baseline_value, spec_value and unit"
        )


def _row(cells: Mapping[str, str], where: str, number: int) -> PublishedRow:
    values: dict[str, object] = {"line": number}
    for name, cell in cells.items():
        text = cell.strip()
        if len(text) > _MOST_CELL:
            raise ScenarioError(f"{where}, column '{name}': longer than {_MOST_CELL} characters; shorten it")
        if name in _WHOLE or name in _REAL:
            values[name] = None if not text else _number(text, name, where)
        else:
            values[name] = " ".join(text.split())
    if not values["id"]:
        raise ScenarioError(f"{where}, column 'id': is blank; give every row a name of its own")
    return PublishedRow(**values)  # type: ignore[arg-type]


def _number(text: str, name: str, where: str) -> int | float:
    place = f"{where}, column '{name}'"
    try:
        value = read_number(text)
    except ValueError:
        raise ScenarioError(f"{place}: '{one_line(text)}' is not a number; write one, or leave it blank") from None
    low, high = _WHOLE.get(name) or _REAL[name]
    if not low <= value <= high:
        percent = "; a percentage? divide it by 100" if name == "acceptance_rate" and 1 < value <= 100 else ""
        raise ScenarioError(f"{place}: {one_line(text)} must lie in {low:g}..{high:g}{percent}")
    if name in _WHOLE:
        if value != int(value):
            raise ScenarioError(f"{place}: {one_line(text)} must be a whole number")
        return int(value)
    return value
