"""A report as data: sections of paragraphs, facts, tables, code and figures; `html` and `markdown` write it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specsim.report.table import Table

__all__ = ["Block", "Code", "Document", "Facts", "Figure", "Figures", "Items", "Paragraph", "Section", "Stored",
           "TableBlock"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Plain text."""

    text: str
    kind: str = ""
    """`verdict` or `warning`, which pages set apart; empty: neither."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    texts: tuple[str, ...]
    folded: str = ""
    """A title under which a page folds it away; empty: it is shown."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and texts; an empty name goes on with the one before."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Text that is copied as it is."""

    text: str
    name: str = ""
    """File that it belongs in; empty: a command line."""


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table on the page."""

    table: Table


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, what it shows in words, and the figures behind it."""

    name: str
    """Begins every id of the chart; letters and hyphens."""
    title: str
    draw: Callable[[], str]
    """Gives an SVG element; needs matplotlib."""
    text: str
    """What there is to see, for who does not see it."""
    table: Table


@dataclass(frozen=True, slots=True)
class Figures:
    """Charts beside one another."""

    figures: tuple[Figure, ...]


Block = Paragraph | Items | Facts | Code | TableBlock | Figures


@dataclass(frozen=True, slots=True)
class Stored:
    """What the database knows of an answer beside its result."""

    updated_utc: str
    code_version: str
    specsim_version: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    """The first is the answer and is shown without its title."""
