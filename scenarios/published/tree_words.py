"""What a published table, or `--tree`, says of the shape of a round's drafts: chains, trees, engines' own defaults.

Models: SGLang's steps, topk and draft tokens; nodes with or without depth; nodes by level; "default" of an engine.
Every word must be understood and every figure must agree with the others: nothing is skipped.
Leaves out: drawings of trees. Numbers: defaults in `words.toml`, each with its source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from scenarios.lookup import one_line
from scenarios.published.words import fallback
from specsim.drafters import drafter
from specsim.errors import ScenarioError

__all__ = ["Tree", "tree_words"]


@dataclass(frozen=True, slots=True)
class Tree:
    """Shape of the drafts of a round. `nodes` None and no `levels`: a chain of `depth`."""

    depth: int
    nodes: int | None = None
    topk: int | None = None
    levels: tuple[int, ...] = ()
    """Nodes by level of a static tree."""
    options: Mapping[str, int] = field(default_factory=dict)
    """Numbers that only this drafter has."""
    assumed: str = ""
    """What the words left open and how it was filled."""
    noted: str = ""
    """What an engine makes of the words, where it is not just what they say."""

    @property
    def drafts(self) -> int:
        """Tokens verified in a round beside the one that it starts from."""
        return self.nodes or sum(self.levels) or self.depth


def tree_words(text: str, *, k: int | None, method: str, engine: str) -> Tree:
    """Shape of the drafts: `chain`, `steps 4, topk 4, draft tokens 16`, `4-4-16`, `21 nodes, depth 4`, `4,8,8` (nodes
    by level), `engine default`; blank: what is usual. An engine of no name is taken as vLLM, as it is everywhere.

    SGLang's draft tokens count the token that the round starts from, and topk 1 is a chain of `steps`. `k`, where it
    is given, must be the depth or the number of drafts.

    Raises:
        ScenarioError: words that are not understood or that stand there twice, figures that are no whole numbers > 0,
            or that contradict each other.
    """
    lowered = " ".join(text.lower().split())
    refuse = _refusal(text)
    levels = re.fullmatch(r"[0-9]+( ?, ?[0-9]+)*", lowered)
    if levels:
        found = _levels([_figure(word, refuse) for word in lowered.split(",")], refuse)
    else:
        said = _parsed(_plain(lowered, refuse), _LOOKAHEAD if method == "lookahead" else _CLAUSES, refuse)
        found = _shape(said, text, k, method, engine or "vllm", refuse)
    allowed = (found.depth, found.drafts, found.drafts + 1) if found.drafts != found.depth else (found.depth,)
    if k is not None and k not in allowed and not (found.noted and k <= 64):
        drafts = f" nor its {found.drafts} drafts" if found.drafts != found.depth else ""
        raise refuse(f"k {k} is {'neither' if drafts else 'not'} its depth {found.depth}{drafts}; give one of the two")
    return found


_Refusal = Callable[[str], ScenarioError]
_WAY_OUT = "write chain, '21 nodes, depth 4' or 'steps 4, topk 4, draft tokens 16'"
_N = r"([0-9]+)"
_CLAUSES: tuple[tuple[str, str], ...] = (
    ("steps", rf"(?:speculative )?(?:num )?steps? {_N}|{_N} steps?"),
    ("topk", rf"(?:speculative )?(?:eagle )?top ?k? ?{_N}|{_N} top ?k"),
    ("draft tokens", rf"(?:speculative )?(?:num )?draft tokens? {_N}|{_N} draft tokens?"),
    ("verify width", rf"verify (?:width )?{_N}|width {_N}"),
    ("nodes", rf"{_N} (?:tree )?(?:nodes?|tokens?|candidates?|drafts?)|(?:nodes|tree size|total tokens?) {_N}"),
    ("nodes", rf"(?:dynamic )?tree of {_N}(?: (?:nodes?|tokens?|candidates?|drafts?))?"),
    ("depth", rf"depth (?:of )?{_N}|{_N} (?:levels?|deep)|levels? {_N}"),
    ("chain", rf"(?:chain|linear|sequence|list)(?: of {_N}(?: drafts?)?)?"),
    ("default", r"(?:(?:engine|doc|docs|its|own) )*(?:defaults?|auto)"),
    ("tree", r"(?:dynamic )?tree"),
    ("none", r"none|no tree"),
)
"""(what it names, words that say so, with the figure in a group); the longest that fits is taken."""
_LOOKAHEAD: tuple[tuple[str, str], ...] = (
    ("window", rf"w(?:indow)? ?{_N}"),
    ("ngram", rf"n(?:gram)? ?{_N}"),
    ("guesses", rf"g(?:uesses)? ?{_N}"),
    *(clause for clause in _CLAUSES if clause[0] in ("chain", "default", "none")),
)
_FILLERS = ("and", "with")


def _refusal(text: str) -> _Refusal:
    return lambda said: ScenarioError(f"tree '{one_line(text)}': {said}")


def _figure(word: str, refuse: _Refusal) -> int:
    if len(word.strip()) > 6 or int(word) < 1:
        raise refuse(f"{one_line(word.strip())} must be a whole number of at least 1 and at most 6 digits")
    return int(word)


def _plain(lowered: str, refuse: _Refusal) -> str:
    """The words, apart by one space; `steps=4` is `steps 4`, `4-4-16` is `steps 4 top k 4 draft tokens 16`."""
    triple = re.fullmatch(r"([0-9]+)[-/]([0-9]+)[-/]([0-9]+)", lowered)
    if triple:
        return "steps {} topk {} draft tokens {}".format(*triple.groups())
    if re.search(r"(?<![a-z0-9])[-+] ?[0-9]", lowered) or re.search(r"[0-9] ?\. ?[0-9]|\.[0-9]", lowered):
        raise refuse("figures are whole numbers without a sign; correct it")
    odd = re.search(r"[^a-z0-9 ,;:=_()/-]", lowered)
    if odd:
        raise refuse(f"is not understood at '{one_line(odd.group())}'; {_WAY_OUT}")
    return " ".join(re.sub(r"[^a-z0-9]+", " ", lowered).split())


def _parsed(plain: str, clauses: tuple[tuple[str, str], ...], refuse: _Refusal) -> dict[str, int | None]:
    """What is named, and its figure; every word belongs to one clause."""
    found: dict[str, int | None] = {}
    rest = plain
    while rest:
        hits = []
        for name, words in clauses:
            match = re.match(rf"(?:{words})(?![a-z0-9])", rest)
            if match:
                hits.append((match.end(), name, next((group for group in match.groups() if group), None)))
        if not hits:
            word = rest.split()[0]
            if word not in _FILLERS or not found:
                raise refuse(f"'{one_line(rest)}' is not understood; {_WAY_OUT}")
            rest = rest.removeprefix(word).lstrip()
            continue
        end, name, figure = max(hits, key=lambda hit: hit[0])
        if name in found:
            raise refuse(f"{name} stands there twice; name it once")
        found[name] = None if figure is None else _figure(figure, refuse)
        rest = rest[end:].lstrip()
    return found


def _shape(said: dict[str, int | None], text: str, k: int | None, method: str, engine: str, refuse: _Refusal) -> Tree:
    names = set(said)
    for alone in ("default", "none"):
        if alone in said and names - {alone, "tree"}:
            other = next(iter(names - {alone, "tree"}))
            raise refuse(f"{alone} and {other} contradict each other; keep one")
    if method == "lookahead":
        return _lookahead(said, k, method, refuse)
    usual = fallback()["num_spec_tokens"].get(method, drafter(method).usual_k)
    assumed_k = f"k={usual} (usual for {method})"
    if "default" in said:
        return _default(text, "tree" in said, k, method, engine, refuse)
    if names <= {"none"}:
        return Tree(k) if k is not None else Tree(usual, assumed=assumed_k)
    depth = _one(said, ("steps", "depth"), 0, refuse)
    drafts = _one(said, ("draft tokens", "verify width", "nodes"), None, refuse)
    topk = said.get("topk")
    if "chain" in said or topk == 1 or ("tree" not in said and names == {"steps"}):
        return _chain(said, depth, drafts, k, (usual, assumed_k), refuse)
    if names & {"steps", "topk"} or "draft tokens" in said:
        if depth is None or drafts is None or topk is None:
            raise refuse("names some of steps, topk and draft tokens; name all three")
        return _tree(drafts, depth, topk, "", refuse)
    if drafts is None:
        if depth is not None:
            raise refuse("how many drafts a round verifies is not said; add nodes, or write chain")
        drafts = k
    if drafts is None:
        return _usual_tree(text, method, engine, refuse)
    if depth is None and k is not None and k < drafts:
        depth = k
    assumed = "" if depth else f"depth of the tree '{one_line(text)}' is not stated: {min(5, drafts)} assumed"
    return _tree(drafts, depth or min(5, drafts), None, assumed, refuse)


def _one(said: Mapping[str, int | None], names: tuple[str, ...], start: int | None, refuse: _Refusal) -> int | None:
    """The figure that these names agree on; those beside nodes count the token that the round starts from too."""
    found = {name: value - (start is None and name != "nodes") for name in names if (value := said.get(name))}
    if len(set(found.values())) > 1:
        raise refuse(" and ".join(f"{name} {said[name]}" for name in found) + " contradict each other; keep one")
    return next(iter(found.values()), None)


def _chain(
    said: Mapping[str, int | None],
    depth: int | None,
    drafts: int | None,
    k: int | None,
    usual: tuple[int, str],
    refuse: _Refusal,
) -> Tree:
    for name in ("tree", "topk"):
        if name in said and "chain" in said and said[name] != 1:
            raise refuse(f"chain and {name} contradict each other; keep one")
    if "topk" in said and "tree" in said:
        raise refuse("topk 1 is a chain and no tree; keep one of the two")
    lengths = {length for length in (depth, said.get("chain"), drafts) if length is not None}
    noted = ""
    if len(lengths) > 1 and "chain" not in said and depth is not None and "nodes" not in said:
        noted = f"with topk 1 SGLang verifies steps + 1 = {depth + 1} tokens, whatever draft tokens says"
        lengths = {depth}
    if len(lengths) > 1:
        raise refuse(f"a chain has one length, not {' and '.join(map(str, sorted(lengths)))}; keep one")
    topk = 1 if "topk" in said or "steps" in said else None
    if not lengths:
        return Tree(k, topk=topk) if k is not None else Tree(usual[0], topk=topk, assumed=usual[1])
    (length,) = lengths
    if not 1 <= length <= 64:
        raise refuse(f"a chain of {length} drafts is outside 1..64")
    return Tree(length, topk=topk, noted=noted)


def _lookahead(said: Mapping[str, int | None], k: int | None, method: str, refuse: _Refusal) -> Tree:
    """W columns, n-grams of N tokens (one more than the drafts of a round), G guesses; what is left out is usual."""
    if "chain" in said and said["chain"] is not None:
        raise refuse("lookahead has no chain of its own; write W=15 N=5 G=15")
    options = {name: value for name in ("window", "guesses") if (value := said.get(name)) is not None}
    ngram = said.get("ngram")
    if ngram is not None and not 2 <= ngram <= 65:
        raise refuse(f"n-grams of N={ngram} tokens are outside 2..65")
    depth = (k or drafter(method).usual_k) if ngram is None else ngram - 1
    return Tree(depth, options=options)


def _levels(widths: list[int], refuse: _Refusal) -> Tree:
    if len(widths) > 64 or sum(widths) > 1024:
        raise refuse("more than 64 levels or 1024 drafts")
    return Tree(len(widths), levels=tuple(widths))


def _tree(nodes: int, depth: int, topk: int | None, assumed: str, refuse: _Refusal) -> Tree:
    if not 1 <= depth <= nodes or nodes > 1024 or depth > 64:
        raise refuse(
            f"depth {depth} and {nodes} drafts beside the root do not make a tree (depth 1..64, at least one draft a "
            f"level, at most 1024)"
        )
    return Tree(depth, nodes, topk, assumed=assumed)


def _default(text: str, tree: bool, k: int | None, method: str, engine: str, refuse: _Refusal) -> Tree:
    """What the engine drafts when nothing is said: SGLang a tree, TensorRT-LLM the method's own, others a chain."""
    if engine == "sglang" or (engine == "trtllm" and drafter(method).usual_tree is not None):
        return _usual_tree(text, method, engine, refuse)
    if tree:
        raise refuse(f"{engine} verifies a chain by default; write chain, or how many nodes the tree has")
    depth = k if k is not None else fallback()["num_spec_tokens"].get(method, drafter(method).usual_k)
    return Tree(depth, assumed=f"'{one_line(text)}' is taken as a chain of {depth}")


def _usual_tree(text: str, method: str, engine: str, refuse: _Refusal) -> Tree:
    """The documented tree of an engine, or the one of the papers."""
    trees = fallback()["trees"].get(engine, fallback()["trees"]["any"])
    steps, topk, tokens = trees.get(method, trees["default"])
    said = f"'{one_line(text)}' is taken as steps {steps}, topk {topk}, draft tokens {tokens}"
    built = Tree(steps, topk=1) if topk == 1 else _tree(tokens - 1, steps, topk, "", refuse)
    return replace(built, assumed=said)
