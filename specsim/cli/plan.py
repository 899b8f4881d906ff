"""`specsim plan`: from a trace to an answer, stored and reusable."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.answer import refuse_db_without_store, stoppable
from specsim.cli.doubts import say_doubts
from specsim.cli.executor_options import WHERE, executor_from, executor_options
from specsim.cli.profile_input import StoredProfiles, profile_fills_in
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
    from specsim.executors import Executor
    from specsim.planner.plan import PlanJob
    from specsim.planner.question import PlanSettings, Question
    from specsim.traces.model import Trace

__all__ = ["plan"]

_NOT_THE_QUESTION = ("db", "no_store", "full", "as_json", *WHERE)
"""Arguments that change neither the answer nor its id."""


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
@executor_options
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
    refuse_db_without_store(db, no_store)
    with stoppable():
        said = command_line(click.get_current_context(), without=_NOT_THE_QUESTION)
        where = values.pop("executor"), values.pop("address")
        question, settings, trace, policies = _read(values, StoredProfiles(db, read=not no_store))
        executor = executor_from(*where, settings.jobs)
        from specsim.planner.plan import prepare

        say_doubts([question])
        job = prepare(question, trace, settings, policies=policies)
        result = _simulate(job, trace, db, said, executor, store_it=not no_store)
    if as_json:
        click.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        from specsim.report.plan import plan_text

        click.echo(plan_text(result, full=full, color=sys.stdout.isatty()), nl=False)


def _read(values: dict[str, Any], kept: StoredProfiles) -> tuple[Question, PlanSettings, Trace, tuple[PolicySpec, ...]]:
    """Everything that the flags and the scenario say, resolved."""
    from dataclasses import replace
    from pathlib import Path

    from scenarios.resolve import by_task, resolve
    from specsim.errors import ScenarioError
    from specsim.planner.question import PlanSettings

    profile_fills_in(values, kept)
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
        question = resolve(
            deployment, speculation, slo, assumed=assumed, folder=folder, profile=kept.profile_of(deployment, folder)
        )
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
    if values["acceptance"] is values["acceptance_length"] is values["acceptance_file"] is None:
        found.append("Acceptance is a published default, not yours (--acceptance, --acceptance-length).")
    return tuple(found)


def _simulate(
    job: PlanJob, trace: Trace, db: str | None, said: str, executor: Executor, *, store_it: bool
) -> dict[str, Any]:
    """Run or reuse every point, with a progress bar, and store the plan."""
    from specsim.cli.answer import Asked, Counter, answer
    from specsim.cli.progress import ProgressBar
    from specsim.cli.run_cache import StoredRuns
    from specsim.planner.plan import SCHEMA_VERSION, run_plan

    bar = ProgressBar(job.num_points, doing="simulating", things="points", said=executor.said)

    def run(cache: StoredRuns | None, counter: Counter) -> dict[str, Any]:
        def count(points: int, reused: bool) -> None:
            counter.add(points)
            bar.advance(points, reused)

        return run_plan(job, trace, cache=cache, progress=count, executor=executor)

    return answer(
        Asked("plan", job.inputs(), SCHEMA_VERSION, said, job.num_points),
        db,
        bar,
        store_it=store_it,
        keep=lambda store: StoredRuns(store, job.question, job.trace, job.settings, scenario=job.question.identity()),
        run=run,
    )
