"""`specsim validate`: predictions held against what others have measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

__all__ = ["validate"]

_SEEDS = 3


@click.group()
def validate() -> None:
    """Hold predictions against what others have measured."""


@validate.command(short_help="Predict published speed-ups beside a null model.")
@click.option("--rows", metavar="FILE.csv", help="Measured points; default: those that come with specsim.")
@click.option("--seed", type=int, default=0, show_default=True, help="First of three paired seeds.")
@click.option("--jobs", type=int, default=0, metavar="N", help="Processes; default: one per core.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def published(rows: str | None, seed: int, jobs: int, as_json: bool) -> None:
    """Predict every published point that states enough, and print it beside the measurement and a null model.

    Nothing is fitted to single rows. Where a row states its acceptance it is taken; where rows differ in load alone,
    acceptance is solved at the lowest load and every other load is predicted.

    \b
        specsim validate published
        specsim validate published --rows my_measurements.csv --json
    """
    from scenarios.published.conditions import cases_of
    from scenarios.published.rows import read_rows, shipped_rows
    from specsim.errors import ScenarioError
    from specsim.planner.published import predict
    from specsim.planner.published_result import published_result
    from specsim.report.published import published_text

    if not 0 <= seed < 2**62:
        raise ScenarioError(f"--seed must be >= 0, got {seed}")
    if not 0 <= jobs <= 1024:
        raise ScenarioError(f"--jobs must lie in 0..1024, got {jobs}")
    found = shipped_rows() if rows is None else read_rows(Path(rows))
    cases, rest = cases_of(found, seeds=_SEEDS, seed=seed)
    if sys.stderr.isatty():
        with click.progressbar(length=len(cases), label="simulating", file=sys.stderr) as bar:
            predictions = predict(cases, processes=jobs, progress=bar.update)
    else:
        predictions = predict(cases, processes=jobs)
    result = published_result(
        cases,
        predictions,
        [(item.row.id, item.row.source, item.reason) for item in rest],
        rows_from="measured.csv of specsim" if rows is None else rows,
        settings={"seeds": _SEEDS, "seed": seed},
    )
    if as_json:
        click.echo(json.dumps(result, allow_nan=False))
    else:
        click.echo(published_text(result, color=sys.stdout.isatty()), nl=False)
