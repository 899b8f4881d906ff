"""Flags that say what is deployed, how it speculates and what is promised, shared by every command that simulates.

`deployment_options`, `speculation_options` and `slo_options` decorate a click command; `deployment_from`,
`speculation_from` and `slo_from` take their values out of the command's keyword arguments and lay them over a base
(the defaults, or a scenario file). A flag that is not given changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from specsim.config import Deployment, Slo, Speculation

__all__ = [
    "deployment_from",
    "deployment_options",
    "described",
    "flag_of",
    "parse_named_numbers",
    "parse_numbers",
    "parse_whole_numbers",
    "refuse_doubles",
    "slo_from",
    "slo_options",
    "speculation_from",
    "speculation_options",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_DEPLOYMENT: tuple[tuple[str, str, Any], ...] = (
    ("target", "target", click.option("--target", metavar="MODEL", help="Catalogue name, repository or config.json.")),
    ("gpu", "gpu", click.option("--gpu", metavar="NAME", help="GPU, e.g. h100-sxm; see specsim hardware list.")),
    ("tp", "tp", click.option("--tp", type=int, metavar="N", help="Tensor parallelism: GPUs of a replica.")),
    ("replicas", "replicas", click.option("--replicas", type=int, metavar="N", help="Replicas behind the router.")),
    ("prefill_replicas", "prefill_replicas", click.option(
        "--prefill-replicas", type=int, metavar="N", help="Replicas for prompts only, instead of --replicas.")),
    ("decode_replicas", "decode_replicas", click.option(
        "--decode-replicas", type=int, metavar="N", help="Replicas that only decode, beside --prefill-replicas.")),
    ("kv_link_gb_per_s", "kv_link_gb_per_s", click.option(
        "--kv-link-gb-per-s", type=float, metavar="GB/S", help="Link from prefill to decode, a GPU and direction.")),
    ("kv_link_latency", "kv_link_latency_s", click.option(
        "--kv-link-latency", type=float, metavar="SECONDS", help="Before bytes flow over that link; default 0.001.")),
    ("router", "router", click.option(
        "--router", metavar="NAME", help="round_robin, least_outstanding or prefix_affinity.")),
    ("weight_dtype", "weight_dtype", click.option(
        "--weight-dtype", "--dtype", metavar="DTYPE", help="bf16, fp8, int4, ...; default: as the checkpoint has it.")),
    ("kv_dtype", "kv_dtype", click.option("--kv-dtype", metavar="DTYPE", help="Of the KV cache: bf16, fp8, ...")),
    ("engine", "engine", click.option(
        "--engine", metavar="NAME", help="vllm (default), sglang, trtllm, llamacpp, or static batching.")),
    ("engine_version", "engine_version", click.option(
        "--engine-version", metavar="X.Y.Z", help="Version of the engine; default: the one that was read.")),
    ("capacity_policy", "capacity_policy", click.option(
        "--capacity-policy", metavar="NAME", help="Of trtllm: guaranteed_no_evict (default) or max_utilization.")),
    ("chunked_prefill", "chunked_prefill", click.option(
        "--chunked-prefill/--no-chunked-prefill", default=None, help="Prompts in chunks; default: as the engine.")),
    ("async_scheduling", "async_scheduling", click.option(
        "--async-scheduling/--no-async-scheduling", default=None, help="Of vllm: schedule a step ahead; default off.")),
    ("asked_output_tokens", "asked_output_tokens", click.option(
        "--asked-output-tokens", type=int, metavar="N", help="max_tokens that clients ask for, where they get less.")),
    ("max_captured", "max_captured", click.option(
        "--max-captured", type=int, metavar="N", help="Largest captured graph: tokens (vllm) or requests.")),
    ("gpu_memory_utilization", "gpu_memory_utilization", click.option(
        "--gpu-memory-utilization", type=float, metavar="SHARE", help="As in vLLM; default 0.9.")),
    ("max_num_seqs", "max_num_seqs", click.option(
        "--max-num-seqs", type=int, metavar="N", help="Most requests in a step; default: the engine's for the GPU.")),
    ("max_num_batched_tokens", "max_num_batched_tokens", click.option(
        "--max-num-batched-tokens", type=int, metavar="N", help="Token budget of a step; default likewise.")),
    ("max_model_len", "max_model_len", click.option(
        "--max-model-len", type=int, metavar="N", help="Longest sequence; default: the model's, if it fits.")),
    ("block_size", "block_size_tokens", click.option(
        "--block-size", type=int, metavar="N", help="Tokens of a KV block; default: the engine's.")),
    ("profile", "profile", click.option(
        "--profile", metavar="FILE|NAME", help="Measured step times; see specsim profile list.  [default: analytic]")),
    ("prefix_caching", "enable_prefix_caching", click.option(
        "--prefix-caching/--no-prefix-caching", default=None, help="Whether prompts share cached prefixes.")),
)  # fmt: skip
"""(name of the click argument, field of the record, option)."""

_SPECULATION: tuple[tuple[str, str, Any], ...] = (
    ("method", "method", click.option(
        "--method", metavar="NAME", help="Drafter, as people write it, e.g. EAGLE-3; see specsim drafters list.")),
    ("draft", "draft", click.option(
        "--draft", metavar="MODEL", help="Drafter; default: the usual one of target and method.")),
    ("num_spec_tokens", "num_spec_tokens", click.option(
        "--k", "num_spec_tokens", metavar="K[,K...]", help="Draft tokens a round.")),
    ("task", "task", click.option(
        "--task", metavar="NAME", help="Content class of the default acceptance: chat, math, code, ...")),
    ("acceptance", "acceptance", click.option(
        "--acceptance", metavar="A[,A...]", help="Conditional acceptance by draft position, e.g. 0.7,0.6,0.5.")),
    ("acceptance_length", "acceptance_length", click.option(
        "--acceptance-length", type=float, metavar="L", help="Measured tokens a round, bonus included, e.g. 2.3.")),
    ("acceptance_length_k", "acceptance_length_k", click.option(
        "--acceptance-length-k", type=int, metavar="K", help="Draft tokens at which it was measured; default: --k.")),
    ("acceptance_file", "acceptance_file", click.option(
        "--acceptance-file", metavar="FILE", help="Measured requests to take acceptance from (JSON lines).")),
    ("acceptance_drafter", "acceptance_drafter", click.option(
        "--acceptance-drafter", metavar="NAME", help="Drafter of that file; default: named like the method.")),
    ("acceptance_model", "acceptance_model", click.option(
        "--acceptance-model", metavar="KIND", help="replay, mixture, vector or constant; default: replay of a file.")),
    ("temperature", "temperature", click.option(
        "--temperature", type=float, metavar="T", help="Sampling temperature; lowers published acceptance.")),
    ("draft_sampling", "draft_sampling", click.option(
        "--draft-sampling", metavar="KIND", help="greedy or probabilistic drafts at a temperature.")),
    ("tree_nodes", "tree_nodes", click.option(
        "--tree-nodes", type=int, metavar="N", help="Drafts verified a round as a tree; --k is then its depth.")),
    ("topk", "topk", click.option(
        "--topk", type=int, metavar="N", help="Most children of a node of that tree; 1 is a chain.")),
    ("tree", "tree_levels", click.option(
        "--tree", metavar="TREE", help="Static tree instead: 4,8,8 nodes by level, or 4x2x1 candidates behind each.")),
    ("draft_tp", "draft_tp", click.option(
        "--draft-tp", type=int, metavar="N", help="GPUs that share the drafter; default: as the target.")),
    ("draft_dtype", "draft_weight_dtype", click.option(
        "--draft-dtype", metavar="DTYPE", help="Of the drafter's weights; default: as its checkpoint stores them.")),
    ("draft_kv_dtype", "draft_kv_dtype", click.option(
        "--draft-kv-dtype", metavar="DTYPE", help="Of the drafter's cache; default: as the target's.")),
    ("draft_option", "options", click.option(
        "--draft-option", multiple=True, metavar="NAME=N", help="A number of this drafter only; may be repeated.")),
)  # fmt: skip

_SLO: tuple[tuple[str, str, Any], ...] = (
    ("ttft", "ttft_s", click.option("--ttft", metavar="MS", help="Objective of the first token, ms, or none.")),
    ("tpot", "tpot_s", click.option("--tpot", metavar="MS", help="Objective of time per output token, ms, or none.")),
    ("e2e", "e2e_s", click.option("--e2e", metavar="MS", help="Objective of the last token, ms, or none (default).")),
    ("slo_share", "share", click.option(
        "--slo-share", type=float, metavar="SHARE", help="Share of requests that must meet them; default 0.95.")),
)  # fmt: skip


def flag_of(table: str, key: str) -> str | None:
    """The click argument that sets a key of a scenario file; None: no flag does."""
    rows = {"deployment": _DEPLOYMENT, "speculation": _SPECULATION, "slo": _SLO}.get(table, ())
    field = f"{key[:-3]}_s" if table == "slo" and key.endswith("_ms") else key
    return next((name for name, own, _ in rows if own == field), None)


def _decorate(command: _Command, table: tuple[tuple[str, str, Any], ...]) -> _Command:
    for _, _, option in reversed(table):
        command = option(command)
    return command


def deployment_options(command: _Command, *, without: tuple[str, ...] = ()) -> _Command:
    """Add the flags of `specsim.config.Deployment`; `without` names click arguments that the command does not take."""
    return _decorate(command, tuple(row for row in _DEPLOYMENT if row[0] not in without))


def speculation_options(command: _Command) -> _Command:
    """Add the flags of `specsim.config.Speculation`."""
    return _decorate(command, _SPECULATION)


def slo_options(command: _Command) -> _Command:
    """Add the flags of `specsim.config.Slo`."""
    return _decorate(command, _SLO)


def _given(values: dict[str, Any], table: tuple[tuple[str, str, Any], ...]) -> dict[str, Any]:
    """Field -> value of every flag that was given; all of them are taken out of `values`."""
    taken = {field: values.pop(name, None) for name, field, _ in table}
    return {field: value for field, value in taken.items() if value is not None and value != ()}


def described(values: dict[str, Any]) -> bool:
    """Whether any flag of a deployment, a speculation or an objective was given."""
    names = (name for name, _, _ in (*_DEPLOYMENT, *_SPECULATION, *_SLO))
    return any(values.get(name) not in (None, ()) for name in names)


def deployment_from(values: dict[str, Any], base: Deployment | None = None) -> Deployment:
    """The base with the deployment flags over it; the flags are taken out of `values`.

    Replicas of one kind drop those of the other kind that the base has.

    Raises:
        ScenarioError: a value out of range.
    """
    from specsim.config import Deployment

    start, given = base or Deployment(), _given(values, _DEPLOYMENT)
    pools = ("prefill_replicas", "decode_replicas")
    if "replicas" in given and not any(name in given for name in pools):
        start = replace(
            start, prefill_replicas=None, decode_replicas=None, kv_link_gb_per_s=None, kv_link_latency_s=None
        )
    elif any(name in given for name in pools) and "replicas" not in given:
        start = replace(start, replicas=1)
    return replace(start, **given)


def speculation_from(values: dict[str, Any], base: Speculation | None = None) -> Speculation:
    """The base with the speculation flags over it; the flags are taken out of `values`.

    Another method drops the base's drafter, tree and acceptance, and a new acceptance or tree replaces the old one.

    Raises:
        ScenarioError: a value out of range, a list that is malformed, or a combination that makes no sense.
    """
    from specsim.config import Speculation
    from specsim.drafters import drafter

    start = base or Speculation()
    given = _given(values, _SPECULATION)
    if "num_spec_tokens" in given:
        given["num_spec_tokens"] = parse_whole_numbers(given["num_spec_tokens"], "--k", low=1)
        refuse_doubles(given["num_spec_tokens"], "--k")
    if "acceptance" in given:
        given["acceptance"] = parse_numbers(given["acceptance"], "--acceptance")
    if "tree_levels" in given:
        from specsim.cli.tree_input import parse_tree

        given |= parse_tree(given.pop("tree_levels"))
    if "acceptance_file" in given:  # a flag's path starts here, a scenario's at its own folder
        given["acceptance_file"] = os.path.abspath(os.path.expanduser(given["acceptance_file"]))
    if given.get("options") is not None:
        given["options"] = parse_named_numbers(given["options"], "--draft-option")
    acceptance = ("acceptance", "acceptance_length", "acceptance_length_k", "acceptance_file", "acceptance_drafter")
    use = ("task", "acceptance_model", "temperature", "draft_sampling")
    tree: dict[str, Any] = {"tree_nodes": None, "topk": None, "tree_levels": (), "tree_branching": ()}
    cleared: dict[str, Any] = {}
    if "method" in given and drafter(given["method"]).name != start.method:
        own = ("draft", "task", "acceptance_model", "draft_tp", "draft_weight_dtype", "draft_kv_dtype")
        cleared = {**dict.fromkeys((*acceptance, *own)), **tree, "options": {}}
    if any(name in given for name in tree):
        cleared |= tree
    if any(name in given for name in acceptance):
        # a file of measured requests is held against the temperature, figures are taken as of it
        dropped = use[:2] if "acceptance_file" in given else use
        cleared |= dict.fromkeys((*acceptance, *dropped))
    return replace(start, **{**cleared, **given})


def slo_from(values: dict[str, Any], base: Slo | None = None) -> Slo:
    """The base with the objective flags over it; the flags are taken out of `values`.

    Raises:
        ScenarioError: not a number > 0, or a share above 1.
    """
    from specsim.config import Slo

    given = _given(values, _SLO)
    for field, flag in (("ttft_s", "--ttft"), ("tpot_s", "--tpot"), ("e2e_s", "--e2e")):
        if field in given:
            given[field] = None if given[field].strip().lower() == "none" else _milliseconds(given[field], flag)
    return replace(base or Slo(), **given)


def _milliseconds(text: str, flag: str) -> float:
    """Seconds of a number of milliseconds > 0."""
    value = parse_numbers(text, flag)
    if len(value) != 1 or not value[0] > 0:
        from specsim.errors import ScenarioError

        raise ScenarioError(f"{flag} {text!r} must be a number of milliseconds > 0, or none")
    return value[0] / 1e3


def refuse_doubles(numbers: Sequence[float], flag: str) -> None:
    """Refuse a list of things to try that has one of them twice, where one would be dropped.

    Raises:
        ScenarioError: the flag and the number.
    """
    from specsim.errors import ScenarioError

    double = next((n for n in numbers if numbers.count(n) > 1), None)
    if double is not None:
        raise ScenarioError(f"{flag} has {double:g} twice; give each value once")


def parse_numbers(text: str, flag: str) -> tuple[float, ...]:
    """Finite numbers of a comma list, in order.

    Raises:
        ScenarioError: not such a list.
    """
    from specsim.checks import read_number
    from specsim.errors import ScenarioError

    try:
        return tuple(read_number(part) for part in text.split(","))
    except ValueError:
        raise ScenarioError(f"{flag} {text!r} must be finite numbers separated by commas") from None


def parse_whole_numbers(text: str, flag: str, *, low: int) -> tuple[int, ...]:
    """Whole numbers of a comma list, in order.

    Raises:
        ScenarioError: not such a list, or a number below `low`.
    """
    from specsim.checks import read_whole
    from specsim.errors import ScenarioError

    try:
        numbers = tuple(read_whole(part) for part in text.split(","))
    except ValueError:
        raise ScenarioError(f"{flag} {text!r} must be whole numbers separated by commas, e.g. 1,16,64") from None
    for number in numbers:
        if number < low:
            raise ScenarioError(f"{flag} must be at least {low}, got {number}")
    return numbers


def parse_named_numbers(texts: tuple[str, ...], flag: str) -> dict[str, int]:
    """Whole numbers by name, from `NAME=N` each."""
    from specsim.checks import read_whole
    from specsim.errors import ScenarioError

    found: dict[str, int] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            figure = read_whole(value)
        except ValueError:
            figure = -1
        if not name or not 0 <= figure < 10**9:
            raise ScenarioError(f"{flag} {text!r} must be NAME=N with a whole number, e.g. window=15")
        if name in found:
            raise ScenarioError(f"{flag} {name} is given twice; give it once")
        found[name] = figure
    return found
