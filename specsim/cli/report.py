"""`specsim report`: a stored plan, what-if or run, printed again, or written as a page, tables or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

__all__ = ["complete_plan", "report"]

_SUFFIXES = {"html": (".html", ".htm"), "markdown": (".md",), "json": (".json",), "text": (".txt",)}
"""Form of a report -> how the name of its file ends; CSV goes to a folder."""


@click.command()
@click.argument("id")
@click.option("-o", "--output", metavar="PATH", help="File to write, .html, .md, .json or .txt; a folder for --csv.")
@click.option("--markdown", is_flag=True, help="As Markdown, with the figures of each chart.")
@click.option("--csv", "as_csv", is_flag=True, help="Every table as a CSV file, into the folder of -o.")
@click.option("--json", "as_json", is_flag=True, help="The stored JSON object.")
@click.option("--full", is_flag=True, help="Show every load of a plan in detail (text only).")
@click.option("--force", is_flag=True, help="Replace what exists.")
@click.option("--db", metavar="PATH_OR_URL", help="Results database; default SPECSIM_DB or specsim.db here.")
def report(
    id: str, output: str | None, markdown: bool, as_csv: bool, as_json: bool, full: bool, force: bool, db: str | None
) -> None:
    """Print a stored plan, what-if or run again, or write it as a page.

    ID is an id, a unique beginning of one, or `latest`. An HTML page is one file that needs nothing else.

    \b
        specsim report latest
        specsim report latest -o report.html
        specsim report plan-7f3a --csv -o tables
    """
    from db.store import Store
    from specsim.errors import ScenarioError

    flags = {"markdown": markdown, "csv": as_csv, "json": as_json}
    form = _form(output, [name for name, given in flags.items() if given], full=full, force=force)
    with Store.open(db, mode="read") as store:
        item = store.get(id)
        name = store.name
    if item["type"] == "run":
        _run(item, form, output)
        return
    if item["kind"] == "sweep" and form not in ("text", "json"):
        raise ScenarioError(
            f"{item['id']} is a sweep, of which there is text and --json; for a table run it again with --csv FILE"
        )
    result: dict[str, Any] = {**item["result"], "plan_id": item["id"], "database": name}
    if form != "json":
        complete_plan(item)
    _write(form, item, result, output, full=full)


def complete_plan(item: Mapping[str, Any]) -> None:
    """Refuse a plan that was stopped.

    Raises:
        SpecsimError: how far it came, and how to finish it.
    """
    from specsim.errors import SpecsimError

    if item["status"] != "complete":
        result = item["result"]
        points = f" of {result['points']}" if result.get("points") else ""
        raise SpecsimError(
            f"{item['id']} was stopped after {result.get('points_done', 0)}{points} points; "
            f"run the same plan again to finish it, what is done is reused"
        )


def _form(output: str | None, given: list[str], *, full: bool, force: bool) -> str:
    """What is written: as the flag says, else as the name of the file ends; refused before the database is read.

    Raises:
        ScenarioError: flags that exclude each other, or a place that cannot be written.
    """
    from specsim.errors import ScenarioError
    from specsim.report.files import check_file, check_folder

    if len(given) > 1:
        raise ScenarioError(f"--{given[0]} and --{given[1]} exclude each other; give one of them")
    if full and given:
        raise ScenarioError(f"--full is for text, and --{given[0]} has every load; leave it out")
    if output is None:
        if "csv" in given:
            raise ScenarioError("--csv writes several files: give a folder for them with -o")
        if force:
            raise ScenarioError("--force is for -o; leave it out")
        return given[0] if given else "text"
    if "csv" in given:
        check_folder("-o", output, force=force)
        return "csv"
    suffix = Path(output).suffix.lower()
    form = next((name for name, suffixes in _SUFFIXES.items() if suffix in suffixes), None)
    if given:
        form = given[0]
    elif form is None:
        raise ScenarioError(f"-o {output}: the name must end in .html, .md, .json or .txt, or say --csv for a folder")
    if full and form != "text":
        raise ScenarioError(f"--full is for text, and {form} has every load; leave it out")
    check_file("-o", output, _SUFFIXES[form], force=force)
    return form


def _run(item: Mapping[str, Any], form: str, output: str | None) -> None:
    from specsim.errors import ScenarioError

    if output is not None or form not in ("text", "json"):
        raise ScenarioError(
            f"{item['id']} is a run, of which there is text and --json only; for files use specsim runs export"
        )
    if form == "json":
        click.echo(json.dumps(item, indent=2))
    else:
        from specsim.cli.runs_view import print_item

        print_item(item)


def _write(form: str, item: Mapping[str, Any], result: Mapping[str, Any], output: str | None, *, full: bool) -> None:
    from specsim.report.files import whole_file, write_folder

    if form == "csv":
        from specsim.report.plan_tables import plan_tables
        from specsim.report.table import csv_text
        from specsim.report.whatif_tables import whatif_tables

        assert output is not None
        found = whatif_tables(result) if item["kind"] == "whatif" else plan_tables(result)
        tables = {f"{name}.csv": csv_text(table) for name, table in found.items()}
        write_folder("-o", output, tables)
        click.echo(f"wrote {len(tables)} tables to {output}", err=True)
        return
    text = _text(form, item, result, full=full, color=output is None and sys.stdout.isatty())
    if output is None:
        click.echo(text, nl=False)
        return
    with whole_file("-o", output) as out:
        out.write(text)
    click.echo(f"wrote {output} ({len(text.encode()) / 1e3:,.0f} kB)", err=True)


def _text(form: str, item: Mapping[str, Any], result: Mapping[str, Any], *, full: bool, color: bool) -> str:
    if form == "json":
        return json.dumps(result, indent=2) + "\n"
    if form == "text" and item["kind"] == "whatif":
        from specsim.report.whatif import whatif_text

        return whatif_text(result, full=full, color=color)
    if form == "text" and item["kind"] == "sweep":
        from specsim.report.sweep import sweep_text

        return sweep_text(result, color=color)
    if form == "text":
        from specsim.report.plan import plan_text

        return plan_text(result, full=full, color=color)
    from specsim.report.document import Stored
    from specsim.report.plan_document import plan_document
    from specsim.report.whatif_document import whatif_document

    stored = Stored(item["updated_utc"], item["code_version"], item["specsim_version"])
    document = (whatif_document if item["kind"] == "whatif" else plan_document)(result, stored)
    if form == "markdown":
        from specsim.report.markdown import markdown_text

        return markdown_text(document)
    from specsim.report.html import html_text

    return html_text(document)
