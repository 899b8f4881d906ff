"""From what a speculation says to what a round verifies: the trees of every depth, and the acceptance by level.

Models: a static tree by nodes a level or in full, or the best one of some nodes for the chain acceptance of the method;
a policy that drafts fewer levels verifies the first levels of the same tree, so that every k shares one luck; by
content class, with one tree for the cost of all.
Leaves out: trees whose shape follows the context from round to round. Numbers: `specsim.trees`.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, replace

from scenarios.acceptance import default_acceptance
from scenarios.measured_acceptance import measured_requests
from specsim.acceptance import AcceptanceModel, ByTask, Empirical, Mixture, PerPosition, with_lengths
from specsim.config import Speculation
from specsim.errors import ScenarioError
from specsim.shapes import ModelShape
from specsim.trees import Tree, chain_from_tree_length, cut, full_tree, grown_tree, level_tree

__all__ = ["Verified", "verified"]

_TOPK = 4
"""SGLang's default for Llama targets."""
_TREE_ERROR = 0.05
"""One-sigma relative error of a tree's length from that of a chain: EAGLE's static tree comes to 3.87 where the paper
has 3.94, and how often the second and third candidates match differs between drafters."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a round verifies, and how much of it is accepted."""

    trees: tuple[Tree, ...]
    """By number of levels, 1 first; empty: chains."""
    acceptance: AcceptanceModel
    said: str
    """A remark on the acceptance, to be put behind its source; empty: nothing changed."""
    error: float = 0.0
    """What the change adds to the one-sigma relative error of the mean acceptance length."""


def verified(speculation: Speculation, target: ModelShape, acceptance: AcceptanceModel) -> Verified:
    """Trees of a speculation, and its acceptance by level.

    `acceptance` is what the user gave, which is by level already if it is a figure or was measured over trees, or else
    that of a chain.

    Raises:
        ScenarioError: when a given acceptance length does not fit the depth, an option is unknown, or acceptance that
            was measured over trees is given to a chain.
    """
    method, depth = speculation.drafter, max(speculation.num_spec_tokens)
    chosen = method.chosen(target, speculation.options)
    if method.nodes is not None:
        count = method.nodes
        counts = [count(k, chosen) for k in range(1, depth + 1)]
        levels = (counts[0], *(b - a for a, b in itertools.pairwise(counts)))
        return Verified(cut(Tree(levels, (1,) * depth)), acceptance, "")
    over = measured_requests(speculation).tree if speculation.acceptance_file is not None else ""
    if not speculation.has_tree:
        if over:
            raise ScenarioError(
                f"{speculation.acceptance_file}: was measured over trees ({over}), and speculation verifies a chain; "
                f"give the same tree with --tree or --tree-nodes and --topk, or acceptance of chains"
            )
        return Verified((), acceptance, "")
    given = speculation.acceptance is not None or speculation.acceptance_length is not None or bool(over)
    if not speculation.static_levels:
        nodes, topk = _size(speculation, depth)
        if speculation.acceptance_length is not None and not method.varies and _measured_here(speculation):
            alpha = chain_from_tree_length(speculation.acceptance_length, nodes=nodes, topk=topk, depth=depth)
            tree, by_level = grown_tree((alpha,), nodes=nodes, topk=topk, depth=depth)
            said = f"of a tree of {tree.nodes} drafts, which a chain acceptance of {alpha:.3f} explains"
            return Verified(cut(tree), _by_level(acceptance, by_level), said)

    def planted(chain: tuple[float, ...]) -> tuple[Tree, tuple[float, ...]]:
        if speculation.tree_levels:
            return level_tree(chain, speculation.tree_levels[:depth])
        if speculation.tree_branching:
            return full_tree(chain, speculation.tree_branching[:depth])
        return grown_tree(chain, nodes=nodes, topk=topk, depth=depth)

    tree, by_level = planted(_chain(method.name, target, acceptance) if given else acceptance.conditional)
    if given:
        return Verified(cut(tree), acceptance, "")
    if speculation.static_levels:
        what = f"a static tree of {tree.nodes} drafts"
    else:
        what = f"the best tree of {tree.nodes} drafts, at most {topk} a node"
    classes = acceptance.models if isinstance(acceptance, ByTask) else (acceptance,)
    model: AcceptanceModel = _by_level(acceptance, by_level)
    if isinstance(acceptance, ByTask):  # all cost the tree of their mean; each is accepted as on its own
        parts = tuple(_by_level(part, planted(part.conditional)[1]) for part in classes)
        model = replace(acceptance, models=parts, name=f"{acceptance.name}, as trees")
    lengths = [found.expected_length(depth) for found in (acceptance, model)]
    said = f"{lengths[0]:.2f} tokens a round as a chain, {lengths[1]:.2f} as {what}"
    if any(isinstance(part, Empirical) for part in classes):
        said += "; rounds of a tree are independent, acceptance_model mixture keeps their memory"
    return Verified(cut(tree), model, said, _TREE_ERROR)


def _chain(method: str, target: ModelShape, acceptance: AcceptanceModel) -> tuple[float, ...]:
    """Chain acceptance that shapes a tree whose own acceptance is given: the published one, else that by level."""
    try:
        return default_acceptance(method, target.name, None)[0].conditional
    except ScenarioError:
        return acceptance.conditional


def _size(speculation: Speculation, depth: int) -> tuple[int, int]:
    """(nodes, topk) of a grown tree."""
    usual = speculation.drafter.usual_tree
    topk = speculation.topk or (usual.topk if usual is not None else _TOPK)
    if speculation.tree_nodes is None:
        return min(max(depth, usual.nodes if usual is not None else depth), _room(topk, depth)), topk
    nodes = speculation.tree_nodes
    while _room(topk, depth) < nodes:
        if speculation.topk is not None:
            raise ScenarioError(
                f"speculation.tree_nodes {nodes} are more than the {_room(topk, depth)} that topk {topk} and depth "
                f"{depth} allow; give fewer nodes or a larger topk"
            )
        topk += 1
    return nodes, topk


def _room(topk: int, depth: int) -> int:
    """Most nodes of a tree."""
    return sum(topk**level for level in range(1, min(depth, 11) + 1))


def _measured_here(speculation: Speculation) -> bool:
    """Whether the given acceptance length is that of the tree itself, at its full depth."""
    return speculation.acceptance_length_k in (None, max(speculation.num_spec_tokens))


def _by_level(model: AcceptanceModel, by_level: tuple[float, ...]) -> AcceptanceModel:
    """The model with another acceptance by level; what it has of spread and memory stays."""
    name, levels = f"{model.name}, as a tree", len(by_level)
    if isinstance(model, Mixture):
        lengths = [1.0 + model.proposal_rate * sum(itertools.accumulate(by_level[:k], operator.mul)) for k in
                   range(1, levels + 1)]  # fmt: skip
        return replace(with_lengths(replace(model, max_spec_tokens=levels), lengths), name=name)
    if isinstance(model, PerPosition):
        return PerPosition(by_level, levels, model.proposal_rate, model.sigma, name, model.proposed)
    return PerPosition(by_level, levels, model.proposal_rate, name=f"{name}, rounds independent")
