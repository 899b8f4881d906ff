"""Chains and trees of drafts, grown level by level from whatever says what may come next.

Static: a chain, a full tree of so many candidates a level, or any list of paths (Medusa, Cai et al. 2024; EAGLE, Li et
al. 2024); a path names at each level the rank of a candidate. Drafts are the likeliest tokens, or drawn one after
another without replacement, so that each has the law that its elder siblings left. Dynamic (EAGLE-2, Li et al. 2024,
arXiv 2406.16858, section 4): every level the few nodes with the best product of probabilities are grown on, and the
best of all are verified; what is chosen depends on the drafter's laws alone, so that these drafts count as certain.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from calibrate.drafters.base import NOTHING, Law, Proposal
from specsim.errors import ScenarioError
from specsim.trees import Tree, cut
from specsim.type_checks import check_types

__all__ = [
    "CHAIN",
    "Chain",
    "DynamicTree",
    "Node",
    "Planting",
    "StaticTree",
    "full_tree",
    "grow",
    "likeliest",
    "read_tree",
    "tree_of_paths",
]

_MOST_NODES = 1024


@dataclass(slots=True)
class Node:
    """One draft of a tree that grows."""

    token: int
    parent: int
    """Number of the draft that it follows; -1: the text."""
    path: tuple[int, ...]
    """Its rank among the candidates, and those of the drafts before it."""
    score: float
    """Logarithm of the probability of its branch, where that decides."""
    law: torch.Tensor | None
    """[vocabulary] that it was drawn from."""


class Planting(Protocol):
    """What shape a round's drafts have."""

    @property
    def name(self) -> str:
        """In options and messages."""
        ...

    @property
    def shape(self) -> str:
        """Nodes of each level, or how they are chosen; empty: a chain."""
        ...

    @property
    def is_scored(self) -> bool:
        """Whether probabilities decide which nodes there are; they are then certain."""
        ...

    @property
    def deepest(self) -> int:
        """Most levels."""
        ...

    def widest(self, level: int) -> int:
        """Most candidates of a node of a level; its children are of level 0 at the end of the text."""
        ...

    def count(self, path: tuple[int, ...]) -> int:
        """Candidates that follow a node."""
        ...

    def grown_on(self, nodes: Sequence[Node], level: Sequence[int]) -> list[int]:
        """Which nodes of the newest level are drafted on."""
        ...

    def verified(self, nodes: Sequence[Node]) -> list[int]:
        """Which nodes of all are verified, where only some can be the first of them; with a node its parent, before
        it."""
        ...

    def most_nodes(self, k: int) -> int:
        """Most drafts of k levels that are drafted on, or verified."""
        ...

    def trees(self, k: int) -> tuple[Tree, ...]:
        """See `calibrate.drafters.base.Planted`."""
        ...


@dataclass(frozen=True, slots=True)
class Chain:
    """One candidate after another."""

    name: str = "chain"
    shape: str = ""
    is_scored: bool = False
    deepest: int = 1 << 30

    def widest(self, level: int) -> int:
        return 1

    def count(self, path: tuple[int, ...]) -> int:
        return 1

    def grown_on(self, nodes: Sequence[Node], level: Sequence[int]) -> list[int]:
        return list(level)

    def verified(self, nodes: Sequence[Node]) -> list[int]:
        return list(range(len(nodes)))

    def most_nodes(self, k: int) -> int:
        return k

    def trees(self, k: int) -> tuple[Tree, ...]:
        return ()


CHAIN = Chain()


@dataclass(frozen=True, slots=True)
class StaticTree:
    """Paths that are the same in every round."""

    children: Mapping[tuple[int, ...], int]
    """Path of a node, empty for the end of the text -> candidates that follow it; those with none are left out."""
    name: str = "tree"
    is_scored: bool = field(default=False, init=False)

    @property
    def shape(self) -> str:
        return ",".join(str(self.most_nodes(k) - self.most_nodes(k - 1)) for k in range(1, self.deepest + 1))

    @property
    def deepest(self) -> int:
        return 1 + max(map(len, self.children))

    def widest(self, level: int) -> int:
        return max((count for path, count in self.children.items() if len(path) == level), default=0)

    def count(self, path: tuple[int, ...]) -> int:
        return self.children.get(path, 0)

    def grown_on(self, nodes: Sequence[Node], level: Sequence[int]) -> list[int]:
        return [n for n in level if self.count(nodes[n].path)]

    def verified(self, nodes: Sequence[Node]) -> list[int]:
        return list(range(len(nodes)))

    def most_nodes(self, k: int) -> int:
        return sum(count for path, count in self.children.items() if len(path) < k)

    def trees(self, k: int) -> tuple[Tree, ...]:
        levels = range(min(k, self.deepest))
        if not levels:
            return ()
        followed = tuple(sum(len(path) == level for path in self.children) for level in levels)
        return cut(Tree(tuple(self.most_nodes(level + 1) - self.most_nodes(level) for level in levels), followed))


@dataclass(frozen=True, slots=True)
class DynamicTree:
    """The best `nodes` drafts, grown from the best `topk` of each level with as many candidates each."""

    nodes: int
    topk: int
    is_scored: bool = field(default=True, init=False)
    deepest: int = field(default=1 << 30, init=False)

    def __post_init__(self) -> None:
        check_types(self, "a dynamic tree")
        if not 1 <= self.nodes <= _MOST_NODES or not 1 <= self.topk <= 64:
            raise ScenarioError(
                f"a dynamic tree has 1..{_MOST_NODES} nodes and topk 1..64, got {self.nodes} and {self.topk}"
            )

    @property
    def name(self) -> str:
        """In options and messages."""
        return f"{self.nodes} nodes, topk {self.topk}"

    @property
    def shape(self) -> str:
        return self.name

    def widest(self, level: int) -> int:
        return self.topk

    def count(self, path: tuple[int, ...]) -> int:
        return self.topk

    def grown_on(self, nodes: Sequence[Node], level: Sequence[int]) -> list[int]:
        return sorted(sorted(level, key=lambda n: (-nodes[n].score, n))[: self.topk])

    def verified(self, nodes: Sequence[Node]) -> list[int]:
        # the best first; a parent is at least as likely as its child and has the lower number, so it comes before it
        return sorted(range(len(nodes)), key=lambda n: (-nodes[n].score, n))[: self.nodes]

    def most_nodes(self, k: int) -> int:
        return max(self.nodes, self.topk * k)

    def trees(self, k: int) -> tuple[Tree, ...]:
        """As many nodes as there are, counted level by level from the first."""
        levels, left = [], self.nodes
        for level in range(k):
            levels.append(min(left, self.topk if not level else self.topk**2))
            left -= levels[-1]
        return cut(Tree(tuple(levels), (1, *(self.topk,) * (k - 1)))) if levels else ()


def full_tree(widths: Sequence[int]) -> StaticTree:
    """Every node of level n + 1 has widths[n] candidates: the Cartesian product of Medusa.

    Raises:
        ScenarioError: a width below 1, or too many nodes.
    """
    if not widths or min(widths) < 1 or sum(math.prod(widths[: n + 1]) for n in range(len(widths))) > _MOST_NODES:
        raise ScenarioError(
            f"a tree needs widths >= 1 and at most {_MOST_NODES} nodes, got {'x'.join(map(str, widths))}"
        )
    paths: list[tuple[int, ...]] = [()]
    children: dict[tuple[int, ...], int] = {}
    for width in widths:
        children |= dict.fromkeys(paths, width)
        paths = [(*path, rank) for path in paths for rank in range(width)]
    return StaticTree(children, "x".join(map(str, widths)))


def read_tree(text: str) -> Chain | StaticTree:
    """`chain`; `4x2x1`, a full tree by the candidates behind each node; or a JSON file with a list of paths, each a
    list of ranks from 0.

    Raises:
        ScenarioError: none of these, or paths that make no tree.
    """
    if text == "chain":
        return CHAIN
    words = text.split("x")
    if all(word.isascii() and word.isdigit() for word in words):
        return full_tree([int(word) for word in words])
    try:
        paths = json.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(
            f"--tree {text}: is not 'chain', nor nodes by level like 4,8,8, nor candidates behind each node like 4x2x1,"
            f" nor a readable JSON file of paths ({reason})"
        ) from None
    if not isinstance(paths, list) or not all(
        isinstance(path, list) and path and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in path)
        for path in paths
    ):
        raise ScenarioError(
            f"--tree {text}: must hold a list of paths, each a list of ranks, such as [[0], [0, 0], [1]]"
        )
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ScenarioError(f"--tree {text}: has the path {twice} twice; give each once")
    return tree_of_paths({tuple(path) for path in paths}, text)


def tree_of_paths(paths: set[tuple[int, ...]], text: str) -> StaticTree:
    """The tree of these nodes, each by the ranks that lead to it; `text` is what `--tree` says.

    Raises:
        ScenarioError: too many or none, or a node without the one that it follows or without its likelier siblings.
    """
    if not 1 <= len(paths) <= _MOST_NODES:
        raise ScenarioError(f"--tree {text}: must hold 1..{_MOST_NODES} paths, holds {len(paths)}")
    children: dict[tuple[int, ...], int] = {}
    for path in sorted(paths):
        above = path[:-1]
        if above and above not in paths:
            raise ScenarioError(f"--tree {text}: path {list(path)} is there without {list(above)}, which it follows")
        if path[-1] and (*above, path[-1] - 1) not in paths:
            raise ScenarioError(
                f"--tree {text}: path {list(path)} is there without the likelier one that ends in {path[-1] - 1}"
            )
        children[above] = path[-1] + 1
    return StaticTree(children, text)


def likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """int64 [rows, count]: the likeliest tokens, the first of equal ones where one is asked for."""
    if count == 1:
        return logits.argmax(-1, keepdim=True)
    return logits.topk(min(count, logits.shape[-1]), dim=-1).indices


Look = Callable[[int, Sequence[tuple[int, int]], Sequence[Sequence[Node]]], torch.Tensor]
"""(level, (tree, node) of each row with node -1 for its root, nodes of every tree) -> logits [rows, vocabulary] of what
follows each; called level by level, each time with nodes of the level before."""


def grow(streams: Sequence[torch.Generator], k: int, planting: Planting, law: Law | None, look: Look) -> list[Proposal]:
    """A tree, or chain, of up to k levels for each stream of random draws.

    Args:
        law: None: candidates are the likeliest; else they are drawn, where the planting leaves them to chance.
    """
    trees: list[list[Node]] = [[] for _ in streams]
    rows = [(n, -1) for n in range(len(streams))]
    for level in range(min(k, planting.deepest)):
        if not rows:
            break
        logits = look(level, rows, trees)
        newest = _children(logits, rows, trees, streams, planting, law, level)
        rows = [(n, node) for n, tree in enumerate(trees) for node in planting.grown_on(tree, newest[n])]
    levels = min(k, planting.deepest) if planting.is_scored else 0
    return [_proposal(tree, planting.verified(tree), levels) for tree in trees]


def _children(
    logits: torch.Tensor,
    rows: Sequence[tuple[int, int]],
    trees: list[list[Node]],
    streams: Sequence[torch.Generator],
    planting: Planting,
    law: Law | None,
    level: int,
) -> list[list[int]]:
    """Add what follows the nodes of some rows; the new nodes of each tree."""
    newest: list[list[int]] = [[] for _ in trees]
    drawn = law(logits).cpu() if law is not None and not planting.is_scored else None
    best = None if drawn is not None else likeliest(logits, planting.widest(level))
    chances = None
    if planting.is_scored and best is not None:
        chances = logits.float().log_softmax(-1).gather(-1, best).tolist()
    tops = None if best is None else best.tolist()
    for row, (n, node) in enumerate(rows):
        tree = trees[n]
        path, score = (tree[node].path, tree[node].score) if node >= 0 else ((), 0.0)
        count = planting.count(path)
        if drawn is not None:
            found = _without_replacement(drawn[row], count, streams[n])
        else:
            assert tops is not None
            found = [(token, None) for token in tops[row][:count]]
        for rank, (token, own) in enumerate(found):
            chance = 0.0 if chances is None else chances[row][rank]
            newest[n].append(len(tree))
            tree.append(Node(token, node, (*path, rank), score + chance, own))
    return newest


def _without_replacement(
    law: torch.Tensor, count: int, generator: torch.Generator
) -> list[tuple[int, torch.Tensor | None]]:
    """Up to `count` tokens, each with the law that it was drawn from; fewer where no more have a chance."""
    found: list[tuple[int, torch.Tensor | None]] = []
    for _ in range(count):
        token = int(torch.multinomial(law, 1, generator=generator))
        found.append((token, law))
        law = law.clone()
        law[token] = 0.0
        rest = float(law.sum())
        if rest <= 0:
            break
        law /= rest
    return found


def _proposal(tree: Sequence[Node], verified: Sequence[int], levels: int) -> Proposal:
    if not verified:
        return NOTHING
    place = {-1: -1} | {node: n for n, node in enumerate(verified)}
    parents = tuple(place[tree[node].parent] for node in verified)
    laws = [tree[node].law for node in verified]
    probs = None if laws[0] is None else torch.stack([law for law in laws if law is not None])
    is_chain = parents == tuple(range(-1, len(parents) - 1))
    return Proposal(tuple(tree[node].token for node in verified), probs, None if is_chain else parents, levels)
