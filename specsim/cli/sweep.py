"""`specsim sweep`: a scenario at every point of a grid, with paired seeds; stored point by point and gone on with."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.answer import refuse_db_without_store, stoppable
from specsim.cli.doubts import say_doubts
from specsim.cli.executor_options import WHERE, executor_from, executor_options
from specsim.cli.said import command_line
from specsim.cli.scenario_options import deployment_options, slo_options, speculation_options
from specsim.cli.trace import trace_options

if TYPE_CHECKING:
    from specsim.cli.sweep_axes import Axis, Over
    from specsim.cli.sweep_input import Sweep
    from specsim.executors import Executor
    from specsim.planner.sweep_find import Find

__all__ = ["sweep"]

_NOT_THE_QUESTION = ("db", "no_store", "as_json", "csv_file", "force", *WHERE)
_OWN = (*_NOT_THE_QUESTION, "scenario", "grid", "seeds", "seed", "against", "metrics", "find", "over", "width")
"""Arguments that are no axis."""
SHOWN = ("ttft_p95_s", "tpot_mean_s", "e2e_mean_s", "output_tokens_per_s", "slo_share")
"""Figures that a table has when none is asked for."""
_WIDTH = 0.03
"""Of a bracket over its upper end at which a search ends."""


@click.command()
@click.argument("scenario")
@click.option("--grid", multiple=True, metavar="AXIS=VALUES",
              help="Values to try: a list, k=0,1,3, or a range and a number of values, load=0.5..3/6. Repeatable.",
)  # fmt: skip
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Paired seeds of a point.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="First of them.")
@click.option("--against", metavar="AXIS=VALUE[,...]", help="Compare every point with that one, e.g. k=0, in pairs.")
@click.option(
    "--find",
    type=click.Choice(["capacity", "crossover"]),
    help="Search along --over instead: up to where the objective holds, or where --against turns.",
)
@click.option("--over", metavar="AXIS=LOW..HIGH", help="Axis and ends of that search, e.g. load=0.5..4.")
@click.option("--width", type=float, metavar="SHARE", help="Of a bracket at which a search ends; default 0.03.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Figure of the table; may be repeated.")
@click.option("--policy", metavar="POLICY", help="Instead of the scenario's, e.g. off, static:3, ema:5.")
@click.option("--concurrency", type=int, metavar="N", help="Keep N requests in flight instead of arrival times.")
@click.option("--warmup-share", type=float, metavar="SHARE", help="Requests at the start that do not count.")
@click.option("--trace", metavar="PATH", help="Use this request log instead of the scenario's workload.")
@trace_options
@deployment_options
@speculation_options
@slo_options
@executor_options
@click.option("--csv", "csv_file", metavar="FILE", help="Write one row a point and seed, with every metric.")
@click.option("--force", is_flag=True, help="Replace the file of --csv.")
@click.option("--db", metavar="PATH_OR_URL", help="Results database; default SPECSIM_DB or specsim.db here.")
@click.option("--no-store", is_flag=True, help="Neither read nor write the results database.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def sweep(
    scenario: str,
    grid: tuple[str, ...],
    seeds: int,
    seed: int,
    against: str | None,
    find: str | None,
    over: str | None,
    width: float | None,
    metrics: tuple[str, ...],
    csv_file: str | None,
    force: bool,
    db: str | None,
    no_store: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Simulate a scenario at every point of a grid, with paired seeds.

    SCENARIO is a TOML file or the name of a ready one. An axis is k (0 is speculation off), load (times the workload's
    own rate), rate (requests/s), any flag below by its name, or any key of a scenario file. Finished points are kept:
    the same command goes on where it was stopped.

    \b
    Examples:
      specsim sweep llama-70b-h100x4-eagle3 --grid k=0,1,3 --grid load=0.5..2/4 --against k=0
      specsim sweep chat.toml --grid gpu=h100,h200 --grid concurrency=1..64/7:log --csv out.csv
    """
    from scenarios.loader import load_scenario
    from specsim.cli.profile_input import StoredProfiles
    from specsim.cli.sweep_input import read_find, read_sweep
    from specsim.report.files import check_file

    refuse_db_without_store(db, no_store)
    shown = _shown(metrics)
    _check_find(find, over, width, csv_file, metrics)
    if csv_file is not None:
        check_file("--csv", csv_file, (".csv",), force=force)
    elif force:
        from specsim.errors import ScenarioError

        raise ScenarioError("--force is for --csv; leave it out")
    context = click.get_current_context()
    said = command_line(context, without=_NOT_THE_QUESTION)
    with stoppable():
        where = values.pop("executor"), values.pop("address"), values.pop("jobs") or 0
        executor = executor_from(*where)
        axes, along = _axes(context, grid, over)
        base = load_scenario(scenario)
        paired: dict[str, Any] = {
            "seeds": tuple(range(seed, seed + seeds)),
            "against": _against(against, axes),
            "kept": StoredProfiles(db, read=not no_store),
        }
        said_of = {"scenario": scenario, "shown": shown}
        if find is not None and along is not None:
            width = _WIDTH if width is None else width
            asked, search = read_find(base, values, axes, along, kind=find, width=width, **paired)
            say_doubts(asked.drafting)
            result = _find(asked, search, said_of, db, said, executor, store_it=not no_store)
        else:
            asked = read_sweep(base, values, axes, **paired)
            say_doubts(asked.drafting)
            result = _simulate(asked, said_of, db, said, executor, store_it=not no_store)
    if csv_file is not None:
        from specsim.report.files import whole_file
        from specsim.report.sweep import sweep_csv

        with whole_file("--csv", csv_file) as out:
            out.write(sweep_csv(result))
        click.echo(f"wrote {csv_file}", err=True)
    if as_json:
        click.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        from specsim.report.sweep import sweep_text

        click.echo(sweep_text(result, color=sys.stdout.isatty()), nl=False)
    if result["failed"]:
        raise SystemExit(1)


def _shown(names: tuple[str, ...]) -> list[str]:
    from dataclasses import fields

    from specsim.errors import ScenarioError, nearest
    from specsim.metrics import RunMetrics

    known = [f.name for f in fields(RunMetrics)]
    for name in names:
        if name not in known:
            raise ScenarioError(
                f"--metric {name}: no such metric{nearest(name, known)}; docs/reference/metrics.md has all"
            )
        if names.count(name) > 1:
            raise ScenarioError(f"--metric {name} is given twice; give it once")
    return list(names or SHOWN)


def _check_find(
    find: str | None, over: str | None, width: float | None, csv_file: str | None, metrics: tuple[str, ...]
) -> None:
    """Flags of a search without a search, and the reverse.

    Raises:
        ScenarioError: such a flag, or a width out of range.
    """
    from specsim.checks import number
    from specsim.errors import ScenarioError

    if find is None:
        for flag, value in (("--over", over), ("--width", width)):
            if value is not None:
                raise ScenarioError(f"{flag} is of a search; add --find capacity or --find crossover")
        return
    if over is None:
        raise ScenarioError(f"--find {find} needs --over, the axis and its ends, e.g. --over load=0.5..4")
    if csv_file is not None or metrics:
        flag = "--csv" if csv_file is not None else "--metric"
        raise ScenarioError(f"{flag} is of a grid, and --find {find} is a search; leave one of the two out")
    if width is not None:
        number("--width", width, 1e-4, 0.5)


def _axes(context: click.Context, grid: tuple[str, ...], over: str | None) -> tuple[list[Axis], Over | None]:
    """The axes and that of a search, held against each other and against the flags that were typed.

    Raises:
        ScenarioError: none at all, an unknown one, or two ways of saying the same.
    """
    from click.core import ParameterSource

    from specsim.cli.sweep_axes import flag_names, parse_axis, parse_over, refuse_clashes
    from specsim.errors import ScenarioError

    if not grid and over is None:
        raise ScenarioError("sweep needs at least one axis, e.g. --grid k=0,1,3; specsim simulate runs a single point")
    options = [p for p in context.command.params if isinstance(p, click.Option) and p.name not in _OWN]
    axes = [parse_axis(text, flag_names(options)) for text in grid]
    along = None if over is None else parse_over(over, flag_names(options))
    typed = {
        str(option.name): option.opts[0]
        for option in options
        if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
    }
    if "num_spec_tokens" in typed:
        typed["k"] = typed.pop("num_spec_tokens")
    refuse_clashes(axes if along is None else [*axes, along.axis], typed)
    return axes, along


def _against(text: str | None, axes: list[Axis]) -> dict[str, str]:
    """Axis -> value of the points that others are compared with.

    Raises:
        ScenarioError: no such axis, or no such value on it.
    """
    from specsim.errors import ScenarioError

    found: dict[str, str] = {}
    parts = [] if text is None else text.split("," if ";" not in text else ";")
    if len(parts) > 1 and not parts[-1].strip() and ";" in (text or ""):  # ends a single value that holds commas
        parts.pop()
    hint = "; a value that holds commas ends in ;" if "," in (text or "") and ";" not in (text or "") else ""
    for part in parts:
        name, _, value = part.partition("=")
        axis = next((axis for axis in axes if axis.name == name.strip().lstrip("-").replace("-", "_")), None)
        if axis is None:
            known = ", ".join(axis.name for axis in axes)
            raise ScenarioError(f"--against {part}: is on no axis of the grid; axes are {known}{hint}")
        wanted = axis.converted(value.strip())
        hit = next((known for known in axis.values if axis.converted(known) == wanted), None)
        if hit is None:
            there = (";" if any("," in known for known in (*axis.values, value)) else ",").join(axis.values)
            raise ScenarioError(f"--against {part}: add {value.strip()} to --grid {axis.name}={there}{hint}")
        if axis.name in found:
            raise ScenarioError(f"--against names {axis.name} twice; give it once")
        found[axis.name] = hit
    return found


def _simulate(
    asked: Sweep, said_of: dict[str, Any], db: str | None, said: str, executor: Executor, *, store_it: bool
) -> dict[str, Any]:
    from specsim.cli.answer import Asked, Counter, answer
    from specsim.cli.progress import ProgressBar
    from specsim.cli.sweep_store import StoredPoints
    from specsim.planner.sweep import run_points
    from specsim.planner.sweep_answer import SCHEMA_VERSION, grid_answer

    job = asked.job
    total = len(job.points())
    bar = ProgressBar(total, doing="simulating", things="points", said=executor.said)

    def run(cache: StoredPoints | None, counter: Counter) -> dict[str, Any]:
        def count(points: int, known: bool) -> None:
            counter.add(points)
            bar.advance(points, known)

        outcomes = run_points(job, executor, cache=cache, progress=count)
        ids = {} if cache is None else {point: cache.run_id(point) for point in outcomes}
        return {"schema_version": SCHEMA_VERSION, **said_of, **asked.says(), **grid_answer(job, outcomes, ids)}

    return answer(
        Asked("sweep", {"kind": "sweep", **asked.inputs()}, SCHEMA_VERSION, said, total),
        db,
        bar,
        store_it=store_it,
        keep=lambda store: StoredPoints(store, job, asked.items),
        run=run,
    )


def _find(
    asked: Sweep, find: Find, said_of: dict[str, Any], db: str | None, said: str, executor: Executor, *, store_it: bool
) -> dict[str, Any]:
    from specsim.cli.answer import Asked, Counter, answer
    from specsim.cli.progress import ProgressBar
    from specsim.cli.sweep_store import StoredPoints
    from specsim.planner.sweep_answer import SCHEMA_VERSION
    from specsim.planner.sweep_find import find_rows, run_find

    bar = ProgressBar(len(find.searched), doing="searching", things="brackets", said=executor.said, timed=False)

    def run(cache: StoredPoints | None, counter: Counter) -> dict[str, Any]:
        found = run_find(find, asked.job, executor, cache=cache, settled=bar.advance, simulated=counter.add)
        rows = find_rows(find, found, (lambda point: None) if cache is None else cache.run_id)
        failed = sum(row["verdict"] == "not possible" for row in rows)
        return {"schema_version": SCHEMA_VERSION, **said_of, **asked.says(), "found": rows, "failed": failed}

    return answer(
        Asked("sweep", {"kind": "sweep", **asked.inputs()}, SCHEMA_VERSION, said),
        db,
        bar,
        store_it=store_it,
        keep=lambda store: StoredPoints(store, asked.job, asked.items),
        run=run,
    )
