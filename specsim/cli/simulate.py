"""`specsim simulate`: one run of one policy on a scenario, all metrics, stored so that the same call reuses it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.doubts import say_doubts
from specsim.cli.looked_at import TIMELINE_MB, LookedAt
from specsim.cli.profile_input import StoredProfiles
from specsim.cli.scenario_input import in_scenario, read_workload
from specsim.cli.scenario_options import deployment_options, described, slo_options, speculation_options
from specsim.cli.single_input import chosen_policy, grown, overruled
from specsim.cli.trace import trace_options

if TYPE_CHECKING:
    from scenarios.loader import ScenarioFile
    from specsim.planner.single import SingleRun

__all__ = ["simulate"]

_OF_SPECULATION = {
    "method": "--method", "draft": "--draft", "task": "--task", "acceptance": "--acceptance",
    "acceptance_length": "--acceptance-length", "acceptance_length_k": "--acceptance-length-k",
    "acceptance_file": "--acceptance-file", "acceptance_drafter": "--acceptance-drafter",
    "acceptance_model": "--acceptance-model", "temperature": "--temperature", "draft_sampling": "--draft-sampling",
    "tree_nodes": "--tree-nodes", "topk": "--topk", "tree": "--tree", "draft_tp": "--draft-tp",
    "draft_dtype": "--draft-dtype", "draft_kv_dtype": "--draft-kv-dtype", "draft_option": "--draft-option",
}  # fmt: skip
"""Flags that mean nothing when nothing is loaded for drafting, --k apart."""
_OF_ACCEPTANCE = (
    "task", "acceptance", "acceptance_length", "acceptance_length_k", "acceptance_file", "acceptance_drafter",
    "acceptance_model", "temperature", "draft_sampling", "tree_nodes", "topk", "tree",
)  # fmt: skip
"""Those of them that mean nothing when nothing is drafted."""


@click.command()
@click.argument("scenario")
@click.option(
    "--policy", metavar="POLICY", help="E.g. off, static:3, schedule:1-16=5,17-512=0, ema:5; see reference/policies."
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of luck and of everything drawn.  [default: the plan's]")
@click.option("--concurrency", type=int, metavar="N", help="Keep N requests in flight instead of arrival times.")
@click.option("--warmup-share", type=float, metavar="SHARE", help="Requests at the start that do not count.")
@click.option("--trace", metavar="PATH", help="Use this request log instead of the scenario's workload.")
@trace_options
@deployment_options
@speculation_options
@slo_options
@click.option("--plain", is_flag=True, help="Run the slow scheduler that the fast one is checked against.")
@click.option("--requests-out", metavar="FILE", help="Write one row a request, as .csv or .jsonl.")
@click.option("--explain", is_flag=True, help="Say where the time goes, beside the same requests without speculation.")
@click.option("--timeline", metavar="FILE.json", help="Draw steps and requests over time, for Perfetto.")
@click.option("--timeline-window", metavar="A:B", help="Simulated time that is drawn, e.g. 60s:90s.  [default: all]")
@click.option(
    "--timeline-mb", type=float, metavar="MB", help=f"Size at which the drawing ends.  [default: {TIMELINE_MB:g}]"
)
@click.option("--force", is_flag=True, help="Replace the files of --requests-out and --timeline.")
@click.option("--db", envvar="SPECSIM_DB", metavar="PATH|URL", help="Results database.  [default: specsim.db]")
@click.option("--store/--no-store", default=True, show_default=True, help="Keep the run, and reuse a stored one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def simulate(
    scenario: str,
    policy: str | None,
    seed: int | None,
    plain: bool,
    requests_out: str | None,
    explain: bool,
    timeline: str | None,
    timeline_window: str | None,
    timeline_mb: float | None,
    force: bool,
    db: str | None,
    store: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Simulate a scenario once and print its metrics.

    SCENARIO is a TOML file or the name of a ready one; flags overrule what it says.

    \b
    Examples:
      specsim simulate llama-8b-h100-eagle
      specsim simulate chat.toml --policy off_above:3:64 --seed 3 --requests-out requests.csv
    """
    from scenarios.loader import load_scenario

    looked_at = LookedAt(requests_out, explain, timeline, timeline_window, timeline_mb)
    looked_at.check(force=force)
    _refuse_idle_flags(values, looked_at, policy=policy, db=db, store=store)
    flags = described(values)
    values_given = {name for name, value in values.items() if value not in (None, ())}
    kept = StoredProfiles(db, read=store)
    item = overruled(load_scenario(scenario), values, seed, command="simulate", kept=kept)
    _refuse_idle_speculation(item, values_given, policy)
    run = _prepare(item, flags, policy, plain, kept)
    if store:
        from db.store import Store

        with Store.open(db) as opened:
            run_id, reused, metrics, more = _stored(opened, run, item, looked_at)
    else:
        run_id, reused, (metrics, more) = None, False, looked_at.simulate(run)
    result = {"scenario": scenario, "run_id": run_id, "reused": reused, **run.describe(metrics), **more}
    if as_json:
        click.echo(json.dumps(result, allow_nan=False))
        return
    from specsim.report.run import run_text

    click.echo(run_text(result).rstrip("\n"))


def _refuse_idle_flags(
    values: dict[str, Any], looked_at: LookedAt, *, policy: str | None, db: str | None, store: bool
) -> None:
    """Flags that would change nothing are mistakes, not wishes.

    Raises:
        ScenarioError: such a flag, or an output that would replace the log it comes from.
    """
    from specsim.errors import ScenarioError

    if policy is not None and values["num_spec_tokens"] is not None:
        raise ScenarioError("--k does nothing beside --policy, which has its own k; give one of the two")
    source = click.get_current_context().get_parameter_source("db")
    if db is not None and not store and source is click.core.ParameterSource.COMMANDLINE:
        raise ScenarioError("--db and --no-store exclude each other; give one of the two")
    trace = values.get("trace")
    for flag, path in looked_at.files.items():
        if trace and os.path.exists(path) and os.path.exists(trace) and os.path.samefile(path, trace):
            raise ScenarioError(f"{flag} {path} is the log itself; give another name")


def _refuse_idle_speculation(item: ScenarioFile, given: set[str], policy: str | None) -> None:
    """Flags of speculation that the policy of this run makes idle.

    Raises:
        ScenarioError: --k beside a policy of the file, or a flag of drafter, tree or acceptance without speculation.
    """
    from specsim.errors import ScenarioError

    if policy is None and item.policies and "num_spec_tokens" in given:
        raise ScenarioError(
            f"--k does nothing, since {item.path.name} has the policy '{item.policies[0].label}'; "
            f"give --policy static:K instead"
        )
    if policy is None and len(item.policies) != 1:
        return
    chosen, _ = chosen_policy(item, policy, command="simulate")
    if chosen.num_spec_tokens:
        return
    # with k = 0 a drafter is loaded, and nothing of it is accepted or refused
    idle = _OF_SPECULATION if chosen.kind == "off" else {n: _OF_SPECULATION[n] for n in _OF_ACCEPTANCE}
    why = "without speculation (policy off)" if chosen.kind == "off" else f"where nothing is drafted ({chosen.label})"
    for name in sorted(given & set(idle)):
        raise ScenarioError(f"{idle[name]} does nothing {why}; leave it out")


def _prepare(item: ScenarioFile, flags: bool, policy: str | None, plain: bool, kept: StoredProfiles) -> SingleRun:
    from scenarios.resolve import by_task, resolve
    from specsim.planner.single import SingleRun

    assert item.workload is not None
    chosen, assumed = chosen_policy(item, policy, command="simulate")
    with in_scenario(item.path.name, flags=flags):
        profile = kept.profile_of(item.deployment, item.folder)
        question = resolve(
            item.deployment, grown(item.speculation, chosen), item.slo, assumed=assumed, folder=item.folder,
            profile=profile,
        )  # fmt: skip
    if not chosen.num_spec_tokens:  # acceptance that is not used cannot mislead
        question = replace(question, assumed=assumed, doubts=())
    say_doubts([question])
    trace = read_workload(item.workload, folder=item.folder, seed=item.plan.seed)
    with in_scenario(item.path.name, flags=flags):
        question = by_task(question, trace, folder=item.folder)
    return SingleRun(
        question=question,
        trace=trace,
        policy=chosen,
        seed=item.plan.seed,
        warmup_share=item.plan.warmup_share,
        concurrency=item.workload.concurrency,
        plain=plain,
    )


def _stored(
    store: Any, run: SingleRun, item: ScenarioFile, looked_at: LookedAt
) -> tuple[str, bool, dict[str, Any], dict[str, Any]]:
    """(run id, whether a stored run was reused, metrics, what else was asked for)."""
    from specsim.cli.single_store import save_profile, save_scenario, save_single, save_trace, single_key
    from specsim.code_version import code_version
    from specsim.traces.write import fingerprint

    started, point = datetime.now(UTC), run.identity()
    parts = {
        "trace_sha256": fingerprint(run.trace),
        "profile_sha256": run.side.profile.sha256,
        "code": code_version(),
    }
    key = single_key(run, point, **parts)
    known = store.find_run(key)
    if known is not None:
        return known["id"], True, known["metrics"], looked_at.simulate(run)[1] if looked_at else {}
    metrics, more = looked_at.simulate(run)
    save_trace(store, run.trace, parts["trace_sha256"])
    save_profile(store, run)
    scenario = save_scenario(store, item)
    run_id = save_single(store, key, run, point, metrics, **parts, scenario_sha256=scenario, started=started)
    return run_id, False, metrics, more
