"""Maps over running batch and context: a figure in every cell, and where its sign turns."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specsim.report.charts.style import INK, NOTHING, PAPER, canvas, finished

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Cell", "Turn", "grid_map"]


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a cell."""

    text: str
    color: str
    hatched: bool = False
    """For what is to be told from the others without colour."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Running batches at which speculation stops paying in a row; None: it pays up to the end of the row."""

    at: float | None
    low: float | None
    """Were speculation worse by one sigma."""
    high: float | None
    """Were it better by one sigma."""


def grid_map(
    name: str,
    title: str,
    cells: Mapping[tuple[str, int], Cell],
    *,
    rows: Sequence[str],
    batches: Sequence[int],
    turns: Mapping[str, Turn],
    description: str,
    note: str,
) -> str:
    """SVG of cells by (row, batch); rows from below, batches rising. A cell that is missing does not fit the cache.

    `turns` are marked by a thick line with a thin one to where the turn lies within one sigma.
    """
    from matplotlib.patches import Rectangle

    with canvas(height=70 + 34 * len(rows)) as (figure, axes):
        for y, row in enumerate(rows):
            fits = 0
            for x, batch in enumerate(batches):
                cell = cells.get((row, batch))
                fits += cell is not None
                color, hatch = (NOTHING, "") if cell is None else (cell.color, "////" if cell.hatched else "")
                axes.add_patch(
                    Rectangle((x, y), 1, 1, facecolor=color, hatch=hatch, edgecolor="#bbbbbb", linewidth=0.6)
                )
                if cell is not None:
                    box = {"facecolor": cell.color, "edgecolor": "none", "pad": 1.0} if cell.hatched else None
                    axes.text(x + 0.5, y + 0.5, cell.text, ha="center", va="center", fontsize=9,
                              color=_readable(cell.color), bbox=box)  # fmt: skip
            if row in turns:
                _mark(axes, turns[row], y, batches, fits)
        axes.set_xlim(0, len(batches))
        axes.set_ylim(0, len(rows))
        axes.set_xticks([x + 0.5 for x in range(len(batches))], [f"{batch:,}" for batch in batches])
        axes.set_yticks([y + 0.5 for y in range(len(rows))], list(rows))
        axes.tick_params(length=0)
        axes.set_ylabel("context tokens")
        axes.set_xlabel(f"running requests of a replica\n{note}")
        axes.set_title(title)
        for side in axes.spines.values():
            side.set_visible(False)
        return finished(figure, name=name, title=title, description=description)


def _mark(axes: Axes, turn: Turn, y: int, batches: Sequence[int], fits: int) -> None:
    """The line of a turn, and its range."""
    low, at, high = (_place(batch, batches, fits) for batch in (turn.low, turn.at, turn.high))
    if low < high:
        axes.plot([low, high], [y + 0.12, y + 0.12], color=PAPER, linewidth=3.5)
        axes.plot([low, high], [y + 0.12, y + 0.12], color=INK, linewidth=1.2)
    if turn.at is not None:  # above and below the figure in the cell, which stays readable
        for start, stop in ((0, 0.3), (0.7, 1)):
            axes.plot([at, at], [y + start, y + stop], color=INK, linewidth=3, solid_capstyle="butt")


def _place(batch: float | None, batches: Sequence[int], fits: int) -> float:
    """Where a batch lies: the middle of its column, or between two by its logarithm; at most where the row ends."""
    if batch is None:
        return float(fits)
    if batch <= batches[0]:
        return 0.0
    i = bisect.bisect_left(batches, batch)
    if i == len(batches):
        return float(fits)
    share = math.log(batch / batches[i - 1]) / math.log(batches[i] / batches[i - 1])
    return min(i - 0.5 + share, float(fits))


def _readable(color: str) -> str:
    """Black or white, whichever stands out more."""
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return INK if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 0.18 else PAPER
