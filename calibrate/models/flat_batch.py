"""A ragged batch laid out flat: the tokens of all sequences one after another, and whose stretch is whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specsim.errors import InvariantError

__all__ = ["FlatBatch", "Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence's stretch of a batch."""

    slot: int
    """Its place in the cache."""
    context_tokens: int
    """Tokens already in the cache, to which all of its tokens attend."""
    num_tokens: int
    """Tokens computed now, at positions context_tokens, context_tokens + 1, ..."""


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

    @property
    def positions(self) -> list[int]:
        """[tokens]: place of each token in its sequence."""
        return [p.context_tokens + n for p in self.parts for n in range(p.num_tokens)]

    @property
    def last_rows(self) -> list[int]:
        """[parts]: row of each part's last token."""
        rows, row = [], -1
        for part in self.parts:
            row += part.num_tokens
            rows.append(row)
        return rows
