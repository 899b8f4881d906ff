"""`specsim crossover`: speculation off and on at fixed concurrency and lengths."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from specsim.cli.doubts import say_doubts
from specsim.cli.profile_input import StoredProfiles, profile_fills_in
from specsim.cli.scenario_options import (
    deployment_from,
    deployment_options,
    parse_whole_numbers,
    refuse_doubles,
    speculation_from,
    speculation_options,
)
from specsim.cli.table_words import rewrite_words
from specsim.cli.tree_input import parse_tree

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
@click.option(
    "--speedup-at", metavar="N:SPEEDUP", help="A measured speed-up at N in flight, from which acceptance is solved."
)
@click.option("--seeds", type=int, default=5, show_default=True, help="Paired repetitions, at least 3.")
@click.option("--seed", type=int, default=0, show_default=True, help="First seed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def crossover(concurrency: str, speedup_at: str | None, seeds: int, seed: int, as_json: bool, **values: Any) -> None:
    """The quick look without a trace: speedup by concurrency.

    Both sides are simulated in a closed loop in its steady state, with the same requests and the same luck. Acceptance
    comes from --acceptance-length or --acceptance, is solved from one measured speed-up (--speedup-at), or is that of
    published figures for method and --task. Names, trees and dtypes may be written as tables write them.

    \b
    Examples:
      specsim crossover --target llama-3.1-8b --gpu h100-sxm --k 3 --acceptance-length 2.3
      specsim crossover --gpu "H100 80GB" --method EAGLE-3 --k 3 --speedup-at 1:1.75
      specsim crossover --method EAGLE-3 --tree "steps 4, topk 4, draft tokens 16"
    """
    from scenarios.resolve import resolve
    from specsim.config import Slo, Speculation
    from specsim.errors import ScenarioError
    from specsim.planner.concurrency import CrossoverSettings
    from specsim.planner.crossover import run_crossover
    from specsim.planner.implied import with_implied
    from specsim.report.crossover import crossover_text
    from specsim.traces.recipe import parse_lengths

    assumed = tuple(
        f"--{name} was not given: {default} is assumed."
        for name, default in (("target", "llama-3.1-8b"), ("gpu", "h100-sxm"), ("method", "eagle"))
        if values[name] is None and values["profile"] is None
    )
    assumed = (*assumed, *rewrite_words(values))
    kept = StoredProfiles()
    profile_fills_in(values, kept)
    isl, osl = values.pop("isl"), values.pop("osl")
    if values["num_spec_tokens"] is None:
        measured_too = values["acceptance_length"] is not None and values["acceptance_length_k"] is None
        also = ", for --acceptance-length too" if measured_too else ""
        usual = Speculation(values["method"] or "eagle").drafter.usual_k
        if values["tree"] is not None:
            usual = len(next(iter(parse_tree(values["tree"]).values())))
        assumed = (*assumed, f"--k was not given: {usual} is assumed{also}.")
        values["num_spec_tokens"] = str(usual)
    k = parse_whole_numbers(values["num_spec_tokens"], "--k", low=0)
    if len(k) != 1:
        raise ScenarioError(f"--k takes one number here, got {values['num_spec_tokens']}; run the command for each")
    if k[0] == 0:
        for name in ("acceptance", "acceptance_length", "acceptance_file", "temperature", "task"):
            if values[name] is not None:
                raise ScenarioError(f"--{name.replace('_', '-')} does nothing with --k 0, where nothing is drafted")
    values["num_spec_tokens"] = str(max(1, k[0]))
    measured = None if speedup_at is None else _measured_point(speedup_at, values)
    in_flight = parse_whole_numbers(concurrency, "--concurrency", low=1)
    refuse_doubles(in_flight, "--concurrency")
    settings = CrossoverSettings(
        concurrency=in_flight,
        prompt=parse_lengths(isl, "--isl"),
        output=parse_lengths(osl, "--osl"),
        num_spec_tokens=k[0],
        seeds=seeds,
        seed=seed,
    )
    if values["router"] is not None:
        raise ScenarioError(
            "--router: crossover looks at one replica, before which nothing is routed; specsim plan and specsim "
            "simulate look at several"
        )
    deployment = deployment_from(values)
    if deployment.is_disaggregated:
        raise ScenarioError(
            "--prefill-replicas and --decode-replicas: crossover looks at one replica that does both; the sweep over "
            "load of specsim plan says where speculation turns when they are apart"
        )
    if deployment.replicas > 1:
        assumed = (*assumed, f"One of the {deployment.replicas} replicas is simulated: --concurrency is what it holds.")
    question = resolve(
        deployment, speculation_from(values), Slo(), assumed=assumed, profile=kept.profile_of(deployment, Path())
    )
    say_doubts([question])
    solved = None
    if measured is not None:
        question, implied = with_implied(question, settings, *measured)
        solved = {
            "concurrency": measured[0],
            "speedup": measured[1],
            "length": implied.length,
            "interval": {"low": implied.low, "high": implied.high},
        }
    if sys.stderr.isatty() and not as_json:
        with click.progressbar(length=len(set(settings.concurrency)), label="simulating", file=sys.stderr) as bar:
            result = run_crossover(question, settings, progress=bar.update)
    else:
        result = run_crossover(question, settings)
    result["acceptance"]["solved"] = solved
    click.echo(json.dumps(result, allow_nan=False) if as_json else crossover_text(result).rstrip("\n"))


def _measured_point(text: str, values: dict[str, Any]) -> tuple[int, float]:
    """(requests in flight, speed-up) of `16:1.42`."""
    from specsim.checks import read_number, read_whole
    from specsim.errors import ScenarioError

    for name in ("acceptance", "acceptance_length", "acceptance_file"):
        if values[name] is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ScenarioError(f"--speedup-at solves for acceptance, and {flag} gives it; leave one of the two out")
    loads, colon, speedup = text.partition(":")
    try:
        load, ratio = read_whole(loads), read_number(speedup)
    except ValueError:
        load, ratio = 0, 0.0
    if not (colon and 1 <= load <= 65536 and 0.01 <= ratio <= 100.0):
        raise ScenarioError(
            f"--speedup-at {text!r} must be a number of requests in flight and the speed-up there, e.g. 1:1.75"
        )
    return load, ratio
