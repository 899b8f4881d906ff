"""Published acceptance, the default for method, target and task.

Models: the choice among entries of `catalogue/acceptance.toml`; figures borrowed from another target or task are said
to be borrowed. Leaves out: sampling temperature (the figures are greedy), fine-tuned targets. Numbers: the catalogue
file, each entry with its source, and the mixtures of `scenarios.acceptance_memory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any

from scenarios.acceptance_memory import memory_of
from scenarios.lookup import NameIndex, check_keys, name_key, one_line, packaged_toml
from specsim.acceptance import Mixture, PerPosition
from specsim.closed_forms import conditionals_from_lengths, conditionals_from_marginals
from specsim.drafters import drafter, find_drafter
from specsim.errors import CatalogueError, ScenarioError
from specsim.trees import chain_from_tree_length

__all__ = ["default_acceptance", "default_vector", "known_task", "known_tasks"]

_KEYS = ("method", "target", "task", "lengths", "lengths_at", "marginals", "conditional", "alpha", "proposal_rate",
         "tree", "length_at", "spread", "spread_k", "lends_to", "fallback", "source")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Entry:
    method: str
    target: str
    task: str
    figures: Mapping[str, Any]
    lends_to: tuple[str, ...]
    fallback: bool
    source: str


def default_acceptance(method: str, target: str, task: str | None = None) -> tuple[PerPosition | Mixture, str]:
    """Published acceptance of a method for a target (catalogue name) and task (None: the method's usual one), with
    spread between requests and memory between rounds where requests were measured one by one.

    Without an entry of its own a target borrows, first match: from an entry that names it in `lends_to`, from one of
    its family (the same leading word of the name, the longest common beginning first), from an entry marked as
    `fallback`. At each step an entry of the task comes before the others; lookups look for the task through all steps
    first.

    Raises:
        ScenarioError: when method or task is unknown.
    """
    entry, said = _found(method, target, task)
    rate = float(entry.figures.get("proposal_rate", 1.0))
    memory = memory_of(entry.method, entry.target, entry.task, rate)
    if memory is None:
        return _build(entry.method, entry.target, entry.task), said
    return memory, f"{said}; spread between requests and memory between rounds fitted to the same requests"


def default_vector(method: str, target: str, task: str | None = None) -> tuple[PerPosition, str]:
    """The same without memory: by draft position, rounds of a request independent of one another.

    Raises:
        ScenarioError: when method or task is unknown.
    """
    entry, said = _found(method, target, task)
    return _build(entry.method, entry.target, entry.task), said


def _found(method: str, target: str, task: str | None) -> tuple[_Entry, str]:
    """The entry that a target uses or borrows, and one line that says so."""
    known = drafter(method)
    wanted = _task(task)
    names = (known.name, *known.borrows)
    method = next((name for name in names if any(entry.method == name for entry in _entries())), known.name)
    entries = [entry for entry in _entries() if entry.method == method]
    own = [entry for entry in entries if name_key(entry.target) == name_key(target)]
    kin = [entry for entry in entries if name_key(target) in map(name_key, entry.lends_to)]
    family = sorted(
        (entry for entry in entries if _family(entry.target) == _family(target)),
        key=lambda entry: -_common(entry.target, _bare(target)),
    )
    any_target = [entry for entry in entries if entry.fallback]
    # a lookup follows the task more than the model, a drafter the model that it was trained for
    near = [own, kin, family, any_target] if known.varies else [own, kin]
    matching = [[entry for entry in group if wanted in (None, entry.task)] for group in near]
    in_task = [[entry for entry in group if wanted in (None, entry.task)] for group in (family, any_target)]
    for group in (*matching, own, kin, in_task[0], family, in_task[1], any_target):
        if group:
            return group[0], _provenance(group[0], known.name, target, wanted)
    raise ScenarioError(f"no published acceptance for method '{method}'; give --acceptance or --acceptance-length")


def _bare(target: str) -> str:
    """A target's name without owner, folder and file name, lower case."""
    return target.lower().removesuffix("/config.json").rsplit("/", 1)[-1]


def _family(target: str) -> str:
    """Leading word of a name: `llama` of llama-3.3-70b."""
    return "".join(takewhile(str.isalpha, _bare(target)))


def _common(a: str, b: str) -> int:
    """Characters of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def known_tasks() -> tuple[str, ...]:
    """Content classes for which the catalogue may know acceptance."""
    return tuple(_data()["tasks"])


def known_task(name: str) -> str | None:
    """The content class that a name of any spelling means, None when it is unknown."""
    return _tasks().get(name)


def _provenance(entry: _Entry, method: str, target: str, task: str | None) -> str:
    borrowed = [f"method {entry.method}"] if entry.method != method else []
    if name_key(entry.target) != name_key(target):
        borrowed.append(entry.target)
    if task is not None and entry.task != task:
        borrowed.append(f"task {entry.task}")
    what = f"{entry.method} on {entry.target}, {entry.task}: {entry.source}"
    return f"borrowed from {' and '.join(borrowed)}: {what}" if borrowed else what


def _task(task: str | None) -> str | None:
    if task is None:
        return None
    index = _tasks()
    hit = index.get(task)
    if hit is None:
        raise ScenarioError(f"task '{one_line(task)}' is not one of {', '.join(known_tasks())}{index.suggestion(task)}")
    return hit


@cache
def _tasks() -> NameIndex:
    return NameIndex("task", _data()["tasks"])


@cache
def _data() -> Mapping[str, Any]:
    return packaged_toml("acceptance.toml")


@cache
def _entries() -> tuple[_Entry, ...]:
    data = _data()
    found = []
    for row in data["acceptance"]:
        place = f"acceptance.toml, {row.get('method')} {row.get('target')} {row.get('task')}"
        check_keys(row, _KEYS, place)
        if row["task"] not in data["tasks"] or find_drafter(row["method"]) is None:
            raise CatalogueError(f"{place}: unknown method or task")
        lends_to, fallback = tuple(row.get("lends_to", ())), bool(row.get("fallback", False))
        found.append(_Entry(row["method"], row["target"], row["task"], row, lends_to, fallback, row["source"]))
    return tuple(found)


@cache
def _build(method: str, target: str, task: str) -> PerPosition:
    """The model of one entry; solving for the spread takes some tens of ms, so only what is asked for is built."""
    row = next(e.figures for e in _entries() if (e.method, e.target, e.task) == (method, target, task))
    rate = float(row.get("proposal_rate", 1.0))
    if "tree" in row:
        (depth, length), (nodes, topk) = row["length_at"], row["tree"]
        vector: tuple[float, ...] = (
            chain_from_tree_length(1.0 + (length - 1.0) / rate, nodes=nodes, topk=topk, depth=depth),
        )
    elif "lengths" in row:
        vector = conditionals_from_lengths(row["lengths"], proposal_rate=rate)
    elif "lengths_at" in row:
        vector = conditionals_from_lengths({int(k): float(v) for k, v in row["lengths_at"]}, proposal_rate=rate)
    elif "marginals" in row:
        vector = conditionals_from_marginals(row["marginals"])
    elif "conditional" in row:
        vector = tuple(row["conditional"])
    elif "alpha" in row:
        vector = (row["alpha"],)
    else:
        raise CatalogueError(
            f"acceptance.toml, {method} {target} {task}: no figures; give lengths, lengths_at, marginals, conditional, "
            f"alpha, or tree and length_at"
        )
    model = PerPosition(vector, proposal_rate=rate, name=f"{method} {target} {task}")
    return model.with_spread(row["spread"], row["spread_k"]) if row.get("spread") else model
