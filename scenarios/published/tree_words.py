"""What a published table says of the shape of a round's drafts: chains, trees, engines' own defaults.

Models: SGLang's steps, topk and draft tokens; nodes with or without depth; "default" of an engine.
Leaves out: drawings of trees. Numbers: defaults in `words.toml`, each with its source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from scenarios.lookup import one_line
from scenarios.published.words import fallback, plain_words
from specsim.drafters import drafter
from specsim.errors import ScenarioError

__all__ = ["Tree", "tree_words"]


@dataclass(frozen=True, slots=True)
class Tree:
    """Shape of the drafts of a round. `nodes` None: a chain of `depth`."""

    depth: int
    nodes: int | None = None
    topk: int | None = None
    options: Mapping[str, int] = field(default_factory=dict)
    """Numbers that only this drafter has."""
    assumed: str = ""
    """What the words left open and how it was filled."""


def tree_words(text: str, *, k: int | None, method: str, engine: str) -> Tree:
    """Shape of the drafts: `chain`, `steps 4, topk 4, draft tokens 16`, `4-8-64`, `21 nodes, depth 4`, `default`.

    SGLang's draft tokens count the token that the round starts from, and topk 1 is a chain of `steps`.

    Raises:
        ScenarioError: not understood, or figures that contradict each other.
    """
    plain = plain_words(text)
    usual = fallback()["num_spec_tokens"].get(method, drafter(method).usual_k)
    if re.search(r"\b(default|defaults|auto)\b", plain) or (plain == "tree"):
        return _default_tree(text, k=k, method=method, engine=engine)
    if method == "lookahead":
        return _lookahead(text, plain, k or usual)
    sizes = _tree_sizes(text, plain)
    if sizes is not None:
        return _built(*sizes, text)
    nodes = _number(
        plain, r"(\d+) (?:tree )?(?:nodes?|tokens?|candidates?)", r"(?:nodes|tree size|total tokens?) (\d+)"
    )
    depth = _number(plain, r"depth (\d+)", r"(\d+) (?:levels?|deep)", r"levels? (\d+)")
    if nodes is not None or "tree" in plain.split():
        if nodes is None:
            nodes = k
        if nodes is None:
            return _default_tree(text, k=k, method=method, engine=engine)
        if depth is None and k is not None and k < nodes:
            depth = k
        said = (
            "" if depth is not None else f"depth of the tree '{one_line(text)}' is not stated: {min(5, nodes)} assumed"
        )
        return _tree(nodes, depth or min(5, nodes), None, said, text)
    known = ("chain", "linear", "sequence", "list", "none", "no")
    if plain and not any(word in plain.split() for word in known):
        raise ScenarioError(
            f"tree '{one_line(text)}' is not understood; write chain, '21 nodes, depth 4' or 'steps 4, topk 4, draft "
            f"tokens 16'"
        )
    if k is not None:
        return Tree(k)
    return Tree(usual, assumed=f"k={usual} (usual for {method})")


def _lookahead(text: str, plain: str, k: int) -> Tree:
    """W columns, n-grams of N tokens (one more than the drafts of a round), G guesses; what is left out is usual."""
    window, ngram, guesses = (
        _number(plain, rf"{name} ?(\d+)") for name in ("w(?:indow)?", "n(?:gram)?", "g(?:uesses)?")
    )
    if plain and plain != "none" and window is None and ngram is None and guesses is None and plain != "chain":
        raise ScenarioError(f"tree '{one_line(text)}' is not understood for lookahead; write W=15 N=5 G=15")
    options = {name: value for name, value in (("window", window), ("guesses", guesses)) if value is not None}
    return Tree(max(1, (ngram or k + 1) - 1), options=options)


def _tree_sizes(text: str, plain: str) -> tuple[int, int, int] | None:
    """(steps, topk, draft tokens) when all three are written, None when none is."""
    steps = _number(plain, r"(?:num )?steps (\d+)", r"(\d+) steps")
    topk = _number(plain, r"(?:eagle )?top ?k (\d+)", r"top (\d+)")
    tokens = _number(plain, r"(?:num )?draft tokens? (\d+)", r"(\d+) draft tokens?", r"verify (?:width )?(\d+)")
    if steps is not None and topk is not None and tokens is not None:
        return steps, topk, tokens
    triple = re.fullmatch(r"(\d{1,4}) (\d{1,4}) (\d{1,4})", plain)
    if triple:
        return int(triple.group(1)), int(triple.group(2)), int(triple.group(3))
    if steps is not None and topk in (None, 1):
        return steps, 1, steps + 1
    if topk is not None:
        raise ScenarioError(f"tree '{one_line(text)}' names some of steps, topk and draft tokens; name all three")
    return None


def _built(steps: int, topk: int, tokens: int, text: str) -> Tree:
    if topk <= 1:
        return Tree(max(1, steps), topk=1)
    return _tree(tokens - 1, steps, topk, "", text)


def _tree(nodes: int, depth: int, topk: int | None, assumed: str, text: str) -> Tree:
    if not 1 <= depth <= nodes or nodes > 4096 or depth > 64:
        raise ScenarioError(
            f"tree '{one_line(text)}': depth {depth} and {nodes} drafts beside the root do not make a tree (depth "
            f"1..64, at least one draft a level, at most 4096)"
        )
    return Tree(depth, nodes, topk, assumed=assumed)


def _default_tree(text: str, *, k: int | None, method: str, engine: str) -> Tree:
    if engine == "vllm" or (engine != "sglang" and method in ("mtp", "ngram", "draft_model")):
        usual = fallback()["num_spec_tokens"].get(method, drafter(method).usual_k)
        depth = k if k is not None else usual
        return Tree(depth, assumed=f"'{one_line(text)}' is taken as a chain of {depth}")
    trees = fallback()["trees"].get(engine, fallback()["trees"]["any"])
    steps, topk, tokens = trees.get(method, trees["default"])
    built = _built(steps, topk, tokens, text)
    said = f"'{one_line(text)}' is taken as steps {steps}, topk {topk}, draft tokens {tokens}"
    return Tree(built.depth, built.nodes, built.topk, assumed=said)


def _number(plain: str, *patterns: str) -> int | None:
    for pattern in patterns:
        found = re.search(rf"\b{pattern}\b", plain)
        if found:
            return int(found.group(1)[:6])
    return None
