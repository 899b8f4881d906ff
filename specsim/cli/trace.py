"""`specsim trace inspect | convert | synth`, and the flags by which every command reads a trace.

`trace_options` decorates a command with `--trace` and all read flags; `load_trace_from_options(values)` turns what
click hands over into a `Trace`. Data goes to standard output, talk and progress to standard error.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from specsim.traces import ReadOptions, Trace
    from specsim.traces.stats import TraceStats

__all__ = ["READ_NAMES", "SCHEMA_VERSION", "load_trace_from_options", "read_options", "trace", "trace_options"]

SCHEMA_VERSION = 1
_BIG_FILE_BYTES = 20 << 20
_WIDTH = 100
_Command = TypeVar("_Command", bound=Callable[..., Any])

_READ_OPTIONS: tuple[Any, ...] = (
    click.option("--trace-format", metavar="NAME", help="Format of the log; default: detected from its content."),
    click.option(
        "--column",
        "columns",
        multiple=True,
        metavar="FIELD=COLUMN",
        help="Name a column, e.g. arrival=created_at (also prompt_tokens, output_tokens, hash_ids, session, task,"
        " end, duration, id). Dots walk into nested objects, #3 is the third column. Repeatable.",
    ),
    click.option("--time-unit", metavar="UNIT", help="Unit of a numeric time column: s, ms, us, ns, m, h or d."),
    click.option("--strict", is_flag=True, help="Refuse the first bad row instead of counting it."),
    click.option(
        "--window", metavar="A:B", help="Keep this stretch, counted from the start of the trace, e.g. 9h:10h."
    ),
    click.option("--busiest", metavar="DURATION", help="Keep the window of this length with most arrivals."),
    click.option("--limit", type=int, metavar="N", help="Keep the first N requests (of the window)."),
    click.option("--rate-scale", type=float, metavar="X", help="Let the requests arrive X times as fast."),
    click.option("--no-spread-grid", is_flag=True, help="Leave arrivals on the coarse time grid of the log."),
    click.option(
        "--session-rate",
        type=float,
        metavar="RATE",
        help="Sessions per second, for logs whose times count from the start of each session.",
    ),
    click.option(
        "--arrivals",
        metavar="PROCESS",
        help="Draw arrivals instead of reading them: poisson:RATE, gamma:RATE:CV or even:RATE.",
    ),
    click.option("--bytes-per-token", metavar="P[:O]", help="Estimate tokens from the bytes of an access log."),
    click.option("--chars-per-token", metavar="P[:O]", help="Estimate tokens from prompt and answer texts."),
    click.option("--default-output", type=int, metavar="N", help="Output tokens of rows that do not say."),
    click.option("--hash-block", type=int, metavar="N", help="Prompt tokens that one prefix hash covers."),
    click.option("--max-line", type=int, metavar="MIB", help="Longest line accepted, in MiB; default 16."),
)
READ_NAMES = (
    "trace_format",
    "columns",
    "time_unit",
    "strict",
    "window",
    "busiest",
    "limit",
    "rate_scale",
    "no_spread_grid",
    "session_rate",
    "arrivals",
    "bytes_per_token",
    "chars_per_token",
    "default_output",
    "hash_block",
    "max_line",
)
"""Arguments of a command that `trace_options` adds."""


def trace_options(command: _Command) -> _Command:
    """Add every flag by which a trace is read (all but the path and `--seed`) to a click command."""
    for option in reversed(_READ_OPTIONS):
        command = option(command)
    return command


def read_options(values: dict[str, Any]) -> ReadOptions:
    """`ReadOptions` from the keyword arguments of a command decorated with `trace_options`.

    The names of the flags are taken out of `values`; what is left is the command's own. `seed` is used and left in.

    Raises:
        TraceError: a flag out of range, malformed, or in contradiction to another.
    """
    from specsim.errors import TraceError
    from specsim.traces.options import (
        ReadOptions,
        parse_arrivals,
        parse_columns,
        parse_duration,
        parse_per_token,
        parse_window,
    )

    got = {name: values.pop(name, None) for name in READ_NAMES}
    if got["max_line"] is not None and got["max_line"] < 1:
        raise TraceError(f"--max-line must be at least 1 MiB, got {got['max_line']}")
    per_token = {
        name: None if got[name] is None else parse_per_token(got[name], f"--{name.replace('_', '-')}")
        for name in ("bytes_per_token", "chars_per_token")
    }
    return ReadOptions(
        trace_format=got["trace_format"],
        columns=parse_columns(got["columns"] or ()),
        time_unit=got["time_unit"],
        strict=bool(got["strict"]),
        window=None if got["window"] is None else parse_window(got["window"]),
        busiest_s=None if got["busiest"] is None else parse_duration(got["busiest"], "--busiest"),
        limit=got["limit"],
        rate_scale=got["rate_scale"],
        seed=int(values.get("seed") or 0),
        spread_grid=not got["no_spread_grid"],
        session_rate_per_s=got["session_rate"],
        arrivals=None if got["arrivals"] is None else parse_arrivals(got["arrivals"]),
        default_output_tokens=got["default_output"],
        hash_block_tokens=got["hash_block"],
        max_line_bytes=(got["max_line"] or 16) << 20,
        **per_token,
    )


def load_trace_from_options(path: str, values: dict[str, Any]) -> Trace:
    """Read the trace that a command was asked for, with a progress bar when the file is big and stderr a terminal.

    Args:
        path: file, directory of ServeGen pairs, or `-`.
        values: keyword arguments of the command; the read flags are taken out.

    Raises:
        TraceError: see `specsim.traces.read_trace`.
    """
    from specsim.traces import read_trace

    options = read_options(values)
    try:
        size = os.path.getsize(path)
    except OSError:
        size = 0
    if size < _BIG_FILE_BYTES or not sys.stderr.isatty():
        return read_trace(path, options)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"reading {os.path.basename(path)}", total=size)
        return read_trace(path, options, progress=lambda done: bar.update(task, completed=done))


def _emit(data: dict[str, Any]) -> None:
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **data}, ensure_ascii=False, allow_nan=False))


def _show(item: Trace, stats: TraceStats) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from specsim.report.text import visible
    from specsim.traces.facts import facts

    out = io.StringIO()
    console = Console(file=out, width=_WIDTH, highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts(item, stats):
        table.add_row(name, visible(text))
    console.print(visible(item.meta.source))
    console.print(table)
    for note in item.meta.notes:
        console.print(visible(f"note: {note}"))
    for warning in stats.warnings:
        console.print(visible(f"warning: {warning}"))
    click.echo("\n".join(line.rstrip() for line in out.getvalue().splitlines()))


@click.group()
def trace() -> None:
    """Look at a request log, convert it, or make a synthetic one."""


@trace.command()
@click.argument("path")
@trace_options
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything drawn.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def inspect(path: str, as_json: bool, **values: Any) -> None:
    """Say what a log holds.

    Format, rows used and why not, load, lengths, prefix reuse, warnings. PATH is a file, a directory of ServeGen pairs,
    or - for standard input.

    \b
    Example:
      specsim trace inspect examples/mooncake_conversation_first30min.jsonl.gz
    """
    item = load_trace_from_options(path, values)
    if as_json:
        from specsim.traces.facts import summary

        _emit(summary(item))
        return
    from specsim.traces.stats import describe

    _show(item, describe(item))


def _written(item: Trace, output: str, as_json: bool) -> None:
    """Say what was written: JSON to stdout when asked, else a line to stderr."""
    if as_json:
        from specsim.traces.facts import summary

        _emit({"output": output, **summary(item)})
        return
    where = "standard output" if output == "-" else output
    click.echo(f"{len(item):,} requests over {item.span_s:,.4g} s written to {where}", err=True)


def _writes(output: str, form: str | None, as_json: bool, force: bool) -> str:
    """The format to write, from the flag or the name; what cannot be written is refused before the log is read."""
    from specsim.errors import TraceError
    from specsim.report.files import check_file

    if output == "-" and as_json:
        raise TraceError("--json and -o - both want standard output: write the trace to a file")
    if output != "-":
        check_file("-o", output, force=force)
    return form or ("csv" if output.removesuffix(".gz").endswith(".csv") else "jsonl")


@trace.command()
@click.argument("path")
@trace_options
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything drawn.")
@click.option("-o", "--output", default="-", show_default=True, help="File to write (.gz compresses), - for stdout.")
@click.option("--to", "form", type=click.Choice(["jsonl", "csv"]), help="Default: from the name, else jsonl.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object about what was written.")
def convert(path: str, output: str, form: str | None, force: bool, as_json: bool, **values: Any) -> None:
    """Write any supported log as JSON Lines or CSV.

    JSON Lines have Mooncake's keys.

    \b
    Example:
      specsim trace convert prod_spend_logs.csv --busiest 10m -o peak.jsonl
    """
    from specsim.traces.write import write_trace

    form = _writes(output, form, as_json, force)
    item = load_trace_from_options(path, values)
    write_trace(item, output, form, force=force)
    for warning in item.meta.warnings:
        click.echo(f"warning: {warning}", err=True)
    _written(item, output, as_json)


@trace.command()
@click.option("--arrivals", metavar="PROCESS", help="poisson:RATE, gamma:RATE:CV or even:RATE.  [default: poisson:5]")
@click.option("--requests", type=int, metavar="N", help="Number of requests.")
@click.option("--duration", metavar="DURATION", help="Length instead of a number of requests, e.g. 30m.")
@click.option(
    "--rate-profile", metavar="T=RATE,...", help="Steps of the rate, e.g. 0=2,10m=8; CV of gamma as --arrivals."
)
@click.option("--diurnal", metavar="A[:PERIOD]", help="Sine of the rate with amplitude A (0..1), e.g. 0.6:24h.")
@click.option("--isl", metavar="LENGTH", help="Prompt tokens: N or lognormal:MEAN:P95.")
@click.option("--osl", metavar="LENGTH", help="Output tokens: N or lognormal:MEAN:P95.")
@click.option("--lengths-from", metavar="TRACE", help="Draw pairs of lengths from this trace instead.")
@click.option("--prefix-pool", metavar="COUNT:TOKENS[:SHARE]", help="Shared prefixes, e.g. 4:1024:0.8.")
@click.option(
    "--hash-block",
    type=click.IntRange(1, 100_000_000),
    metavar="N",
    help="Tokens a hash covers, with --prefix-pool.  [default: 512]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything drawn.")
@click.option("-o", "--output", default="-", show_default=True, help="File to write (.gz compresses), - for stdout.")
@click.option("--to", "form", type=click.Choice(["jsonl", "csv"]), help="Default: from the name, else jsonl.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object about what was written.")
def synth(output: str, form: str | None, force: bool, as_json: bool, **values: Any) -> None:
    """Make a synthetic trace.

    \b
    Example:
      specsim trace synth --arrivals gamma:8:2 --duration 20m --isl lognormal:1200:4000 --osl 200 \\
        -o load.jsonl
    """
    from specsim.errors import TraceError
    from specsim.traces import read_trace
    from specsim.traces.recipe import spec_from_text
    from specsim.traces.synth import synthesise
    from specsim.traces.write import write_trace

    form = _writes(output, form, as_json, force)
    lengths_from = values.pop("lengths_from")
    if lengths_from is not None and (clash := next((n for n in ("isl", "osl") if values[n] is not None), None)):
        raise TraceError(f"--lengths-from and --{clash} both say the lengths: give one of them")
    spec = spec_from_text(**values)
    item = synthesise(spec, None if lengths_from is None else read_trace(lengths_from))
    write_trace(item, output, form, force=force)
    _written(item, output, as_json)
