"""`specsim drafters`: every drafting method, what a round costs, what it keeps, and which engine offers it.

Leaves out: seconds and acceptance on a deployment, which `specsim crossover` computes; errors propagate to the main
command.
"""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from specsim.drafters import Drafter, PerDraft

__all__ = ["drafter_record", "drafters"]

_SCHEMA_VERSION = 1
_WIDTH = 100
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", "llamacpp": "llama.cpp"}
_LOADS = {"model": "a whole model", "head": "a head or few layers",
          "layers": "nothing, since it is part of the target", "nothing": "nothing"}  # fmt: skip
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")


@click.group()
def drafters() -> None:
    """Drafting methods that --method takes.

    Their names and aliases, what a round of drafting runs, and the engines that offer them.
    """


@drafters.command("list")
@_json_option
def list_drafters(as_json: bool) -> None:
    """List every drafter."""
    from specsim.drafters import all_drafters

    found = list(all_drafters().values())
    if as_json:
        _echo({"drafters": [drafter_record(drafter) for drafter in found]})
        return
    width = max(len(drafter.name) for drafter in found)
    for drafter in found:
        engines = ", ".join(_ENGINES.get(name, name) for name in drafter.engines) or "no engine"
        lines = textwrap.wrap(f"{drafter.title}; {engines}", _WIDTH - width - 2)
        click.echo(f"{drafter.name:<{width}}  {lines[0]}")
        for line in lines[1:]:
            click.echo(f"{'':<{width}}  {line}")


@drafters.command("show")
@click.argument("name")
@_json_option
def show_drafter(name: str, as_json: bool) -> None:
    """Show one drafter: its costs, memory, options and engines. NAME may be any spelling."""
    from specsim.drafters import drafter as find_drafter

    drafter = find_drafter(name)
    record = drafter_record(drafter)
    if as_json:
        _echo({"drafter": record})
        return
    facts = {
        "title": drafter.title,
        "also called": ", ".join(drafter.aliases),
        "a round": record["round"],
        "loads": record["loads"],
        "cache": record["cache"],
        "verifies": record["verifies"],
        "drafts": record["drafts"],
        "usual k": str(drafter.usual_k),
        "acceptance": f"borrowed from {', '.join(drafter.borrows)} where it has none" if drafter.borrows else "",
        "source": drafter.source,
        "notes": drafter.notes,
    }
    for option, meaning in record["options"].items():
        facts[f"option {option}"] = meaning
    for engine, offered in record["engines"].items():
        facts[_ENGINES.get(engine, engine)] = f"{offered['name']}{'. ' if offered['remark'] else ''}{offered['remark']}"
    if not drafter.engines:
        facts["engines"] = "none of vLLM, SGLang, TensorRT-LLM and llama.cpp offers it"
    click.echo(drafter.name)
    for label, value in facts.items():
        if value:
            lines = textwrap.wrap(value, _WIDTH - 18, break_long_words=True, break_on_hyphens=False)
            click.echo(f"  {label:<15} {lines[0]}")
            for line in lines[1:]:
                click.echo(f"{'':18}{line}")


def drafter_record(drafter: Drafter) -> dict[str, Any]:
    """JSON form of a drafter: its facts, and in words what a round runs, keeps and verifies."""
    return {
        "name": drafter.name,
        "title": drafter.title,
        "aliases": list(drafter.aliases),
        "mode": drafter.mode,
        "round": _round(drafter),
        "loads": _LOADS[drafter.loads],
        "cache": _cache(drafter),
        "verifies": _verifies(drafter),
        "drafts": "up to k, often none" if drafter.varies else "always k",
        "usual_k": drafter.usual_k,
        "options": {name: _option(option) for name, option in drafter.options.items()},
        "engines": {engine: {"name": offered.name, "takes_model": offered.takes_model, "remark": offered.remark}
                    for engine, offered in drafter.engines.items()},
        "borrows": list(drafter.borrows),
        "source": drafter.source,
        "notes": drafter.notes,
    }  # fmt: skip


def _round(drafter: Drafter) -> str:
    if drafter.mode == "none":
        return "a search of text on the host" if drafter.looks_up else "nothing beside the target's own pass"
    if drafter.mode == "heads":
        return "k heads at once on the target's last hidden state"
    if drafter.mode == "block":
        return "one pass over k + 1 queries a request; new tokens are projected to keys and values"
    rows = _count(drafter.extra_rows)
    more = f" and {rows} a request" if rows else ""
    if drafter.mode == "parallel":
        return f"one pass over all tokens of the step{more}"
    first = f"the first over all tokens of the step{more}" if drafter.catches_up else "each"
    return f"k passes, {first}{', later ones' if drafter.catches_up else ''} over one token a request or node"


def _count(rows: PerDraft) -> str:
    """`1 more`, `k more`, `k - 1 more`; empty for none."""
    if not rows.each:
        return f"{rows.fixed} more" if rows.fixed else ""
    product = "k" if rows.each == 1 else f"{rows.each} k"
    return f"{product} {'+' if rows.fixed > 0 else '-'} {abs(rows.fixed)} more" if rows.fixed else f"{product} more"


def _cache(drafter: Drafter) -> str:
    if not drafter.keeps_kv:
        return "none of its own"
    ahead = drafter.lookahead
    slots = "k" if not ahead.fixed else f"k + {ahead.fixed}"
    return f"its own, in all of its layers; {slots} slots a request reserved ahead"


def _verifies(drafter: Drafter) -> str:
    if drafter.nodes is not None:
        return "its own number of tokens (see options)"
    if drafter.usual_tree is not None:
        return f"a tree of {drafter.usual_tree.nodes} drafts, at most {drafter.usual_tree.topk} a node, or as given"
    return "a chain of k drafts, or a tree where one is given" if drafter.trees else "a chain of k drafts"


def _option(option: Any) -> str:
    usual = f"default {option.default}" if isinstance(option.default, int) else "default by the size of the target"
    return f"{option.meaning} {option.low}..{option.high}, {usual}."


def _echo(payload: dict[str, Any]) -> None:
    click.echo(json.dumps({"schema_version": _SCHEMA_VERSION, **payload}, indent=2, ensure_ascii=False))
