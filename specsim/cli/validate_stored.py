"""`specsim validate list | show | delete`: validations in the results database."""

from __future__ import annotations

import json
import sys

import click

__all__ = ["delete_command", "list_command", "show_command"]

_db_option = click.option("--db", envvar="SPECSIM_DB", metavar="PATH|URL", help="Results database.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_SCHEMA_VERSION = 1


@click.command("list")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Rows; 0: all.")
@_json_option
@_db_option
def list_command(limit: int, as_json: bool, db: str | None) -> None:
    """List stored validations, newest first."""
    from db.store import Store
    from specsim.report.text import Page

    with Store.open(db, mode="read") as store:
        rows = store.list_validations(limit=limit or None)
    if as_json:
        click.echo(json.dumps({"schema_version": _SCHEMA_VERSION, "validations": rows}, allow_nan=False))
        return
    if not rows:
        click.echo("no validation is stored; see `specsim validate serve` and `specsim validate bench`")
        return
    page = Page(color=sys.stdout.isatty())
    cells = [[row["id"], row["kind"], row["created_utc"][:16].replace("T", " "), row["status"], row["subject"]]
             for row in rows]  # fmt: skip
    page.table(("id", "kind", "stored (UTC)", "status", "what"), cells, left=5, wrapped=True)
    click.echo(page.text().rstrip("\n"))


@click.command("show")
@click.argument("id")
@_json_option
@_db_option
def show_command(id: str, as_json: bool, db: str | None) -> None:
    """Show a stored validation as it was printed.

    ID may be the beginning of an id, or `latest`.
    """
    from db.store import Store
    from specsim.report.benched import benched_text
    from specsim.report.served import served_text

    with Store.open(db, mode="read") as store:
        item = store.get_validation(id)
    result = {"validation_id": item["id"], **item["result"]}
    if as_json:
        click.echo(json.dumps(result, allow_nan=False))
    else:
        text = benched_text if item["kind"] == "bench" else served_text
        click.echo(text(result, color=sys.stdout.isatty()).rstrip("\n"))


@click.command("delete")
@click.argument("id")
@_db_option
def delete_command(id: str, db: str | None) -> None:
    """Delete a stored validation."""
    from db.store import Store

    with Store.open(db, mode="write") as store:
        click.echo(f"{store.delete_validation(id)} is deleted", err=True)
