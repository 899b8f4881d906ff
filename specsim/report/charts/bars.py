"""A strip of traffic: arrivals over the time of a trace, coloured by whether speculation pays at that load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specsim.report.charts.style import INK, canvas, finished

__all__ = ["LOOKS", "WINDOW_LOOKS", "traffic_chart"]

LOOKS: Mapping[str, tuple[str, str]] = {
    "pays": ("#0072b2", ""),
    "not sure": ("#cccccc", "///"),
    "does not pay": ("#d55e00", "xxx"),
    "not simulated": ("#ffffff", "\\\\"),
}
"""State of a time -> colour, and hatching for who does not see it."""
WINDOW_LOOKS: Mapping[str, tuple[str, str]] = {
    "sized for": ("#0072b2", "///"),
    "other times": ("#dddddd", ""),
}
"""The same, of a strip that shows which time a fleet is sized for."""
_TALLEST = 3.0
"""Levels above so many times the highest bar are left out, or the bars would be too small to read."""


def traffic_chart(
    name: str,
    title: str,
    rates_per_s: Sequence[float],
    states: Sequence[str],
    *,
    bin_s: float,
    levels: Sequence[tuple[str, float, float, float]],
    description: str,
    looks: Mapping[str, tuple[str, str]] = LOOKS,
) -> str:
    """SVG of a bar for each time of `bin_s` seconds; `levels` are (name, height, low, high) of horizontal lines.

    `looks`: how each of the states is drawn.
    """
    size, unit = next((s, u) for s, u in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
                      if len(rates_per_s) * bin_s >= 2 * s or s == 1.0)  # fmt: skip
    step = bin_s / size
    with canvas(height=260) as (figure, axes):
        for state, (color, hatch) in looks.items():
            chosen = [i for i, found in enumerate(states) if found == state]
            if chosen:
                axes.bar(
                    [i * step for i in chosen], [rates_per_s[i] for i in chosen], width=step, align="edge",
                    color=color, hatch=hatch, edgecolor="#444444", linewidth=0.4, label=state,
                )  # fmt: skip
        highest = max(rates_per_s)
        drawn = [level for level in levels if level[1] <= _TALLEST * highest]
        for i, (label, height, low, high) in enumerate(drawn):
            if low < high:
                axes.axhspan(low, high, color="#8a8a8a", alpha=0.2, linewidth=0)
            axes.axhline(height, color=INK, linewidth=1, linestyle=("-", "--", ":")[i % 3], label=label)
        axes.set_xlim(0, len(rates_per_s) * step)
        axes.set_ylim(0, 1.1 * max([highest, *(height for _, height, _, _ in drawn)]) or 1)
        axes.set_xlabel(f"{unit} since the start of the trace")
        axes.set_ylabel("requests/s")
        axes.set_title(title)
        figure.legend(loc="outside lower center", ncols=2)
        return finished(figure, name=name, title=title, description=description)
