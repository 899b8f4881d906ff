"""`specsim report`: a stored plan or run, printed again."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

__all__ = ["report"]


@click.command()
@click.argument("id")
@click.option("--full", is_flag=True, help="Show every load of a plan in detail.")
@click.option("--db", metavar="PATH_OR_URL", help="Results database; default SPECSIM_DB or specsim.db here.")
@click.option("--json", "as_json", is_flag=True, help="Print the stored JSON object instead of text.")
def report(id: str, full: bool, db: str | None, as_json: bool) -> None:
    """Print a stored plan or run again.

    ID is an id, a unique beginning of one, or `latest`.

    \b
        specsim report latest
        specsim report plan-7f3a --json
    """
    from db.store import Store
    from specsim.errors import SpecsimError

    with Store.open(db, mode="read") as store:
        item = store.get(id)
        name = store.name
    if item["type"] == "run":
        if as_json:
            click.echo(json.dumps(item, indent=2))
        else:
            from specsim.cli.runs_view import print_item

            print_item(item)
        return
    result: dict[str, Any] = {**item["result"], "plan_id": item["id"], "database": name}
    if as_json:
        click.echo(json.dumps(result, indent=2))
    elif item["status"] != "complete":
        raise SpecsimError(
            f"{item['id']} was stopped after {result.get('points_done', 0)} of {result.get('points', '?')} points; "
            f"run the same plan again to finish it, what is done is reused"
        )
    else:
        from specsim.report.plan import plan_text

        click.echo(plan_text(result, full=full, color=sys.stdout.isatty()), nl=False)
