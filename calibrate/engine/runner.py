"""The seam between an engine's decisions and whatever carries a step out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from specsim.request import Request
from specsim.scheduler import StepPlan

__all__ = ["Outcome", "Runner"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step emitted, and how its seconds split (0 where nothing was measured)."""

    emitted: Mapping[int, int]
    """Request -> tokens, of every request that decoded or reached the end of its prompt."""
    forward_s: float = 0.0
    sample_s: float = 0.0
    draft_s: float = 0.0


class Runner(Protocol):
    """Carries out steps."""

    def run(self, plan: StepPlan, next_k: int, held: frozenset[int]) -> Outcome:
        """Compute a step, then propose up to `next_k` drafts (levels, of trees) for each request that decodes next.

        Args:
            held: requests that hold memory while it runs; what was kept for any other is void.
        """
        ...

    def drafts(self, request: Request) -> int:
        """Drafts that were proposed for a request's next round; of a tree its levels."""
        ...
