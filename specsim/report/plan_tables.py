"""The tables of a plan, from its JSON form: what charts draw, pages show and CSV files hold.

Leaves out: nothing of the comparison; texts of the answer are in the JSON and on the pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specsim.report.plan_facts import PAYS, batch_text, change_text, rank
from specsim.report.table import Column, Table
from specsim.report.text import milliseconds, number, percent, times
from specsim.report.traffic import traffic_rows

__all__ = ["by_rank", "plan_tables"]

_METRICS: tuple[tuple[str, str], ...] = (
    ("ttft", "TTFT"),
    ("tpot", "TPOT"),
    ("itl_chunk", "ITL per chunk"),
    ("itl_token", "ITL per token"),
    ("e2e", "end to end"),
)
_POLICY = Column("policy", "policy", str, "label of the policy", left=True)
_LOAD = Column("load_per_s", "requests/s", number, "arrivals in requests per second")
_CONTEXT = Column("context_tokens", "context tokens", lambda v: f"{v:,}", "tokens that a request has in the cache")
_BATCH = Column("batch", "running requests", lambda v: f"{v:,}", "requests that run at once in a replica")
_K = Column("k", "k", str, "draft tokens of a round")


def plan_tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """Every table of a plan, by name."""
    found = (
        _comparison(result),
        _search(result),
        _surface(result),
        _turns_by_batch(result),
        _turns_by_load(result),
        _schedules(result),
        _capacity(result),
        _costs(result),
        _sensitivity(result),
        _traffic(result),
    )
    return {table.name: table for table in found}


def by_rank(result: Mapping[str, Any]) -> list[str]:
    """Labels of the policies: off, static ones by k, the schedule, the others."""
    return sorted(result["loads"]["policies"], key=rank)


def _comparison(result: Mapping[str, Any]) -> Table:
    order = {policy: i for i, policy in enumerate(by_rank(result))}
    rows = sorted(result["comparison"], key=lambda row: (row["load_per_s"], order[row["policy"]]))
    metrics = list(rows[0]["metrics"])
    columns = (
        _LOAD,
        _POLICY,
        Column("saturated", "keeps up", lambda v: "no" if v else "yes", "whether the fleet falls behind the arrivals"),
        Column("verdict", "against off", str, "faster, slower, tie or unknown, by `e2e_speedup`; null for off"),
        Column("e2e_speedup", "speed-up to the last token", times, "mean end-to-end time of off over this", True),
        Column("tpot_speedup", "speed-up per token", times, "the same of mean TPOT", True),
        *(_metric(name) for name in metrics),
    )
    return Table(
        "comparison",
        "Policies over load",
        columns,
        tuple(
            (row["load_per_s"], row["policy"], row["saturated"], row.get("verdict"), row.get("e2e_speedup"),
             row.get("tpot_speedup"), *(row["metrics"][name] for name in metrics))
            for row in rows
        ),
    )  # fmt: skip


def _metric(name: str) -> Column:
    """A metric of a run; its meaning is in the page of metrics."""
    said = f"metric `{name}`"
    if name.endswith("_s") and not name.endswith("_per_s"):
        stem, _, statistic = name[:-2].rpartition("_")
        return Column(name, f"{dict(_METRICS).get(stem, stem)} {statistic} ms", milliseconds, said, True)
    is_share = name.endswith(("_share", "_use", "_rate")) or name == "utilisation"
    title = {"slo_share": "within the objective", "output_tokens_per_s": "output tokens/s"}.get(
        name, name.replace("_per_s", "/s").replace("_", " ")
    )
    return Column(name, title, percent if is_share else number, said, True)


def _search(result: Mapping[str, Any]) -> Table:
    columns = (
        _LOAD,
        _POLICY,
        Column("slo_share", "within the objective", percent, "share of requests within the objective", True),
        Column("e2e_speedup", "speed-up to the last token", times, "null for off", True),
    )
    rows = tuple((row["load_per_s"], row["policy"], row["slo_share"], row["e2e_speedup"]) for row in result["search"])
    return Table("search", "Further loads that narrow turns and capacities", columns, rows)


def _surface(result: Mapping[str, Any]) -> Table:
    columns = (
        _CONTEXT,
        _BATCH,
        _K,
        Column("speedup", "speed-up", times, "TPOT without over with k drafts, by step times alone"),
        Column("break_even_acceptance_length", "break-even length", _two, "tokens a round above which it pays"),
        Column("assumed_acceptance_length", "assumed length", _two, "tokens a round that are assumed"),
    )
    rows = tuple(
        (row["context_tokens"], row["batch"], row["k"],
         row["assumed_acceptance_length"] / row["break_even_acceptance_length"],
         row["break_even_acceptance_length"], row["assumed_acceptance_length"])
        for row in result["break_even"]
    )  # fmt: skip
    return Table("surface", "Speed-up by running batch and context", columns, rows)


def _two(value: float) -> str:
    return f"{value:.2f}"


def _turns_by_batch(result: Mapping[str, Any]) -> Table:
    columns = (
        _CONTEXT,
        _K,
        Column(
            "batch",
            "stops paying at",
            batch_text,
            "first batch from which on it never pays; null: pays to limit",
            null="all",
        ),
        Column("low", "one sigma worse", batch_text, "the same if speculation were worse by one sigma", null="all"),
        Column("high", "one sigma better", batch_text, "the same if it were better", null="all"),
        Column("limit", "fit", lambda v: f"{v:,}", "requests that fit the cache"),
        Column("speedup_at_1", "speed-up alone", times, "at batch 1"),
        Column("speedup_at_limit", "speed-up at the last that fit", times, "at `limit`"),
    )
    keys = ("context_tokens", "k", "batch", "low", "high", "limit", "speedup_at_1", "speedup_at_limit")
    rows = tuple(tuple(row[key] for key in keys) for row in result["crossovers"]["by_batch"])
    return Table("turns_by_batch", "Running batch at which speculation stops paying", columns, rows)


def _turns_by_load(result: Mapping[str, Any]) -> Table:
    columns = (
        _POLICY,
        Column("verdict", "it pays", PAYS.__getitem__, "as `crossovers.by_load[].verdict`"),
        Column("load_per_s", "turns at requests/s", number, "where the mean speed-up is 1"),
        Column("low_per_s", "not before", number, "last load before the turn that can be told apart"),
        Column("high_per_s", "not after", number, "first load after it"),
        Column("faster_from_per_s", "faster from", number, "lowest load at which it is faster"),
        Column("faster_to_per_s", "to", number, "highest"),
        Column("slower_from_per_s", "slower from", number, "lowest load at which it is slower"),
        Column("slower_to_per_s", "to", number, "highest"),
    )
    rows = sorted(result["crossovers"]["by_load"], key=lambda row: rank(row["policy"]))
    return Table(
        "turns_by_load",
        "Load at which speculation stops paying",
        columns,
        tuple(
            (row["policy"], row["verdict"], row["load_per_s"], row["low_per_s"], row["high_per_s"],
             *(row["faster_per_s"] or (None, None)), *(row["slower_per_s"] or (None, None)))
            for row in rows
        ),
    )  # fmt: skip


def _schedules(result: Mapping[str, Any]) -> Table:
    columns = (
        Column("acceptance_change", "acceptance", change_text, "added to every conditional acceptance", left=True),
        Column("first", "from running requests", lambda v: f"{v:,}", "first running batch of the row"),
        Column("last", "to", lambda v: f"{v:,}", "last"),
        _K,
    )
    rows = tuple((row["acceptance_change"], *step) for row in result["sensitivity"] for step in row["schedule"])
    return Table("schedules", "Best k by running batch", columns, rows)


def _capacity(result: Mapping[str, Any]) -> Table:
    columns = (
        _POLICY,
        Column("load_per_s", "requests/s", number, "highest load within the objective, interpolated"),
        Column("low_per_s", "meets at", number, "highest load simulated that meets it"),
        Column("high_per_s", "fails at", number, "next load, which does not"),
        Column(
            "interval",
            "mean of what each replication alone gives",
            number,
            "each replication its own capacity; null unless all have one",
            True,
        ),
        Column("ratio_to_off", "to off", times, "paired over replications", True),
        Column("vs_off", "against off", str, "more, less or tie"),
        Column("verdict", "search", str, "as `capacity[].verdict`", left=True),
    )
    rows = sorted(result["capacity"], key=lambda row: rank(row["policy"]))
    return Table(
        "capacity",
        "Load within the objective",
        columns,
        tuple(tuple(row[column.key] for column in columns) for row in rows),
    )


def _costs(result: Mapping[str, Any]) -> Table:
    columns = (
        _POLICY,
        Column("gpus", "GPUs", lambda v: f"{v:,}", "of the fleet"),
        Column("load_per_s", "requests/s", number, "highest load within the objective; null: none"),
        Column("bound", "bound", str, "at least: no load that was simulated fails; null: the load is an estimate"),
        Column("gpu_hours_per_million_output_tokens", "GPU-hours a million tokens", number, "output, at that load"),
        Column("bound_of_gpu_hours", "bound", str, "at most: where the load is a bound; null: an estimate"),
        Column(
            "to_off", "to off", times,
            "one over `ratio_to_off` of the capacity, below 1 speculation is cheaper; null where one of the loads is a "
            "bound, or none", True,
        ),
        Column("vs_off", "against off", str, "less, more or tie by that ratio"),
        Column(
            "gpu_hours_per_million_output_tokens_at_own_load", "at the log's load", number,
            "the same fleet at the log's own load; null: it does not keep up",
        ),
    )  # fmt: skip
    d, s = result["deployment"], result["trace"]["statistics"]
    replicas = (d.get("prefill_replicas") or 0) + (d.get("decode_replicas") or 0) or d["replicas"]
    gpus, own = replicas * d["tp"], result["loads"]["own_per_s"]
    keeps_up = {row["policy"]: not row["saturated"] for row in result["comparison"] if row["load_per_s"] == own}

    def hours(load_per_s: float | None) -> float | None:
        tokens = (load_per_s or 0.0) * s["output"]["mean"] * 3600
        return gpus / tokens * 1e6 if tokens else None

    rows = sorted(result["capacity"], key=lambda row: rank(row["policy"]))
    known = {row["policy"]: row["low_per_s"] is not None and row["high_per_s"] is not None for row in rows}
    found = []
    for row in rows:
        at_least = row["low_per_s"] is not None and row["high_per_s"] is None
        at_own = hours(own) if keeps_up.get(row["policy"]) else None
        comparable = known[row["policy"]] and known.get("off", False) and row["vs_off"] is not None
        found.append((
            row["policy"], gpus, row["load_per_s"], "at least" if at_least else None, hours(row["load_per_s"]),
            "at most" if at_least else None, _inverse(row["ratio_to_off"]) if comparable else None,
            _COSTLIER[row["vs_off"]] if comparable else None, at_own,
        ))  # fmt: skip
    return Table("costs", "What a million output tokens take", columns, tuple(found))


_COSTLIER = {"more": "less", "less": "more", "tie": "tie"}
"""Capacity against that of off -> what a token takes against off."""


def _inverse(ratio: Mapping[str, float | None]) -> dict[str, float | None]:
    """The interval of one over a ratio; exact, since ratios are means of logarithms."""
    mean, low, high = (1 / value if value else None for value in (ratio["mean"], ratio["low"], ratio["high"]))
    return {"mean": mean, "low": high, "high": low}


def _sensitivity(result: Mapping[str, Any]) -> Table:
    columns = (
        Column("acceptance_change", "acceptance", change_text, "added to every conditional acceptance", left=True),
        Column("policy", "policy", str, "label of the policy that was simulated", left=True),
        Column("acceptance_length", "tokens a round", _two, "mean, bonus included"),
        Column("crossover_batch", "stops paying at batch", batch_text, "null: pays up to `batch_limit`", null="all"),
        Column("batch_limit", "fit", lambda v: f"{v:,}", "requests that fit the cache"),
        Column("e2e_speedup_at_own_load", "speed-up to the last token", times, "simulated at the log's own load", True),
        Column("tpot_speedup_at_own_load", "speed-up per token", times, "likewise", True),
    )
    rows = tuple(tuple(row[column.key] for column in columns) for row in result["sensitivity"])
    return Table("sensitivity", "If acceptance were different", columns, rows)


def _traffic(result: Mapping[str, Any]) -> Table:
    columns = (
        Column("start_s", "from second", lambda v: f"{v:,.0f}", "start of the time, seconds from the trace's start"),
        Column("requests_per_s", "requests/s", number, "mean arrivals in it"),
        Column("speculation", "speculation", str, "pays, does not pay, not sure, or not simulated", left=True),
        Column("best_policy", "best policy", str, "best at the simulated load next to it", left=True),
    )  # fmt: skip
    return Table("traffic", "Traffic over time", columns, tuple(traffic_rows(result)))
