"""`specsim whatif`: which GPUs, how many, at what price; stored like a plan."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.answer import refuse_db_without_store, stoppable
from specsim.cli.doubts import say_doubts
from specsim.cli.executor_options import WHERE, executor_from, executor_options
from specsim.cli.profile_input import StoredProfiles
from specsim.cli.said import command_line
from specsim.cli.scenario_options import deployment_options, slo_options, speculation_options
from specsim.cli.trace import trace_options

if TYPE_CHECKING:
    from specsim.executors import Executor
    from specsim.planner.whatif import WhatIfJob

__all__ = ["whatif"]

_NOT_THE_QUESTION = ("db", "no_store", "full", "as_json", *WHERE)
_OTHERWISE = ("gpu", "tp", "replicas", "prefill_replicas", "decode_replicas", "kv_link_gb_per_s", "kv_link_latency",
              "weight_dtype")  # fmt: skip
"""Flags of a deployment that are lists here, or that make no sense with several GPUs."""


@click.command()
@click.option("--trace", required=True, metavar="FILE", help="Request log: any format of specsim trace inspect.")
@click.option("--gpu", "gpus", required=True, metavar="NAME[,NAME...]", help="GPUs; see specsim hardware list.")
@click.option("--tp", "tps", metavar="N[,N...]", help="GPUs of a replica; default 1, or as the profile.")
@click.option(
    "--dtype", "dtypes", metavar="DTYPE[,DTYPE...]", help="Of the weights; default: as the checkpoint has it."
)
@click.option("--replicas", default="auto", show_default=True, metavar="auto", help="The least number is searched.")
@click.option("--policies", metavar="KIND[,KIND...]", help="off, static, schedule, adaptive; default: all.")
@click.option("--peak", metavar="DURATION", help="Length of the busiest window to size for; default 10m.")
@click.option("--growth", metavar="X[,X...]", help="Also size the best options for X times the traffic.")
@click.option(
    "--pool", "pools", multiple=True, metavar="NAME=TASKS:KIND", help="Fleet for some tasks; off, speculative or any."
)
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
@executor_options
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
        specsim whatif --trace prod.jsonl --gpu h100-sxm --pool fast=chat:any --pool rest=*:off
    """
    refuse_db_without_store(db, no_store)
    said = command_line(click.get_current_context(), without=_NOT_THE_QUESTION)
    with stoppable():
        from specsim.cli.whatif_input import read_job

        where = values.pop("executor"), values.pop("address")
        job = read_job(values, StoredProfiles(db, read=not no_store))
        say_doubts(job.questions)
        executor = executor_from(*where, job.settings.jobs)
        result = _simulate(job, db, said, executor, store_it=not no_store)
    if as_json:
        click.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        from specsim.report.whatif import whatif_text

        click.echo(whatif_text(result, full=full, color=sys.stdout.isatty()), nl=False)


def _simulate(job: WhatIfJob, db: str | None, said: str, executor: Executor, *, store_it: bool) -> dict[str, Any]:
    """Run or reuse every point, and store the result with links to all of them."""
    from specsim.cli.answer import Asked, Counter, answer
    from specsim.cli.progress import ProgressBar
    from specsim.cli.run_cache import StoredFleets
    from specsim.planner.whatif_answer import SCHEMA_VERSION, run_whatif

    # options beyond those that are announced are the further looks at the best ones
    bar = ProgressBar(job.num_options, doing="searching", things="options", said=executor.said, timed=False)

    def run(fleets: StoredFleets | None, counter: Counter) -> dict[str, Any]:
        stored: dict[str, Any] = {}
        if fleets is not None:
            stored = {"cache_of": fleets.cache_of, "run_id": fleets.run_id}
            stored["pool_stores"] = [(pool.cache_of, pool.run_id) for pool in fleets.pools]
        return run_whatif(job, **stored, settled=bar.advance, simulated=counter.add, executor=executor)  # type: ignore[arg-type]

    return answer(
        Asked("whatif", {"kind": "whatif", **job.inputs()}, SCHEMA_VERSION, said),
        db,
        bar,
        store_it=store_it,
        keep=lambda store: StoredFleets(store, job),
        run=run,
    )
