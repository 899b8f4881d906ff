"""`specsim validate serve`: serve for real on this machine, predict the same from a profile, print the errors."""

from __future__ import annotations

import json
import math
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.calibrate_latency import seconds_of
from specsim.cli.trace import trace_options
from specsim.cli.validation_kept import append_row, kept_validation

if TYPE_CHECKING:
    from calibrate.validation.runs import Run
    from calibrate.validation.world import World

__all__ = ["serve"]


@click.command(short_help="Serve for real on this machine, and predict the same.")
@click.option("--profile", required=True, metavar="FILE|NAME", help="Measured step times; see specsim profile list.")
@click.option("--target", required=True, metavar="MODEL", help="Directory, GGUF file, config.json or catalogue name.")
@click.option("--draft", metavar="MODEL", help="Draft model, likewise, or the folder of a drafting head.")
@click.option("--draft-option", multiple=True, metavar="NAME=N", help="A number of the drafter; may be repeated.")
@click.option("--k", type=click.IntRange(1, 64), default=3, show_default=True, help="Draft tokens a round, at most.")
@click.option("--policy", "policies", multiple=True, metavar="POLICY",
              help="An arm; may be repeated.  [default: off, static:K, the profile's schedule]")  # fmt: skip
@click.option("--trace", metavar="PATH", help="Request log whose arrivals and lengths are served.")
@trace_options
@click.option("--isl", metavar="TOKENS", help="Prompts without a log: N or lognormal:MEAN:P95.")
@click.option("--osl", metavar="TOKENS", help="Outputs without a log, likewise.")
@click.option("--requests", type=click.IntRange(min=1), metavar="N", help="Requests without a log.  [default: 24]")
@click.option("--scale-tokens", type=click.FloatRange(min=0, min_open=True), metavar="X",
              help="Prompts and outputs of the log X times as long.")  # fmt: skip
@click.option("--text", "texts", multiple=True, metavar="FILE",
              help="Text that prompts are cut out of; may be repeated.  [default: drawn tokens]")  # fmt: skip
@click.option("--concurrency", metavar="N[,N...]", help="Loads: requests kept in flight.")
@click.option("--rate", metavar="R[,R...]", help="Loads: requests a second.")
@click.option("--poisson", is_flag=True, help="Draw arrivals of --rate instead of scaling the log's.")
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True, help="Of each arm at each load.")
@click.option("--acceptance-file", metavar="FILE",
              help="Acceptance of other prompts.  [default: measured here, on other text]")  # fmt: skip
@click.option("--acceptance-drafter", metavar="NAME", help="Drafter of that file; default: named like the method.")
@click.option("--acceptance-prompts", type=click.IntRange(min=1), default=48, show_default=True, metavar="N",
              help="Other prompts that acceptance is measured on.")  # fmt: skip
@click.option("--forced-acceptance", metavar="A[,A...]",
              help="Deal acceptance by draft position, whatever is drafted: for random weights.")  # fmt: skip
@click.option("--max-num-seqs", type=click.IntRange(min=1), metavar="N", help="Most requests in a step.")
@click.option("--max-num-batched-tokens", type=click.IntRange(min=1), metavar="N", help="Token budget of a step.")
@click.option("--device", default="auto", show_default=True, help="cuda, cuda:1, mps or cpu.")
@click.option("--clock", help="wall, or cpu (processor time of one thread).  [default: the profile's]")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of a CPU.  [default: the profile's]")
@click.option("--fitted-batches", is_flag=True, help="Allow loads whose batches the fit has seen; the result says so.")
@click.option("--budget", metavar="TIME", help="Make no run that would not end within it, e.g. 60s.  [default: all]")
@click.option("--dry-run", is_flag=True, help="Say what would be done and for how long; nothing is loaded or measured.")
@click.option("--append-to", metavar="FILE.jsonl", help="Add the result to the rows that validation pages print.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of prompts, arrivals and luck.")
@click.option("--db", envvar="SPECSIM_DB", metavar="PATH|URL", help="Results database.  [default: specsim.db]")
@click.option("--store/--no-store", default=True, show_default=True, help="Keep the result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def serve(**values: Any) -> None:
    """Serve for real on this machine, and predict the same.

    Arms (off, static, schedule) take turns at each load and are repeated; the same requests are simulated with the
    profile and the acceptance of other prompts. Printed are signed errors beside the noise of the runs, the speed-up,
    where it ends, and each run simulated again with its own step times. Ctrl-C keeps what is finished. Random weights,
    whose drafts nothing accepts, are served with --forced-acceptance: served and predicted rounds are then the same.

    \b
        specsim validate serve --profile smollm2-135m-cpu-ngram --target SmolLM2.gguf \\
            --text notes.md --isl 100 --osl 40 --concurrency 5,12
    """
    from specsim.cli.validation_input import prepared
    from specsim.errors import ScenarioError
    from specsim.report.files import check_file
    from specsim.report.served import served_text

    for needed in ("torch", "transformers"):
        if find_spec(needed) is None:
            raise ScenarioError(f"serving for real needs {needed}: pip install '.[calibrate]' in the folder of specsim")
    if values["append_to"] is not None:
        check_file("--append-to", values["append_to"], (".jsonl",), force=True)
    budget_s = math.inf if values["budget"] is None else seconds_of(values["budget"])
    if values["dry_run"]:
        from specsim.cli.validation_dry import planned

        plan = planned(values, say=_say)
        if values["as_json"]:
            click.echo(json.dumps(plan, allow_nan=False))
        return
    ready = prepared(values, say=_say)
    serving = ready.server.serving(ready.world, ready.server.reference(ready.device, ready.world.off.profile))
    runs, complete = _made(ready.world, serving, budget_s)
    result = ready.result(runs, complete)
    if values["store"]:
        result = {"validation_id": kept_validation(values["db"], result, kind="serve", profile=ready.world.on.profile),
                  **result}  # fmt: skip
    if values["append_to"] is not None:
        append_row(values["append_to"], result)
    click.echo(json.dumps(result, allow_nan=False) if values["as_json"]
               else served_text(result, color=sys.stdout.isatty()).rstrip("\n"))  # fmt: skip


def _made(world: World, serving: Any, budget_s: float) -> tuple[list[Run], bool]:
    """All runs; the bar moves between them only, since a thread that draws it would count as processor time."""
    from calibrate.validation.runs import make_runs

    if not sys.stderr.isatty():
        return make_runs(world, serving, lambda run: _say(_said(run)), budget_s=budget_s, say=_say)
    from rich.console import Console
    from rich.progress import Progress

    total = world.repeats * len(world.loads) * len(world.policies)
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("serving", total=total)
        bar.refresh()

        def progress(run: Run) -> None:
            bar.update(task, advance=1, description=_said(run), refresh=True)

        return make_runs(world, serving, progress, budget_s=budget_s, say=_say)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _said(run: Run) -> str:
    trial = run.trial
    return (
        f"repeat {trial.repeat + 1}, {trial.load.label}, {trial.policy.label}: "
        f"{run.figures['output_tokens_per_s']:.3g} tokens/s"
    )
