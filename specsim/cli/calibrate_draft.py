"""`specsim calibrate draft`: train a small draft model for a target, out of what the target says itself."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from calibrate.distil.job import Distilled

__all__ = ["draft"]


@click.command()
@click.option("--target", metavar="MODEL", help="Hugging Face directory with weights and tokenizer, or GGUF file.")
@click.option("-o", "--out", metavar="DIR", help="Directory to write: weights, tokenizer, and how they came about.")
@click.option("--layers", type=click.IntRange(min=1), default=2, show_default=True, help="Layers of the draft model.")
@click.option(
    "--sequences", type=click.IntRange(min=2), default=512, show_default=True, help="Texts that the target writes."
)
@click.option("--tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Of each, at most.")
@click.option("--steps", type=click.IntRange(min=1), default=200, show_default=True, help="Of training.")
@click.option(
    "--temperature",
    type=click.FloatRange(0, 2),
    default=0.8,
    show_default=True,
    help="At which the target writes.",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    metavar="FILE",
    help="Text whose passages are half of the prompts; may be repeated.  [default: the target makes up all]",
)
@click.option("--device", default="auto", show_default=True, help="cuda, cuda:1, mps or cpu.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of --device cpu.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of texts and training.")
@click.option("--force", is_flag=True, help="Replace the directory of -o.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def draft(**values: Any) -> None:
    """Train a draft model for a target.

    The target writes texts; a model of a few of its layers, with its embedding and head, learns to predict them as it
    does. Printed is how often both agree on texts kept out of training: acceptance on other prompts is measured
    elsewhere. The directory is a model like any other for --draft.

    \b
        specsim calibrate draft --target SmolLM2-135M-Instruct/ -o smollm2-draft
    """  # fmt: skip
    from specsim.errors import ScenarioError

    for flag in ("target", "out"):
        if values[flag] is None:
            raise ScenarioError(f"calibrate draft needs --{flag}")
    out = Path(values["out"]).expanduser()
    if out.exists() and not out.is_dir():
        raise ScenarioError(f"--out {out}: is a file; a draft model is a directory")
    if out.exists() and any(out.iterdir()) and not values["force"]:
        raise ScenarioError(f"--out {out}: exists already; give --force to replace it")
    for needed in ("torch", "transformers"):
        if find_spec(needed) is None:
            raise ScenarioError(f"training needs {needed}: pip install '.[calibrate]' in the folder of specsim")
    from calibrate.distil.job import Recipe, distil
    from calibrate.latency.device import find_device

    recipe = Recipe(
        layers=values["layers"], sequences=values["sequences"], tokens=values["tokens"],
        temperature=values["temperature"], steps=values["steps"], seed=values["seed"],
    )  # fmt: skip
    given: dict[str, Any] = {
        "texts": [_text_of(name) for name in values["texts"]],
        "device": find_device(values["device"], threads=values["threads"]).torch_device,
    }
    target = Path(values["target"]).expanduser()
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("writing", total=1.0)
            found = distil(
                target, out, recipe, **given,
                say=lambda line: bar.console.print(line, markup=False, highlight=False),
                progress=lambda share, text: bar.update(task, completed=share, description=text),
            )  # fmt: skip
    else:
        found = distil(target, out, recipe, **given, say=lambda line: click.echo(line, err=True))
    click.echo(json.dumps(_facts(found)) if values["as_json"] else _text(found))


def _text_of(name: str) -> str:
    from specsim.errors import ScenarioError

    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ScenarioError(f"--text {name}: cannot be read: {reason}; give a text file") from None


def _facts(found: Distilled) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "directory": str(found.directory),
        "parameters": found.parameters,
        "target_parameters": found.target_parameters,
        "trained_tokens": found.trained_tokens,
        "held_out_positions": found.after.positions,
        "likeliest_token_agrees": {"before": found.before.likeliest, "after": found.after.likeliest},
        "overlap_of_laws": {"before": found.before.overlap, "after": found.after.overlap},
        "first_loss": found.losses[0],
        "last_loss": found.losses[-1],
        "writing_s": found.seconds[0],
        "training_s": found.seconds[1],
    }


def _text(found: Distilled) -> str:
    facts = _facts(found)
    share = found.parameters / found.target_parameters
    agrees, overlap = facts["likeliest_token_agrees"], facts["overlap_of_laws"]
    return "\n".join((
        f"Draft model: {found.directory}",
        f"  {found.parameters / 1e6:.1f} M parameters, {share:.0%} of the target's",
        f"  learnt from {found.trained_tokens:,} tokens; loss {found.losses[0]:.2f} -> {found.losses[-1]:.2f}",
        f"  on {found.after.positions:,} positions kept out, both find the same token likeliest at "
        f"{agrees['after']:.1%} (before training {agrees['before']:.1%})",
        f"  and share {overlap['after']:.1%} of their probability ({overlap['before']:.1%})",
        f"  processor time: {found.seconds[0]:.0f} s to write, {found.seconds[1]:.0f} s to train",
        f"Use it with --draft {found.directory}; acceptance on real prompts is what specsim calibrate acceptance says.",
    ))  # fmt: skip
