"""A what-if as a report: what to buy, then the proofs, costs and what it rests on; from the JSON form.

A further part is one function from the result to a section, and its place in `_PARTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from specsim.report.document import (
    Block,
    Document,
    Facts,
    Figure,
    Figures,
    Items,
    Paragraph,
    Section,
    Stored,
    TableBlock,
)
from specsim.report.plan_facts import objective_text, trace_facts
from specsim.report.table import Table
from specsim.report.whatif import step_time_facts
from specsim.report.whatif_figures import arrivals_figure, best_by_kind, fleet_figure, front_figure, without_owning
from specsim.report.whatif_tables import whatif_tables

__all__ = ["whatif_document"]

_Result = Mapping[str, Any]
_Tables = Mapping[str, Table]


def whatif_document(result: _Result, stored: Stored) -> Document:
    """The report of a complete what-if."""
    gpus = list(dict.fromkeys(row["gpu"] for row in result["options"]))
    tables = whatif_tables(result)
    sections = [_answer(result), *(part(result, tables) for part in _PARTS), _provenance(result, stored)]
    return Document(
        title=f"Hardware for {result['target']}: {', '.join(gpus)}",
        subtitle=f"specsim whatif {result['plan_id']}, {result['trace']['source']}",
        sections=tuple(section for section in sections if section is not None),
    )


def _answer(result: _Result) -> Section:
    blocks: list[Block] = [Paragraph(text, "verdict") for text in result["verdict"]["text"][:2]]
    blocks += [
        Paragraph(text)
        for text in (*result["verdict"]["text"][2:], *_pools_text(result), *result["uncertainty"]["text"])
    ]
    blocks += [Paragraph(f"Warning: {text}", "warning") for text in result["warnings"]]
    return Section("Answer", tuple(blocks))


_ON_PAGE = ("gpu", "tp", "weight_dtype", "policy", "verdict", "replicas", "gpus", "slo_share", "slo_share_below",
            "tpot_p95_s", "ttft_p95_s", "profile_kind", "profile_error")  # fmt: skip
"""Columns of the options that the page shows; a CSV file has all."""


def _shown(result: _Result, table: Table) -> Table:
    """The rows of each kind of replica without speculation and with the best of it, as in the chart."""
    shown = {
        (row["gpu"], row["tp"], row["weight_dtype"], row["policy_kind"])
        for _, *pair in best_by_kind(result)
        for row in pair
        if row is not None
    }
    at = [next(i for i, c in enumerate(table.columns) if c.key == key)
          for key in ("gpu", "tp", "weight_dtype", "policy_kind")]  # fmt: skip
    return replace(table, rows=tuple(row for row in table.rows if tuple(row[i] for i in at) in shown))


def _fleets(result: _Result, tables: _Tables) -> Section:
    about = (
        "The least number of replicas that holds the objective at the busiest window of the log: the share of "
        "requests within it with that many and, as the proof, with one less. Means with 95% intervals over paired "
        "replications, which meet the same requests with the same luck in every option; the intervals cover luck, "
        "not the cost model. Shown are off and the best other policy of each kind of replica; specsim report --csv "
        "has every option. What the engine cannot be told to follow is compared, but not recommended."
    )
    return Section(
        "Least number of GPUs",
        (Paragraph(about), Figures((fleet_figure(result, tables), arrivals_figure(result, tables))),
         TableBlock(_shown(result, tables["options"]).only(*_ON_PAGE))),
    )  # fmt: skip


def _front(result: _Result, tables: _Tables) -> Section | None:
    if not result["pareto"]:
        return None
    about = (
        "Faster tokens for more money: options to which no other is at once as cheap and faster. Lines through a "
        "marker hold 90% of joint draws of the errors of step times and acceptance."
    )
    figure = front_figure(result, tables)
    figures: list[Figure] = [] if figure is None else [figure]
    shown: tuple[Block, ...] = (Figures(tuple(figures)),) if figures else ()
    return Section(
        "Cost against time per token", (Paragraph(about), *shown, TableBlock(without_owning(result, tables["front"])))
    )


def _costs(result: _Result, tables: _Tables) -> Section | None:
    if not tables["costs"].rows:
        return None
    blocks: list[Block] = [
        Paragraph(
            "Fleets are sized for the peak and paid all the time. $/M is for a million output tokens, at the mean "
            "traffic of the whole log unless it says at peak."
        )
    ]
    owning = result["ownership"]
    table = without_owning(result, _shown(result, tables["costs"]))
    if owning is not None:
        blocks.append(
            Paragraph(
                f"Owned over {owning['years']:g} years at ${owning['usd_per_kwh']:g} per kWh, PUE {owning['pue']:g}, "
                f"hosting ${owning['hosting_usd_per_kw_month']:g} per kW and month; full power all the time, nothing "
                "discounted."
            )
        )
    prices = tables["prices"]
    if owning is None:
        prices = prices.only("gpu", "usd_per_gpu_h", "provider", "date", "source", "doubtful")
    return Section("Costs", (*blocks, TableBlock(table), TableBlock(prices)))


def _beyond(result: _Result, tables: _Tables) -> Section | None:
    if not tables["headroom"].rows:
        return None
    about = (
        "Of the cheapest option of each GPU, and the cheapest without speculation: traffic over that of the window "
        "up to which they hold the objective, and keep up at all; GPUs with a spare replica (N+1)."
    )
    grown = (TableBlock(tables["growth"]),) if tables["growth"].rows else ()
    return Section("Headroom and growth", (Paragraph(about), TableBlock(tables["headroom"]), *grown))


def _sure(result: _Result, tables: _Tables) -> Section:
    about = (
        "Errors of step times (by what causes them, half of each common to all GPUs) and of acceptance are drawn "
        f"jointly, {result['uncertainty']['draws']:,} times; under each draw a closed form, anchored at what was "
        "simulated, says how many replicas it takes. Ranges hold 90% of the draws."
    )
    blocks: list[Block] = [Paragraph(about), TableBlock(_shown(result, tables["ranges"]))]
    if tables["measurements"].rows:
        wrong, nothing = (result["uncertainty"].get(f"{what}_probability") or 0.0 for what in ("flip", "nothing_holds"))
        none = f", and nothing holds in {nothing:.0%}" if nothing else ""
        blocks.append(
            Paragraph(
                f"Now the cheapest kind of fleet is another one in {wrong:.0%} of the draws{none}. Once something is "
                "measured, the choice that is then best is wrong so often:"
            )
        )
        blocks.append(TableBlock(tables["measurements"]))
    return Section("How sure", tuple(blocks))


def _pools_text(result: _Result) -> list[str]:
    return [] if result["pools"] is None else list(result["pools"]["text"])


def _pools(result: _Result, tables: _Tables) -> Section | None:
    if result["pools"] is None:
        return None
    about = (
        "Each pool is sized for its own busiest window and its own objective; one fleet for all for that of the flags."
    )
    facts = tuple(
        (pool["name"], f"{', '.join(pool['tasks'])}: {pool['request_share']:.0%} of the requests, "
                       f"{pool['window']['rate_per_s']:.3g} per s at most; {objective_text(pool['slo'])}")
        for pool in result["pools"]["each"]
    )  # fmt: skip
    return Section("Pools", (Paragraph(about), Facts(facts), TableBlock(tables["pools"]),
                             TableBlock(tables["pool_options"])))  # fmt: skip


def _proofs(result: _Result, tables: _Tables) -> Section:
    about = (
        "What was simulated with the least number that holds (at), with one replica less (below), and with requests "
        "that come one by one (alone), where the search needed to know. Runs can be looked at with specsim runs show "
        "ID."
    )
    return Section("Proofs", (Paragraph(about), TableBlock(_shown(result, tables["proofs"]))))


def _refused(result: _Result, tables: _Tables) -> Section | None:
    return Section("Not possible", (TableBlock(tables["refused"]),)) if tables["refused"].rows else None


def _assumptions(result: _Result, tables: _Tables) -> Section:
    speculation, acceptance = result["speculation"], result["acceptance"]
    lengths = ", ".join(f"{v:.2f} at k={k}" for k, v in acceptance["mean_acceptance_length_by_k"].items())
    facts = (
        *trace_facts(result),
        ("target", result["target"]),
        ("engine", result["engine"]),
        ("speculation", f"{speculation['method']}, k {', '.join(map(str, speculation['num_spec_tokens']))}"),
        ("acceptance", f"{lengths} (±{acceptance['relative_error']:.0%})"),
        ("", acceptance["source"]),
        ("objective", objective_text(result["slo"])),
        *step_time_facts(result),
    )
    notes = tuple(dict.fromkeys((*result["trace"]["notes"], *result["notes"])))
    return Section("Assumptions", (Facts(facts), Items(notes)))


def _not_modelled(result: _Result, tables: _Tables) -> Section:
    return Section("Not modelled", (Items(tuple(result["not_modelled"])),))


def _provenance(result: _Result, stored: Stored) -> Section:
    settings = result["settings"]
    profiles = dict.fromkeys(
        (row["gpu"], row["tp"], row["weight_dtype"] or "own", row["profile_kind"], row.get("profile_sha256"))
        for row in result["options"]
    )
    shown = [
        (
            ("profiles" if i == 0 else ""),
            f"{gpu} tp {tp} {dtype}: {kind}, SHA-256 {sha256 or 'not stored by this version'}",
        )
        for i, (gpu, tp, dtype, kind, sha256) in enumerate(profiles)
    ]
    last = settings["seed"] + settings["replications"] - 1
    facts = (
        ("what-if", f"{result['plan_id']} in {result['database']}, stored {stored.updated_utc}"),
        ("code", f"specsim {stored.specsim_version}, simulator {stored.code_version}"),
        ("command", result.get("command") or "not stored by this version"),
        ("trace", f"{result['trace']['source']}, SHA-256 {result['trace']['sha256']}"),
        *shown,
        ("seeds", f"{settings['seed']} to {last}, one a replication; one alone without speculation"),
        ("print again", f"specsim report {result['plan_id']}"),
    )
    return Section("Provenance", (Facts(facts),))


_PARTS: tuple[Callable[[_Result, _Tables], Section | None], ...] = (
    _fleets,
    _front,
    _costs,
    _beyond,
    _pools,
    _sure,
    _proofs,
    _refused,
    _assumptions,
    _not_modelled,
)
"""Sections between the answer and the provenance, in order."""
