"""A ragged batch laid out flat: the tokens of all sequences one after another, and whose stretch is whose.

A stretch is a text, each token of which sees all before it, or a tree of drafts, whose tokens stand where they would if
their branch were the text, and see that branch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specsim.errors import InvariantError

__all__ = ["Branches", "FlatBatch", "Part", "tree_branches"]


@dataclass(frozen=True, eq=False, slots=True)
class Branches:
    """Where the tokens of a stretch stand, and what each sees, where they are no text."""

    positions: tuple[int, ...]
    """Place of each token in its sequence."""
    seen: np.ndarray
    """bool [tokens, keys]: of the last so many keys, its own stretch the last among them, which each token sees; all
    earlier ones it sees too."""


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence's stretch of a batch."""

    slot: int
    """Its place in the cache."""
    context_tokens: int
    """Tokens already in the cache, to which all of its tokens attend."""
    num_tokens: int
    """Tokens computed now; without branches at positions context_tokens, context_tokens + 1, ..."""
    branches: Branches | None = None
    """None: a text."""


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """Tokens of one pass.

    Raises:
        InvariantError: a part is empty, a slot appears twice, or the counts do not add up.
    """

    token_ids: Sequence[int]
    """[tokens], part after part."""
    parts: Sequence[Part]

    def __post_init__(self) -> None:
        total = sum(part.num_tokens for part in self.parts)
        if total != len(self.token_ids) or any(part.num_tokens < 1 for part in self.parts):
            raise InvariantError(f"a batch of {len(self.token_ids)} tokens has parts of {total}, each at least 1")
        if len({part.slot for part in self.parts}) != len(self.parts):
            raise InvariantError("a batch holds one slot twice; its second part would not see its first")
        for part in self.parts:
            own = part.branches
            if own is not None and not (
                len(own.positions) == len(own.seen) == part.num_tokens
                and part.num_tokens <= own.seen.shape[1] <= part.context_tokens + part.num_tokens
            ):
                raise InvariantError(
                    f"branches of {part.num_tokens} tokens have {len(own.positions)} positions and a mask of "
                    f"{own.seen.shape}"
                )

    @property
    def positions(self) -> list[int]:
        """[tokens]: place of each token in its sequence."""
        return [
            place
            for p in self.parts
            for place in (
                range(p.context_tokens, p.context_tokens + p.num_tokens) if p.branches is None else p.branches.positions
            )
        ]

    @property
    def last_rows(self) -> list[int]:
        """[parts]: row of each part's last token."""
        rows, row = [], -1
        for part in self.parts:
            row += part.num_tokens
            rows.append(row)
        return rows


def tree_branches(context_tokens: int, text_tokens: int, parents: Sequence[int]) -> Branches:
    """Branches of a stretch of text that a tree of drafts hangs below.

    Args:
        context_tokens: tokens before the stretch.
        text_tokens: tokens of text in it, at least the one that the tree grows from.
        parents: of each draft the number of the draft that it follows, lower than its own; -1: the end of the text.
    """
    total = text_tokens + len(parents)
    seen = np.tril(np.ones((total, total), dtype=bool))
    positions = list(range(context_tokens, context_tokens + text_tokens))
    for node, parent in enumerate(parents):
        row, above = text_tokens + node, text_tokens - 1 if parent < 0 else text_tokens + parent
        seen[row] = seen[above]
        seen[row, row] = True
        positions.append(positions[above] + 1)
    return Branches(tuple(positions), seen)
