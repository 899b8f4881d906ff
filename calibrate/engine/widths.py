"""How wide a round is by its levels of drafts, as the scheduler counts it, and whether a drafter drafts just that."""

from __future__ import annotations

from calibrate.drafters.base import Drafter, Planted
from specsim.config import ReplicaLimits
from specsim.errors import ScenarioError

__all__ = ["tree_widths"]


def tree_widths(limits: ReplicaLimits, drafter: Drafter | None, num_spec_tokens: int) -> tuple[int, ...]:
    """Drafts that rounds of 0, 1, ... `num_spec_tokens` levels verify; empty where they are chains.

    `limits.tree_nodes` say how many; a tree with fewer levels than the deepest may have more, of which the best are
    then verified.

    Raises:
        ScenarioError: limits and drafter do not speak of the same trees.
    """
    k, given = num_spec_tokens, limits.tree_nodes
    if not k or drafter is None:
        return ()
    trees = drafter.trees(k) if isinstance(drafter, Planted) else ()
    own = (0, *(tree.nodes for tree in trees)) if trees else tuple(range(k + 1))
    if own == tuple(range(len(own))) and (not given or given[: k + 1] == tuple(range(k + 1))):
        return ()
    if not given:
        raise ScenarioError(
            f"{drafter.name} drafts trees of up to {own[-1]} tokens, and limits without tree_nodes count chains; take "
            f"them from specsim.memory.tree_limits(limits, drafter.trees({k}))"
        )
    if own[-1] < k:
        raise ScenarioError(f"{drafter.name} drafts trees of {own[-1]} tokens, too few for k {k} levels; lower k")
    if len(own) <= k:
        raise ScenarioError(f"{drafter.name} drafts trees of {len(trees)} levels, fewer than k {k}; lower k")
    if len(given) <= k:
        raise ScenarioError(
            f"limits.tree_nodes {list(given)} say what up to {len(given) - 1} levels verify, and k is {k}; lower k"
        )
    if given[k] != own[k] or any(mine < wanted for mine, wanted in zip(own, given, strict=False)):
        raise ScenarioError(
            f"limits.tree_nodes {list(given[: k + 1])} are not the trees of {drafter.name}, which has {list(own)} "
            f"drafts on 0 to {k} levels; give both the same tree"
        )
    return given[: k + 1]
