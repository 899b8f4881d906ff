"""Small helpers for tables and lines that fit 100 columns."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = [
    "WIDTH",
    "Page",
    "gigabytes",
    "milliseconds",
    "near",
    "number",
    "percent",
    "plus_minus",
    "spread",
    "times",
    "visible",
]

WIDTH = 100


class Page:
    """Collects lines and tables, and gives them back as one string. What is `verbatim` apart, all is `visible`."""

    def __init__(self, *, color: bool = False) -> None:
        self._out = io.StringIO()
        self._sections = 0
        self._console = Console(
            file=self._out,
            width=WIDTH,
            force_terminal=color,
            no_color=not color,
            color_system="standard" if color else None,
            highlight=False,
            emoji=False,
            markup=False,
        )

    def heading(self, title: str) -> None:
        """A section title after an empty line."""
        self._console.print()
        self._console.print(Text(title, style="bold"))

    def section(self, title: str) -> None:
        """A heading with the number of the section."""
        self._sections += 1
        self.heading(f"{self._sections}. {title}")

    def line(self, text: str = "", *, indent: int = 2) -> None:
        """A paragraph, wrapped and indented."""
        self._console.print(Padding(Text(visible(text)), (0, 0, 0, indent)))

    def verbatim(self, text: str) -> None:
        """A line that must be copied as it is, so it is never wrapped."""
        self._console.print(Text(text), soft_wrap=True)

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        """Name and text in two columns."""
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in facts:
            table.add_row(f"  {name}", Text(visible(text)))
        self._console.print(table)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, wrapped: bool = False
    ) -> None:
        """A table whose first `left` columns are aligned left; `wrapped` lets the last one take several lines.

        Otherwise nothing is cut: a table that does not fit the page is wider than the page.
        """
        table = Table(box=None, padding=(0, 1), pad_edge=True)
        for i, name in enumerate(columns):
            wraps = wrapped and i == len(columns) - 1
            table.add_column(name, justify="left" if i < left or wraps else "right", no_wrap=not wraps)
        shown = [[visible(cell) for cell in row] for row in rows]
        for row in shown:
            table.add_row(*row)
        width = self._console.width
        if not wrapped:  # a row that is too long is better than figures cut short
            widest = (max(map(len, cells)) for cells in zip(columns, *shown, strict=True))
            self._console.width = max(width, sum(widest) + 2 * len(columns))
        self._console.print(table)
        self._console.width = width

    def text(self) -> str:
        """Everything so far, without trailing blanks."""
        return "\n".join(line.rstrip() for line in self._out.getvalue().splitlines()).strip("\n") + "\n"


def number(value: Any, digits: int = 3) -> str:
    """`12,345`, `1.23`, or `-` for nothing."""
    if value is None:
        return "-"
    shown = f"{value:.{digits}g}"
    if isinstance(value, int) or abs(float(shown)) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return shown


def milliseconds(value: float | None) -> str:
    """Seconds as milliseconds, three significant digits."""
    return "-" if value is None else number(value * 1e3)


def percent(value: float | None) -> str:
    """A fraction as percent; 100% and 0% are exactly that."""
    if value is None:
        return "-"
    if value in (0, 1) or 0.1 <= value <= 0.985:
        return f"{value:.0%}"
    shown = f"{value:.1%}"
    return {"100.0%": "99.9%", "0.0%": "<0.1%"}.get(shown, shown) if 0 < value < 1 else shown


def near(share: float | None, asked: float) -> str:
    """A share as percent, with a decimal within a point of the share that is asked for."""
    return f"{share:.1%}" if share is not None and 0 < abs(share - asked) < 0.01 and share < 1 else percent(share)


def plus_minus(error: float) -> str:
    """A relative error as `±3%`; below one percent with a decimal."""
    return f"±{error:.0%}" if error >= 0.01 else f"±{error:.1%}"


def gigabytes(value: float | None) -> str:
    """Bytes as GB."""
    return "-" if value is None else f"{value / 1e9:.1f} GB"


def times(value: float | None) -> str:
    """A ratio as `1.60x`."""
    return "-" if value is None else f"{value:.2f}x"


def spread(e: Mapping[str, float | None], show: Any = number) -> str:
    """`mean ±half` of an interval, `mean (low..high)` where it is not as wide below the mean as above.

    Intervals that end at 0 or 1, and those of logarithms, are not. Only the mean where there is none, or a narrow one.
    """
    mean, low, high = e.get("mean"), e.get("low"), e.get("high")
    if mean is None or low is None or high is None:
        return str(show(mean))
    half = (high - low) / 2
    if half <= 0.005 * abs(mean):
        return str(show(mean))
    if abs((low + high) / 2 - mean) <= 0.05 * half:
        return f"{show(mean)} ±{show(half)}"
    return f"{show(mean)} ({show(low).rstrip('%x')}..{show(high).rstrip('%x')})"


def visible(text: str) -> str:
    """On one line, without what cannot be seen, steers a terminal, or turns the direction of writing."""
    return "".join(c if c.isprintable() else " " if c in "\n\t\r" else "\N{REPLACEMENT CHARACTER}" for c in text)
