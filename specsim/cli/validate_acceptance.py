"""`specsim validate acceptance`: acceptance models on measured requests that they were not fitted to."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

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
@click.option("--splits", type=int, default=4, show_default=True, help="Ways to halve the requests.")
@click.option("--replications", type=int, default=8, show_default=True, help="Simulations of each half.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of halves and luck.")
@click.option("-o", "--output", metavar="FILE.md", help="Write a Markdown page instead of printing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def acceptance(
    files: tuple[str, ...], drafter: str | None, task: str | None, ks: str, splits: int, replications: int, seed: int,
    output: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Fit acceptance models to half of measured requests, judge on the rest.

    Each model (constant, by position, mixture with memory, replay) is fitted to one half and simulated for the other;
    beside the errors stands what the two measured halves differ by. Files as for --acceptance-file.

    \b
        specsim validate acceptance examples/acceptance_llama31_8b_gsm8k.jsonl.gz --drafter eagle
    """
    from specsim.errors import ScenarioError
    from specsim.report.files import check_file, whole_file
    from specsim.report.held_out import held_out_page, held_out_text

    numbers = parse_whole_numbers(ks, "--k", low=1)
    refuse_doubles(numbers, "--k")
    if max(numbers) > 64:
        raise ScenarioError(f"--k must be at most 64, got {max(numbers)}")
    for name, value, low, high in (
        ("--splits", splits, 1, 100), ("--replications", replications, 1, 1000), ("--seed", seed, 0, 2**62),
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
    results = _judged(files, drafter, task, sorted(numbers), splits, replications, seed)
    if as_json:
        click.echo(json.dumps({"sets": [result.as_dict() for result in results]}, allow_nan=False))
    elif output is None:
        click.echo(held_out_text(results, color=sys.stdout.isatty()), nl=False)
    else:
        words = ["specsim validate acceptance", *files]
        words += [f"{flag} {value}" for flag, value in (("--drafter", drafter), ("--task", task)) if value]
        words += [f"{flag} {value}" for flag, value, usual in (
            ("--k", ks, "1,3,5,10"), ("--splits", splits, 4), ("--replications", replications, 8), ("--seed", seed, 0),
        ) if value != usual]  # fmt: skip
        with whole_file("-o", output) as out:
            out.write(held_out_page(results, f"{' '.join(words)} -o {output}"))
        click.echo(f"{output} is written", err=True)


def _judged(
    files: tuple[str, ...], drafter: str | None, task: str | None, ks: list[int], splits: int, replications: int,
    seed: int,
) -> list[HeldOut]:  # fmt: skip
    from specsim.acceptance import read_measured
    from specsim.acceptance.measured import drafters_in
    from specsim.planner.held_out import MODELS, held_out

    sets = [
        read_measured(path, drafter=name, task=task)
        for path in files
        for name in ((drafter,) if drafter else drafters_in(path))
    ]
    if not sys.stderr.isatty():
        return [held_out(one, ks, splits=splits, replications=replications, seed=seed) for one in sets]
    with click.progressbar(length=len(sets) * splits * len(MODELS), label="fitting", file=sys.stderr) as bar:
        return [
            held_out(one, ks, splits=splits, replications=replications, seed=seed, progress=bar.update) for one in sets
        ]
