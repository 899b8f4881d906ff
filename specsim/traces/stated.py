"""What specsim's own files say about themselves in their first row: block size of the hashes, grid, origin.

Checked like everything else of a file: what cannot be used is said as a warning, never dropped without a word.
Leaves out: the columns of a request.
"""

from __future__ import annotations

from typing import Any

from specsim.traces.formats.base import Row
from specsim.traces.values import RowProblem, read_count, read_number, show

__all__ = ["stated_block"]


def _usable(value: Any, what: str, *, whole: bool, warnings: list[str]) -> float | int | None:
    """A stated figure > 0; None when there is none, or none of use, which is warned of."""
    if value is None or value == "":
        return None
    try:
        number = read_count(value, what) if whole else read_number(value, what)
        if number > 0:
            return number
        problem = f"{what} not > 0"
    except RowProblem as found:
        problem = found.reason
    warnings.append(f"the first row states {what} {show(value)}, which is not used: {problem}")
    return None


def stated_block(first: Row, notes: list[str], warnings: list[str]) -> int | None:
    """Prompt tokens a prefix hash covers, as the first row states it; origin and grid become notes.

    Args:
        first: the first row, with compact keys; empty when there is none.
        notes, warnings: extended by what is stated, and by what of it is of no use.
    """
    head = first.get("specsim")
    if head is not None and type(head) is not dict:
        warnings.append(f"the first row states specsim {show(head)}, which is not used: not an object")
    head = head if type(head) is dict else {}
    if head.get("source"):
        origin = " ".join(str(head["source"]).split())
        notes.append(f"converted by specsim from {origin[:200]} ({' '.join(str(head.get('format')).split())[:60]})")
    grid = _usable(head.get("arrival_grid_s"), "arrival_grid_s", whole=False, warnings=warnings)
    if grid is not None:
        notes.append(f"arrivals had been spread over a {grid:g} s grid")
    said = head.get("hash_block_tokens", first.get("hashblocktokens"))
    block = _usable(said, "hash_block_tokens", whole=True, warnings=warnings)
    return None if block is None else int(block)
