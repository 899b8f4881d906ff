"""Options as points: cost against time per token, with what each may be off by, and the front of the best ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specsim.report.charts.style import GREY, INK, PAPER, canvas, finished, series_of

__all__ = ["Choice", "front_chart"]

_NUMBER_OFFSET = (7, 7)
"""Points between a marker and its number."""
_APART = 0.06
"""Share of the axes within which the number of a later point is left out, since it would cover an earlier one."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One option; x is milliseconds, y a cost."""

    series: str
    """What it is drawn as, e.g. its GPU."""
    filled: bool
    """With speculation; hollow without."""
    x: float
    x_low: float
    x_high: float
    y: float
    y_low: float
    y_high: float
    number: int | None = None
    """Place on the front; None: another is at once as cheap and faster."""


def front_chart(
    name: str,
    title: str,
    choices: Sequence[Choice],
    *,
    x_label: str,
    y_label: str,
    description: str,
    limit: tuple[float, str] | None = None,
) -> str:
    """SVG of points; a stepped line joins those of the front, which are numbered.

    Those have their ranges as thin lines too, cut where the axes end.

    `limit`: an x and what it is, drawn as a vertical line.
    """
    looks = series_of(list(dict.fromkeys(choice.series for choice in choices)))
    with canvas(height=330) as (figure, axes):
        for choice in (choice for choice in choices if choice.number is not None):
            color = looks[choice.series].color
            axes.plot([choice.x_low, choice.x_high], [choice.y] * 2, color=color, linewidth=0.9, alpha=0.7)
            axes.plot([choice.x] * 2, [choice.y_low, choice.y_high], color=color, linewidth=0.9, alpha=0.7)
        best = sorted((choice for choice in choices if choice.number is not None), key=lambda choice: choice.y)
        axes.step(
            [choice.x for choice in best], [choice.y for choice in best], where="post", color=GREY, linewidth=1.2,
            linestyle="--", label="none as cheap and faster", zorder=1,
        )  # fmt: skip
        for series, look in looks.items():
            for filled in (True, False):
                drawn = [choice for choice in choices if choice.series == series and choice.filled == filled]
                axes.plot(
                    [choice.x for choice in drawn], [choice.y for choice in drawn], linestyle="none",
                    marker=look.marker, markersize=8, color=look.color, markeredgewidth=1.4, zorder=3,
                    markerfacecolor=look.color if filled else PAPER,
                )  # fmt: skip
            axes.plot([], [], linestyle="none", marker=look.marker, markersize=7, color=look.color, label=series)
        axes.plot([], [], linestyle="none", marker="o", markersize=7, color=GREY, markerfacecolor=PAPER,
                  label="hollow: without speculation")  # fmt: skip
        if limit is not None:
            axes.axvline(limit[0], color=INK, linewidth=0.9, linestyle=":", label=limit[1])
        right = 1.25 * max([choice.x for choice in choices] + ([limit[0] / 1.15] if limit is not None else []))
        top = 1.25 * max(choice.y for choice in choices)
        axes.set_xlim(0, right)
        axes.set_ylim(0, top)
        placed: list[Choice] = []
        for choice in best:
            near = (abs(choice.x - other.x) < _APART * right and abs(choice.y - other.y) < _APART * top
                    for other in placed)  # fmt: skip
            if not any(near):
                placed.append(choice)
                axes.annotate(str(choice.number), (choice.x, choice.y), xytext=_NUMBER_OFFSET,
                              textcoords="offset points", fontsize=9, fontweight="bold")  # fmt: skip
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_title(title)
        axes.grid(True)
        axes.set_axisbelow(True)
        figure.legend(loc="outside lower center", ncols=2)
        return finished(figure, name=name, title=title, description=description)
