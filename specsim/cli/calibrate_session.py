"""`specsim calibrate session`: a prepared session on a GPU, several models in one go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.calibrate_latency import seconds_of

if TYPE_CHECKING:
    from calibrate.gpu_session import Sizes

__all__ = ["session"]

_TINY: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128},
    "llama-3.2-1b": {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64},
    "llama-3.1-70b": {"num_hidden_layers": 8, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8,
                      "num_key_value_heads": 8},
    "qwen3-30b-a3b": {"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64,
                      "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1,
                      "norm_topk_prob": True, "mlp_only_layers": []},
}  # fmt: skip
_TINY_COMMON = {
    "model_type": "llama", "vocab_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip


@click.command()
@click.option("-o", "--out", metavar="DIR", help="Folder for profiles, points, logs and summary.json.")
@click.option(
    "--budget", default="8m", show_default=True, metavar="TIME", help="Of the whole session, started parts included."
)
@click.option("--only", multiple=True, metavar="PART", help="One of its parts; may be repeated.  [default: all]")
@click.option("--link-gpu", default="h100-sxm", show_default=True, metavar="NAME", help="Whose link a shard has.")
@click.option("--dry-run", is_flag=True, help="Shrunken models on the CPU: whether everything runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of text.")
def session(**values: Any) -> None:
    """Calibrate several models in one go on a GPU.

    Llama-3.1-8B with Llama-3.2-1B, with an EAGLE-3 head and with n-gram; Qwen3-30B-A3B; one GPU's shard of
    Llama-3.1-70B by layers; and Llama-3.1-8B as the reference engine runs it, without graphs. At the end that last
    profile is held against real serving, with forced acceptance. Weights are random and nothing is fetched. The plan of
    the time is printed first; the same command again goes on with what is missing.

    \b
        specsim calibrate session -o h100/
        specsim calibrate session -o trial/ --budget 2m --dry-run
    """  # fmt: skip
    from calibrate.gpu_session import CHECKS, DEVICE_SIZES, PARTS, run_session
    from scenarios.hardware import gpu
    from specsim.errors import ScenarioError, nearest

    if values["out"] is None:
        raise ScenarioError("calibrate session needs a folder: give --out")
    folder = Path(values["out"]).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ScenarioError(f"--out {folder}: is a file; results go to a folder")
    names = [*(part.name for part in PARTS), *(check.name for check in CHECKS)]
    for name in values["only"]:
        if name not in names:
            raise ScenarioError(f"--only {name}: no such part{nearest(name, names)}; there are {', '.join(names)}")
    gpu(values["link_gpu"])
    for needed in ("torch", "transformers"):
        if find_spec(needed) is None:
            raise ScenarioError(f"measuring needs {needed}: pip install '.[calibrate]' in the folder of specsim")
    sizes = DEVICE_SIZES
    if values["dry_run"]:
        sizes = _tiny_sizes(folder)
    else:
        from calibrate.latency.device import find_device

        find_device("cuda")
    summary = run_session(
        folder, sizes, seconds_of(values["budget"]), link_gpu=values["link_gpu"], only=values["only"],
        say=lambda line: click.echo(line, err=True),
    )  # fmt: skip
    click.echo(json.dumps(summary) if values["as_json"] else _text(summary, folder))
    rows = [(row["part"], row["status"]) for row in summary["parts"]]
    rows += [(row["check"], row["status"]) for row in summary["checks"]]
    failed = [name for name, status in rows if not status.endswith(("done", "done already"))]
    if failed:
        raise ScenarioError(f"not finished: {', '.join(failed)}; the same command goes on with them")


def _tiny_sizes(folder: Path) -> Sizes:
    """Shrunken models as config files in the folder, and ranges that fit them."""
    from calibrate.gpu_session import Sizes

    models = {}
    for name, values in _TINY.items():
        home = folder / "tiny" / f"tiny-{name}"
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.json").write_text(json.dumps(_TINY_COMMON | values), encoding="utf-8")
        models[name] = str(home / "config.json")
    return Sizes(
        grid=("--k-max", "2", "--max-batch", "4", "--max-context", "32", "--max-chunk", "16"),
        device=("--device", "cpu", "--clock", "cpu", "--threads", "1"),
        models=models,
    )


def _text(summary: dict[str, Any], folder: Path) -> str:
    machine = summary["machine"]
    lines = [", ".join(f"{name} {value}" for name, value in machine.items()) or "Nothing was measured."]
    for name, (low, high) in summary["states"].items():
        lines.append(f"  {name}: {low:g} to {high:g}")
    for row in summary["parts"]:
        launches = ", ".join(f"{count} {name}" for name, count in row.get("launches", {}).items())
        lines.append(f"{row['part']}: {row['status']}, {row['points']} points{f' ({launches})' if launches else ''}")
        if row.get("last_line"):
            lines.append(f"  {row['last_line']}")
        for method, facts in row["profiles"].items():
            lines.append(
                f"  {method}: {facts['file']}, {facts['holdout_points']} held out, median error "
                f"{facts['holdout_median']:.1%}, 95 % below {facts['holdout_p95']:.1%}, noise {facts['noise']:.1%}"
            )
    for row in summary["checks"]:
        lines += list(_check_lines(row))
    return "\n".join([*lines, f"Everything is in {folder}"])


def _check_lines(row: dict[str, Any]) -> Iterator[str]:
    yield f"{row['check']}: {row['status']}"
    if row.get("last_line"):
        yield f"  {row['last_line']}"
    if "verdict" not in row:
        return
    verdict = row["verdict"]
    yield (
        f"  {row['runs']} of {row['runs_asked']} runs; {verdict['within']} of {verdict['figures']} throughputs and "
        f"mean TPOTs within 5 % or the noise, {verdict['signs_right']} of {verdict['signs']} signs right"
    )
    for own in row["errors"]:
        noise = "not known" if own["noise"] is None else f"{own['noise']:.1%}"
        yield (f"  {own['load']}, {own['policy']}: tokens/s {own['output_tokens_per_s']:+.1%}, mean TPOT "
               f"{own['tpot_mean_s']:+.1%} (noise {noise})")  # fmt: skip
