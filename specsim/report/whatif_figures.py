"""The charts of a what-if, from its JSON form and tables: which figures go into which, and what each shows in words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from specsim.report.charts.bars import WINDOW_LOOKS, traffic_chart
from specsim.report.charts.fleets import Bar, fleet_chart
from specsim.report.charts.scatter import Choice, front_chart
from specsim.report.document import Figure
from specsim.report.table import Table
from specsim.report.text import milliseconds
from specsim.report.whatif_tables import option_name

__all__ = ["arrivals_figure", "best_by_kind", "cost_of", "fleet_figure", "front_figure", "without_owning"]

_Result = Mapping[str, Any]
_Row = Mapping[str, Any]
_Tables = Mapping[str, Table]

_BASIS = {
    "owned_usd_per_h": "dollars an hour, bought",
    "usd_per_h": "dollars an hour, rented",
    "gpus": "GPUs, since no price is known",
}


def cost_of(result: _Result, row: _Row) -> float | None:
    """What an option is ranked by; None: it does not hold, or has no such price."""
    if row["verdict"] != "holds":
        return None
    value = row["gpus"] if result["ranked_by"] == "gpus" else row["cost"][result["ranked_by"]]
    return None if value is None else float(value)


def best_by_kind(result: _Result) -> list[tuple[str, _Row | None, _Row | None]]:
    """(kind of replica, its option without speculation, the cheapest with it), in the order of the options.

    Of those with speculation the first with fewest GPUs that the engine can be told to follow; else the first.
    """
    kinds: dict[tuple[Any, ...], list[_Row]] = {}
    for row in result["options"]:
        kinds.setdefault((row["gpu"], row["tp"], row["weight_dtype"]), []).append(row)
    found = []
    for (gpu, tp, dtype), rows in kinds.items():
        off = next((row for row in rows if row["policy_kind"] == "off"), None)
        others = [row for row in rows if row["policy_kind"] != "off"]
        best = min(others, key=lambda row: (not row["offered"], row["gpus"] or float("inf")), default=None)
        found.append((f"{gpu} tp {tp}{f' {dtype}' if dtype else ''}", off, best))
    return found


def fleet_figure(result: _Result, tables: _Tables) -> Figure:
    """What each kind of replica costs without speculation and with the best of it."""
    title = "Least fleet that holds the objective"
    bars, said = [], []
    for name, off, best in best_by_kind(result):
        words = []
        for row, speculative in ((off, False), (best, True)):
            if row is None:
                continue
            value = cost_of(result, row)
            fleet = row["verdict"] if row["gpus"] is None else _gpus(row["gpus"])
            how = row["policy"] if len(row["policy"]) <= 12 else row["policy_kind"]
            text = fleet if not speculative else f"{fleet}, {how}"
            if value is None and row["gpus"] is not None:
                text += ", no price"
            low, high = _cost_range(row, value)
            bars.append(Bar(name, speculative, value, low, high, text))
            words.append(f"{fleet} {f'with {how}' if speculative else 'without'}")
        said.append(f"{name}: {', '.join(words)}")
    label = _BASIS[result["ranked_by"]]
    text = f"{title}, without speculation and with the best of it: {'; '.join(said)}."
    draw = partial(fleet_chart, "fleets", title, bars, label=label, description=text)
    return Figure("fleets", title, draw, text, tables["options"].only(
        "gpu", "tp", "weight_dtype", "policy", "offered", "verdict", "replicas", "gpus", "slo_share"))  # fmt: skip


def without_owning(result: _Result, table: Table) -> Table:
    """The table without the columns of bought fleets, where nothing is bought."""
    if result["ownership"] is not None:
        return table
    return table.only(*(column.key for column in table.columns if not column.key.startswith("owned_")))


def front_figure(result: _Result, tables: _Tables) -> Figure | None:
    """Cost against time per token; None where fewer than two options that can be followed hold."""
    place = {index: n for n, index in enumerate(result["pareto"], start=1)}
    choices = []
    for index, row in enumerate(result["options"]):
        cost = cost_of(result, row)
        tpot = None if row["verdict"] != "holds" else row["proof"]["at"]["metrics"]["tpot_p95_s"]["mean"]
        if cost is None or tpot is None or not row["offered"]:
            continue
        x, found = tpot * 1e3, row["range"]
        ends = [x if end is None else end * 1e3 for end in (found["tpot_p95_low_s"], found["tpot_p95_high_s"])]
        if found["tpot_p95_high_s"] is None:
            ends[1] = _WIDEST * x
        ends = [min(x, ends[0]), min(max(x, ends[1]), _WIDEST * x)]
        low, high = _cost_range(row, cost)
        split = "" if row["tp"] == 1 else f" tp {row['tp']}"
        series = f"{row['gpu']}{split}{' ' + row['weight_dtype'] if row['weight_dtype'] else ''}"
        choices.append(
            Choice(series, row["policy_kind"] != "off", x, ends[0], ends[1], cost, low, high, place.get(index))
        )
    if len(choices) < 2:
        return None
    title = "Cost against time per token"
    best = [result["options"][index] for index in result["pareto"]]
    said = "; ".join(
        f"{n}. {option_name(row)}, {milliseconds(row['proof']['at']['metrics']['tpot_p95_s']['mean'])} ms, "
        f"{_cost_text(result, row)}"
        for n, row in enumerate(best, start=1)
    )
    slo = result["slo"]["tpot_s"]
    text = (
        f"{title}: each option that holds and can be followed, with lines for 90% of the draws of errors. To those on "
        f"the front none is at once as cheap and faster: {said}."
    )
    draw = partial(
        front_chart, "front", title, choices, description=text,
        x_label="time per output token p95, ms", y_label=_BASIS[result["ranked_by"]],
        limit=None if slo is None else (slo * 1e3, "objective"),
    )  # fmt: skip
    return Figure("front", title, draw, text, without_owning(result, tables["front"]))


_WIDEST = 2.0
"""Ranges end at so many times the value, or one option that may fall behind would shrink all others."""


def _cost_range(row: _Row, value: float | None) -> tuple[float, float]:
    """The range of a cost as drawn: of what holds nothing none, and cut where it is far above the value."""
    if value is None:
        return 0.0, 0.0
    low, high = row["range"]["cost_low"], row["range"]["cost_high"]
    return (
        value if low is None else min(value, low),
        _WIDEST * value if high is None else max(value, min(high, _WIDEST * value)),
    )


def _gpus(number_of: int) -> str:
    return f"{number_of:,} GPU{'' if number_of == 1 else 's'}"


def _cost_text(result: _Result, row: _Row) -> str:
    value = cost_of(result, row)
    assert value is not None
    return _gpus(row["gpus"]) if result["ranked_by"] == "gpus" else f"${value:,.2f} an hour"


def arrivals_figure(result: _Result, tables: _Tables) -> Figure:
    """Arrivals over the trace, the window that is sized for, and what the cheapest fleet takes."""
    table, window = tables["arrivals"], result["window"]
    title = "Arrivals over the trace, and what is sized for"
    levels = [("mean of the window", window["rate_per_s"], 0.0, 0.0)]
    best = result["verdict"]["cheapest"]
    beyond = None if best is None else result["options"][best]["beyond"]
    most = ""
    if best is not None and beyond is not None:
        low, high = beyond["holds_to"], beyond["fails_at"] or beyond["holds_to"]
        levels.append((f"{option_name(result['options'][best])} holds to", low * window["rate_per_s"],
                       low * window["rate_per_s"], high * window["rate_per_s"]))  # fmt: skip
        most = f" {option_name(result['options'][best])} holds the objective up to {low:.2f} times that."
    text = (
        f"{title}: the window from {window['first_s']:,.0f} s to {window['last_s']:,.0f} s has {window['requests']:,} "
        f"requests at {window['rate_per_s']:.3g} per second.{most}"
    )
    states = ["sized for" if row[2] else "other times" for row in table.rows]
    draw = partial(
        traffic_chart, "arrivals", title, [row[1] for row in table.rows], states,
        bin_s=result["trace"]["arrivals"]["bin_s"], levels=levels, description=text, looks=WINDOW_LOOKS,
    )  # fmt: skip
    return Figure("arrivals", title, draw, text, table)
