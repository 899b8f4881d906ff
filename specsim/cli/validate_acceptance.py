"""`specsim validate acceptance`: acceptance models on measured requests that they were not fitted to."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.scenario_options import parse_whole_numbers, refuse_doubles

if TYPE_CHECKING:
    from specsim.planner.held_out import HeldOut

__all__ = ["acceptance"]


@click.command(short_help="Fit acceptance models to half of measured requests, judge on the rest.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--drafter", metavar="NAME", help="Only this drafter of the files; default: each.")
@click.option("--task", metavar="NAME", help="Only requests of this content class.")
@click.option("--k", "ks", default="1,3,5,10", show_default=True, metavar="K[,K...]", help="Draft tokens a round.")
@click.option(
    "--halves",
    default="random",
    show_default=True,
    metavar="WAY[,WAY...]",
    help="How to halve: random, stratified (of like output lengths), even-odd.",
)
@click.option("--splits", type=int, default=4, show_default=True, help="Halvings of each kind, each used both ways.")
@click.option("--replications", type=int, default=4, show_default=True, help="Simulations of each half.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of halves and luck.")
@click.option("-o", "--output", metavar="FILE.md", help="Write a Markdown page instead of printing.")
@click.option("--jobs", type=int, default=0, metavar="N", help="Processes; 0: one a core. Never changes results.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def acceptance(
    files: tuple[str, ...], drafter: str | None, task: str | None, ks: str, halves: str, splits: int,
    replications: int, seed: int, output: str | None, jobs: int, as_json: bool,
) -> None:  # fmt: skip
    """Fit acceptance models to half of measured requests, judge on the rest.

    Each model (constant, by position, mixture with memory, replay) is fitted to one half and simulated for the other at
    its own output lengths, and the reverse. Printed are the bias over all halvings, the error of one half, and beside
    them what luck does to a half and what the two measured halves differ by. Files as for --acceptance-file.

    \b
        specsim validate acceptance examples/acceptance_llama31_8b_gsm8k.jsonl.gz --drafter eagle
    """
    from specsim.errors import ScenarioError, nearest
    from specsim.planner.held_out import HALVES
    from specsim.report.files import check_file, whole_file
    from specsim.report.held_out import held_out_page, held_out_text

    numbers = parse_whole_numbers(ks, "--k", low=1)
    refuse_doubles(numbers, "--k")
    if max(numbers) > 64:
        raise ScenarioError(f"--k must be at most 64, got {max(numbers)}")
    ways = [way.strip() for way in halves.split(",")]
    for way in ways:
        if ways.count(way) > 1:
            raise ScenarioError(f"--halves has {way} twice; give each value once")
        if way not in HALVES:
            raise ScenarioError(f"--halves '{way}' is unknown{nearest(way, list(HALVES))}; give {', '.join(HALVES)}")
    for name, value, low, high in (
        ("--splits", splits, 1, 100), ("--replications", replications, 1, 1000), ("--seed", seed, 0, 2**62),
        ("--jobs", jobs, 0, 1024),
    ):  # fmt: skip
        if not low <= value <= high:
            raise ScenarioError(f"{name} must lie in {low}..{high}, got {value}")
    if output is not None and as_json:
        raise ScenarioError("-o writes a page and --json prints JSON; give one of them")
    if output is not None:
        check_file("-o", output, force=True)
    if output is not None and any(
        os.path.exists(output) and os.path.samefile(output, f) for f in files if os.path.exists(f)
    ):
        raise ScenarioError(f"-o {output} is one of the measured files; give the page another name")
    settings = {"halves": ways, "splits": splits, "replications": replications, "seed": seed}
    results = _judged(files, drafter, task, sorted(numbers), settings, jobs)
    if as_json:
        click.echo(json.dumps({"sets": [result.as_dict() for result in results]}, allow_nan=False))
    elif output is None:
        click.echo(held_out_text(results, color=sys.stdout.isatty()), nl=False)
    else:
        words = ["specsim validate acceptance", *files]
        words += [f"{flag} {value}" for flag, value in (("--drafter", drafter), ("--task", task)) if value]
        words += [f"{flag} {value}" for flag, value, usual in (
            ("--k", ks, "1,3,5,10"), ("--halves", halves, "random"), ("--splits", splits, 4),
            ("--replications", replications, 4), ("--seed", seed, 0),
        ) if value != usual]  # fmt: skip
        with whole_file("-o", output) as out:
            out.write(held_out_page(results, f"{' '.join(words)} -o {output}"))
        click.echo(f"{output} is written", err=True)


def _judged(
    files: tuple[str, ...], drafter: str | None, task: str | None, ks: list[int], settings: dict[str, Any], jobs: int
) -> list[HeldOut]:
    from specsim.acceptance import read_measured
    from specsim.acceptance.measured import drafters_in
    from specsim.planner.held_out import held_out

    sets = [
        read_measured(path, drafter=name, task=task)
        for path in files
        for name in ((drafter,) if drafter else drafters_in(path))
    ]
    if not sys.stderr.isatty():
        return held_out(sets, ks, processes=jobs, **settings)
    fits = 2 * len(sets) * sum(1 if way == "even-odd" else settings["splits"] for way in settings["halves"])
    with click.progressbar(length=fits, label="fitting", file=sys.stderr) as bar:
        return held_out(sets, ks, processes=jobs, progress=bar.update, **settings)
