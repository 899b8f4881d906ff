"""Tables of `specsim runs`, 100 columns wide on any terminal. Times are shown in milliseconds, stored in seconds."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table

__all__ = ["print_comparison", "print_item", "print_list"]

_WIDTH = 100
_TRACE_WIDTH, _PROFILE_WIDTH = 19, 30


def _console() -> Console:
    # A narrower terminal wraps the lines; rich would crop ids and numbers without a word.
    return Console(file=sys.stdout, width=_WIDTH, markup=False, emoji=False, highlight=False)


def _print(console: Console, table: Table) -> None:
    """Print without the blanks that pad the last column."""
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _table(*columns: tuple[str, str]) -> Table:
    """Table of (heading, `<`, `>` or `~`): left, right, or left and foldable."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for heading, how in columns:
        table.add_column(heading, justify="right" if how == ">" else "left", no_wrap=how != "~", overflow="fold")
    return table


def _plain(text: str) -> str:
    """`text` without what could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _ending(text: str | None, width: int) -> str:
    """The end of a path, where its name is."""
    text = _plain(text or "-")
    return text if len(text) <= width else "..." + text[3 - width :]


def _beginning(text: str | None, width: int) -> str:
    """The beginning of a profile's name, where model and GPU are."""
    text = _plain(text or "-").removeprefix("analytic ")
    return text if len(text) <= width else text[: width - 3] + "..."


def _profile_of(plan: Mapping[str, Any]) -> str:
    """The profile of a plan; what-ifs and sweeps have many."""
    several = {"whatif": "what-if over several", "sweep": "sweep over a grid"}
    return several.get(plan["kind"]) or _beginning(plan["profile_name"], _PROFILE_WIDTH)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _is_time(name: str) -> bool:
    return name.endswith("_s") and not name.endswith("_per_s")


def _heading(name: str) -> str:
    """`ttft_p95_s` as `TTFT p95 ms`; other names with spaces."""
    words = (f"{name[:-2]}_ms" if _is_time(name) else name).replace("_per_s", "/s").split("_")
    return " ".join(word.upper() if word in ("ttft", "tpot", "itl", "e2e", "slo", "kv") else word for word in words)


def _shown(name: str, value: float | None) -> str:
    return _number(value * 1000 if value is not None and _is_time(name) else value)


def _load(row: Mapping[str, Any]) -> str:
    if row["load_per_s"] is not None:
        return f"{_number(row['load_per_s'])}/s"
    return f"x{_number(row['rate_scale'])}" if row["rate_scale"] is not None else "-"


def _when(utc: str) -> str:
    return f"{utc[:10]} {utc[11:16]}"


def print_list(body: Mapping[str, Any], *, show_plans: bool) -> None:
    """The tables of `runs list`, each with a line when there is more."""
    console = _console()
    if show_plans:
        table = _table(
            ("plan", "<"), ("status", "<"), ("runs", ">"), ("trace", "~"), ("profile", "~"), ("stored UTC", "<")
        )
        for plan in body["plans"]:
            table.add_row(
                plan["id"], plan["status"], str(plan["runs"]), _ending(plan["trace_source"], _TRACE_WIDTH),
                _profile_of(plan), _when(plan["updated_utc"]),
            )  # fmt: skip
        _print_part(console, table, "plans", len(body["plans"]), body["total_plans"])
        console.print()
    table = _table(
        ("run", "<"), ("policy", "~"), ("load", ">"), ("seed", ">"), ("TTFT p95 ms", ">"), ("TPOT p95 ms", ">"),
        ("tokens/s", ">"), ("in SLO", ">"), ("stored UTC", "<"),
    )  # fmt: skip
    for run in body["runs"]:
        share, when = run["slo_share"], _when(run["finished_utc"])[5:]
        table.add_row(
            run["id"], _plain(run["policy_label"]), _load(run), str(run["seed"]),
            _shown("ttft_p95_s", run["ttft_p95_s"]), _shown("tpot_p95_s", run["tpot_p95_s"]),
            _number(run["output_tokens_per_s"]), "-" if share is None else f"{share:.1%}", when,
        )  # fmt: skip
    _print_part(console, table, "runs", len(body["runs"]), body["total_runs"])


def _print_part(console: Console, table: Table, what: str, shown: int, total: int) -> None:
    if shown:
        _print(console, table)
    if shown < total:
        click.echo(f"{shown:,} of {total:,} {what}; --limit 0 shows all", err=True)
    elif not total:
        console.print(f"no {what} stored")


def print_item(item: Mapping[str, Any]) -> None:
    """A plan or run: what it was, and its metrics or answer."""
    console = _console()
    facts = _table(("", "<"), ("", "~"))
    facts.show_header = False
    is_run = item["type"] == "run"
    facts.add_row(item["type"], f"{item['id']} ({item['status']})")
    if is_run:
        facts.add_row("policy", _plain(item["policy_label"]))
        facts.add_row("load", _load(item))
        facts.add_row("seed", str(item["seed"]))
        facts.add_row("ran", f"{_when(item['started_utc'])} to {_when(item['finished_utc'])} UTC")
        facts.add_row("plans", ", ".join(item["plan_ids"]) or "-")
    else:
        said = item["result"].get("command") if isinstance(item.get("result"), dict) else None
        facts.add_row("command", _plain(said) if isinstance(said, str) else f"specsim {item['kind']}")
        facts.add_row("stored", f"{_when(item['created_utc'])}, last {_when(item['updated_utc'])} UTC")
        facts.add_row("runs", f"{len(item['run_ids']):,}")
    for name in ("trace", "profile", "scenario"):
        facts.add_row(name, (item[f"{name}_sha256"] or "-")[:16])
    facts.add_row("code", f"{_plain(item['code_version'])} (specsim {_plain(item['specsim_version'])})")
    if is_run:
        facts.add_row("point", _plain(json.dumps(item["point"], sort_keys=True)))
    _print(console, facts)
    if not is_run:
        console.print(f"\nspecsim report {item['id']}  prints the answer")
        return
    table = _table(("metric", "<"), ("value", ">"))
    from db.canonical import flat_metrics

    for name, value in sorted(flat_metrics(item["metrics"]).items()):
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            table.add_row(_plain(_heading(name)), _shown(name, value))
    console.print()
    _print(console, table)


def print_comparison(body: Mapping[str, Any]) -> None:
    """Means of both sides and their paired difference with its interval; rows hold `low`, `high`, `verdict`."""
    console = _console()
    console.print(f"A  {body['a']['id']}\nB  {body['b']['id']}")
    for name, value in body["differs"].items():
        what = ", ".join(value) if name == "point" else " -> ".join("-" if v is None else str(v)[:16] for v in value)
        console.print(f"differs in {name}: {_plain(what)}")
    paired = f"{body['pairs']} pair{'s' * (body['pairs'] != 1)} of runs"
    if body["unpaired_a"] or body["unpaired_b"]:
        paired += f"; {body['unpaired_a']} runs of A and {body['unpaired_b']} of B have no partner"
    console.print(paired)
    group = None
    table = None
    for row in body["rows"]:
        policy = _plain(row["policy"] if row["policy"] == row["policy_b"] else f"{row['policy']} -> {row['policy_b']}")
        if group != (policy, _load(row), row["point"]):
            if table is not None:
                _print(console, table)
            group = (policy, _load(row), row["point"])
            console.print(f"\n{policy} at {_load(row)}")
            table = _table(
                ("metric", "<"), ("A", ">"), ("B", ">"), ("B - A", ">"), ("95 % interval", ">"), ("%", ">"),
                ("verdict", "<"), ("pairs", ">"),
            )  # fmt: skip
        name = row["metric"]
        known = row["low"] is not None
        assert table is not None
        table.add_row(
            _heading(name), _shown(name, row["a"]), _shown(name, row["b"]), _shown(name, row["difference"]),
            f"{_shown(name, row['low'])} .. {_shown(name, row['high'])}" if known else "-",
            f"{100 * row['difference'] / abs(row['a']):+.1f}" if row["a"] else "-",
            f"{'B ' if row['verdict'] != 'tie' else ''}{row['verdict']}" if known else "one pair",
            str(len(row["seeds"])),
        )  # fmt: skip
    if table is not None:
        _print(console, table)
