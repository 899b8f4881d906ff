"""`specsim hardware` and `specsim model`: what the catalogue knows, as tables or JSON.

Leaves out: any computation beyond parameter counts and cache bytes; errors propagate to the main command.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

    from specsim.shapes import Gpu, ModelShape

__all__ = ["gpu_record", "hardware", "model", "model_record"]

_SCHEMA_VERSION = 1
_WIDTH = 100
_BYTES_BF16 = 2

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")


@click.group()
def hardware() -> None:
    """GPUs that the catalogue knows.

    Datasheet figures and dated prices, each with its source; doubtful ones are marked.
    """


@hardware.command("list")
@_json_option
def list_hardware(as_json: bool) -> None:
    """List every GPU of the catalogue."""
    from scenarios.hardware import load_gpus

    gpus = list(load_gpus().values())
    if as_json:
        _echo_json({"gpus": [gpu_record(entry) for entry in gpus]})
        return
    table = _table("GPU", "GB", "GB/s", "bf16", "fp8", "fp4", "link GB/s", "TDP W", "$/GPU-hour")
    for entry in gpus:
        table.add_row(
            entry.name,
            _figure(entry, "memory_bytes", round(entry.memory_bytes / 1e9, 1)),
            _figure(entry, "bandwidth_bytes_per_s", entry.bandwidth_bytes_per_s / 1e9),
            *(_rate(entry, dtype) for dtype in ("bf16", "fp8", "fp4")),
            _figure(entry, "link_bytes_per_s", entry.link_bytes_per_s / 1e9),
            _figure(entry, "tdp_w", entry.tdp_w),
            _price_range(entry),
        )
    _echo_table(table)
    click.echo(
        "Memory in 1e9 bytes; dense TFLOP/s; link: one direction of one GPU. ~ doubtful: sources disagree or\n"
        "none was found. Prices span providers and dates: `specsim hardware show NAME` names them all."
    )


@hardware.command("show")
@click.argument("name")
@_json_option
def show_hardware(name: str, as_json: bool) -> None:
    """Show one GPU with its sources, doubts and prices. Case, spaces and dashes in NAME do not matter."""
    from scenarios.hardware import gpu

    entry = gpu(name)
    if as_json:
        _echo_json({"gpu": gpu_record(entry)})
        return
    rates = ", ".join(
        f"{_mark(entry, f'flops_per_s.{dtype}')}{rate / 1e12:g} {dtype}" for dtype, rate in entry.flops_per_s.items()
    )
    driver_mib = entry.extra.get("driver_memory_mib", "")
    facts = {
        "also called": ", ".join(entry.aliases),
        "memory": f"{_figure(entry, 'memory_bytes', round(entry.memory_bytes / 1e9, 1))} GB "
        f"({entry.memory_bytes / 2**30:.1f} GiB)" + (f"; drivers report {driver_mib} MiB" if driver_mib else ""),
        "bandwidth": f"{_figure(entry, 'bandwidth_bytes_per_s', entry.bandwidth_bytes_per_s / 1e9)} GB/s",
        "dense TFLOP/s": rates,
        "link": f"{_figure(entry, 'link_bytes_per_s', entry.link_bytes_per_s / 1e9)} GB/s one way, "
        f"{entry.extra.get('link', '')}, up to {entry.max_tp} GPUs",
        "TDP": f"{_figure(entry, 'tdp_w', entry.tdp_w)} W",
        "all-in power": f"{entry.extra['all_in_kw']} kW per GPU (InferenceX)" if "all_in_kw" in entry.extra else "",
        "source": entry.source,
        "date": entry.date,
        "notes": entry.notes,
        "doubtful (~)": ", ".join(entry.doubtful),
    }
    _echo_facts(entry.name, facts)
    if not entry.prices:
        click.echo("No price is known; give your own.")
        return
    table = _table("$/GPU-hour", "provider", "source", "date")
    doubts: dict[str, list[str]] = {}
    for price in entry.prices:
        shown = f"{'~' if price.doubtful else ''}{price.usd_per_gpu_h:.2f}"
        table.add_row(shown, price.provider, price.source, price.date)
        if price.doubtful:
            doubts.setdefault(price.doubtful, []).append(shown)
    _echo_table(table)
    for reason, figures in doubts.items():
        click.echo(f"{', '.join(figures)}: {reason}")


@click.group()
def model() -> None:
    """Models and drafters that the catalogue knows.

    Their sizes and parameter counts; `show` also reads a config.json of your own.
    """


@model.command("list")
@_json_option
def list_models(as_json: bool) -> None:
    """List every model and drafter of the catalogue."""
    from scenarios.models import load_models

    models = list(load_models().values())
    if as_json:
        _echo_json({"models": [model_record(entry) for entry in models]})
        return
    table = _table("model", "kind", "params B", "active B", "layers", "hidden", "heads", "context", "KV B/token")
    for entry in models:
        table.add_row(
            f"{'~' if entry.doubtful else ''}{entry.name}",
            entry.kind,
            f"{entry.total_parameters / 1e9:.2f}",
            f"{entry.active_parameters / 1e9:.2f}",
            str(entry.num_layers),
            str(entry.hidden_size),
            f"{entry.num_heads}/{'MLA' if entry.is_mla else entry.num_kv_heads}",
            str(entry.max_position_tokens),
            str(_kv_bytes_per_token(entry)),
        )
    _echo_table(table)
    click.echo(
        "Heads: query/key-value. KV: bf16 bytes a token in all layers, before any window. Drafters count\n"
        "only what they add to memory. ~ doubtful: no file at hand confirms every size;\n"
        "`specsim model show NAME` says which."
    )


@model.command("show")
@click.argument("name")
@_json_option
def show_model(name: str, as_json: bool) -> None:
    """Show one model with its sizes and sources.

    NAME is one of the catalogue or the hub, or the path of a config.json or of its directory.
    """
    from scenarios.models import model as find_model

    entry = find_model(name)
    if as_json:
        _echo_json({"model": model_record(entry)})
        return
    attention = f"{entry.num_heads} heads, {entry.num_kv_heads} key-value heads of {entry.head_dim}"
    if entry.is_mla:
        attention = (f"{entry.num_heads} heads, latent (MLA): {entry.kv_lora_rank} + {entry.qk_rope_head_dim} "
                     f"values cached per token and layer")  # fmt: skip
    experts = ""
    if entry.moe_layers:
        experts = f"{entry.num_experts} x {entry.moe_intermediate_size}, {entry.experts_per_token} per token"
        if entry.shared_expert_intermediate_size:
            experts += f", shared {entry.shared_expert_intermediate_size}"
        experts += f", in {entry.moe_layers} of {entry.num_layers} layers"
    window = ""
    if entry.windowed_layers:
        window = f"{entry.window_tokens} tokens in {entry.windowed_layers} of {entry.num_layers} layers"
    dtype = entry.native_weight_dtype
    if entry.native_expert_dtype:
        dtype += f", routed experts {entry.native_expert_dtype}"
    fused = f"{entry.fused_hidden_states} vectors of the target" if entry.kind == "eagle3" else "target + embedding"
    facts = {
        "kind": entry.kind,
        "parameters": f"{entry.total_parameters / 1e9:.3f} B, {entry.active_parameters / 1e9:.3f} B active per token",
        "layers": f"{entry.num_layers} x {entry.hidden_size}",
        "attention": attention,
        "window": window,
        "MLP": str(entry.intermediate_size) if entry.intermediate_size else "",
        "experts": experts,
        "vocabulary": str(entry.vocab_size)
        + (" (embedding and head tied)" if entry.tie_embeddings else "")
        + (f", own head of {entry.draft_vocab_size} rows" if entry.draft_vocab_size else ""),
        "context": f"{entry.max_position_tokens} tokens",
        "KV cache": f"{_kv_bytes_per_token(entry)} bytes per token in bf16, before any window",
        "weights": dtype,
        "MTP layers": str(entry.num_mtp_layers) if entry.num_mtp_layers else "",
        "reads": fused if entry.fused_hidden_states else "",
        "drafters": ", ".join(f"{method}: {drafter}" for method, drafter in _drafters(entry).items()),
        "source": entry.source,
        "date": entry.date,
        "notes": entry.notes,
        "doubtful (~)": ", ".join(entry.doubtful),
    }
    _echo_facts(entry.name, facts)


def gpu_record(entry: Gpu) -> dict[str, Any]:
    """JSON form of a GPU: its fields in SI units, prices included."""
    return asdict(entry)


def model_record(entry: ModelShape) -> dict[str, Any]:
    """JSON form of a model: its fields, the counts derived from them and its usual drafters by method."""
    return {
        **asdict(entry),
        "total_parameters": entry.total_parameters,
        "active_parameters": entry.active_parameters,
        "kv_bytes_per_token_bf16": _kv_bytes_per_token(entry),
        "drafters": _drafters(entry),
    }


def _drafters(entry: ModelShape) -> dict[str, str]:
    from scenarios.models import known_drafters

    return dict(known_drafters(entry))


def _kv_bytes_per_token(entry: ModelShape) -> int:
    return entry.num_layers * entry.kv_values_per_layer * _BYTES_BF16


def _mark(entry: Gpu, field: str) -> str:
    return "~" if field in entry.doubtful else ""


def _figure(entry: Gpu, field: str, value: float) -> str:
    return f"{_mark(entry, field)}{value:.5g}"


def _rate(entry: Gpu, dtype: str) -> str:
    if dtype not in entry.flops_per_s:
        return "-"
    return _figure(entry, f"flops_per_s.{dtype}", entry.flops_per_s[dtype] / 1e12)


def _price_range(entry: Gpu) -> str:
    if not entry.prices:
        return "-"
    mark = "~" if all(price.doubtful for price in entry.prices) else ""
    low, high = (f(price.usd_per_gpu_h for price in entry.prices) for f in (min, max))
    return f"{mark}{low:.2f}" if low == high else f"{mark}{low:.2f} to {high:.2f}"


def _table(*columns: str) -> Table:
    """An empty table; figures to the right, words to the left."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    words = {"GPU", "model", "kind", "provider", "source", "date"}
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right", overflow="fold")
    return table


def _echo_table(table: Table) -> None:
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=_WIDTH, color_system=None, highlight=False).print(table)
    click.echo("\n".join(line.rstrip() for line in buffer.getvalue().splitlines() if line.strip()))


def _echo_facts(title: str, facts: Mapping[str, str]) -> None:
    """One labelled line per fact that is not empty, wrapped at the page width."""
    import textwrap

    click.echo(title)
    for label, value in facts.items():
        if value:
            lines = textwrap.wrap(value, _WIDTH - 18, break_long_words=True, break_on_hyphens=False)
            click.echo(f"  {label:<15} {lines[0]}")
            for line in lines[1:]:
                click.echo(f"{'':18}{line}")


def _echo_json(payload: Mapping[str, Any]) -> None:
    click.echo(json.dumps({"schema_version": _SCHEMA_VERSION, **payload}, indent=2, ensure_ascii=False))
