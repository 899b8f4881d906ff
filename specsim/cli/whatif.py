"""`specsim whatif`: which GPUs, how many, at what price; stored like a plan."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.plan import INTERRUPTED
from specsim.cli.said import command_line
from specsim.cli.scenario_options import deployment_options, slo_options, speculation_options
from specsim.cli.trace import trace_options

if TYPE_CHECKING:
    from specsim.planner.whatif import WhatIfJob

__all__ = ["whatif"]

_NOT_THE_QUESTION = ("db", "no_store", "full", "as_json", "jobs")
_OTHERWISE = ("gpu", "tp", "replicas", "prefill_replicas", "decode_replicas", "kv_link_gb_per_s", "kv_link_latency",
              "weight_dtype", "profile")  # fmt: skip
"""Flags of a deployment that are lists here, or that make no sense with several GPUs."""


@click.command()
@click.option("--trace", required=True, metavar="FILE", help="Request log: any format of specsim trace inspect.")
@click.option("--gpu", "gpus", required=True, metavar="NAME[,NAME...]", help="GPUs; see specsim hardware list.")
@click.option("--tp", "tps", default="1", show_default=True, metavar="N[,N...]", help="GPUs of a replica.")
@click.option("--dtype", "dtypes", metavar="DTYPE[,DTYPE...]", help="Of the weights; default: as the checkpoint.")
@click.option("--replicas", default="auto", show_default=True, metavar="auto", help="The least number is searched.")
@click.option("--policies", metavar="KIND[,KIND...]", help="off, static, schedule, adaptive; default: all.")
@click.option("--peak", metavar="DURATION", help="Length of the busiest window to size for; default 10m.")
@click.option("--growth", metavar="X[,X...]", help="Also size the best options for X times the traffic.")
@click.option("--price", multiple=True, metavar="GPU=USD", help="Of a GPU-hour; may be repeated.")
@click.option("--prices", metavar="FILE", help="TOML table of dated prices instead of the catalogue's.")
@click.option("--provider", metavar="NAME", help="Whose prices; see specsim hardware show GPU.")
@click.option("--purchase", multiple=True, metavar="GPU=USD", help="Of a GPU with its share of a server.")
@click.option("--watts", multiple=True, metavar="GPU=W", help="Of it under load; default: the catalogue's.")
@click.option("--years", type=float, metavar="N", help="Years over which a purchase is added up.")
@click.option("--usd-per-kwh", type=float, metavar="USD", help="Price of electricity.")
@click.option("--pue", type=float, metavar="X", help="Power of the site over that of its servers.")
@click.option("--hosting", type=float, metavar="USD", help="By kW and month; default 0.")
@trace_options
@lambda command: deployment_options(command, without=_OTHERWISE)
@speculation_options
@slo_options
@click.option("--replications", type=int, metavar="N", help="Paired replications; default 3.")
@click.option("--max-requests", type=int, metavar="N", help="Most requests of the window; default 20000.")
@click.option("--seed", type=int, metavar="N", help="Seed of luck and of drawn arrivals; default 0.")
@click.option("--jobs", type=int, metavar="N", help="Processes; default: one per core. Never changes a result.")
@click.option("--db", metavar="PATH_OR_URL", help="Results database; default SPECSIM_DB or specsim.db here.")
@click.option("--no-store", is_flag=True, help="Neither read nor write the results database.")
@click.option("--full", is_flag=True, help="Show every option, not only the best of each kind of replica.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def whatif(db: str | None, no_store: bool, full: bool, as_json: bool, **values: Any) -> None:
    """Which GPUs, how many, at what price, for the busiest time?

    For each GPU, tensor parallelism and number format: the least number of replicas that holds, proved by simulating it
    and one less, without speculation, with the best fixed k, a schedule, and an adaptive rule.

    \b
        specsim whatif --trace prod.jsonl --gpu l40s,h100-sxm,h200-sxm --tp 1,2 --tpot 30
        specsim whatif --trace prod.jsonl --gpu h100-sxm --dtype bf16,fp8 --price h100-sxm=2.2
    """
    from specsim.errors import ScenarioError

    if no_store and db is not None:
        raise ScenarioError("--db and --no-store exclude each other; give one of the two")
    said = command_line(click.get_current_context(), without=_NOT_THE_QUESTION)
    try:
        from specsim.cli.whatif_input import read_job

        job = read_job(values)
        result = _without_store(job, said) if no_store else _with_store(job, db, said)
    except KeyboardInterrupt:
        click.echo("\nStopped before anything was simulated; nothing was stored.", err=True)
        raise SystemExit(INTERRUPTED) from None
    if as_json:
        click.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        from specsim.report.whatif import whatif_text

        click.echo(whatif_text(result, full=full, color=sys.stdout.isatty()), nl=False)


def _without_store(job: WhatIfJob, said: str) -> dict[str, Any]:
    from specsim.planner.whatif_answer import run_whatif

    try:
        with _Progress(job) as settled:
            return {"plan_id": None, "database": None, "command": said, **run_whatif(job, settled=settled)}
    except KeyboardInterrupt:
        click.echo("\nStopped; with --no-store nothing is kept.", err=True)
        raise SystemExit(INTERRUPTED) from None


def _with_store(job: WhatIfJob, db: str | None, said: str) -> dict[str, Any]:
    """Run or reuse every point, and store the result with links to all of them."""
    import specsim
    from db.store import Store, plan_id_of
    from specsim.cli.run_cache import StoredFleets
    from specsim.planner.whatif_answer import SCHEMA_VERSION, run_whatif

    with Store.open(db) as store:
        fleets = StoredFleets(store, job.questions, job.trace, job.settings)
        inputs = {"kind": "whatif", **job.inputs(), "code_version": fleets.code_version}

        def save(result: dict[str, Any], status: str) -> None:
            store.save_plan(
                inputs,
                result,
                status=status,
                schema_version=SCHEMA_VERSION,
                code_version=fleets.code_version,
                specsim_version=specsim.__version__,
                trace_sha256=fleets.trace_sha256,
                profile_sha256=fleets.profile_sha256,
                scenario_sha256=fleets.scenario_sha256,
                run_keys=fleets.keys,
                kind="whatif",
            )

        finished = 0

        def simulated() -> None:
            nonlocal finished
            finished += 1

        try:
            with _Progress(job) as settled:
                result = run_whatif(
                    job, cache_of=fleets.cache_of, run_id=fleets.run_id, settled=settled, simulated=simulated
                )
        except KeyboardInterrupt:
            save({"schema_version": SCHEMA_VERSION, "points_done": finished, "points": None}, "partial")
            click.echo(
                f"\nStopped: {finished} points are kept in {store.name} as {plan_id_of(inputs)}; the same command "
                f"goes on from there.",
                err=True,
            )
            raise SystemExit(INTERRUPTED) from None
        result = {"plan_id": plan_id_of(inputs), "database": store.name, "command": said, **result}
        save(result, "complete")
    return result


class _Progress:
    """A progress bar over options on stderr when it is a terminal, else one line at the start."""

    def __init__(self, job: WhatIfJob) -> None:
        self._options = job.num_options
        self._processes = job.settings.jobs or len(os.sched_getaffinity(0))
        self._bar: Any = None

    def __enter__(self) -> Any:
        if not sys.stderr.isatty():
            on = "1 process" if self._processes == 1 else f"{self._processes:,} processes"
            click.echo(f"searching {self._options:,} options on {on}", err=True)
            return lambda: None
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("searching"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("options"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._done, self._task = 0, self._bar.add_task("", total=self._options)
        return self._settled

    def _settled(self) -> None:
        """Options beyond those that were announced are the further looks at the best ones."""
        self._done += 1
        if self._done > self._options:
            self._bar.update(self._task, total=self._done)
        self._bar.advance(self._task, 1)

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
