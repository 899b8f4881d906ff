"""What the pages take from the program: outputs of example commands, help texts, and published against simulated.

Called by the cog blocks of README.md and docs/, so that `cog --check` runs every example again. Outputs are remembered
within a process, since several pages may show the same run.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click

from specsim.report.table import Table

__all__ = ["ROOT", "Pair", "all_commands", "example", "help_page", "published_pairs", "published_summary",
           "published_table",
           "report_tables", "validation_summary"]  # fmt: skip

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 100
GOLDEN = ROOT / "tests" / "scenario_files" / "golden" / "specdecode_bench_llama_8b.json"
SEEDS = 3
SHOWN_ID = "plan-7f3a09bc51d2"
"""Stands for the id of a plan, which is another one with every change of the code."""
_PLAN_ID = re.compile(r"\bplan-[0-9a-f]{12}\b")


@cache
def output(command: str, after: str = "") -> str:
    """What `specsim ...` writes to stdout when run in the root of the project, 100 columns wide.

    `after` is a command that fills a database of its own first, which this one then reads.

    Raises:
        RuntimeError: when it fails, with what it wrote to stderr.
    """
    name, *arguments = shlex.split(command)
    if name != "specsim":
        raise RuntimeError(f"an example must be a specsim command, got {command!r}")
    environment = {key: value for key, value in os.environ.items() if key not in ("SPECSIM_DB", "FORCE_COLOR")}
    environment |= {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    if after:
        environment["SPECSIM_DB"] = _database(after)
    done = subprocess.run(
        [sys.executable, "-m", "specsim", *arguments],
        capture_output=True, text=True, encoding="utf-8", cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{command}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


@cache
def _database(command: str) -> str:
    """A database that holds what the command has stored, until the process ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    where = str(Path(folder.name) / "specsim.db")
    output(f"{command} --db {shlex.quote(where)}")
    return where


def example(command: str, *, after: str = "", until: str = "", only: tuple[str, ...] = ()) -> str:
    """A fenced block with the command and its output.

    Args:
        after: a command that stores a plan which this one reads; it is not shown.
        until: stop before the first line that begins so.
        only: show just the sections whose heading begins so; what is left out is marked `[...]`.

    Raises:
        RuntimeError: when the command fails, or `until` or one of `only` is not in the output.
    """
    text = _PLAN_ID.sub(SHOWN_ID, output(command, after))
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    if until:
        stop = next((i for i, line in enumerate(lines) if line.startswith(until)), None)
        if stop is None:
            raise RuntimeError(f"{command}: no line begins with {until!r}")
        lines = [*lines[:stop], "[...]"]
    if only:
        lines = list(_sections(command, lines, only))
    return "\n".join(["```text", f"$ {command}", *lines, "```"])


def _sections(command: str, lines: list[str], only: tuple[str, ...]) -> Iterator[str]:
    """The sections asked for; a section is a line at the left margin and what follows it."""
    found: set[str] = set()
    shown = skipped = False
    for line in lines:
        if line and not line[0].isspace():
            begins = [name for name in only if line.startswith(name)]
            found.update(begins)
            if begins and skipped:
                yield "[...]"
                yield ""
            shown, skipped = bool(begins), skipped and not begins
        if shown:
            yield line
        else:
            skipped = True
    if skipped:
        yield "[...]"
    if found != set(only):
        raise RuntimeError(f"{command}: no section begins with {', '.join(sorted(set(only) - found))}")


def all_commands() -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    """Every command below `specsim`, groups before their members: (words, command, its context)."""
    from specsim.cli import cli

    def walk(
        words: tuple[str, ...], command: click.Command, parent: click.Context | None
    ) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
        context = click.Context(
            command, info_name=words[-1], parent=parent, terminal_width=WIDTH, max_content_width=WIDTH,
            help_option_names=["-h", "--help"],
        )  # fmt: skip
        yield words, command, context
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                member = command.get_command(context, name)
                assert member is not None, f"{words} lists {name} but does not have it"
                yield from walk((*words, name), member, context)

    return walk(("specsim",), cli, None)


def help_page() -> str:
    """One heading and one fenced `--help` for every command."""
    parts = []
    for words, command, context in all_commands():
        text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
        parts.append(f"## {' '.join(words)}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def report_tables() -> str:
    """Every table of a report, with its columns; metrics of a run are one row, as they have a page of their own."""
    from specsim.report.plan_tables import plan_tables

    flags = "--max-requests 400 --replications 2 --k 3,5 --loads 4,12,20 --no-store"
    return _columns(plan_tables(json.loads(output(f"specsim plan --trace {_TRACE} {flags} --json"))).values())


def whatif_report_tables() -> str:
    """The same of a what-if."""
    from specsim.report.whatif_tables import whatif_tables

    flags = "--peak 10s --gpu h100-sxm --policies off --no-store"
    return _columns(whatif_tables(json.loads(output(f"specsim whatif --trace {_TRACE} {flags} --json"))).values())


_TRACE = "examples/azure_llm_2023_conv_rows1-10000.csv"


def _columns(tables: Iterable[Table]) -> str:
    lines = []
    for table in tables:
        lines += [f"### {table.name}.csv", "", f"{table.title}.", "", "| column | meaning |", "| --- | --- |"]
        shown = [column for column in table.columns if not column.meaning.startswith("metric `")]
        lines += [f"| `{c.key}{'_*' if c.interval else ''}` | {c.meaning} |" for c in shown]
        if len(shown) < len(table.columns):
            lines.append("| `METRIC_*` | each [metric of a run](metrics.md) that a comparison has |")
        lines.append("")
    return "\n".join(lines).rstrip()


@dataclass(frozen=True)
class Pair:
    """One published speed-up beside the simulated one."""

    method: str
    dataset: str
    concurrency: int
    published: float
    simulated: float

    @property
    def error(self) -> float:
        """Simulated over published, less one."""
        return self.simulated / self.published - 1.0


@cache
def published_pairs() -> tuple[Pair, ...]:
    """Every speed-up of the SpecDecode-Bench figure beside what `specsim crossover` simulates, 3 seeds."""
    from scenarios.resolve import resolve
    from specsim.config import Deployment, Slo, Speculation
    from specsim.planner.concurrency import CrossoverSettings, run_point
    from specsim.traces.recipe import LengthSpec

    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    place = golden["conditions"]
    k = int(place["k"])
    found = []
    for row in golden["rows"]:
        speculation = Speculation(row["method"], num_spec_tokens=(k,), acceptance_length=row["acceptance_length"])
        question = resolve(Deployment(target=place["target"], gpu=place["gpu"]), speculation, Slo())
        settings = CrossoverSettings((1,), LengthSpec(row["isl"]), LengthSpec(row["osl"]), k, seeds=SEEDS)
        for concurrency, published in row["speedup"].items():
            simulated = run_point(question, settings, int(concurrency)).speedup.mean
            found.append(Pair(row["method"], row["dataset"], int(concurrency), published, simulated))
    return tuple(found)


def published_table() -> str:
    """The same as a table, one row a method and data set."""
    pairs = published_pairs()
    columns = sorted({pair.concurrency for pair in pairs})
    lines = [
        "| method, k=3 | data set | " + " | ".join(f"{c} in flight" for c in columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for method, dataset in dict.fromkeys((pair.method, pair.dataset) for pair in pairs):
        row = {pair.concurrency: pair for pair in pairs if (pair.method, pair.dataset) == (method, dataset)}
        cells = [f"{row[c].published:.2f} / {row[c].simulated:.2f} ({row[c].error:+.0%})" for c in columns]
        lines.append(f"| {method} | {dataset} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def published_summary() -> str:
    """How far the speed-ups are off, in one paragraph."""
    pairs = published_pairs()
    signs = sum((pair.published > 1) == (pair.simulated > 1) for pair in pairs)
    errors = {method: [pair.error for pair in pairs if pair.method == method] for method in ("eagle", "ngram")}
    eagle, ngram = (statistics.median(map(abs, errors[method])) for method in ("eagle", "ngram"))
    large = [pair.error for pair in pairs if pair.method == "eagle" and pair.concurrency >= 64]
    if max(large) >= 0:
        raise RuntimeError("EAGLE speed-ups at 64 and above are no longer all too low; rewrite this sentence")
    return (
        f"In sign {signs} of {len(pairs)} published speed-ups are met (all lie above 1). The median error is "
        f"{eagle:.1%} for EAGLE\nand {ngram:.1%} for n-gram; EAGLE's speed-ups at 64 and 128 in flight come out "
        f"{-max(large):.0%} to {-min(large):.0%} too low."
    )


def validation_summary() -> str:
    """What the table of `docs/validation.md` says, with acceptance given and with acceptance of the catalogue."""
    rows = {}
    for line in (ROOT / "docs" / "validation.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0] in ("acceptance given", "acceptance from the catalogue"):
            rows[cells[0]] = [cells[1], *(cell.split(" ")[0] for cell in cells[2:6]), *cells[6].split(", ")]
    given, guessed = rows["acceptance given"], rows["acceptance from the catalogue"]
    direction = "too optimistic" if guessed[4].startswith("+") else "too pessimistic"
    return "\n".join(
        (
            f"Over everything published that states enough ([validation](docs/validation.md)): with acceptance given, "
            f"{given[0]} points,",
            f"sign right in {given[1]}, median error {given[2]}, p90 {given[3]} (a null model, which fits in one line: "
            f"{given[6]} and {given[7]}).",
            f"With acceptance from the catalogue, which is what `make demo` has: {guessed[0]} points, {guessed[1]}, "
            f"{guessed[2]}, {guessed[3]}, and in the mean",
            f"{guessed[4][1:]} {direction}. So measure acceptance first: `specsim calibrate acceptance`, or the "
            f"counters of your engine.",
        )
    )


def served_summary() -> str:
    """The latest row of each method in `scenarios/published/served.jsonl`: how many figures are close enough."""
    lines = (ROOT / "scenarios" / "published" / "served.jsonl").read_text(encoding="utf-8").splitlines()
    latest = {row["method"]: row for row in map(json.loads, lines)}
    told = []
    for method, row in latest.items():
        verdict = row["verdict"]
        told.append(
            f"{method.replace('_', ' ')} {verdict['within']} of {verdict['figures']} "
            f"({verdict['within_at_pace']} at the pace of each run)"
        )
    rest = ",\n".join(told[1:])
    return "\n".join((
        "Served for real by the reference engine (SmolLM2-135M-Instruct, one CPU thread, calibrated before),",
        f"throughputs and mean TPOTs within 5 % or the noise: {told[0]},",
        f"{rest}. No GPU yet.",
    ))  # fmt: skip
