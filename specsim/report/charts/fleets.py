"""Bars of fleets side by side: what each kind of replica costs without speculation and with the best of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specsim.report.charts.style import BLUE, INK, canvas, finished

__all__ = ["Bar", "fleet_chart"]

_LOOKS = {"without speculation": ("#c9c9c4", ""), "with speculation": (BLUE, "///")}
"""Kind of bar -> colour, and hatching for who does not see it."""
_HEIGHT = 0.38
_ROOM = 1.3
"""Width of the axes over the longest bar, so that texts fit beside it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One fleet; a value of None holds nothing, and its text says so."""

    row: str
    speculative: bool
    value: float | None
    low: float
    high: float
    text: str


def fleet_chart(name: str, title: str, bars: Sequence[Bar], *, label: str, description: str) -> str:
    """SVG of bars in rows, two a row at most; rows in the order of `bars`, the first on top; thin lines from `low` to
    `high`."""
    from matplotlib.patches import Patch

    rows = list(dict.fromkeys(bar.row for bar in bars))
    longest = max((max(bar.value, bar.high) for bar in bars if bar.value is not None), default=1.0)
    with canvas(height=110 + 46 * len(rows)) as (figure, axes):
        for bar in bars:
            y = rows.index(bar.row) + (_HEIGHT / 2 if bar.speculative else -_HEIGHT / 2)
            color, hatch = _LOOKS["with speculation" if bar.speculative else "without speculation"]
            end = 0.0
            if bar.value is not None:
                axes.barh(y, bar.value, height=_HEIGHT, color=color, hatch=hatch, edgecolor="#444444", linewidth=0.4)
                end = max(bar.value, bar.high)
                if bar.low < bar.high:
                    axes.plot([bar.low, bar.high], [y, y], color=INK, linewidth=1.2, marker="|", markersize=6)
            axes.annotate(bar.text, (end, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, _ROOM * longest or 1)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(label)
        axes.set_title(title)
        axes.grid(True, axis="x")
        axes.set_axisbelow(True)
        looks = [Patch(facecolor=color, hatch=hatch, edgecolor="#444444", linewidth=0.4, label=kind)
                 for kind, (color, hatch) in _LOOKS.items()]  # fmt: skip
        figure.legend(handles=looks, loc="outside lower center", ncols=2)
        return finished(figure, name=name, title=title, description=description)
