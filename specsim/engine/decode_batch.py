"""What a fast replica asks of its decoding requests, whichever way they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specsim.config import ReplicaLimits
from specsim.workload import Workload

__all__ = ["Advance", "DecodeBatch", "DecodeSetup", "Peek"]


@dataclass(frozen=True, slots=True)
class DecodeSetup:
    """What decides how a request decodes, apart from its luck."""

    workload: Workload
    limits: ReplicaLimits
    num_spec_tokens: int
    """Largest k of the policy."""
    window_tokens: int

    @property
    def longest_tokens(self) -> int:
        """Prompt and output of the longest request."""
        trace = self.workload.trace
        return int((trace.prompt_tokens.astype(np.int64) + trace.output_tokens).max(initial=0))

    @property
    def lookahead_tokens(self) -> int:
        return self.limits.lookahead_tokens(self.num_spec_tokens)

    @property
    def block_size_tokens(self) -> int:
        """Tokens after which a decoding request needs another block; beyond all lengths where it holds all it needs."""
        return self.limits.block_size_tokens if self.limits.discipline.reserve == "step" else 1 << 40

    @property
    def never_cuts(self) -> bool:
        """Whether no round is ever cut or left out for want of budget."""
        limits = self.limits
        every = limits.max_num_seqs * (1 + self.num_spec_tokens + limits.draft_slots)
        return limits.discipline.decode_budget != "cut" or every <= limits.max_num_batched_tokens


@dataclass(slots=True)
class Peek:
    """What the coming step would take. A batch hands out one object again and again."""

    served: int = 0
    """Requests that get tokens."""
    draft_tokens: int = 0
    draft_rounds: int = 0
    """Served requests that have at least one draft."""
    new_blocks: int = 0
    kv_tokens: int = 0
    windowed_kv_tokens: int = 0


@dataclass(slots=True)
class Advance:
    """What the step did. A batch hands out one object again and again."""

    gained: int = 0
    """Tokens emitted by all rounds."""
    finished: Sequence[tuple[int, int]] = ()
    """(request, blocks that it took since it joined), in order of admission."""
    waited: Sequence[int] = ()
    """Requests that should have been served but got no tokens, since the budget ran out."""
    resumed: Sequence[int] = ()
    """Served requests among those handed in as waiting before."""


class DecodeBatch(Protocol):
    """Requests past their prompt, in order of admission."""

    @property
    def count(self) -> int:
        """Requests in the batch."""
        ...

    def peek(self, budget_tokens: int) -> Peek:
        """The coming step under a token budget. Changes nothing."""
        ...

    def advance(self, next_k: int, waiting: set[int]) -> Advance:
        """Carry out the step last peeked; `next_k` drafts are proposed for the one after."""
        ...

    def add(self, request: int, emitted: int, next_k: int, is_stale: bool = False) -> None:
        """A request joins with `emitted` tokens out; it is served from the next step on. Stale: its drafts never match
        (which says nothing where k is constant)."""
        ...

    def pop(self, request: int) -> tuple[int, int]:
        """Drop a request; its (emitted tokens, blocks taken since it joined)."""
        ...

    def progress(self) -> list[tuple[int, int]]:
        """(request, emitted tokens) of all."""
        ...
