"""`specsim plan`: from a trace to an answer, stored and reusable."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.profile_input import profile_fills_in
from specsim.cli.said import command_line
from specsim.cli.scenario_input import in_scenario, overruled_workload, read_workload
from specsim.cli.scenario_options import (
    deployment_from,
    deployment_options,
    described,
    slo_from,
    slo_options,
    speculation_from,
    speculation_options,
)
from specsim.cli.trace import trace_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specsim.config import PolicySpec
    from specsim.planner.plan import PlanJob
    from specsim.planner.question import PlanSettings, Question
    from specsim.traces.model import Trace

__all__ = ["INTERRUPTED", "plan"]

_NOT_THE_QUESTION = ("db", "no_store", "full", "as_json", "jobs")
"""Arguments that change neither the answer nor its id."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it (128 + SIGINT)."""


@click.command()
@click.option("--trace", metavar="FILE", help="Request log: any format of specsim trace inspect.")
@click.option("--scenario", metavar="FILE", help="Scenario file or library name for everything that is not a flag.")
@trace_options
@deployment_options
@speculation_options
@slo_options
@click.option("--policy", "policies", multiple=True, metavar="POLICY", help="Compare this one too; may be repeated.")
@click.option("--loads", metavar="R[,R...]", help="Requests per second to compare at; default: up to capacity.")
@click.option("--replications", type=int, metavar="N", help="Paired replications; default 5.")
@click.option("--max-requests", type=int, metavar="N", help="Requests simulated at each load; default 10000.")
@click.option("--seed", type=int, metavar="N", help="Seed of luck and of drawn arrivals; default 0.")
@click.option("--jobs", type=int, metavar="N", help="Processes; default: one per core. Never changes a result.")
@click.option("--db", metavar="PATH_OR_URL", help="Results database; default SPECSIM_DB or specsim.db here.")
@click.option("--no-store", is_flag=True, help="Neither read nor write the results database.")
@click.option("--full", is_flag=True, help="Show every load in detail.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def plan(db: str | None, no_store: bool, full: bool, as_json: bool, **values: Any) -> None:
    """When does speculation pay on this trace, with which k, and at what load not?

    Works with no other flag than --trace: it then says which deployment it assumes.

    \b
        specsim plan --trace prod.jsonl
        specsim plan --trace prod.jsonl --target qwen3-32b --gpu h200-sxm --tp 2 --method eagle3
    """
    if no_store and db is not None:
        from specsim.errors import ScenarioError

        raise ScenarioError("--db and --no-store exclude each other; give one of the two")
    try:
        said = command_line(click.get_current_context(), without=_NOT_THE_QUESTION)
        question, settings, trace, policies = _read(values)
        from specsim.planner.plan import prepare

        job = prepare(question, trace, settings, policies=policies)
        result = _simulate(job, trace, db, said, store_it=not no_store)
    except KeyboardInterrupt:
        click.echo("\nStopped before anything was simulated; nothing was stored.", err=True)
        raise SystemExit(INTERRUPTED) from None
    if as_json:
        click.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        from specsim.report.plan import plan_text

        click.echo(plan_text(result, full=full, color=sys.stdout.isatty()), nl=False)


def _read(values: dict[str, Any]) -> tuple[Question, PlanSettings, Trace, tuple[PolicySpec, ...]]:
    """Everything that the flags and the scenario say, resolved."""
    from dataclasses import replace
    from pathlib import Path

    from scenarios.resolve import by_task, resolve
    from specsim.errors import ScenarioError
    from specsim.planner.question import PlanSettings

    profile_fills_in(values)
    assumed = _assumed(values)
    further = _policies(values.pop("policies"))
    deployment = speculation = slo = workload = None
    settings, folder, place = PlanSettings(), Path(), "plan"
    name = values.pop("scenario")
    if name is not None:
        from scenarios.loader import load_scenario

        item = load_scenario(name)
        deployment, speculation, slo, workload = item.deployment, item.speculation, item.slo, item.workload
        settings, folder, place = item.plan, item.folder, str(item.path)
        further = (*item.policies, *further)
    elif values["trace"] is None:
        raise ScenarioError(
            "plan needs a request log: give --trace FILE, or --scenario with a [workload]; for fixed lengths without a "
            "log use specsim crossover"
        )
    flags = described(values)
    deployment = deployment_from(values, deployment)
    speculation = speculation_from(values, speculation)
    slo = slo_from(values, slo)
    loads = values.pop("loads")
    changes = {n: values.pop(n) for n in ("replications", "max_requests", "seed", "jobs")}
    changes = {n: value for n, value in changes.items() if value is not None}
    if loads is not None:
        changes["loads_per_s"] = _loads(loads)
    settings = replace(settings, **changes)
    if speculation.acceptance_length is not None and speculation.acceptance_length_k is None:
        if len(speculation.num_spec_tokens) != 1:
            raise ScenarioError(
                "--acceptance-length needs the k at which it was measured: give --acceptance-length-k, or one --k"
            )
        speculation = replace(speculation, acceptance_length_k=speculation.num_spec_tokens[0])
    described_in = None if name is None else Path(place).name
    with in_scenario(described_in, flags=flags):
        question = resolve(deployment, speculation, slo, assumed=assumed, folder=folder)
    workload = overruled_workload(workload, values, place=place, command="plan")
    if workload.concurrency is not None:
        raise ScenarioError(
            f"{place}: [workload] concurrency keeps a fixed number of requests in flight, which has no load to plan "
            f"over; use specsim crossover or simulate, or give --trace"
        )
    trace = read_workload(workload, folder=Path() if values["trace"] else folder, seed=settings.seed)
    with in_scenario(described_in, flags=flags):
        question = by_task(question, trace, folder=folder)
    return question, settings, trace, further


def _policies(texts: Sequence[str]) -> tuple[PolicySpec, ...]:
    from specsim.errors import ScenarioError
    from specsim.policies import parse_policy

    found = tuple(map(parse_policy, texts))
    for text, policy in zip(texts, found, strict=True):
        if found.count(policy) > 1:
            raise ScenarioError(f"--policy {text} is given twice; leave one out")
    return found


def _loads(text: str) -> tuple[float, ...]:
    from specsim.cli.scenario_options import parse_numbers, refuse_doubles
    from specsim.errors import ScenarioError

    loads = parse_numbers(text, "--loads")
    for load in loads:
        if load <= 0:
            raise ScenarioError(f"--loads must be requests per second > 0, got {load:g}")
    refuse_doubles(loads, "--loads")
    return loads


def _assumed(values: dict[str, Any]) -> tuple[str, ...]:
    """What the user left open and specsim fills in with its stand-in deployment."""
    if values["scenario"] is not None:
        return ()
    found = []
    if values["target"] is None and values["gpu"] is None:
        found.append(
            "No deployment was given: a stand-in is assumed, Llama-3.1-8B on one H100 SXM under vLLM "
            "(--target, --gpu, --tp, or --scenario)."
        )
    elif values["target"] is None or values["gpu"] is None:
        missing = "target" if values["target"] is None else "gpu"
        stand_in = "Llama-3.1-8B" if missing == "target" else "one H100 SXM"
        found.append(f"No --{missing} was given: {stand_in} is assumed.")
    if values["method"] is None:
        found.append("No --method was given: an EAGLE head is assumed.")
    if values["acceptance"] is None and values["acceptance_length"] is None:
        found.append("Acceptance is a published default, not yours (--acceptance, --acceptance-length).")
    return tuple(found)


def _simulate(job: PlanJob, trace: Trace, db: str | None, said: str, *, store_it: bool) -> dict[str, Any]:
    """Run or reuse every point, with a progress bar, and store the plan."""
    from specsim.planner.plan import SCHEMA_VERSION, run_plan

    if not store_it:
        try:
            with _progress(job) as advance:
                return {"plan_id": None, "database": None, "command": said, **run_plan(job, trace, progress=advance)}
        except KeyboardInterrupt:
            click.echo("\nStopped; with --no-store nothing is kept.", err=True)
            raise SystemExit(INTERRUPTED) from None
    import specsim
    from db.store import Store, plan_id_of
    from specsim.cli.run_cache import StoredRuns

    with Store.open(db) as store:
        identity = job.question.identity()
        cache = StoredRuns(store, job.question, job.trace, job.settings, scenario=identity)
        inputs = {**job.inputs(), "code_version": cache.code_version}

        def save(result: dict[str, Any], status: str) -> str:
            return store.save_plan(
                inputs,
                result,
                status=status,
                schema_version=SCHEMA_VERSION,
                code_version=cache.code_version,
                specsim_version=specsim.__version__,
                trace_sha256=cache.trace_sha256,
                profile_sha256=cache.profile_sha256,
                scenario_sha256=cache.scenario_sha256,
                run_keys=cache.keys,
            )

        finished = 0
        try:
            with _progress(job) as advance:

                def count(points: int) -> None:
                    nonlocal finished
                    finished += points
                    advance(points)

                result = run_plan(job, trace, cache=cache, progress=count)
        except KeyboardInterrupt:
            save({"schema_version": SCHEMA_VERSION, "points_done": finished, "points": job.num_points}, "partial")
            click.echo(
                f"\nStopped: {finished} of {job.num_points} points are kept in {store.name} as "
                f"{plan_id_of(inputs)}; the same command goes on from there.",
                err=True,
            )
            raise SystemExit(INTERRUPTED) from None
        result = {"plan_id": plan_id_of(inputs), "database": store.name, "command": said, **result}
        save(result, "complete")
    return result


class _progress:
    """A progress bar on stderr when it is a terminal, else one line at the start."""

    def __init__(self, job: PlanJob) -> None:
        self._total = job.num_points
        self._processes = job.settings.jobs or len(os.sched_getaffinity(0))
        self._bar: Any = None

    def __enter__(self) -> Any:
        if not sys.stderr.isatty():
            on = "1 process" if self._processes == 1 else f"{self._processes:,} processes"
            click.echo(f"simulating {self._total:,} points on {on}", err=True)
            return lambda points: None
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("simulating"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        task = self._bar.add_task("", total=self._total)
        return lambda points: self._bar.advance(task, points)

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
