"""Draft tokens by running batch: the schedule as steps, as assumed and with other acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specsim.report.charts.style import NOTHING, canvas, finished, series_of

__all__ = ["schedule_chart"]

_APART = 0.06
"""Distance of lines that would cover each other, in draft tokens."""


def schedule_chart(
    name: str, title: str, schedules: Mapping[str, Sequence[Sequence[int]]], *, description: str, limit: int
) -> str:
    """SVG of rows [first batch, last batch, k] by name, up to `limit` requests, which is what fits the cache."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    looks = series_of(list(schedules))
    with canvas(height=240) as (figure, axes):
        for i, (label, rows) in enumerate(schedules.items()):
            x: list[float] = []
            y: list[float] = []
            for first, last, k in rows:
                x += [max(first - 0.5, 0.9), last + 0.5]
                y += [k + _APART * (i - (len(schedules) - 1) / 2)] * 2
            look = looks[label]
            axes.plot(x, y, color=look.color, linestyle=look.linestyle, linewidth=2, label=label)
        axes.set_xscale("log")
        last = max(row[1] for rows in schedules.values() for row in rows)
        axes.set_xlim(0.9, last * 1.1)
        if limit < last:
            axes.axvspan(limit, last * 1.1, color=NOTHING, linewidth=0)
            axes.annotate("beyond the cache", (limit, 0), xycoords=("data", "axes fraction"), xytext=(-3, 4),
                          textcoords="offset points", ha="right", fontsize=8)  # fmt: skip
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=20))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.tick_params(axis="x", labelsize=8)
        axes.set_ylim(-0.4, max(row[2] for rows in schedules.values() for row in rows) + 0.6)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("running requests of a replica")
        axes.set_ylabel("draft tokens k")
        axes.set_title(title)
        axes.grid(True)
        figure.legend(loc="outside lower center", ncols=3)
        return finished(figure, name=name, title=title, description=description)
