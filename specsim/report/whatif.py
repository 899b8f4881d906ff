"""A what-if as text: the answer, the table of options with their proofs, costs, growth, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specsim.report.plan_facts import objective_text, trace_facts
from specsim.report.text import Page, milliseconds, number, percent

__all__ = ["step_time_facts", "whatif_text"]

_Row = Mapping[str, Any]


def whatif_text(result: Mapping[str, Any], *, full: bool = False, color: bool = False) -> str:
    """The whole answer; `full` shows every policy of every kind of replica instead of off and the best other one."""
    page = Page(color=color)
    page.heading("Answer")
    for sentence in result["verdict"]["text"]:
        page.line(sentence)
    for sentence in [*(result["pools"] or {"text": []})["text"], *result["uncertainty"]["text"]]:
        page.line(sentence)
    for warning in result["warnings"]:
        page.line(f"Warning: {warning}")
    _question(page, result)
    _options(page, result, full=full)
    _pareto(page, result)
    _costs(page, result)
    _beyond(page, result)
    _sure(page, result)
    _refused(page, result)
    _pools(page, result)
    page.heading("Not modelled")
    page.line("; ".join(result["not_modelled"]) + ".")
    if result.get("plan_id"):
        page.heading("Stored")
        page.line(
            f"{result['plan_id']} in {result['database']}; open it again with: specsim report {result['plan_id']}"
        )
    return page.text()


def _question(page: Page, result: Mapping[str, Any]) -> None:
    page.section("Traffic and deployment")
    speculation, acceptance = result["speculation"], result["acceptance"]
    lengths = acceptance["mean_acceptance_length_by_k"]
    page.facts([
        *trace_facts(result),
        ("target", result["target"]),
        ("engine", result["engine"]),
        ("speculation", f"{speculation['method']}, k {', '.join(map(str, speculation['num_spec_tokens']))}"),
        ("acceptance", f"{acceptance['source']}; length " + ", ".join(f"{v:.2f} at k={k}" for k, v in lengths.items())),
        ("objective", objective_text(result["slo"])),
        *step_time_facts(result),
    ])  # fmt: skip
    for note in [*result["trace"]["notes"], *result["notes"]]:
        page.line(f"- {note}")


def step_time_facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where step times are from, a line for each kind of profile, with the replicas that have it."""
    kinds: dict[tuple[str, float], list[str]] = {}
    for row in result["options"]:
        names = kinds.setdefault((row["profile_kind"], row["profile_error"]), [])
        name = f"{row['gpu']} tp {row['tp']} {_dtype(row)}"
        if name not in names:
            names.append(name)
    told = [f"{kind}, a step is good to ±{error:.0%}" for kind, error in kinds]
    if len(told) == 1:
        return [("step times", told[0])]
    lines = [f"{text}: {', '.join(names)}" for text, names in zip(told, kinds.values(), strict=True)]
    return [("step times", lines[0]), *(("", line) for line in lines[1:])]


def _dtype(row: _Row) -> str:
    return row["weight_dtype"] or "own"


def _policy(row: _Row) -> str:
    name = row["policy"] if len(row["policy"]) <= 12 else row["policy_kind"]
    return name if row["offered"] else f"{name}*"


def _options(page: Page, result: Mapping[str, Any], *, full: bool) -> None:
    page.section("Least number of GPUs")
    page.line(
        "Share of requests within the objective with that many replicas and, as the proof, with one less; means over "
        "paired replications. ~ marks what is close: the interval holds what is asked for. * marks what this engine "
        "cannot be told to follow, which is never recommended. Dollars are those of rent. $/M is for a million output "
        "tokens at the mean traffic of the log, of a fleet that is paid all the time."
    )
    rows = result["options"] if full else _shown(result)
    page.table(_OPTION_HEADS, [_option_cells(row) for row in rows], left=4)
    if len(rows) < len(result["options"]):
        page.line(
            f"{len(rows)} of {len(result['options'])} options, off and the best other one of each; --full for all."
        )


_OPTION_HEADS = ["GPU", "TP", "dtype", "policy", "GPUs", "repl.", "within", "one less", "TPOT p95", "TTFT p95", "$/h",
                 "$/M"]  # fmt: skip


def _option_cells(row: _Row) -> list[str]:
    at, below, cost = row["proof"]["at"], row["proof"]["below"], row["cost"]
    metrics = {} if at is None else at["metrics"]
    if row["verdict"] != "holds":
        alone = row["proof"]["alone"]
        reached = "never" if row["verdict"] == "never" else "not found"
        share = alone["slo_share"] if alone is not None else metrics["slo_share"]["mean"]
        cells = [reached, "-", percent(share) + (" alone" if alone is not None else ""), "-",
                 milliseconds(alone["tpot_p95_s"]) if alone else "-",
                 milliseconds(alone["ttft_p95_s"]) if alone else "-", "-", "-"]  # fmt: skip
    else:
        close = "~" if row["close"] else ""
        cells = [
            str(row["gpus"]), str(row["replicas"]), percent(metrics["slo_share"]["mean"]) + close,
            "-" if below is None else percent(below["metrics"]["slo_share"]["mean"]),
            milliseconds(metrics["tpot_p95_s"]["mean"]), milliseconds(metrics["ttft_p95_s"]["mean"]),
            _usd(cost["usd_per_h"]), _usd(cost["usd_per_million_output_tokens"]),
        ]  # fmt: skip
    return [row["gpu"], str(row["tp"]), _dtype(row), _policy(row), *cells]


def _shown(result: Mapping[str, Any]) -> list[_Row]:
    """Off, and the policy that needs fewest GPUs, of each kind of replica."""
    found: list[_Row] = []
    kinds: dict[tuple[Any, ...], list[_Row]] = {}
    for row in result["options"]:
        kinds.setdefault((row["gpu"], row["tp"], row["weight_dtype"]), []).append(row)
    for rows in kinds.values():
        found += [row for row in rows if row["policy_kind"] == "off"]
        others = [row for row in rows if row["policy_kind"] != "off"]
        # the first of equals: min keeps the order of the policies, simplest first
        found += [min(others, key=lambda row: (not row["offered"], row["gpus"] or float("inf")))] if others else []
    return found


def _usd(value: float | None) -> str:
    return "-" if value is None else number(value) if value < 100 else f"{value:,.0f}"


def _name(row: _Row) -> str:
    dtype = f" {row['weight_dtype']}" if row["weight_dtype"] else ""
    return f"{row['gpus']} x {row['gpu']} (tp {row['tp']}{dtype}, {_policy(row)})"


def _pareto(page: Page, result: Mapping[str, Any]) -> None:
    page.section("Cost against time per token")
    if not result["pareto"]:
        page.line("No option holds the objective.")
        return
    page.line("Options to which no other is at once as cheap and faster.")
    rows = [result["options"][i] for i in result["pareto"]]
    page.table(
        ["option", "TPOT p95 ms", "$/h", "$/year", "$/M tokens"],
        [
            [_name(row), milliseconds(row["proof"]["at"]["metrics"]["tpot_p95_s"]["mean"]),
             *(_usd(row["cost"][key]) for key in
               ("usd_per_h", "usd_per_year", "usd_per_million_output_tokens"))]
            for row in rows
        ],
    )  # fmt: skip


def _costs(page: Page, result: Mapping[str, Any]) -> None:
    page.section("Prices")
    for price in result["prices"]:
        if price["usd_per_gpu_h"] is None:
            text = "no price known (--price GPU=USD)"
        else:
            text = f"${price['usd_per_gpu_h']:g} an hour: {price['provider']}, {price['source']}, {price['date']}"
            text += f"; doubtful: {price['doubtful']}" if price["doubtful"] else ""
        if price["purchase_usd"] is not None:
            text += f"; bought for ${price['purchase_usd']:,.0f}, {price['watts']:,.0f} W ({price['watts_source']})"
        page.facts([(price["gpu"], text)])
    owning = result["ownership"]
    if owning is None:
        return
    page.line(
        f"Owned over {owning['years']:g} years at ${owning['usd_per_kwh']:g} per kWh, PUE {owning['pue']:g}, hosting "
        f"${owning['hosting_usd_per_kw_month']:g} per kW and month; full power all the time, nothing discounted."
    )
    rows = [row for row in _shown(result) if row["cost"] and row["cost"]["owned_usd"] is not None]
    page.table(
        ["option", "purchase", "power", "hosting", "together", "$/h", "$/M tokens"],
        [
            [_name(row), *(_usd(row["cost"][f"owned_{key}"]) for key in
             ("purchase_usd", "power_usd", "hosting_usd", "usd", "usd_per_h", "usd_per_million_output_tokens"))]
            for row in rows
        ],
    )  # fmt: skip


def _beyond(page: Page, result: Mapping[str, Any]) -> None:
    rows = [row for row in result["options"] if row["beyond"] is not None]
    if not rows:
        return
    page.section("Headroom and growth")
    page.line(
        "Of the cheapest option of each GPU, and the cheapest without speculation: traffic, over that of the window, "
        "up to which they hold the objective and keep up at all; GPUs with a spare replica (N+1), and for more "
        "traffic, with the policy where it is another one."
    )
    factors = [grown["factor"] for grown in rows[0]["beyond"]["growth"]]
    page.table(
        ["option", "holds to", "keeps up to", "N+1", *(f"{factor:g}x" for factor in factors)],
        [
            [
                _name(row),
                _factor(row["beyond"]["holds_to"], row["beyond"]["fails_at"]),
                _factor(row["beyond"]["keeps_up_to"], row["beyond"]["falls_behind_at"]),
                f"{row['spare']['gpus']} (${_usd(row['spare']['cost']['usd_per_h'])}/h)",
                *(_grown(row, grown) for grown in row["beyond"]["growth"]),
            ]
            for row in rows
        ],
    )


def _factor(to: float, ends: float | None) -> str:
    return f"{to:.2f}x" + ("+" if ends is None else "")


def _grown(row: _Row, grown: Mapping[str, Any]) -> str:
    """GPUs and their rent, and the policy where it is another one than that of the row."""
    if grown["gpus"] is None:
        return str(grown["verdict"])
    other = "" if grown["policy"] == row["policy"] else f", {_policy({**row, 'policy': grown['policy']})}"
    return f"{grown['gpus']} (${_usd(grown['cost']['usd_per_h'])}/h{other})"


def _sure(page: Page, result: Mapping[str, Any]) -> None:
    page.section("How sure")
    page.line(
        f"Between which numbers 90% of {result['uncertainty']['draws']:,} joint draws of the errors of step times and "
        f"acceptance lie; in how many of them any number holds, and the one above is enough."
    )
    table = []
    for row in _shown(result):
        found = row["range"]
        table.append([
            row["gpu"], str(row["tp"]), _dtype(row), _policy(row), str(row["gpus"] or row["verdict"]),
            _span(found["gpus_low"], found["gpus_high"], str), _span(found["tpot_p95_low_s"], found["tpot_p95_high_s"],
            milliseconds), _share(found["holds_probability"]), _share(found["enough_probability"]),
        ])  # fmt: skip
    heads = ["GPU", "TP", "dtype", "policy", "GPUs", "90%", "TPOT p95 90%", "any holds", "enough"]
    page.table(heads, table, left=4)
    if result["uncertainty"]["measure"]:
        page.line("How often the cheapest kind of fleet is another one once something is known, least first:")
        page.table(
            ["to measure", "of", "wrong"],
            [[it["what"], it["gpu"] or "your prompts", _share(it["flip_probability"])]
             for it in result["uncertainty"]["measure"]],
            left=2,
        )  # fmt: skip


def _pools(page: Page, result: Mapping[str, Any]) -> None:
    if result["pools"] is None:
        return
    page.section("Pools")
    page.line("Each pool at its own busiest window, with its own objective: the least number of GPUs that holds.")
    for pool in result["pools"]["each"]:
        window = pool["window"]
        page.line()
        page.line(
            f"{pool['name']}: {', '.join(pool['tasks'])}; {percent(pool['request_share'])} of the requests, at most "
            f"{window['rate_per_s']:.3g} per s; {objective_text(pool['slo'])}"
        )
        page.table(_OPTION_HEADS, [_option_cells(row) for row in _shown(pool)], left=4)
    page.line()
    page.line("Together, the cheapest of each pool of any GPU or of one, beside one fleet for all:")
    rows = [
        [it["gpu"] or "any", *(_chosen(pool, index) for pool, index in
         zip(result["pools"]["each"], it["options"], strict=True)), _count(it["gpus"]), _usd(it["cost"]),
         _count(it["shared_gpus"]), _usd(it["shared_cost"])]
        for it in result["pools"]["combined"]
    ]  # fmt: skip
    names = [pool["name"] for pool in result["pools"]["each"]]
    page.table(["GPU", *names, "GPUs", "cost", "for all", "cost"], rows, left=1 + len(names))


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _chosen(pool: Mapping[str, Any], index: int | None) -> str:
    if index is None:
        return "none"
    row = pool["options"][index]
    return f"{row['gpus']} {row['gpu']}, {_policy(row)}"


def _span(low: Any, high: Any, show: Any) -> str:
    if low is None:
        return "-"
    if high is None:
        return f"{show(low)} or more"
    return str(show(low)) if low == high else f"{show(low)}..{show(high)}"


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _refused(page: Page, result: Mapping[str, Any]) -> None:
    if not result["refused"]:
        return
    page.section("Not possible")
    rows: Sequence[Mapping[str, Any]] = result["refused"]
    page.facts([
        (f"{row['gpu']} tp {row['tp']} {row['weight_dtype'] or ''}".strip(), row["reason"]) for row in rows
    ])  # fmt: skip
