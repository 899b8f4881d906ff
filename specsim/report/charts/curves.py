"""Curves over load: one figure of every policy, its mean and the band of its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specsim.report.charts.style import GREY, INK, PAPER, canvas, finished, series_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Curve", "load_chart"]

_SPREAD = 15.0
"""Largest over smallest value above which an axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy: four sequences of one length, by rising load; nan where nothing was measured."""

    load_per_s: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    saturated: Sequence[bool]
    """Loads that the fleet cannot keep up with; their markers are hollow."""
    beside: tuple[Sequence[float], ...] = ()
    """The same curve were things otherwise, drawn dotted."""


def load_chart(
    name: str,
    title: str,
    curves: Mapping[str, Curve],
    *,
    description: str,
    own_per_s: float,
    order: Sequence[str],
    banded: Collection[str],
    level: tuple[float, str] | None = None,
    around: float = 0.0,
    share: bool = False,
    beside: str = "",
) -> str:
    """SVG of curves by name.

    Args:
        own_per_s: load of the log, drawn as a vertical line.
        order: names of all curves of the report, so that each looks the same in every chart.
        banded: names whose interval is a band; that of the others is a bar at each load, or bands would hide bands.
        level: a height and what it is, drawn as a horizontal line.
        around: relative height above and below `level` that is shaded, as what cannot be told from it.
        share: whether the figure is one between 0 and 1.
        beside: what the dotted curves beside banded ones are.
    """
    looks = series_of(order)
    with canvas(height=290) as (figure, axes):
        for label, curve in curves.items():
            look = looks[label]
            if label in banded:
                axes.fill_between(curve.load_per_s, curve.low, curve.high, color=look.color, alpha=0.15, linewidth=0)
                for other in curve.beside:
                    axes.plot(curve.load_per_s, other, color=look.color, linestyle=(0, (1, 2)), linewidth=0.9)
            else:
                axes.vlines(curve.load_per_s, curve.low, curve.high, color=look.color, alpha=0.6, linewidth=0.7)
            axes.plot(curve.load_per_s, curve.mean, color=look.color, linestyle=look.linestyle, linewidth=1.5)
            for hollow in (False, True):
                chosen = [i for i, saturated in enumerate(curve.saturated) if bool(saturated) == hollow]
                axes.plot(
                    [curve.load_per_s[i] for i in chosen], [curve.mean[i] for i in chosen], linestyle="none",
                    marker=look.marker, markersize=5, color=look.color, markerfacecolor=PAPER if hollow else look.color,
                )  # fmt: skip
            axes.plot([], [], color=look.color, linestyle=look.linestyle, marker=look.marker, markersize=5, label=label)
        _scale(axes, curves, level, share, around)
        if level is not None:
            height, what = level
            axes.axhline(height, color=INK, linewidth=0.8, label=what)
            if around:
                axes.axhspan(height / (1 + around), height * (1 + around), color=GREY, alpha=0.15, linewidth=0,
                             label=f"±{around:.0%}: cannot be told")  # fmt: skip
        if any(curves[label].beside for label in banded if label in curves):
            axes.plot([], [], color=GREY, linestyle=(0, (1, 2)), linewidth=0.9, label=beside)
        axes.axvline(own_per_s, color=GREY, linewidth=1.2, linestyle=(0, (2, 2)), label="load of the log")
        axes.set_xlabel("requests/s")
        axes.set_title(title)
        axes.grid(True)
        axes.set_axisbelow(True)
        figure.legend(loc="outside lower center", ncols=3)
        return finished(figure, name=name, title=title, description=description)


def _scale(
    axes: Axes, curves: Mapping[str, Curve], level: tuple[float, str] | None, share: bool, around: float
) -> None:
    """Linear from 0, logarithmic where small values would vanish, around 1 for a ratio; bands are cut to the means."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    means = [value for curve in curves.values() for value in curve.mean if math.isfinite(value)]
    if level is not None:
        means.append(level[0])
    if not means:
        return
    if share:
        axes.set_ylim(0, 1.05)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        return
    low, high = min(means), max(means)
    if around:
        axes.set_ylim(min(low, 1 / (1 + around)) - 0.08, max(high, 1 + around) + 0.15)
        return
    if low > 0 and high > _SPREAD * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.5, high * 1.6)
        axis = axes.yaxis
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, high * 1.2 if high > 0 else 1)
