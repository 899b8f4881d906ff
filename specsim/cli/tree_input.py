"""`--tree`: a static tree by its nodes a level, or by the candidates behind each node; the same in every command.

`4,8,8` has 4, 8 and 8 nodes, hung below the likeliest ones. `4x2x1` is full: 4 candidates behind the sampled token, 2
behind each of them, 1 behind each of those, which is 4, 8 and 8 nodes too, but hung evenly.
"""

from __future__ import annotations

import re

from specsim.cli.scenario_options import parse_whole_numbers

__all__ = ["is_branching", "is_levels", "parse_tree"]

_LEVELS = re.compile(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*")
_BRANCHING = re.compile(r"\s*[0-9]+(\s*x\s*[0-9]+)+\s*")
_MOST_LEVELS = 64


def is_levels(text: str) -> bool:
    """Whether a tree is given by its nodes a level."""
    return _LEVELS.fullmatch(text) is not None


def is_branching(text: str) -> bool:
    """Whether a tree is given by the candidates behind each node."""
    return _BRANCHING.fullmatch(text) is not None


def parse_tree(text: str) -> dict[str, tuple[int, ...]]:
    """Field of a speculation -> numbers, of a tree that is given in one of the two ways.

    Raises:
        ScenarioError: neither, a number below 1, or more levels than a round drafts.
    """
    from specsim.errors import ScenarioError

    if not is_levels(text) and not is_branching(text):
        raise ScenarioError(
            f"--tree {text!r} must be nodes by level, such as 4,8,8, or candidates behind each node, such as 4x2x1"
        )
    numbers = parse_whole_numbers(text.replace("x", ","), "--tree", low=1)
    if len(numbers) > _MOST_LEVELS:
        raise ScenarioError(f"--tree has {len(numbers)} levels; at most {_MOST_LEVELS} are drafted in a round")
    return {"tree_levels" if is_levels(text) else "tree_branching": numbers}
