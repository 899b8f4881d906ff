"""A plan as text: trace, deployment and profile, comparison over load, the answer, and what it rests on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specsim.report.config import followed, to_know
from specsim.report.plan_facts import (
    PAYS,
    batch_text,
    change_text,
    confidence,
    deployment_facts,
    from_to,
    full_fleet,
    profile_facts,
    rank,
    schedule_text,
    trace_facts,
    turn_text,
)
from specsim.report.policy_names import headings, legend
from specsim.report.text import Page, milliseconds, near, number, percent, spread, times

__all__ = ["plan_text"]

_DETAIL = (
    ("TTFT p50 ms", "ttft_p50_s", milliseconds),
    ("TTFT p95 ms", "ttft_p95_s", milliseconds),
    ("TTFT p99 ms", "ttft_p99_s", milliseconds),
    ("TPOT p50 ms", "tpot_p50_s", milliseconds),
    ("TPOT p95 ms", "tpot_p95_s", milliseconds),
    ("TPOT p99 ms", "tpot_p99_s", milliseconds),
    ("ITL per chunk p50 ms", "itl_chunk_p50_s", milliseconds),
    ("ITL per chunk p95 ms", "itl_chunk_p95_s", milliseconds),
    ("ITL per chunk p99 ms", "itl_chunk_p99_s", milliseconds),
    ("ITL per token p95 ms", "itl_token_p95_s", milliseconds),
    ("ITL per token p99 ms", "itl_token_p99_s", milliseconds),
    ("output tokens/s", "output_tokens_per_s", number),
    ("running batch", "running_batch", number),
    ("KV use", "kv_use", percent),
    ("preemptions", "preemptions", number),
    ("within SLO", "slo_share", percent),
    ("acceptance length", "mean_acceptance_length", number),
    ("work on rejected drafts", "wasted_draft_share", percent),
)


_POLICIES_WIDE = 6
"""Policies beside one another in a table of 100 columns."""
_CONTEXTS_WIDE = 4
"""Values of k, likewise."""


def plan_text(result: Mapping[str, Any], *, full: bool = False, color: bool = False) -> str:
    """The seven points of a plan; `full` shows every load in detail instead of the trace's own only."""
    page = Page(color=color)
    _answer(page, result)
    _trace(page, result)
    _deployment(page, result)
    _profile(page, result)
    _comparison(page, result, full)
    _crossovers(page, result)
    _schedule(page, result)
    _capacity(page, result)
    _sensitivity(page, result)
    _config(page, result)
    page.heading("What would settle it")
    page.line(result["measure_next"]["text"])
    page.heading("Not modelled")
    page.line("; ".join(result["not_modelled"]) + ".")
    if result.get("plan_id"):
        page.heading("Stored")
        page.line(
            f"{result['plan_id']} in {result['database']}; open it again with: specsim report {result['plan_id']}"
        )
    return page.text()


def _answer(page: Page, result: Mapping[str, Any]) -> None:
    answer = result["recommendation"]
    page.heading("Answer")
    for sentence in answer["text"]:
        page.line(sentence)
    page.line(confidence(result))
    for warning in result["warnings"]:
        page.line(f"Warning: {warning}")


def _trace(page: Page, result: Mapping[str, Any]) -> None:
    page.heading("1. Trace")
    page.facts(trace_facts(result))
    for note in [*result["trace"]["notes"], *result["notes"]]:
        page.line(f"- {note}")


def _deployment(page: Page, result: Mapping[str, Any]) -> None:
    page.heading("2. Deployment and profile")
    page.facts(deployment_facts(result))


def _profile(page: Page, result: Mapping[str, Any]) -> None:
    page.facts(profile_facts(result))
    for note in result["profile"]["notes"]:
        page.line(f"- {note}")


def _comparison(page: Page, result: Mapping[str, Any], full: bool) -> None:
    loads = result["loads"]
    rows = {(r["policy"], r["load_per_s"]): r for r in result["comparison"]}
    asked = result["deployment"]["slo"]["share"]
    speculating = sorted((p for p in loads["policies"] if p != "off"), key=rank)
    page.heading("3. Comparison over load")
    page.line(
        f"Batch, TPOT and share within the objective are those of off; then the speedup of the mean time to the last "
        f"token against off, {loads['replications']} paired replications. = is a tie (the 95% interval holds 1), ! a "
        f"load that the fleet cannot keep up with."
    )
    names = headings(loads["policies"])
    if said := legend(names):
        page.line(said)
    table = []
    for load in loads["simulated_per_s"]:
        off = rows["off", load]
        cells = [f"{load:.3g}" + ("  (own)" if load == loads["own_per_s"] else "")]
        cells += [
            number(off["metrics"]["running_batch"]["mean"]),
            milliseconds(off["metrics"]["tpot_mean_s"]["mean"]),
            near(off["metrics"]["slo_share"]["mean"], asked) + ("!" if off["saturated"] else " "),
        ]
        for policy in speculating:
            row = rows[policy, load]
            mark = "=" if row["verdict"] == "tie" else " "
            cells.append(times(row["e2e_speedup"]["mean"]) + mark + ("!" if row["saturated"] else " "))
        table.append(cells)
    for start in range(0, len(speculating), _POLICIES_WIDE):
        part = slice(start, start + _POLICIES_WIDE)
        heads = ["requests/s", "batch", "TPOT ms", "in SLO", *(names[p] for p in speculating[part])]
        page.table(heads, [[*row[:4], *row[4:][part]] for row in table])
    for load in loads["simulated_per_s"] if full else [loads["own_per_s"]]:
        page.line()
        page.line(f"At {load:.3g} requests/s" + (", the own load" if load == loads["own_per_s"] else "") + ":")
        columns = [rows[p, load] for p in ("off", *speculating)]
        detail = [[name, *(spread(c["metrics"][key], show) for c in columns)] for name, key, show in _DETAIL]
        verdicts = ["-" if c["policy"] == "off" else f"{times(c['tpot_speedup']['mean'])}" for c in columns]
        detail.append(["TPOT speedup", *verdicts])
        half = 4
        for start in range(0, len(columns), half):
            part = slice(1 + start, 1 + start + half)
            heads = [names[c["policy"]] for c in columns[start : start + half]]
            page.table(["", *heads], [[row[0], *row[part]] for row in detail])


def _crossovers(page: Page, result: Mapping[str, Any]) -> None:
    crossings = result["crossovers"]["by_batch"]
    ks = sorted({c["k"] for c in crossings})
    contexts = sorted({c["context_tokens"] for c in crossings})
    by = {(c["context_tokens"], c["k"]): c for c in crossings}
    page.heading("4. Where speculation stops paying")
    page.line(
        "By running batch and context: the batch from which on it no longer pays, and in brackets the same if cost "
        "model and acceptance were worse..better by one sigma. 'fit' is how many requests fit; 'all' pays up to there, "
        "'none' not even alone."
    )
    own = result["schedule_context_tokens"]
    for start in range(0, len(ks), _CONTEXTS_WIDE):
        some = ks[start : start + _CONTEXTS_WIDE]
        table = [
            [
                f"{c:,}" + ("  (own)" if c == own else ""),
                str(by[c, ks[0]]["limit"]),
                *(turn_text(by[c, k]) for k in some),
            ]
            for c in contexts
        ]
        page.table(["context tokens", "fit", *(f"k={k}" for k in some)], table)
    page.line()
    page.line("By load (mean time to the last token):")
    rows, names = [], headings(result["loads"]["policies"])
    for c in sorted(result["crossovers"]["by_load"], key=lambda c: rank(c["policy"])):
        at = "-" if c["load_per_s"] is None else f"{c['load_per_s']:.3g}"
        between = "-" if c["low_per_s"] is None else f"{c['low_per_s']:.3g}..{c['high_per_s']:.3g}"
        rows.append([_row_name(c["policy"], names), PAYS[c["verdict"]], at, between, from_to(c["faster_per_s"]),
                     from_to(c["slower_per_s"])])  # fmt: skip
    page.table(["policy", "it pays", "turns at req/s", "between", "faster at", "slower at"], rows, left=2)
    page.line()
    best = result["measure_next"]["k"]
    rows_for_k = [r for r in result["break_even"] if r["k"] == best]
    if rows_for_k:
        page.line(
            f"Break-even acceptance length for k={best} (assumed {rows_for_k[0]['assumed_acceptance_length']:.2f}):"
        )
        batches = sorted({r["batch"] for r in rows_for_k})
        cell = {(r["context_tokens"], r["batch"]): f"{r['break_even_acceptance_length']:.2f}" for r in rows_for_k}
        table = [[f"{c:,}", *(cell.get((c, b), "-") for b in batches)] for c in contexts]
        page.table(["context tokens", *(f"batch {b}" for b in batches)], table)


def _row_name(policy: str, names: Mapping[str, str]) -> str:
    """A label where it fits into the first column of a table, else its heading of section 3."""
    return policy if len(policy) <= 22 else names[policy]


def _schedule(page: Page, result: Mapping[str, Any]) -> None:
    page.line()
    rows = ", ".join(f"k={k} for {first}-{last}" for first, last, k in result["schedule"])
    page.line(f"Best k by batch at {result['schedule_context_tokens']:,} tokens of context: {rows}.")


def _capacity(page: Page, result: Mapping[str, Any]) -> None:
    page.heading("5. Capacity within the objective")
    rows, names = [], headings(result["loads"]["policies"])
    for c in sorted(result["capacity"], key=lambda c: rank(c["policy"])):
        found = "-" if c["load_per_s"] is None else f"{c['load_per_s']:.3g}"
        ratio = "-" if c["ratio_to_off"] is None else spread(c["ratio_to_off"], times)
        beside = {"tie": " =", None: " ?"}.get(c["vs_off"], "") if ratio != "-" else ""
        bracket = [number(c["low_per_s"]), number(c["high_per_s"])]
        search = c["verdict"].removesuffix(" the loads simulated")
        rows.append([_row_name(c["policy"], names), found, *bracket, _interval(c["interval"]), ratio + beside, search])
    page.table(["policy", "requests/s", "meets at", "fails at", "95 %", "to off", "search"], rows)
    page.line("requests/s: up to where the mean share of requests meets the objective, between the loads simulated. "
              "95 %: interval of the mean of what each replication alone gives, which need not hold that load; - where "
              "one of them does not fail, or fails at once, in the loads simulated. To off: ratio over the "
              "replications in which both sides fail there, = where it is a tie, ? where it is one only, - none. "
              "Search: bracketed, or beyond or below the loads simulated.")  # fmt: skip
    page.line(full_fleet(result))
    if result["search"]:
        page.line(
            f"{len(result['search'])} points between the loads of section 3 were simulated to narrow these brackets "
            f"and the turns by load, for {', '.join(dict.fromkeys(row['policy'] for row in result['search']))}."
        )


def _interval(e: Mapping[str, float | None]) -> str:
    return "-" if e["low"] is None or e["high"] is None else f"{e['low']:.3g}..{e['high']:.3g}"


def _sensitivity(page: Page, result: Mapping[str, Any]) -> None:
    page.heading("6. If acceptance were different")
    rows = []
    for row in result["sensitivity"]:
        batch = row["crossover_batch"]
        rows.append(
            [
                change_text(row["acceptance_change"]),
                f"{row['acceptance_length']:.2f}",
                f"all {row['batch_limit']:,}" if batch is None else batch_text(batch),
                spread(row["e2e_speedup_at_own_load"], times),
                schedule_text(row["schedule"]),
            ]
        )
    policy = result["sensitivity"][0]["policy"]
    page.table([f"{policy}", "length", "turns at batch", "speedup at own load", "best k by batch"], rows, wrapped=True)


def _config(page: Page, result: Mapping[str, Any]) -> None:
    config = result["config"]
    engine = f"{config['engine']} {config['engine_version']}".strip()
    page.heading(f"7. Flags for {engine} ({followed(config)})")
    if config.get("prefill_command"):
        page.line("Each prefill server:")
        page.verbatim(config["prefill_command"])
        page.line("Each decode server:")
    if config["command"]:
        page.verbatim(config["command"])
    _files(page, config)
    for other in config["alternatives"]:
        page.line(f"As good at this load, and made for others: {other['policy']}, with")
        if config["engine"] == "vllm":
            page.verbatim(f"--speculative-config '{json.dumps(other['speculative_config'], separators=(',', ':'))}'")
        else:
            page.verbatim(other["command"])
            _files(page, other)
    for said in to_know(config):
        page.line(f"- {said}")


def _files(page: Page, config: Mapping[str, Any]) -> None:
    for name, text in config["files"].items():
        page.line(f"{name}:")
        for line in text.splitlines():
            page.verbatim(line)
