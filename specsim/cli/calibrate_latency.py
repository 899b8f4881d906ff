"""`specsim calibrate latency`: seconds of prefill, verify, draft, sampling and acceptance on this machine."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calibrate.latency.job import Model
    from specsim.shapes import ModelShape

__all__ = ["latency", "seconds_of"]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@click.command()
@click.option(
    "--target",
    metavar="MODEL",
    help="Hugging Face directory, GGUF file, config.json, or catalogue name (random weights).",
)
@click.option(
    "--draft",
    metavar="MODEL",
    help="Drafter of method draft_model, likewise; of eagle, eagle3, mtp a catalogue name; of medusa a folder of heads "
    "or its config.json.  [default: the target's head]",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="NAME",
    help="ngram, suffix, layer_skip, draft_model, eagle, eagle3, mtp, medusa or lookahead; may be repeated.  [default: "
    "ngram, or draft_model]",
)
@click.option("--draft-option", multiple=True, metavar="NAME=N", help="A number of the drafter, e.g. layers=8.")
@click.option(
    "--k-max",
    type=click.IntRange(1, 64),
    default=5,
    show_default=True,
    help="Most drafts a round; of a tree all its nodes.",
)
@click.option("--device", default="auto", show_default=True, help="cuda, cuda:1, mps or cpu.")
@click.option(
    "--clock",
    default="auto",
    show_default=True,
    help="wall, device (GPU events) or cpu (processor time; with --threads 1).",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of --device cpu.")
@click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), help="[default: bf16, on a CPU fp32]")
@click.option(
    "--tp",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Measure one GPU's share of this many; collectives come from --link-gpu.",
)
@click.option("--link-gpu", metavar="NAME", help="Catalogue GPU whose link carries the collectives.")
@click.option(
    "--layers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Build N layers and compose the rest.  [default: all that fit]",
)
@click.option("--max-batch", type=click.IntRange(min=1), default=32, show_default=True, help="Most requests in a step.")
@click.option(
    "--max-context",
    type=click.IntRange(min=16),
    default=1024,
    show_default=True,
    metavar="TOKENS",
    help="Longest context.",
)
@click.option(
    "--max-chunk",
    type=click.IntRange(min=16),
    default=512,
    show_default=True,
    metavar="TOKENS",
    help="Largest prompt chunk.",
)
@click.option("--budget", default="5m", show_default=True, metavar="TIME", help="Time to measure, e.g. 90s or 8m.")
@click.option("--eager", is_flag=True, help="Capture nothing: passes as the reference engine itself runs them.")
@click.option(
    "--target-points",
    metavar="FILE.jsonl",
    help="Take the target's points from this file, and measure the drafter alone.",
)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="Of sampling.")
@click.option("--points", metavar="FILE.jsonl", help="Where points are kept.  [default: beside -o, or in this folder]")
@click.option("--name", metavar="TEXT", help="Of the profile.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of tokens and weights.")
@click.option("-o", "--out", metavar="FILE.json", help="Profile to write; with several methods, FILE-METHOD.json each.")
@click.option("--force", is_flag=True, help="Replace the file of -o.")
@click.option("--json", "as_json", is_flag=True, help="Print profiles as JSON instead of text.")
def latency(**values: Any) -> None:
    """Measure what a step costs on this machine.

    Points are kept as they are measured: the same command again goes on where it stopped. The grid is chosen where
    the fit is least certain, until --budget is used; held-out points say how far the fit misses.

    \b
        specsim calibrate latency --target SmolLM2-135M/ --method layer_skip -o smollm2.json
        specsim calibrate latency --target llama-3.1-70b --tp 4 --link-gpu h100-sxm -o shard.json
    """  # fmt: skip
    from specsim.drafters import drafter
    from specsim.errors import ScenarioError
    from specsim.report.files import check_file

    if values["target"] is None:
        raise ScenarioError("calibrate latency needs a model: give --target, e.g. a directory or a catalogue name")
    if not 0 <= values["temperature"] <= 2:
        raise ScenarioError(f"--temperature {values['temperature']:g} must lie in 0..2")
    methods = tuple(dict.fromkeys(drafter(name).name for name in values["methods"]))
    methods = methods or (("draft_model",) if values["draft"] else ("ngram",))
    outs = _outs(values["out"], methods)
    for out in outs.values():
        check_file("-o", out, (".json",), force=values["force"])
    for needed in ("torch", "transformers"):
        if find_spec(needed) is None:
            raise ScenarioError(f"measuring needs {needed}: pip install '.[calibrate]' in the folder of specsim")
    setup, points = _measured(values, methods)
    from calibrate.points import points_sha256
    from specsim.cli.calibrate_fit import fitted_profile, write_profile
    from specsim.report.profile import profile_text

    sha256 = points_sha256(setup, points)
    shown = []
    for method in methods:
        profile = fitted_profile(
            setup, points, method, sha256=sha256, name=values["name"], link_gpu=values["link_gpu"],
            options=_options(values["draft_option"]),
        )  # fmt: skip
        if method in outs:
            write_profile(profile, outs[method])
        shown.append(json.dumps(profile.to_dict()) if values["as_json"] else profile_text(profile, points=points))
    click.echo("\n".join(text.rstrip("\n") for text in shown))


def _measured(values: dict[str, Any], methods: tuple[str, ...]) -> Any:
    from calibrate.latency.device import find_device
    from calibrate.latency.grid import Grid
    from calibrate.latency.job import Job, measure
    from specsim.cli.model_input import model_of

    device = find_device(values["device"], clock=values["clock"], threads=values["threads"])
    target = model_of(values["target"], "--target")
    draft = _drafter(values["draft"], methods, target, _options(values["draft_option"]))
    points = values["points"]
    if points is None:
        stem = values["out"].removesuffix(".json") if values["out"] else re.sub(r"[^A-Za-z0-9.-]+", "-", target.name)
        points = f"{stem}.points.jsonl"
    job = Job(
        target=target,
        methods=methods,
        device=device,
        points=points,
        draft=draft,
        options=_options(values["draft_option"]),
        dtype=values["dtype"] or ("fp32" if device.backend == "cpu" else "bf16"),
        tp=values["tp"],
        layers=values["layers"],
        grid=Grid(values["max_batch"], _width(values, methods, target), values["max_context"], values["max_chunk"]),
        k_max=values["k_max"],
        budget_s=seconds_of(values["budget"]),
        temperature=values["temperature"],
        graphs=not values["eager"],
        target_points=values["target_points"],
        seed=values["seed"],
        say=lambda line: click.echo(line, err=True),
    )
    if not sys.stderr.isatty():
        return measure(job)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=1.0)
        job = replace(
            job,
            progress=lambda share, text: bar.update(task, completed=share, description=text),
            say=lambda line: bar.console.print(line, markup=False, highlight=False),
        )
        return measure(job)


def _width(values: dict[str, Any], methods: tuple[str, ...], target: Model) -> int:
    """Most tokens verified a request: of k drafts, or of what a method verifies at k."""
    from specsim.drafters import drafter
    from specsim.shapes import ModelShape

    most = k = int(values["k_max"])
    shape = ModelShape(**{**target.shape, "doubtful": ()})
    for own in map(drafter, methods):
        if own.nodes is not None:
            most = max(most, own.nodes(k, own.chosen(shape, _options(values["draft_option"]))))
    return 1 + most


def _drafter(given: str | None, methods: tuple[str, ...], target: Model, options: Mapping[str, int]) -> Model | None:
    """The drafter of the method that runs one: a model as given, or a head by name, else the target's usual head."""
    from calibrate.latency.job import Model
    from specsim.cli.model_input import model_of
    from specsim.drafters import drafter
    from specsim.errors import ScenarioError
    from specsim.shapes import ModelShape

    head = next((name for name in methods if drafter(name).loads == "head"), None)
    if head is None:
        return None if given is None else model_of(given, "--draft")
    from scenarios.models import default_drafter, model

    if given is not None and options:
        raise ScenarioError(f"--draft {given} has its own shape, so that --draft-option does nothing; give one of them")
    shape = ModelShape(**{**target.shape, "doubtful": ()})
    if given is not None and drafter(head).mode == "heads":
        return _heads(given, shape)
    found = default_drafter(shape, head, options) if given is None else model(given, kind=drafter(head).kind)
    assert found is not None
    return Model(found.name, {}, asdict(found))


def _heads(given: str, target: ModelShape) -> Model:
    """Heads that run at once: those of a folder, or of the shape that its config.json gives, with random weights."""
    from calibrate.drafters.medusa import medusa_shape
    from calibrate.latency.job import Model
    from specsim.errors import ScenarioError

    path = Path(given).expanduser()
    folder = path.parent if path.name == "config.json" and path.is_file() else path
    if not folder.is_dir():
        raise ScenarioError(f"--draft {given}: no such folder; medusa takes a folder of heads or its config.json")
    shape = medusa_shape(folder, target)
    name = f"{shape.num_layers} medusa heads of {folder.resolve().name}"
    return Model(name, folder if path == folder else {}, asdict(replace(shape, name=name)))


def _outs(out: str | None, methods: tuple[str, ...]) -> dict[str, str]:
    if out is None:
        return {}
    if len(methods) == 1:
        return {methods[0]: out}
    stem = out.removesuffix(".json")
    return {method: f"{stem}-{method}.json" for method in methods}


def _options(texts: tuple[str, ...]) -> dict[str, int]:
    from specsim.cli.scenario_options import parse_named_numbers

    return parse_named_numbers(texts, "--draft-option")


def seconds_of(text: str) -> float:
    """Seconds of a time such as 90s, 8m or 1h.

    Raises:
        ScenarioError: it is none, or not within a second and a week.
    """
    from specsim.errors import ScenarioError

    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 1 <= seconds <= 7 * 86400:
        raise ScenarioError(f"--budget {text!r} must be a time such as 90s, 8m or 1h")
    return seconds
