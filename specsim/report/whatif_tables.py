"""The tables of a what-if, from its JSON form: what charts draw, pages show and CSV files hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specsim.report.table import Column, Table
from specsim.report.text import milliseconds, number, percent, times

__all__ = ["OPTION", "option_name", "whatif_tables"]

_Result = Mapping[str, Any]
_Row = Mapping[str, Any]

_METRICS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("slo_share", "within", percent),
    ("tpot_p95_s", "TPOT p95 ms", milliseconds),
    ("ttft_p95_s", "TTFT p95 ms", milliseconds),
    ("e2e_p95_s", "end to end p95 ms", milliseconds),
    ("output_tokens_per_s", "output tokens/s", number),
    ("running_batch", "running", number),
    ("kv_use", "KV use", percent),
    ("utilisation", "busy", percent),
    ("preemptions", "preemptions", number),
    ("rejected", "rejected", number),
    ("mean_k", "mean k", number),
    ("mean_acceptance_length", "tokens a round", number),
)


def _usd(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 0.1 else f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


_OWN_DTYPE = "own"
OPTION: tuple[Column, ...] = (
    Column("gpu", "GPU", str, "kind of GPU", left=True),
    Column("tp", "TP", str, "GPUs of a replica"),
    Column("weight_dtype", "dtype", str, "of the weights; null: as the checkpoint stores them", left=True,
           null=_OWN_DTYPE),
    Column("policy_kind", "kind", str, "off, static, schedule or adaptive", left=True),
    Column("policy", "policy", str, "label of the policy", left=True),
)  # fmt: skip
"""Columns that name an option; every table of options begins with them."""
_KEYS = tuple(column.key for column in OPTION)
_VERDICT = Column("verdict", "verdict", str, "holds, never, or not found", left=True)
_REPLICAS = Column("replicas", "replicas", lambda v: f"{v:,}", "least number that holds; null: none")
_GPUS = Column("gpus", "GPUs", lambda v: f"{v:,}", "replicas times TP")


def whatif_tables(result: _Result) -> dict[str, Table]:
    """Every table of a what-if, by name."""
    found = (
        _options(result),
        _costs(result),
        _front(result),
        _proofs(result),
        _headroom(result),
        _growth(result),
        _ranges(result),
        _measurements(result),
        _pools(result),
        _pool_options(result),
        _prices(result),
        _refused(result),
        _arrivals(result),
    )
    return {table.name: table for table in found}


def option_name(row: _Row) -> str:
    """`2 x L40S (tp 1, k=3)`."""
    dtype = f" {row['weight_dtype']}" if row["weight_dtype"] else ""
    policy = row["policy"] if len(row["policy"]) <= 12 else row["policy_kind"]
    many = f"{row['gpus']} x " if row["gpus"] else ""
    return f"{many}{row['gpu']} (tp {row['tp']}{dtype}, {policy})"


def _named(row: _Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in _KEYS)


def _options(result: _Result) -> Table:
    below = Column(
        "slo_share_below", "one replica less", percent, "share with one replica less; null: there is none", True
    )
    columns = (
        *OPTION,
        Column("offered", "offered", _yes, "whether the engine can be told to follow it; nothing else is recommended"),
        _VERDICT,
        _REPLICAS,
        _GPUS,
        Column("slo_share", "within", percent, "share of requests within the objective, with `replicas`", True),
        below,
        Column("close", "close", _yes, "whether one of these intervals holds the share that is asked for"),
        Column("tpot_p95_s", "TPOT p95 ms", milliseconds, "metric `tpot_p95_s` with `replicas`", True),
        Column("ttft_p95_s", "TTFT p95 ms", milliseconds, "metric `ttft_p95_s` with `replicas`", True),
        Column("profile_kind", "step times", str, "analytic, measured, imported or transferred", left=True),
        Column("profile_error", "±", percent, "one sigma of a step time"),
    )
    rows = []
    for row in result["options"]:
        at, less = (_metrics(row["proof"][side]) for side in ("at", "below"))
        rows.append((
            *_named(row), row["offered"], row["verdict"], row["replicas"], row["gpus"], at.get("slo_share"),
            less.get("slo_share"), row["close"], at.get("tpot_p95_s"), at.get("ttft_p95_s"), row["profile_kind"],
            row["profile_error"],
        ))  # fmt: skip
    return Table("options", "Least number of GPUs", columns, tuple(rows))


def _metrics(side: _Row | None) -> _Row:
    return {} if side is None else side["metrics"]


_COSTS: tuple[tuple[str, str, str], ...] = (
    ("usd_per_h", "$/h", "rent of all GPUs"),
    ("usd_per_year", "$/year", "of 8,760 hours"),
    (
        "usd_per_million_output_tokens_at_peak",
        "$/M at peak",
        "a million output tokens, if every hour were like the window",
    ),
    ("usd_per_million_output_tokens", "$/M", "a million output tokens at the mean traffic of the whole log"),
    ("owned_usd", "owned $", "purchase, power and hosting over all years"),
    ("owned_purchase_usd", "purchase $", "part of `owned_usd`"),
    ("owned_power_usd", "power $", "part of `owned_usd`"),
    ("owned_hosting_usd", "hosting $", "part of `owned_usd`"),
    ("owned_usd_per_h", "owned $/h", "`owned_usd` over every hour of the years"),
    ("owned_usd_per_million_output_tokens", "owned $/M", "as `usd_per_million_output_tokens`"),
)


def _costs(result: _Result) -> Table:
    columns = (*OPTION, _GPUS, *(Column(key, title, _usd, meaning) for key, title, meaning in _COSTS))
    rows = tuple(
        (*_named(row), row["gpus"], *(row["cost"][key] for key, _, _ in _COSTS))
        for row in result["options"]
        if row["cost"] is not None
    )
    return Table("costs", "Costs of the options that hold", columns, rows)


def _front(result: _Result) -> Table:
    columns = (
        Column("number", "no.", str, "as in the chart, cheapest first"),
        *OPTION,
        _GPUS,
        Column("tpot_p95_s", "TPOT p95 ms", milliseconds, "metric `tpot_p95_s` of the fleet", True),
        *(
            Column(key, title, _usd, meaning)
            for key, title, meaning in _COSTS
            if key.endswith(("usd_per_h", "_tokens"))
        ),
    )
    keys = [key for key, _, _ in _COSTS if key.endswith(("usd_per_h", "_tokens"))]
    rows = []
    for n, index in enumerate(result["pareto"], start=1):
        row = result["options"][index]
        tpot = row["proof"]["at"]["metrics"]["tpot_p95_s"]
        rows.append((n, *_named(row), row["gpus"], tpot, *(row["cost"][key] for key in keys)))
    return Table("front", "None is at once as cheap and faster", columns, tuple(rows))


def _proofs(result: _Result) -> Table:
    columns = (
        *OPTION[:4],
        Column("side", "number", str, "at: the least that holds, or the most tried; below: one less; alone: one by one",
               left=True),
        Column("replicas", "replicas", lambda v: f"{v:,}", "of the fleet that was simulated"),
        Column("policy", "policy", str, "label of the policy that was simulated; below: the one that comes closest",
               left=True),
        Column("replications", "lucks", str, "paired replications that were run"),
        *(Column(key, title, show, f"metric `{key}`", True) for key, title, show in _METRICS),
        Column("runs", "runs", str, "ids of the stored runs", left=True),
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    for row in result["options"]:
        kind = tuple(row[key] for key in _KEYS[:4])
        for side in ("at", "below"):
            found = row["proof"][side]
            if found is not None:
                runs = " ".join(run for run in found["runs"] if run is not None) or None
                metrics = (found["metrics"][key] for key, _, _ in _METRICS)
                rows.append((*kind, side, found["replicas"], found["policy"], found["replications"], *metrics, runs))
        alone = row["proof"]["alone"]
        if alone is not None:
            single = ({"mean": alone[key], "low": None, "high": None} if key in alone else None
                      for key, _, _ in _METRICS)  # fmt: skip
            rows.append((*kind, "alone", 1, row["policy"], 1, *single, None))
    return Table("proofs", "What was simulated", columns, tuple(rows))


def _headroom(result: _Result) -> Table:
    columns = (
        *OPTION,
        _GPUS,
        Column("holds_to", "holds to", times, "traffic over that of the window up to which the objective is met"),
        Column("fails_at", "fails at", times, "the next that was tried; null: met at a hundred times as much"),
        Column("keeps_up_to", "keeps up to", times, "the same for keeping up with the arrivals at all"),
        Column("falls_behind_at", "falls behind at", times, "likewise"),
        Column("spare_gpus", "N+1 GPUs", lambda v: f"{v:,}", "with one replica to lose"),
        Column("spare_usd_per_h", "N+1 $/h", _usd, "rent of those"),
    )
    rows = tuple(
        (*_named(row), row["gpus"], *(row["beyond"][key] for key in
         ("holds_to", "fails_at", "keeps_up_to", "falls_behind_at")), row["spare"]["gpus"],
         row["spare"]["cost"]["usd_per_h"])
        for row in result["options"]
        if row["beyond"] is not None
    )  # fmt: skip
    return Table("headroom", "Headroom and a spare replica", columns, rows)


def _growth(result: _Result) -> Table:
    columns = (
        *OPTION[:3],
        Column("factor", "traffic", times, "over that of the window"),
        Column("policy", "policy", str, "label of the policy", left=True),
        _VERDICT,
        _REPLICAS,
        _GPUS,
        Column("usd_per_h", "$/h", _usd, "rent of all GPUs"),
    )
    rows = tuple(
        (*(row[key] for key in _KEYS[:3]), grown["factor"], grown["policy"], grown["verdict"], grown["replicas"],
         grown["gpus"], None if grown["cost"] is None else grown["cost"]["usd_per_h"])
        for row in result["options"]
        if row["beyond"] is not None
        for grown in row["beyond"]["growth"]
    )  # fmt: skip
    return Table("growth", "More traffic", columns, rows)


def _ranges(result: _Result) -> Table:
    columns = (
        *OPTION,
        _GPUS,
        Column(
            "gpus_low", "GPUs from", lambda v: f"{v:,}", "5th percentile over joint draws of errors; null: none holds"
        ),
        Column("gpus_high", "to", lambda v: f"{v:,}", "95th percentile; null: none holds"),
        Column("cost_low", "cost from", _usd, "the same of what options are ranked by"),
        Column("cost_high", "to", _usd, "likewise"),
        Column("tpot_p95_low_s", "TPOT p95 ms from", milliseconds, "of the fleet of `gpus`, likewise"),
        Column("tpot_p95_high_s", "to", milliseconds, "null: it falls behind"),
        Column("holds_probability", "any number holds", percent, "share of the draws"),
        Column("enough_probability", "this one is enough", percent, "share of the draws; null: it holds nothing"),
    )
    keys = [column.key for column in columns[len(OPTION) + 1 :]]
    rows = tuple((*_named(row), row["gpus"], *(row["range"][key] for key in keys)) for row in result["options"])
    return Table("ranges", "How sure the fleets are", columns, rows)


def _measurements(result: _Result) -> Table:
    columns = (
        Column("what", "to measure", str, "acceptance or latency", left=True),
        Column(
            "gpu", "on", str, "GPU of which step times are measured; null: acceptance", left=True, null="your prompts"
        ),
        Column("flip_probability", "still wrong", percent, "how often the cheapest kind of fleet is another one then"),
        Column("command", "command", str, "how to measure it", left=True),
    )
    rows = tuple(tuple(row[column.key] for column in columns) for row in result["uncertainty"]["measure"])
    return Table("measurements", "What would settle it", columns, rows)


def _pools(result: _Result) -> Table:
    columns = (
        Column("gpu", "GPU", str, "of all pools; null: the cheapest of each, whatever it is", left=True, null="any"),
        Column("pools", "pools", str, "the cheapest option of each pool", left=True),
        Column("gpus", "GPUs", lambda v: f"{v:,}", "of all pools; null: one of them holds nothing"),
        Column("cost", "cost", _usd, "of what options are ranked by"),
        Column("shared_gpus", "one fleet for all", lambda v: f"{v:,}", "its GPUs; null: it holds nothing"),
        Column("shared_cost", "its cost", _usd, "likewise"),
    )
    found = result["pools"] or {"each": [], "combined": []}
    rows = []
    for it in found["combined"]:
        named = [
            f"{pool['name']}: {'none holds' if index is None else option_name(pool['options'][index])}"
            for pool, index in zip(found["each"], it["options"], strict=True)
        ]
        rows.append((it["gpu"], "; ".join(named), it["gpus"], it["cost"], it["shared_gpus"], it["shared_cost"]))
    return Table("pools", "Pools together, and one fleet for all", columns, tuple(rows))


def _pool_options(result: _Result) -> Table:
    columns = (
        Column("pool", "pool", str, "name of the pool", left=True),
        *OPTION,
        _VERDICT,
        _REPLICAS,
        _GPUS,
        Column("slo_share", "within", percent, "share of its requests within its objective", True),
        Column("slo_share_below", "one replica less", percent, "the same with one replica less", True),
        Column("tpot_p95_s", "TPOT p95 ms", milliseconds, "metric `tpot_p95_s` with `replicas`", True),
        Column("usd_per_h", "$/h", _usd, "rent of all GPUs"),
    )
    rows = []
    for pool in (result["pools"] or {"each": []})["each"]:
        for row in pool["options"]:
            at, less = (_metrics(row["proof"][side]) for side in ("at", "below"))
            rows.append((
                pool["name"], *_named(row), row["verdict"], row["replicas"], row["gpus"], at.get("slo_share"),
                less.get("slo_share"), at.get("tpot_p95_s"), None if row["cost"] is None else row["cost"]["usd_per_h"],
            ))  # fmt: skip
    return Table("pool_options", "Options of each pool", columns, tuple(rows))


def _prices(result: _Result) -> Table:
    columns = (
        OPTION[0],
        Column("usd_per_gpu_h", "$/GPU-hour", _usd, "rent of one GPU; null: none is known"),
        Column("provider", "provider", str, "who asks it; given: this command", left=True),
        Column("date", "date", str, "of the price", left=True),
        Column("purchase_usd", "purchase $", _usd, "of one GPU with its share of the server; null: not given"),
        Column("watts", "W", _usd, "of the same under load"),
        Column("source", "source", str, "of the price", left=True),
        Column("doubtful", "doubtful", str, "why it is not to be trusted", left=True),
    )
    rows = tuple(tuple(price[column.key] for column in columns) for price in result["prices"])
    return Table("prices", "Prices", columns, rows)


def _refused(result: _Result) -> Table:
    columns = (*OPTION[:3], Column("reason", "why not", str, "with the numbers", left=True))
    rows = tuple(tuple(row[column.key] for column in columns) for row in result["refused"])
    return Table("refused", "Kinds of replicas that cannot be", columns, rows)


def _arrivals(result: _Result) -> Table:
    arrivals, window = result["trace"]["arrivals"], result["window"]
    columns = (
        Column("start_s", "from second", lambda v: f"{v:,.0f}", "start of the time, seconds from the trace's start"),
        Column("requests_per_s", "requests/s", number, "mean arrivals in it"),
        Column("sized_for", "sized for", _yes, "whether the window that is sized for lies in it, or it in the window"),
    )
    first, bin_s = arrivals["first_s"], arrivals["bin_s"]
    rates: Sequence[float] = arrivals["rate_per_s"]
    rows = []
    for i, rate in enumerate(rates):
        start = first + i * bin_s
        inside = window["first_s"] < start + bin_s and window["last_s"] >= start
        rows.append((start, rate, inside))
    return Table("arrivals", "Traffic over time", columns, tuple(rows))
