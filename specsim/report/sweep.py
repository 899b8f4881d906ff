"""The text and the CSV file of `specsim sweep`, from its JSON form."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from specsim.report.text import WIDTH, Page, milliseconds, number, percent, plus_minus, spread, times

__all__ = ["sweep_csv", "sweep_text"]

_TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "slo": "SLO", "kv": "KV"}
_SHORT = {
    "tpot_mean_s": "TPOT ms", "e2e_mean_s": "E2E ms", "ttft_mean_s": "TTFT ms", "output_tokens_per_s": "tokens/s",
    "slo_share": "in SLO",
}  # fmt: skip
_VERDICTS = {
    "always": "faster than the base at both ends; turns between them were not looked for.",
    "never": "slower than the base at both ends; turns between them were not looked for.",
    "beyond": "the objective still holds at the upper end, so that the capacity is higher.",
    "below": "the objective is missed at the lower end already, so that the capacity is lower.",
    "not monotone": "the objective is missed at the lower end and holds at the upper one.",
}
"""What a search ended with, where the row has no place that says it."""
_MOST_OF_AXES = 60
"""Columns that values of axes may take before points are numbered instead."""


def sweep_text(result: Mapping[str, Any], *, color: bool = False) -> str:
    """What was swept, tables of at most 100 columns, what could not be, where it is stored."""
    page = Page(color=color)
    page.heading("Sweep")
    page.facts(_facts(result))
    if result["find"] is not None:
        _found(page, result)
    else:
        _grid(page, result)
    page.line()
    for note in (*result["notes"], *(f"warning: {text}" for text in result["warnings"])):
        page.line(note)
    if result["plan_id"] is not None:
        page.line(
            f"Stored as {result['plan_id']} in {result['database']}; specsim runs list --plan {result['plan_id']} has "
            f"its runs, and the same command again reuses them."
        )
    return page.text()


def _grid(page: Page, result: Mapping[str, Any]) -> None:
    page.heading("Points")
    _tables(page, result)
    for status, title in (("refused", "Not possible"), ("failed", "Failed")):
        rows = [row for row in result["points"] if row["status"] == status]
        if rows:
            page.heading(f"{title}: {len(rows)} of {len(result['points'])}")
        for reason in dict.fromkeys(row["reason"] for row in rows):
            same = [_values(row) for row in rows if row["reason"] == reason]
            more = f" and {len(same) - 3} more" if len(same) > 3 else ""
            page.line(f"{'; '.join(same[:3])}{more}: {reason}")


def _axis_names(result: Mapping[str, Any]) -> list[str]:
    """Axes that a table shows: those of several values, or all."""
    several = [axis["name"] for axis in result["axes"] if len(axis["values"]) > 1]
    return several or [axis["name"] for axis in result["axes"]]


def _found(page: Page, result: Mapping[str, Any]) -> None:
    """Where each search ended, and every place that was looked at."""
    find, rows = result["find"], result["found"]
    names, axis = _axis_names(result), find["over"]
    is_capacity = find["kind"] == "capacity"
    page.heading(find["kind"].capitalize())
    columns = [
        *([name, *(row["values"][name] for row in rows)] for name in names),
        [axis, *(number(row["at"], 4) for row in rows)],
        ["between", *(_between(row["low"], row["high"]) for row in rows)],
        ["verdict", *(row["verdict"] for row in rows)],
    ]
    if is_capacity:
        columns.append(["single seeds", *(_interval(row["over_seeds"]) for row in rows)])
    if is_capacity and result["against"] is not None:
        base = " ".join(f"{name}={value}" for name, value in result["against"].items())
        columns.append([f"over {base}", *(f"{_ratio(row['ratio_to_base'])} {row['vs_base'] or ''}" for row in rows)])
    columns.append(["looks", *(str(len(row["looks"])) for row in rows)])
    lines = list(zip(*columns, strict=True))
    page.table(lines[0], lines[1:], left=len(names))
    if is_capacity:
        verdicts = {row["verdict"] for row in rows}
        falls, rises = ("highest", "lowest"), ("lowest", "highest")
        turns = [falls] * bool(verdicts != {"holds from"}) + [rises] * bool("holds from" in verdicts)
        last, next_one = (", or where it holds from there on the ".join(words) for words in zip(*turns, strict=True))
        page.line(
            f"{axis}: the {last} at which the mean share within the objective was seen to hold; between: it and the "
            f"{next_one} at which it was not. Single seeds: geometric mean and 95 % interval of where each alone turns"
            f", - where one of them does not turn between the ends."
        )
    else:
        page.line(
            f"{axis}: where the mean gain turns; between: the nearest places at which the sides differ beyond the "
            f"interval."
        )
    for word in dict.fromkeys(row["verdict"] for row in rows):
        if word in _VERDICTS:
            page.line(f"{word}: {_VERDICTS[word]}")
    for word, reason in dict.fromkeys((row["verdict"], row["reason"]) for row in rows if row["reason"] is not None):
        page.line(f"{word}: {reason}.")
    page.heading("Looked at")
    looks = [
        [
            *(row["values"][name] for name in names),
            number(look["x"], 4),
            spread(look["slo_share"], percent) if is_capacity else _ratio(look["e2e_speedup"]),
            look["verdict"],
        ]
        for row in rows
        for look in row["looks"]
    ]
    page.table([*names, axis, "in SLO" if is_capacity else "speed-up", ""], looks, left=len(names))


def _between(low: float | None, high: float | None) -> str:
    return "-" if low is None and high is None else f"{number(low, 4)}..{number(high, 4)}"


def _interval(e: Mapping[str, float | None]) -> str:
    low, high = e["low"], e["high"]
    return number(e["mean"]) if low is None or high is None else f"{number(e['mean'])} ({number(low)}–{number(high)})"


def _facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    seeds = result["seeds"]
    sources = list(dict.fromkeys(trace["source"] for trace in result["traces"]))
    facts = [("scenario", result["scenario"]), ("requests", _listed(sources))]
    facts += [
        ("grid" if n == 0 else "", f"{axis['name']}: {', '.join(axis['values'])}")
        for n, axis in enumerate(result["axes"])
    ]
    find = result["find"]
    if find is not None:
        ends = f"{find['low']:g}..{find['high']:g}"
        until = f"until a bracket is {find['width']:.1%} wide"
        facts.append(("search", f"{find['kind']} over {find['over']} {ends}, {until}"))
    facts.append(("seeds", f"{len(seeds)}, from {seeds[0]}" if len(seeds) > 1 else f"one, {seeds[0]}"))
    profiles = result["profiles"]
    kinds = " and ".join(sorted({profile["kind"] for profile in profiles}))
    worst = max(profile["relative_error"] for profile in profiles)
    facts.append(("step times", f"{kinds}, good to {plus_minus(worst)} (one sigma)"))
    facts.append(("acceptance", _listed(result["acceptance"])))
    return facts


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]}; and {len(texts) - 1} more"


def _values(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in row["values"].items()) or "the point"


def title(metric: str) -> str:
    """`ttft_p95_s` as `TTFT p95 ms`."""
    words = (f"{metric[:-2]}_ms" if _is_time(metric) else metric).replace("_per_s", "/s").split("_")
    return _SHORT.get(metric) or " ".join(_TITLES.get(word, word) for word in words)


def _is_time(metric: str) -> bool:
    return metric.endswith("_s") and not metric.endswith("_per_s")


def shown(metric: str, value: Mapping[str, Any] | None) -> str:
    """A figure with its interval."""
    if value is None:
        return "-"
    is_share = metric.endswith(("_share", "_use", "_rate", "utilisation")) and "growth" not in metric
    return spread(value, milliseconds if _is_time(metric) else percent if is_share else number)


def _tables(page: Page, result: Mapping[str, Any]) -> None:
    """The points with their figures; as many tables as it takes to stay within the page."""
    rows = [row for row in result["points"] if row["status"] != "refused"]
    names = _axis_names(result)
    heads: list[list[str]] = [[name, *(row["values"][name] for row in rows)] for name in names]
    if sum(max(map(len, head)) + 2 for head in heads) > _MOST_OF_AXES:
        for row in rows:
            page.line(f"#{row['point']}: {_values(row)}")
        heads = [["#", *(f"#{row['point']}" for row in rows)]]
    columns = [
        [title(metric), *(shown(metric, row["metrics"].get(metric)) for row in rows)] for metric in result["shown"]
    ]
    if result["against"] is not None:
        base = " ".join(f"{name}={value}" for name, value in result["against"].items())
        columns.append([f"speed-up over {base}", *(_speedup(row) for row in rows)])
    room = WIDTH - sum(max(map(len, head)) + 2 for head in heads)
    while columns:
        taken: list[list[str]] = []
        left = room
        while columns and (not taken or left >= max(map(len, columns[0])) + 2):
            left -= max(map(len, columns[0])) + 2
            taken.append(columns.pop(0))
        lines = list(zip(*heads, *taken, strict=True))
        page.table(lines[0], lines[1:], left=len(heads))
    if result["against"] is not None:
        page.line("Speed-up: mean time to the last token at the base over that here, paired by seed, 95 % interval.")
    if {"goodput_per_s", "served_requests_per_s"} <= set(result["shown"]):
        page.line(
            "goodput/s counts the requests that arrive in the measured window and meet the objective, however late "
            "they end; served requests/s counts what ends in it, so that a burst that ends late has more of the first."
        )


def _speedup(row: Mapping[str, Any]) -> str:
    if row["against"] is None:
        return "-"
    return f"{_ratio(row['against']['e2e_speedup'])} {row['against']['verdict']}".removesuffix(" unknown")


def _ratio(ratio: Mapping[str, float | None]) -> str:
    low, high = ratio["low"], ratio["high"]
    return times(ratio["mean"]) if low is None or high is None else f"{times(ratio['mean'])} ({low:.2f}–{high:.2f})"


def sweep_csv(result: Mapping[str, Any]) -> str:
    """One row a point and seed: its values, where it is stored, and every metric; times in seconds, empty for null."""
    names = [axis["name"] for axis in result["axes"]]
    metrics = list(
        dict.fromkeys(name for row in result["points"] for run in row.get("runs", ()) for name in run["metrics"] or ())
    )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, "seed", "policy", "load_per_s", "concurrency", "status", "reason", "run_id", *metrics])
    for row in result["points"]:
        values = [row["values"][name] for name in names]
        if row["status"] == "refused":
            writer.writerow([*values, None, None, None, None, "refused", row["reason"], None, *([None] * len(metrics))])
        for run in row.get("runs", ()):
            status = "done" if run["error"] is None else "failed"
            figures = run["metrics"] or {}
            head = [
                *values,
                run["seed"],
                row["policy"],
                run["load_per_s"],
                row["concurrency"],
                status,
                run["error"],
                run["run_id"],
            ]
            writer.writerow([*head, *(figures.get(name) for name in metrics)])
    return out.getvalue()
