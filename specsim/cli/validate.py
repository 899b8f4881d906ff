"""`specsim validate`: predictions held against what others have measured, and against this machine."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from specsim.cli.validate_acceptance import acceptance
from specsim.cli.validate_bench import bench
from specsim.cli.validate_serve import serve
from specsim.cli.validate_stored import delete_command, list_command, show_command

__all__ = ["laws_of", "validate"]

_SEEDS = 3
_LAW = re.compile(r"^\| \d+ \| (?P<law>.+?) \| (?P<test>.+?) \|$", re.MULTILINE)


@click.group()
def validate() -> None:
    """Hold predictions against what was measured, here and by others."""


for command in (acceptance, serve, bench, list_command, show_command, delete_command):
    validate.add_command(command)


@validate.command(short_help="Predict published speed-ups beside a null model.")
@click.option("--rows", metavar="FILE.csv", help="Measured points; default: those that come with specsim.")
@click.option("-o", "--output", metavar="FILE.md", help="Write a page with theory, laws and rows instead of printing.")
@click.option("--seed", type=int, default=0, show_default=True, help="First of three paired seeds.")
@click.option("--jobs", type=int, default=0, metavar="N", help="Processes; default: one per core.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def published(rows: str | None, output: str | None, seed: int, jobs: int, as_json: bool) -> None:
    """Predict every published point that states enough, and print it beside the measurement and a null model.

    Nothing is fitted to single rows. Where a row states its acceptance it is taken; where rows differ in load alone,
    acceptance is solved at the lowest load and every other load is predicted.

    \b
        specsim validate published
        specsim validate published --rows my_measurements.csv --json
        specsim validate published -o docs/validation.md
    """
    from specsim.errors import ScenarioError
    from specsim.report.files import check_file, whole_file
    from specsim.report.published import published_text

    if not 0 <= seed < 2**62:
        raise ScenarioError(f"--seed must be >= 0, got {seed}")
    if not 0 <= jobs <= 1024:
        raise ScenarioError(f"--jobs must lie in 0..1024, got {jobs}")
    if output is not None and as_json:
        raise ScenarioError("-o writes a page and --json prints JSON; give one of them")
    if output is not None:
        check_file("-o", output, force=True)
    both = output is not None and rows is not None and os.path.exists(output) and os.path.exists(rows)
    if both and os.path.samefile(str(output), str(rows)):
        raise ScenarioError(f"-o {output} is the file of rows itself; give the page another name")
    result = _predicted(rows, seed, jobs)
    if as_json:
        click.echo(json.dumps(result, allow_nan=False))
    elif output is None:
        click.echo(published_text(result, color=sys.stdout.isatty()), nl=False)
    else:
        page = _page(result, Path(output))
        with whole_file("-o", output) as out:
            out.write(page)
        click.echo(f"{output} is written", err=True)


def _predicted(rows: str | None, seed: int, jobs: int) -> dict[str, Any]:
    from scenarios.published.conditions import cases_of
    from scenarios.published.rows import read_rows, shipped_rows
    from specsim.planner.published import predict
    from specsim.planner.published_result import published_result

    found = shipped_rows() if rows is None else read_rows(Path(rows))
    cases, rest = cases_of(found, seeds=_SEEDS, seed=seed)
    if sys.stderr.isatty():
        with click.progressbar(length=len(cases), label="simulating", file=sys.stderr) as bar:
            predictions, refused = predict(cases, processes=jobs, progress=bar.update)
    else:
        predictions, refused = predict(cases, processes=jobs)
    reasons = {item.row.id: (item.row.source, item.reason) for item in rest}
    reasons |= {item.case.id: (item.case.source, item.reason) for item in refused}
    left_out = {item.case.id for item in refused}
    return published_result(
        [case for case in cases if case.id not in left_out],
        predictions,
        [(row.id, *reasons[row.id]) for row in found if row.id in reasons],
        rows_from="those that come with specsim (`scenarios/published/*.csv`)" if rows is None else f"`{rows}`",
        settings={"seeds": _SEEDS, "seed": seed},
    )


def _page(result: dict[str, Any], path: Path) -> str:
    from scenarios.published.misses import known_misses
    from scenarios.published.served import shipped_served
    from scenarios.resolve import STAND_IN, resolve
    from specsim.config import Slo
    from specsim.planner.theory import closed_forms, little, queues
    from specsim.report.validation_page import validation_page

    side = resolve(*STAND_IN, Slo()).on
    theory = [
        ("Closed forms", closed_forms()),
        ("Queues", [*queues(), *little(side.profile, side.limits)]),
    ]
    return validation_page(result, theory, laws_of(path.parent / "laws.md"), known_misses(), shipped_served())


def laws_of(path: Path) -> list[tuple[str, str]]:
    """(law, test) of the tables in the page of laws beside the output, if there is one."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [(found["law"], found["test"]) for found in _LAW.finditer(text)]
