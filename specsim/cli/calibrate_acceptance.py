"""`specsim calibrate acceptance`: what real drafters get accepted by a real target on your prompts."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.model_input import method_options

if TYPE_CHECKING:
    from calibrate.acceptance.job import AcceptanceJob
    from calibrate.acceptance.methods import Draft
    from calibrate.drafters.planting import Planting
    from calibrate.latency.device import Device
    from calibrate.models import FlatModel

__all__ = ["acceptance"]

_FORMAT = 1
_SUFFIXES = (".jsonl", ".gz")


@click.command(short_help="Measure what real drafters get accepted on your prompts.")
@click.option("--target", required=True, metavar="MODEL", help="Hugging Face directory or GGUF file, with weights.")
@click.option("--prompts", required=True, metavar="FILE.jsonl", help="Prompts, one JSON object a line; plain or .gz.")
@click.option("--draft", metavar="MODEL", help="Draft model of the target's vocabulary, or folder of its heads.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="NAME",
    help="ngram, suffix, lookahead, layer_skip, draft_model, medusa, eagle, eagle2, eagle3, mtp; repeatable.  "
    "[default: ngram, or draft_model]",
)
@click.option(
    "--tree",
    metavar="TREE",
    help="Of heads: chain; 4,8,8: nodes by level; 4x2x1: candidates behind each node; or a JSON file of paths.",
)
@click.option(
    "--draft-option", multiple=True, metavar="[METHOD.]NAME=N", help="An option of a method, e.g. layer_skip.layers=20."
)
@click.option("--k", "ks", default="1,3,5,10", show_default=True, metavar="K[,K...]", help="Drafts a round.")
@click.option(
    "--k-max",
    type=click.IntRange(1, 64),
    default=20,
    show_default=True,
    help="Most drafts where every position is measured.",
)
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0: greedy.")
@click.option("--top-k", type=click.IntRange(min=1), metavar="N", help="Keep the N likeliest tokens.  [default: all]")
@click.option(
    "--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True, help="Then this mass."
)
@click.option(
    "--draft-sampling",
    type=click.Choice(["greedy", "probabilistic"]),
    default="greedy",
    show_default=True,
    help="How drafts are drawn at a temperature.",
)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Of rows that do not say."
)
@click.option("--no-chat-template", is_flag=True, help="Take 'prompt' as it is, not as a user's message.")
@click.option("--wanted-interval", type=click.FloatRange(0, 1, min_open=True), default=0.05, show_default=True,
              metavar="SHARE", help="Half width of the 95 % interval: say how many prompts it needs.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 1024), default=8, show_default=True, help="Requests at a time.")
@click.option("--device", default="auto", show_default=True, help="cuda, cuda:1, mps or cpu.")
@click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), help="[default: bf16, on a CPU fp32]")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of --device cpu.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of sampling.")
@click.option("--strict", is_flag=True, help="Refuse the first row of the prompts that cannot be used.")
@click.option("-o", "--out", required=True, metavar="FILE.jsonl[.gz]", help="File of measured requests to write.")
@click.option("--force", is_flag=True, help="Replace the file of -o.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of text.")
def acceptance(**values: Any) -> None:
    """Measure what real drafters get accepted on your prompts.

    The target writes an answer to each prompt, drafters draft, and the file of -o says for every output position what a
    round there would emit (at a temperature, and for suffix: what the rounds emitted). It is for --acceptance-file of
    plan, simulate and crossover. A run that was stopped goes on when it is started again.

    \b
        specsim calibrate acceptance --target SmolLM2-135M/ --prompts prompts.jsonl -o mine.jsonl
        specsim plan --trace prod.jsonl --method ngram --acceptance-file mine.jsonl
    """
    from specsim.acceptance import read_measured
    from specsim.acceptance.measured_summary import summary_of
    from specsim.cli.scenario_options import parse_whole_numbers, refuse_doubles
    from specsim.errors import ScenarioError
    from specsim.report.files import check_file
    from specsim.report.measured_acceptance import measured_acceptance_text

    ks = parse_whole_numbers(values["ks"], "--k", low=1)
    refuse_doubles(ks, "--k")
    if max(ks) > 64:
        raise ScenarioError(f"--k must be at most 64, got {max(ks)}")
    check_file("-o", values["out"], _SUFFIXES, force=values["force"])
    for needed in ("torch", "transformers"):
        if find_spec(needed) is None:
            raise ScenarioError(f"measuring needs {needed}: pip install '.[calibrate]' in the folder of specsim")
    job = _measured(values, tuple(sorted(ks)))
    wanted = values["wanted_interval"]
    summaries = [
        summary_of(
            read_measured(values["out"], drafter=method.name), tuple(sorted(ks)), wanted_interval=wanted,
            seed=values["seed"],
        )
        for method in job.methods
    ]  # fmt: skip
    if values["as_json"]:
        click.echo(
            json.dumps(
                {
                    "schema_version": _FORMAT,
                    "file": values["out"],
                    "drafters": [asdict(summary) for summary in summaries],
                }
            )
        )
    else:
        click.echo(measured_acceptance_text(summaries, wanted_interval=wanted, color=sys.stdout.isatty()), nl=False)


def _measured(values: dict[str, Any], ks: tuple[int, ...]) -> AcceptanceJob:
    """Load, measure what is left, and write the file."""
    from calibrate.acceptance.job import measure_acceptance, rows
    from calibrate.acceptance.journal import Journal
    from calibrate.latency.device import is_out_of_memory
    from specsim.errors import CapacityError

    job, asked = _job(values, ks)
    with Journal(Path(values["out"] + ".unfinished"), asked) as journal:
        if journal.done:
            click.echo(f"{journal.path}: going on where it stopped, {len(journal.done)} pieces are there", err=True)
        while True:
            try:
                _run(job, lambda job: measure_acceptance(job, journal))
                break
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if job.batch == 1:
                    raise CapacityError(f"out of memory with one request at a time; give a smaller --target or "
                                        f"--max-tokens, or a narrower --dtype ({journal.path} keeps what is "
                                        f"finished)") from None  # fmt: skip
                job = replace(job, batch=job.batch // 2)
                click.echo(f"out of memory; goes on with {job.batch} requests at a time", err=True)
        # the day on which it was finished; one that was stopped may have begun on another
        job = replace(job, measured={**job.measured, "date": datetime.now(UTC).date().isoformat()})
        _write(values["out"], rows(job, journal))
    journal.path.unlink()
    return job


def _job(values: dict[str, Any], ks: tuple[int, ...]) -> tuple[AcceptanceJob, dict[str, Any]]:
    """The measurement, and all that a continued one must have in common with it."""
    from calibrate.acceptance.facts import measured_facts
    from calibrate.acceptance.job import AcceptanceJob
    from calibrate.acceptance.methods import HEADS, NEEDS_DRAFT, PLANTED, WITHIN_TARGET, build_method, chosen_options
    from calibrate.acceptance.prompts import check_prompts, lines_of, read_prompts
    from calibrate.drafters.planting import CHAIN
    from calibrate.engine.verify import Sampling
    from calibrate.latency.device import find_device
    from calibrate.models.load import configuration
    from calibrate.models.vocabulary import find_tokenizer, stop_tokens
    from specsim.drafters import drafter
    from specsim.errors import ScenarioError

    names = tuple(dict.fromkeys(drafter(name).name for name in values["methods"]))
    names = names or (("draft_model",) if values["draft"] else ("ngram",))
    needing = [name for name in names if name in NEEDS_DRAFT]
    if len({HEADS.get(name, name) for name in needing}) > 1:
        raise ScenarioError(f"--draft is for one method, and {' and '.join(needing)} need one; run them one by one")
    lacking = next((name for name in needing if not values["draft"] and name not in WITHIN_TARGET), None)
    if lacking is not None:
        raise ScenarioError(f"{lacking} needs {NEEDS_DRAFT[lacking]}; give it with --draft")
    if values["draft"] and not needing:
        raise ScenarioError(f"--draft is for {', '.join(NEEDS_DRAFT)}, and --method says {', '.join(names)}")
    options = method_options(values["draft_option"], names)
    for name in names:
        chosen_options(name, options[name])
    planting = _planting(values, names)
    # a look at the files comes before any weights are read, which takes minutes
    check_prompts(values["prompts"], strict=values["strict"])
    _check_weights(values, "target")
    if needing and needing[0] in HEADS:
        _head_folder(values, needing[0])
    elif needing:
        _check_weights(values, "draft")
    place = Path(values["target"]).expanduser()
    tokenizer, config = find_tokenizer(place), configuration(place)
    found = read_prompts(
        values["prompts"],
        tokenizer,
        vocab_size=config.vocab_size,
        max_tokens=values["max_tokens"],
        max_context=getattr(config, "max_position_embeddings", None),
        use_template=not values["no_chat_template"],
        strict=values["strict"],
    )
    for line in lines_of(found):
        click.echo(line, err=True)
    device = find_device(values["device"], threads=values["threads"])
    target = _model(values, "target", device)
    draft = None
    if values["draft"] or (needing and needing[0] in WITHIN_TARGET):
        draft = _draft(values, needing[0], target, tokenizer, device)
    methods = [
        build_method(name, target, draft, options[name], planting=planting if name in PLANTED else CHAIN)
        for name in names
    ]
    stops = stop_tokens(target, place, tokenizer)
    sampling = Sampling(
        values["temperature"], values["top_k"], values["top_p"], values["draft_sampling"], values["seed"]
    )
    measured = measured_facts(
        (values["target"], target), None if draft is None else (values["draft"] or values["target"], draft), methods,
        sampling, planting=planting, dtype=_dtype(values, device), prompts=len(found.prompts),
    )  # fmt: skip
    job = AcceptanceJob(target, found.prompts, methods, stops, values["k_max"], ks, sampling, values["batch"], measured)
    asked = {
        "format": _FORMAT,
        "target": values["target"],
        "draft": values["draft"],
        "methods": {method.name: dict(method.options) for method in methods},
        "tree": hashlib.sha256(repr(planting).encode()).hexdigest(),
        "prompts": hashlib.sha256(repr(found.prompts).encode()).hexdigest(),
        "sampling": asdict(sampling),
        "k": list(ks),
        "k-max": values["k_max"],
        "stop tokens": list(stops),
        "dtype": str(target.dtype),
    }
    return job, asked


def _dtype(values: dict[str, Any], device: Device) -> str:
    return str(values["dtype"] or ("fp32" if device.backend == "cpu" else "bf16"))


def _check_weights(values: dict[str, Any], flag: str) -> None:
    """Refuse a model that is not there or has a configuration only; one look, since loading makes random weights.

    Raises:
        ScenarioError: flag, path, and what is needed.
    """
    from specsim.errors import ScenarioError

    given = Path(values[flag]).expanduser()
    if not given.exists():
        raise ScenarioError(f"--{flag} {given}: no such file or folder; give one with weights")
    if given.suffix != ".gguf" and not any(given.glob("*.safetensors")):
        raise ScenarioError(
            f"--{flag} {given}: has no weights, and acceptance of random ones says nothing; give a directory with "
            f"safetensors or a GGUF file"
        )


def _model(values: dict[str, Any], flag: str, device: Device) -> FlatModel:
    from calibrate.latency.job import DTYPES
    from calibrate.models import load_model
    from specsim.errors import ScenarioError

    _check_weights(values, flag)
    given = Path(values[flag]).expanduser()
    model = load_model(given, device=device.torch_device, dtype=DTYPES[_dtype(values, device)])
    if model.source.startswith("random"):
        raise ScenarioError(
            f"--{flag} {given}: its weights are not those of a language model alone, and acceptance of random ones "
            f"says nothing; give the language model by itself"
        )
    return model


def _draft(values: dict[str, Any], method: str, target: FlatModel, tokenizer: Any, device: Device) -> Draft:
    """A draft model, or the heads of a method; both refused where they speak other tokens than the target."""
    from calibrate.acceptance.methods import HEADS
    from calibrate.models.vocabulary import check_same_tokens, check_vocabulary, find_tokenizer

    if method not in HEADS:
        model = _model(values, "draft", device)
        check_vocabulary(target, tokenizer, model, find_tokenizer(values["draft"]))
        return model
    folder = _head_folder(values, method)
    heads = HEADS[method](folder, target)
    theirs = find_tokenizer(folder)
    if tokenizer is not None and theirs is not None:
        check_same_tokens(values["target"], tokenizer, str(folder), theirs)
    return heads


def _head_folder(values: dict[str, Any], method: str) -> Path:
    """Where the heads of a method lie; within the target's own folder where no other is given."""
    from calibrate.acceptance.methods import NEEDS_DRAFT
    from specsim.errors import ScenarioError

    folder = Path(values["draft"] or values["target"]).expanduser()
    if not folder.is_dir():
        said = f"--draft {folder}: no such folder" if values["draft"] else f"--target {folder} is no folder"
        raise ScenarioError(f"{said}; {method} needs {NEEDS_DRAFT[method]}, given with --draft")
    return folder


def _planting(values: dict[str, Any], names: tuple[str, ...]) -> Planting:
    """The shape of the drafts of heads."""
    from calibrate.acceptance.facts import model_name
    from calibrate.acceptance.methods import PLANTED, WITH_TREES
    from calibrate.drafters.planting import CHAIN, read_tree, tree_of_paths
    from scenarios.acceptance import default_acceptance
    from scenarios.models import catalogue_name
    from specsim.cli.tree_input import is_levels, parse_tree
    from specsim.errors import ScenarioError
    from specsim.trees import level_paths

    text = values["tree"]
    if text is None:
        return CHAIN
    planted = next((name for name in names if name in PLANTED), None)
    if planted is None:
        own = [name for name in names if name in WITH_TREES]
        more = f"; {own[0]} grows its own" if own else ""
        raise ScenarioError(f"--tree is for {', '.join(PLANTED)}, and --method says {', '.join(names)}{more}")
    if not is_levels(text):
        return read_tree(text)
    # where the nodes of a level hang is not measured yet, so that what is published of the method decides
    target = model_name(values["target"])
    chain = default_acceptance(planted, catalogue_name(target) or target, None)[0].conditional
    (levels,) = parse_tree(text).values()
    return tree_of_paths(set(level_paths(chain, levels)), text)


def _run(job: AcceptanceJob, work: Any) -> None:
    """With a bar where somebody looks on."""
    if not sys.stderr.isatty():
        work(job)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring")
        work(
            replace(job, progress=lambda done, all, what: bar.update(task, completed=done, total=all, description=what))
        )


def _write(out: str, rows: list[dict[str, Any]]) -> None:
    """Whole or not at all; the same rows give the same bytes."""
    from specsim.errors import ScenarioError

    data = "".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n" for row in rows).encode()
    draft = Path(out + ".part")
    try:
        draft.write_bytes(gzip.compress(data, mtime=0) if out.endswith(".gz") else data)
        os.replace(draft, out)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ScenarioError(f"-o {out}: cannot be written ({error.strerror}); what was measured is kept") from error
