"""`specsim calibrate draft` as one call: let the target write, train a draft model on it, keep it as a directory."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from calibrate.distil.own_text import continued, own_prompts
from calibrate.distil.train import Agreement, Training, agreement, begin_student, train
from calibrate.engine.prompts import tokens_of
from calibrate.models import FlatModel, default_dtype, load_tokenizer
from calibrate.models.gguf_file import converted, quiet
from specsim.errors import ScenarioError

__all__ = ["Distilled", "Recipe", "distil"]

_HELD_OUT = 16
"""One sequence in so many is kept out of training."""
RECORD = "draft_model.json"
"""File beside the weights that says how they came about."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that the weights follow from, the target apart."""

    layers: int = 2
    sequences: int = 512
    """That the target writes."""
    tokens: int = 128
    """Of each, at most, after its prompt."""
    temperature: float = 0.8
    steps: int = 200
    seed: int = 0


@dataclass(frozen=True)
class Distilled:
    """A finished draft model."""

    directory: Path
    parameters: int
    """Embedding, which is the head too where they are tied, counted once."""
    target_parameters: int
    trained_tokens: int
    before: Agreement
    """Of the copied layers, before training."""
    after: Agreement
    losses: tuple[float, ...]
    seconds: tuple[float, float]
    """Of processor time: writing, training."""


def distil(
    target: str | Path,
    out: str | Path,
    recipe: Recipe,
    *,
    texts: Sequence[str] = (),
    device: torch.device | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> Distilled:
    """Train a draft model for `target` and write it to the directory `out`, whole or not at all.

    Args:
        target: a directory with weights and tokenizer, or a GGUF file.
        texts: passages of which are continued as half of the prompts.
        progress: share of the whole, and what is being done.

    Raises:
        ScenarioError: the target cannot be read or has no weights, or `out` cannot be written.
    """
    where = device or torch.device("cpu")
    causal_lm, tokenizer = _target(Path(target), where)
    student = begin_student(causal_lm, recipe.layers)
    model = FlatModel(causal_lm, name=Path(target).name, source=str(target))
    began = time.process_time()
    prompts = own_prompts(
        model, tokenizer, recipe.sequences, texts=tokens_of(tokenizer, texts), temperature=recipe.temperature,
        seed=recipe.seed,
    )  # fmt: skip
    written = continued(
        model, prompts, recipe.tokens, temperature=recipe.temperature, seed=recipe.seed + 1,
        end=tokenizer.eos_token_id,
        progress=lambda count: progress(0.4 * count / recipe.sequences, f"{count} sequences written"),
    )  # fmt: skip
    wrote = time.process_time()
    held = written[::_HELD_OUT]
    taught = [sequence for n, sequence in enumerate(written) if n % _HELD_OUT]
    if not taught:
        raise ScenarioError(f"{len(written)} sequences are too few to train on and to keep some out; give more")
    tokens = sum(len(sequence.tokens) for sequence in taught)
    say(f"{len(taught)} sequences of {tokens} tokens to learn from, {len(held)} kept out, {wrote - began:.0f} s")
    before = agreement(student, held)

    def step(number: int, loss: float) -> None:
        progress(0.4 + 0.6 * number / recipe.steps, f"step {number} of {recipe.steps}, loss {loss:.3f}")

    losses = train(student, taught, Training(recipe.steps, seed=recipe.seed), step)
    found = Distilled(
        Path(out), _count(student), _count(causal_lm), tokens, before, agreement(student, held), tuple(losses),
        (wrote - began, time.process_time() - wrote),
    )  # fmt: skip
    _keep(found, student, tokenizer, recipe, Path(target).name)
    return found


def _target(path: Path, device: torch.device) -> tuple[Any, Any]:
    directory = converted(path) if path.suffix == ".gguf" else path
    if not directory.is_dir() or not any(directory.glob("*.safetensors")):
        raise ScenarioError(f"--target {path}: no directory with safetensors, and no GGUF file; a draft model is "
                            f"trained on what a real model says")  # fmt: skip
    tokenizer = load_tokenizer(directory)
    try:
        with quiet():
            causal_lm = transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=default_dtype(device), local_files_only=True
            )
    except (OSError, ValueError) as error:
        raise ScenarioError(f"--target {path}: cannot be loaded ({str(error).splitlines()[0]})") from None
    return causal_lm.to(device), tokenizer  # type: ignore[arg-type]


def _count(causal_lm: Any) -> int:
    return sum({p.data_ptr(): p.numel() for p in causal_lm.parameters()}.values())


def _keep(found: Distilled, student: Any, tokenizer: Any, recipe: Recipe, target: str) -> None:
    """Write weights, tokenizer and record beside `directory`, and move them there."""
    out = found.directory
    record = {
        "target": target, "recipe": asdict(recipe), "trained_tokens": found.trained_tokens,
        "before": asdict(found.before), "after": asdict(found.after), "first_loss": found.losses[0],
        "last_loss": found.losses[-1], "torch": torch.__version__, "threads": torch.get_num_threads(),
    }  # fmt: skip
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".draft-", dir=out.parent))
        try:
            with quiet():
                student.save_pretrained(scratch)
                tokenizer.save_pretrained(scratch)
            (scratch / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            if out.exists():
                shutil.rmtree(out)
            os.chmod(scratch, 0o755)
            scratch.rename(out)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise ScenarioError(f"--out {out}: cannot be written ({error.strerror})") from None
