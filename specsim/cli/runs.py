"""`specsim runs`: what the results database holds; list, show, compare, export, delete.

Commands parse, ask `db.store` and print: data to stdout, talk to stderr. Errors rise to the main command.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from specsim.errors import StoreError

if TYPE_CHECKING:
    from db.store import Store

__all__ = ["runs"]

LIST_SCHEMA_VERSION = 1

_db_option = click.option(
    "--db",
    envvar="SPECSIM_DB",
    metavar="PATH|URL",
    help="Results database: a SQLite file or a URL.  [default: SPECSIM_DB, else specsim.db]",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def _open(db: str | None, *, write: bool = False) -> Store:
    from db.store import Store

    return Store.open(db, mode="write" if write else "read")


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=True, allow_nan=False))


@click.group()
def runs() -> None:
    """Look at, compare, export and delete stored plans and runs."""


@runs.command("list")
@click.option("--plan", help="Only runs of this plan (id or its beginning).")
@click.option("--trace", help="Only runs on this trace (piece of its source, or beginning of its hash).")
@click.option("--profile", help="Only runs with this profile (piece of its name, or beginning of its hash).")
@click.option("--policy", help="Only runs of this policy, e.g. 'k=3' or 'off'.")
@click.option("--load", "load_per_s", type=float, help="Only runs at this load in requests/s.")
@click.option("--seed", type=int, help="Only runs with this seed.")
@click.option("--status", type=click.Choice(["complete", "partial"]), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Rows a table; 0: all.")
@_json_option
@_db_option
def list_command(limit: int, as_json: bool, db: str | None, **filters: Any) -> None:
    """List plans and runs, newest first.

    \b
        specsim runs list --policy k=3 --limit 50
    """
    from db.queries import RunFilter
    from specsim.cli.runs_view import print_list

    said = _said_filters(filters)
    wanted = RunFilter(**filters)
    with _open(db) as store:
        # Filters are about runs; with one given, the table of all plans would only be in the way.
        show_plans = wanted == RunFilter()
        plans = store.list_plans(limit=limit or None) if show_plans else []
        found = store.list_runs(wanted, limit=limit or None)
        total = store.count(wanted)
        stored = total["runs"] or store.count()["runs"]
    body = {"plans": plans, "runs": found, "total_plans": total["plans"], "total_runs": total["runs"]}
    if as_json:
        _print_json({"schema_version": LIST_SCHEMA_VERSION, **body})
    elif said and stored and not total["runs"]:
        click.echo(f"no run matches {said}; {stored:,} stored, see `specsim runs list`")
    else:
        print_list(body, show_plans=show_plans)


def _said_filters(filters: Mapping[str, Any]) -> str:
    """The filters as they were given, for messages."""
    given = {("--load" if name == "load_per_s" else f"--{name}"): value for name, value in filters.items()
             if value is not None}  # fmt: skip
    return " ".join(f"{flag} {value}" for flag, value in given.items())


@runs.command("show")
@click.argument("id")
@_json_option
@_db_option
def show_command(id: str, as_json: bool, db: str | None) -> None:
    """Show a plan or run.

    ID may be the beginning of an id; `latest` is the newest plan.

    \b
        specsim runs show plan-7f3a
    """
    from specsim.cli.runs_view import print_item

    with _open(db) as store:
        item = store.get(id)
    if as_json:
        _print_json({"schema_version": LIST_SCHEMA_VERSION, item["type"]: item})
    else:
        print_item(item)


@runs.command("compare")
@click.argument("a")
@click.argument("b")
@_json_option
@_db_option
def compare_command(a: str, b: str, as_json: bool, db: str | None) -> None:
    """Compare two plans or two runs.

    Shows the differences B - A of the main metrics. Runs of two plans are paired by policy, load and seed, so that both
    sides saw the same requests and luck; plans share loads when both were given the same --loads. The interval (95 %)
    is that of the paired difference; one that holds zero is a tie.

    \b
        specsim runs compare plan-7f3a plan-09bc
    """
    from specsim.cli.runs_view import print_comparison

    with _open(db) as store:
        body = store.compare(a, b)
    body["rows"] = [_with_interval(row) for row in body["rows"]]
    if as_json:
        _print_json(body)
    else:
        print_comparison(body)


def _with_interval(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the comparison with the 95 % interval of its paired difference; null from a single pair."""
    from specsim.stats import estimate

    found = estimate(row["differences"])
    if found.n < 2:
        return {**row, "low": None, "high": None, "verdict": "unknown"}
    return {**row, "low": found.low, "high": found.high, "verdict": found.compared_to(0.0)}


@runs.command("export")
@click.argument("ids", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Everything in the database.")
@click.option("--format", "form", type=click.Choice(["json", "jsonl", "csv"]),
              help="Format of the output.  [default: from the suffix of -o, else json]")  # fmt: skip
@click.option("--requests", is_flag=True, help="With the request rows of runs that have them.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default stdout.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@_db_option
def export_command(
    ids: tuple[str, ...],
    everything: bool,
    form: str | None,
    requests: bool,
    output: Path | None,
    force: bool,
    db: str | None,
) -> None:
    """Export plans and runs as JSON or CSV.

    A plan is exported with its runs. Formats are JSON, JSON lines and CSV.

    \b
        specsim runs export latest -o plan.json
        specsim runs export --all --format csv
    """
    from db.export import write_export

    if bool(ids) == everything:
        raise StoreError("runs export needs ids or --all" if not ids else "runs export takes ids or --all, not both")
    if form is None:
        suffix = output.suffix.lower().lstrip(".") if output is not None else "json"
        form = "jsonl" if suffix == "ndjson" else suffix
        if form not in ("json", "jsonl", "csv"):
            raise StoreError(f"-o {output}: the suffix says no format; add --format json, jsonl or csv")
    with _open(db) as store, _destination(output, force=force) as out:
        written = write_export(store.iter_full(ids or None, requests=requests), out, format=form)  # type: ignore[arg-type]
        if form == "csv" and not written["run"]:
            raise StoreError("no runs among these ids, and CSV holds runs only; use --format json for plans")
        if form == "csv" and requests and not written["request"]:
            raise StoreError("none of these runs has request rows; leave out --requests")
    click.echo("exported " + ", ".join(f"{n} {name}{'s' * (n != 1)}" for name, n in written.items() if n), err=True)


@contextlib.contextmanager
def _destination(output: Path | None, *, force: bool) -> Iterator[TextIO]:
    """Stdout, or a file that appears only when all of it was written; an old one is replaced only with `force`."""
    if output is None:
        # Held back until complete, so that a failure half-way prints an error and not half an export.
        buffer = io.StringIO(newline="")
        yield buffer
        click.echo(buffer.getvalue(), nl=False)
        return
    try:
        if output.exists():
            if not output.is_file():  # a device or a pipe
                with output.open("w", encoding="utf-8", newline="") as stream:
                    yield stream
                return
            with output.open("rb") as old:
                if old.read(16) == b"SQLite format 3\x00":
                    raise StoreError(f"-o {output} is a database; it is left as it is, choose another file")
            if not force:
                raise StoreError(f"-o {output}: the file exists; give another name, or --force to replace it")
        part = output.with_name(f".{output.name}.{os.getpid()}.part")
        try:
            with part.open("w", encoding="utf-8", newline="") as stream:
                yield stream
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"-o {output}: {error.strerror or error}; choose another file") from None


@runs.command("delete")
@click.argument("ids", nargs=-1, required=True)
@click.option("--keep-runs", is_flag=True, help="Keep the runs of a deleted plan, so that a new plan can reuse them.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_json_option
@_db_option
def delete_command(ids: tuple[str, ...], keep_runs: bool, yes: bool, as_json: bool, db: str | None) -> None:
    """Delete plans and runs.

    A plan takes along the runs that no other plan uses.

    \b
        specsim runs delete plan-7f3a --yes
    """
    with _open(db, write=True) as store:
        ids = tuple(store.resolve(wanted) for wanted in ids)  # fixed now: `latest` may change while we ask
        if not yes:
            doomed = store.would_delete(ids, keep_runs=keep_runs)
            click.confirm(f"Delete {_counted(doomed)} from {store.name}?", abort=True, err=True)
        gone = store.delete(ids, keep_runs=keep_runs)
        name = store.name
    if as_json:
        _print_json({"schema_version": LIST_SCHEMA_VERSION, "deleted": gone})
    else:
        click.echo(f"deleted {_counted(gone)} from {name}", err=True)


def _counted(ids: Mapping[str, list[str]]) -> str:
    """`plan plan-7f3a..., 12 runs`: single ones by id, many by number."""
    words = []
    for kind, found in ids.items():
        if len(found) == 1:
            words.append(found[0])
        elif found:
            words.append(f"{len(found)} {kind}")
    return " and ".join(words) or "nothing"
