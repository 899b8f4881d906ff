"""The charts of a plan, from its JSON form and tables: which figures go into which, and what each shows in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from specsim.report.charts.bars import traffic_chart
from specsim.report.charts.curves import Curve, load_chart
from specsim.report.charts.maps import Cell, Turn, grid_map
from specsim.report.charts.steps import schedule_chart
from specsim.report.charts.style import PAPER, mixed
from specsim.report.dilated import Kind, dilated
from specsim.report.document import Figure
from specsim.report.plan_facts import PAYS, batch_text, change_text, schedule_text
from specsim.report.plan_tables import by_rank
from specsim.report.policy_names import headings
from specsim.report.table import Table, matrix
from specsim.report.text import milliseconds, number, percent, times
from specsim.report.traffic import traffic_sentence

__all__ = ["break_even_figure", "load_figures", "schedule_figure", "speedup_maps", "traffic_figure"]

_FULL_COLOUR = math.log(1.8)
"""Logarithm of the speed-up at which a cell has the full colour."""

_Result = Mapping[str, Any]
_Tables = Mapping[str, Table]


def load_figures(result: _Result, tables: _Tables) -> tuple[Figure, ...]:
    """Speed-up, TPOT, TTFT, throughput and share within the objective over load, every policy."""
    slo = result["deployment"]["slo"]
    error = result["recommendation"]["speedup_error"]
    ms, one = 1e3, 1.0
    tpot = None if slo["tpot_s"] is None else (slo["tpot_s"] * ms, "objective")
    ttft = None if slo["ttft_s"] is None else (slo["ttft_s"] * ms, "objective")
    share = (slo["share"], "asked for")
    even = (1.0, "off")
    found = [
        _curves(result, tables, "speedup", "Speed-up to the last token", "e2e_speedup", one, times, even, around=error)
    ]
    kinds: tuple[tuple[str, str, str, float, Callable[[Any], str], tuple[float, str] | None, Kind | None], ...] = (
        ("tpot", "Time per output token, p95, ms", "tpot_p95_s", ms, milliseconds, tpot, "time"),
        ("ttft", "Time to the first token, p95, ms", "ttft_p95_s", ms, milliseconds, ttft, "time"),
        ("throughput", "Output tokens/s of the fleet", "output_tokens_per_s", one, number, None, "rate"),
        ("slo", "Requests within the objective", "slo_share", one, percent, share, None),
        ("batch", "Running requests of a replica", "running_batch", one, number, None, "count"),
    )
    for name, title, key, scale, show, level, kind in kinds:
        found.append(_curves(result, tables, name, title, key, scale, show, level, kind=kind))
    return tuple(found)


def _curves(
    result: _Result,
    tables: _Tables,
    name: str,
    title: str,
    key: str,
    scale: float,
    show: Callable[[Any], str],
    level: tuple[float, str] | None,
    *,
    around: float = 0.0,
    kind: Kind | None = None,
) -> Figure:
    """One figure over load; of a `kind`, also as it were with steps one sigma faster and slower."""
    error = result["profile"]["relative_error"]
    own = float(result["loads"]["own_per_s"])
    shown = headings(result["loads"]["policies"])
    table = tables["comparison"].only("load_per_s", "policy", "saturated", key)
    table = replace(table, rows=tuple(row for row in table.rows if row[3] is not None))
    curves: dict[str, Curve] = {}
    said = []
    for policy in by_rank(result):
        rows = [row for row in table.rows if row[1] == policy]
        if not rows:
            continue
        values = [[_number(row[3][part]) * scale for row in rows] for part in ("mean", "low", "high")]
        mean = values[0]
        low, high = ([v if math.isfinite(v) else m for v, m in zip(side, mean, strict=True)] for side in values[1:])
        loads = [row[0] for row in rows]
        factors = () if kind is None else (1 / (1 + error), 1 + error)
        beside = tuple(dilated(loads, mean, factor, kind) for factor in factors if kind is not None)
        curves[shown[policy]] = Curve(loads, mean, low, high, [row[2] for row in rows], beside)
        at_own = next(row[3]["mean"] for row in rows if row[0] == own)
        said.append(f"{shown[policy]} {show(at_own)}")
    text = f"{title} over {len(result['loads']['simulated_per_s'])} loads; at {own:.3g} requests/s: {', '.join(said)}."
    by_policy = matrix(table, "load_per_s", "policy", key, title=title, head=lambda policy: shown[policy])
    banded = {"off", shown[result["recommendation"]["compared_policy"]]}
    order = [shown[policy] for policy in by_rank(result)]
    draw = partial(load_chart, name, title, curves, description=text, own_per_s=own, order=order, banded=banded,
                   level=level, around=around, share=key == "slo_share",
                   beside=f"step times ±{error:.0%}")  # fmt: skip
    return Figure(name, title, draw, text, by_policy)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def speedup_maps(result: _Result, tables: _Tables) -> tuple[Figure, ...]:
    """Speed-up by running batch and context, a map for each k."""
    found = []
    for k in sorted({row["k"] for row in result["break_even"]}):
        title = f"Speed-up with k={k}"
        table = tables["surface"].where("k", k)
        cells = {
            (_row(result, context), batch): Cell(
                f"{speedup:.2f}", mixed(math.log(speedup) / _FULL_COLOUR), hatched=speedup <= 1
            )
            for context, batch, speedup in table.only("context_tokens", "batch", "speedup").rows
        }
        turns = {c["context_tokens"]: c for c in result["crossovers"]["by_batch"] if c["k"] == k}
        said = ", ".join(f"at {c['context_tokens']:,} tokens {batch_text(c['batch'])}" for c in turns.values())
        text = (
            f"{title} over running batch and context; speculation stops paying, by context, from this batch on "
            f"(all: pays up to the last that fits): {said}."
        )
        found.append(_map(result, f"map-k{k}", title, table, "speedup", cells, turns, text, "hatched: slower than off"))
    return tuple(found)


def break_even_figure(result: _Result, tables: _Tables) -> Figure:
    """Acceptance length at which drafting costs what it brings, for the k that the answer is about."""
    k = result["measure_next"]["k"]
    table = tables["surface"].where("k", k)
    assumed = table.rows[0][5]
    error = result["profile"]["acceptance"]["relative_error"]
    title = f"Break-even acceptance length with k={k}"
    cells = {}
    for context, batch, even in table.only("context_tokens", "batch", "break_even_acceptance_length").rows:
        margin = assumed / even
        color = mixed(math.log(margin) / _FULL_COLOUR)
        close = abs(margin - 1) <= error
        cells[_row(result, context), batch] = Cell(f"{even:.2f}", PAPER if close else color, hatched=margin <= 1)
    low, high = min(row[4] for row in table.rows), max(row[4] for row in table.rows)
    text = (
        f"{title} over running batch and context: tokens a round above which speculation pays, {low:.2f} to "
        f"{high:.2f}; assumed is {assumed:.2f} ±{error:.0%}."
    )
    note = f"assumed {assumed:.2f}; hatched: not reached; white: within ±{error:.0%} of it"
    return _map(result, "break-even", title, table, "break_even_acceptance_length", cells, {}, text, note)


def _row(result: _Result, context: int) -> str:
    return f"{context:,}" + (" (own)" if context == result["schedule_context_tokens"] else "")


def _map(
    result: _Result,
    name: str,
    title: str,
    table: Table,
    key: str,
    cells: Mapping[tuple[str, int], Cell],
    turns: Mapping[int, Mapping[str, Any]],
    text: str,
    note: str,
) -> Figure:
    contexts = sorted({row[0] for row in table.rows})
    draw = partial(
        grid_map,
        name,
        title,
        cells,
        rows=[_row(result, context) for context in contexts],
        batches=sorted({row["batch"] for row in result["break_even"]}),
        turns={_row(result, at): Turn(c["batch"], c["low"], c["high"]) for at, c in turns.items()},
        description=text,
        note=note,
    )
    shown = matrix(table, "context_tokens", "batch", key, title=title, head=lambda batch: f"batch {batch}")
    return Figure(name, title, draw, text, shown)


def schedule_figure(result: _Result, tables: _Tables) -> Figure:
    """Best k by running batch, as assumed and with acceptance shifted."""
    title = "Best k by running batch"
    rows = sorted(result["sensitivity"], key=lambda row: (row["acceptance_change"] != 0, row["acceptance_change"]))
    schedules = {change_text(row["acceptance_change"]): row["schedule"] for row in rows}
    limit = rows[0]["batch_limit"]
    said = "; ".join(f"{name} {schedule_text(steps)}" for name, steps in schedules.items())
    text = f"{title}, by acceptance: {said}."
    draw = partial(schedule_chart, "schedule", title, schedules, description=text, limit=limit)
    return Figure("schedule", title, draw, text, tables["schedules"])


def traffic_figure(result: _Result, tables: _Tables) -> Figure:
    """Arrivals over the trace, and when speculation pays."""
    policy = result["recommendation"]["compared_policy"]
    turn = next(c for c in result["crossovers"]["by_load"] if c["policy"] == policy)
    levels = [("most that the fleet completes, off", result["loads"]["capacity_off_per_s"]) + 2 * (0.0,)]
    if turn["load_per_s"] is not None:
        word = "stops paying" if turn["verdict"] == "crosses" else "begins to pay"
        levels.insert(0, (f"{policy} {word}", turn["load_per_s"], turn["low_per_s"], turn["high_per_s"]))
    table = tables["traffic"]
    title = f"Is {headings(result['loads']['policies'])[policy]} worth it? Arrivals over the trace"
    text = f"{title}: {traffic_sentence(result)} By load it pays {PAYS[turn['verdict']]}."
    draw = partial(
        traffic_chart, "traffic", title, [row[1] for row in table.rows], [row[2] for row in table.rows],
        bin_s=result["trace"]["arrivals"]["bin_s"], levels=levels, description=text,
    )  # fmt: skip
    return Figure("traffic", title, draw, text, table)
