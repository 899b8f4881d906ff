"""Drafts as trees: which nodes are worth verifying, and how many tokens a round then accepts.

Models: grown trees; static ones by nodes a level, hung below the likeliest nodes, or full, with so many candidates
behind every node. At every node the first w candidates hold the matching token with `1 - (1 - a) * w ** -0.47`, where a
is the chance of the first one (chain acceptance at that depth), no candidate being likelier than the one before it;
grown nodes are taken in order of the chance that the text passes through them, with at most `topk` children each, which
is what EAGLE-2 does by confidence and Sequoia by dynamic programming.
Leaves out: that chances differ between contexts, which a dynamic tree follows.
Numbers: the exponent is fitted to SpecInfer (arXiv 2305.09781), table 1, see `RANK_EXPONENT`.
"""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from specsim.errors import ScenarioError
from specsim.type_checks import check_types

__all__ = ["RANK_EXPONENT", "Tree", "chain_from_tree_length", "cut", "full_levels", "full_tree", "grown_tree",
           "level_paths", "level_tree", "match_any", "verified_tokens"]  # fmt: skip

RANK_EXPONENT = 0.47
"""How fast misses fall with the number of candidates."""


@dataclass(frozen=True, slots=True)
class Tree:
    """What one round verifies for one request below the sampled token.

    Raises:
        ScenarioError: when the first level or one above a filled one is empty, or the passes do not fit the levels.
    """

    levels: tuple[int, ...]
    """Nodes of level 1, 2, ...; a level may be empty when all below it are."""
    expanded: tuple[int, ...]
    """Nodes on which pass 1, 2, ... of a serial drafter drafts; the first is the sampled token."""

    def __post_init__(self) -> None:
        check_types(self, "tree")
        if not self.levels or self.levels[0] < 1 or min(self.levels) < 0 or _gaps(self.levels):
            raise ScenarioError(f"a tree needs at least one node a level, got levels {list(self.levels)}")
        if len(self.expanded) != len(self.levels) or self.expanded[0] != 1:
            raise ScenarioError(f"a tree of {len(self.levels)} levels needs as many passes, the first on one node")

    @property
    def depth(self) -> int:
        return len(self.levels)

    @property
    def nodes(self) -> int:
        """Drafts verified a round."""
        return sum(self.levels)


def _gaps(levels: Sequence[int]) -> bool:
    return any(below and not above for above, below in itertools.pairwise(levels))


def match_any(first: float, candidates: int) -> float:
    """Chance that one of the `candidates` likeliest drafts matches, where the likeliest does with `first`."""
    return sum(_ranks(first, candidates))


def _conditional(chain: Sequence[float], level: int) -> float:
    return float(chain[min(level, len(chain) - 1)])


def grown_tree(chain: Sequence[float], *, nodes: int, topk: int, depth: int) -> tuple[Tree, tuple[float, ...]]:
    """The best tree of at most `nodes` drafts, `topk` children a node and `depth` levels; and its acceptance by level.

    `chain`: chance that draft 1, 2, ... of a chain matches, given that those before did; the last value is carried on.
    Levels that are not worth a node stay out, so that the tree may be less deep than asked; the drafter, which cannot
    know that, makes `depth` passes, each but the first over `topk` nodes. The second value holds, by level, the chance
    that some child matches where the text has followed the tree so far.

    Raises:
        ScenarioError: when a number is below 1.
    """
    if min(nodes, topk, depth) < 1:
        raise ScenarioError(f"a tree needs nodes, topk and depth >= 1, got {nodes}, {topk} and {depth}")
    shares = [_ranks(_conditional(chain, level), topk) for level in range(depth)]
    levels, reach = [0] * depth, [0.0] * depth
    # (minus its chance, turn, level, chance of its parent, rank among its siblings) of nodes that could come next
    turn = 0
    heap = [(-shares[0][0], turn, 0, 1.0, 0)]
    while heap and sum(levels) < nodes:
        negative, _, level, parent, rank = heapq.heappop(heap)
        levels[level] += 1
        reach[level] -= negative
        if rank + 1 < topk:
            turn += 1
            heapq.heappush(heap, (-parent * shares[level][rank + 1], turn, level, parent, rank + 1))
        if level + 1 < depth:
            turn += 1
            heapq.heappush(heap, (negative * shares[level + 1][0], turn, level + 1, -negative, 0))
    return Tree(tuple(levels), (1, *(topk,) * (depth - 1))), _by_level(reach)


def level_tree(chain: Sequence[float], widths: Sequence[int]) -> tuple[Tree, tuple[float, ...]]:
    """A static tree with `widths[l]` nodes at level l + 1, hung below the likeliest nodes; and its acceptance by level.

    Raises:
        ScenarioError: when a level is empty.
    """
    placed = _placed(chain, widths)
    parents = tuple(len({parent for parent, _, _ in level}) for level in placed)
    return Tree(tuple(widths), parents), _by_level([sum(chance for _, _, chance in level) for level in placed])


def level_paths(chain: Sequence[float], widths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The nodes of that tree, each by the ranks of the candidates that lead to it, level by level.

    Raises:
        ScenarioError: when a level is empty.
    """
    found: list[tuple[int, ...]] = []
    above: list[tuple[int, ...]] = [()]
    for level in _placed(chain, widths):
        above = [(*above[parent], rank) for parent, rank, _ in level]
        found += above
    return tuple(found)


def _placed(chain: Sequence[float], widths: Sequence[int]) -> list[list[tuple[int, int, float]]]:
    """(place of the parent in the level above, rank among its candidates, chance) of the nodes of every level."""
    if not widths or min(widths) < 1:
        raise ScenarioError(f"a tree needs at least one node a level, got levels {list(widths)}")
    above = [1.0]
    found: list[list[tuple[int, int, float]]] = []
    for level, width in enumerate(widths):
        shares = _ranks(_conditional(chain, level), width)
        heap = [(-chance * shares[0], n, 0) for n, chance in enumerate(above)]
        heapq.heapify(heap)
        chosen: list[tuple[int, int, float]] = []
        while len(chosen) < width:
            negative, n, rank = heapq.heappop(heap)
            chosen.append((n, rank, -negative))
            if rank + 1 < width:
                heapq.heappush(heap, (-above[n] * shares[rank + 1], n, rank + 1))
        above = [chance for _, _, chance in chosen]
        found.append(chosen)
    return found


def full_levels(branching: Sequence[int]) -> tuple[int, ...]:
    """Nodes by level of the tree with `branching[l]` candidates behind every node of level l."""
    return tuple(itertools.accumulate(branching, operator.mul))


def full_tree(chain: Sequence[float], branching: Sequence[int]) -> tuple[Tree, tuple[float, ...]]:
    """That tree, level 0 being the sampled token; and its acceptance by level.

    Raises:
        ScenarioError: when a node has no candidate.
    """
    if not branching or min(branching) < 1:
        raise ScenarioError(f"a full tree needs at least one candidate behind each node, got {list(branching)}")
    levels = full_levels(branching)
    by_level = tuple(min(1.0, match_any(_conditional(chain, n), width)) for n, width in enumerate(branching))
    return Tree(levels, (1, *levels[:-1])), by_level


def verified_tokens(nodes_by_depth: Sequence[int], draft_tokens: int, draft_requests: int) -> int:
    """Tokens that verifying `draft_tokens` levels of drafts of `draft_requests` requests takes.

    `nodes_by_depth[d]`: tokens verified beside the sampled one by a request with d levels; empty: d of them. Requests
    are taken to be as deep as one another, or one level deeper.
    """
    if not nodes_by_depth or not draft_tokens:
        return draft_tokens
    depth, deeper = divmod(draft_tokens, draft_requests)
    more = nodes_by_depth[depth + 1] - nodes_by_depth[depth] if deeper else 0
    return draft_requests * nodes_by_depth[depth] + deeper * more


def cut(tree: Tree) -> tuple[Tree, ...]:
    """The first 1, 2, ... levels of a tree, which is what a policy verifies that drafts fewer levels."""
    return tuple(Tree(tree.levels[:depth], tree.expanded[:depth]) for depth in range(1, tree.depth + 1))


def chain_from_tree_length(length: float, *, nodes: int, topk: int, depth: int) -> float:
    """The constant chain acceptance whose best tree accepts `length` tokens a round, bonus included.

    Raises:
        ScenarioError: when no tree of that depth can accept so many, or the length is below 1.
    """
    if not 1.0 <= length <= depth + 1:
        raise ScenarioError(f"acceptance length {length:g} of a tree must lie in 1..{depth + 1}, depth {depth} and the "
                            f"bonus token")  # fmt: skip
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        _, by_level = grown_tree((middle,), nodes=nodes, topk=topk, depth=depth)
        reach, reached = 1.0, 1.0
        for chance in by_level:
            reach *= chance
            reached += reach
        low, high = (middle, high) if reached < length else (low, middle)
    return (low + high) / 2


def _ranks(first: float, candidates: int) -> list[float]:
    """Chance that candidate 1, 2, ... is the one that matches."""
    found = [first]
    for w in range(2, candidates + 1):
        fewer, more = ((1.0 - first) * n**-RANK_EXPONENT for n in (w - 1, w))
        found.append(min(found[-1], fewer - more))
    return found


def _by_level(reach: Sequence[float]) -> tuple[float, ...]:
    found, before = [], 1.0
    for chance in reach:
        found.append(min(1.0, chance / before) if before > 0.0 else 0.0)
        before = chance
    return tuple(found)
