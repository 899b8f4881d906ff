"""`specsim crossover`: speculation off and on at fixed concurrency and lengths."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from specsim.cli.scenario_options import (
    deployment_from,
    deployment_options,
    parse_whole_numbers,
    speculation_from,
    speculation_options,
)

__all__ = ["crossover"]


@click.command()
@deployment_options
@speculation_options
@click.option("--isl", default="500", show_default=True, metavar="TOKENS", help="Prompt: N or lognormal:MEAN:P95.")
@click.option("--osl", default="300", show_default=True, metavar="TOKENS", help="Output: N or lognormal:MEAN:P95.")
@click.option(
    "--concurrency",
    default="1,4,16,64,128,256",
    show_default=True,
    metavar="N[,N...]",
    help="Requests kept in flight.",
)
@click.option("--seeds", type=int, default=5, show_default=True, help="Paired repetitions, at least 3.")
@click.option("--seed", type=int, default=0, show_default=True, help="First seed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def crossover(isl: str, osl: str, concurrency: str, seeds: int, seed: int, as_json: bool, **values: Any) -> None:
    """The quick look without a trace: speedup by concurrency.

    Both sides are simulated in a closed loop in its steady state, with the same requests and the same luck. Acceptance
    comes from --acceptance-length or --acceptance, else from published figures for method and --task.

    \b
    Example:
      specsim crossover --target llama-3.1-8b --gpu h100-sxm --k 3 --acceptance-length 2.3
    """
    from scenarios.resolve import resolve
    from specsim.config import Slo, Speculation
    from specsim.errors import ScenarioError
    from specsim.planner.concurrency import CrossoverSettings
    from specsim.planner.crossover import run_crossover
    from specsim.report.crossover import crossover_text
    from specsim.traces.recipe import parse_lengths

    assumed = tuple(
        f"--{name} was not given: {default} is assumed."
        for name, default in (("target", "llama-3.1-8b"), ("gpu", "h100-sxm"), ("method", "eagle"))
        if values[name] is None
    )
    if values["num_spec_tokens"] is None:
        measured_too = values["acceptance_length"] is not None and values["acceptance_length_k"] is None
        also = ", for --acceptance-length too" if measured_too else ""
        usual = Speculation(values["method"] or "eagle").drafter.usual_k
        if values["tree"] is not None:
            usual = len(parse_whole_numbers(values["tree"], "--tree", low=1))
        assumed = (*assumed, f"--k was not given: {usual} is assumed{also}.")
        values["num_spec_tokens"] = str(usual)
    k = parse_whole_numbers(values["num_spec_tokens"], "--k", low=1)
    if len(k) != 1:
        raise ScenarioError(f"--k takes one number here, got {values['num_spec_tokens']}; run the command for each")
    values["num_spec_tokens"] = str(k[0])
    settings = CrossoverSettings(
        concurrency=parse_whole_numbers(concurrency, "--concurrency", low=1),
        prompt=parse_lengths(isl, "--isl"),
        output=parse_lengths(osl, "--osl"),
        num_spec_tokens=k[0],
        seeds=seeds,
        seed=seed,
    )
    question = resolve(deployment_from(values), speculation_from(values), Slo(), assumed=assumed)
    if sys.stderr.isatty() and not as_json:
        with click.progressbar(length=len(set(settings.concurrency)), label="simulating", file=sys.stderr) as bar:
            result = run_crossover(question, settings, progress=bar.update)
    else:
        result = run_crossover(question, settings)
    click.echo(json.dumps(result, allow_nan=False) if as_json else crossover_text(result).rstrip("\n"))
