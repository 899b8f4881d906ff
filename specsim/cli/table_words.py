"""Words of published tables in flags: `--gpu "8x H200"`, `--tree "steps 4, topk 4, draft tokens 16"`, `--isl 94.5`.

What the catalogue understands by itself is left as it is; the rest is rewritten in place, and assumptions are said.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenarios.published.tree_words import Tree

__all__ = ["rewrite_words"]

_DECIMAL = re.compile(r"\s*[0-9]+\.[0-9]+\s*")


def rewrite_words(values: dict[str, Any]) -> tuple[str, ...]:
    """Rewrite flags that a table's words would not pass as; returns sentences on what was assumed.

    Raises:
        CatalogueError: a target, draft or GPU that neither the catalogue nor the words know, as the catalogue says it.
        ScenarioError: a tree that is not understood.
    """
    said: list[str] = []
    _gpu(values, said)
    for name in ("target", "draft"):
        if values[name] is not None and not (name == "draft" and values[name].startswith((".", "/", "~"))):
            _model(values, name, said)
    _method(values)
    _engine(values)
    _dtypes(values)
    _tree(values, said)
    for name in ("isl", "osl"):
        if _DECIMAL.fullmatch(values[name]) and float(values[name]) >= 0.5:
            rounded = str(round(float(values[name])))
            said.append(f"--{name} {values[name].strip()} is rounded to {rounded} tokens.")
            values[name] = rounded
    return tuple(said)


def _gpu(values: dict[str, Any], said: list[str]) -> None:
    from scenarios.published.words import gpu_words

    given = values["gpu"]
    if given is None:
        return
    found = _unless_known(given, _known_gpu, gpu_words)
    if found is None:
        return
    values["gpu"], count = found
    if count is None:
        return
    replicas = values["replicas"] or 1
    if values["tp"] is None and count % replicas == 0:
        values["tp"] = count // replicas
        said.append(f"--tp was not given: {count // replicas}, as '{given}' says.")
    elif count != (values["tp"] or 1) * replicas:
        from specsim.errors import ScenarioError

        raise ScenarioError(
            f"--gpu '{given}' counts {count} GPUs, and --tp {values['tp'] or 1} with --replicas {replicas} takes "
            f"{(values['tp'] or 1) * replicas}; leave one of them out"
        )


def _known_gpu(name: str) -> object:
    from scenarios.hardware import gpu

    return gpu(name)


def _model(values: dict[str, Any], name: str, said: list[str]) -> None:
    from scenarios.models import model
    from scenarios.published.words import target_words

    given = values[name]
    found = _unless_known(given, model, lambda text: target_words(text, stand_in=False))
    if found is not None:
        values[name], remark = found
        said += [f"{remark}."] if remark else []


def _unless_known(text: str, known: Callable[[str], object], words: Callable[[str], Any]) -> Any:
    """What the words mean, None where the catalogue knows the text; its own message where neither does."""
    from specsim.errors import CatalogueError

    try:
        known(text)
    except CatalogueError as refusal:
        try:
            return words(text)
        except CatalogueError:
            raise refusal from None
    return None


def _method(values: dict[str, Any]) -> None:
    from scenarios.published.words import method_words
    from specsim.drafters import find_drafter
    from specsim.errors import ScenarioError

    given = values["method"]
    if given is None or find_drafter(given) is not None:
        return
    try:
        values["method"] = method_words(given)
    except ScenarioError:
        return  # the command's own message names the nearest


def _engine(values: dict[str, Any]) -> None:
    from scenarios.published.words import engine_words
    from specsim.serving import ENGINES

    given = values["engine"]
    if given is None or given in ENGINES:
        return
    engine, version = engine_words(given)
    if engine:
        values["engine"] = engine
        if version and values["engine_version"] is None:
            values["engine_version"] = version


def _dtypes(values: dict[str, Any]) -> None:
    from scenarios.published.words import dtype_words
    from specsim.errors import ScenarioError
    from specsim.shapes import WEIGHT_BITS

    for name in ("weight_dtype", "kv_dtype", "draft_dtype"):
        given = values.get(name)
        if given is None or given in WEIGHT_BITS:
            continue
        try:
            values[name] = dtype_words(given) or given
        except ScenarioError:
            continue  # likewise


def _tree(values: dict[str, Any], said: list[str]) -> None:
    """A tree in words becomes its depth, nodes and topk; nodes by level stay, once they are checked, and so do
    candidates behind each node."""
    text = values["tree"]
    if text is None:
        return
    from scenarios.published.tree_words import tree_words
    from specsim.cli.scenario_options import parse_whole_numbers
    from specsim.cli.tree_input import is_branching, is_levels
    from specsim.config import Speculation
    from specsim.errors import ScenarioError

    given = values["num_spec_tokens"]
    k = None
    if given is not None:
        numbers = parse_whole_numbers(given, "--k", low=1)
        if len(numbers) != 1:
            raise ScenarioError(f"--k takes one number here, got {given}; run the command for each")
        k = numbers[0]
    method = Speculation(values["method"] or "eagle").method
    if is_branching(text):
        return
    levels = is_levels(text)
    # the first levels of a static tree are one too: a smaller k is a choice there, no contradiction
    tree = tree_words(text, k=None if levels else k, method=method, engine=values["engine"] or "")
    if levels:
        return
    _refuse_other_shape(values, tree, text)
    values["tree"] = None
    values["num_spec_tokens"] = str(tree.depth)
    if tree.nodes is not None:
        values["tree_nodes"], values["topk"] = tree.nodes, tree.topk if tree.topk is not None else values["topk"]
    elif _has_usual_tree(method):
        values["topk"] = 1
    if k is not None and k != tree.depth:
        said.append(f"--tree '{text}' is {tree.depth} deep; --k {k} is taken as what it verifies.")
    if tree.options:
        values["draft_option"] = (*values["draft_option"], *(f"{name}={n}" for name, n in tree.options.items()))
    said += [f"{words}." for words in (tree.assumed, tree.noted) if words]


def _refuse_other_shape(values: dict[str, Any], tree: Tree, text: str) -> None:
    """Flags that say something else than the words."""
    from specsim.errors import ScenarioError

    chain = tree.nodes is None
    for name, value in (("tree_nodes", tree.nodes), ("topk", tree.topk)):
        given = values[name]
        if given is None or given == value or (name == "topk" and (given == 1 if chain else value is None)):
            continue
        words = "is a chain" if chain else f"says {name} {value}"
        makes = " makes a tree" if chain else ""
        raise ScenarioError(f"--tree '{text}' {words}, --{name.replace('_', '-')} {given}{makes}; give one")


def _has_usual_tree(method: str) -> bool:
    """Whether a method drafts a tree unless it is told to draft a chain."""
    from specsim.drafters import drafter

    return drafter(method).usual_tree is not None
