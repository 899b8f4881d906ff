"""Prefill and decode on replicas of their own: how many of each, and what it takes to hand a prompt's cache over.

Models: bytes of the blocks that hold a prompt, over one link a GPU, in seconds.
Leaves out: who waits for whom, which is `specsim.engine.handover`. Numbers: none; link and bytes are given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specsim.config import ReplicaLimits
from specsim.errors import ScenarioError
from specsim.type_checks import Unbounded, check_types

__all__ = ["Disaggregation"]


@dataclass(frozen=True, slots=True)
class Disaggregation:
    """Two pools of equal replicas. Every GPU of a prefill replica sends its own share of a cache over its own link."""

    prefill_replicas: int
    decode_replicas: int
    block_bytes: float
    """Bytes of one KV block on one GPU, all layers, the drafter's included."""
    link_bytes_per_s: Unbounded
    """One direction of the link of one GPU; `math.inf`: no time."""
    link_latency_s: float = 0.0
    """From the wish to read a cache until bytes flow."""

    def __post_init__(self) -> None:
        check_types(self, "disaggregation")
        for name in ("prefill_replicas", "decode_replicas"):
            if getattr(self, name) < 1:
                raise ScenarioError(f"disaggregation.{name} must be >= 1, got {getattr(self, name)}")
        for name, least in (("block_bytes", 0.0), ("link_bytes_per_s", 0.0), ("link_latency_s", -1.0)):
            if not getattr(self, name) > least or (name == "link_latency_s" and self.link_latency_s < 0):
                raise ScenarioError(f"disaggregation.{name} must be > 0, got {getattr(self, name)!r}")

    def link_s(self, prompt_tokens: int, limits: ReplicaLimits) -> float:
        """Seconds for which the cache of a prompt keeps the links of a sender and a receiver busy; whole blocks."""
        blocks = math.ceil(prompt_tokens / limits.block_size_tokens) + limits.fixed_blocks_per_request
        return blocks * self.block_bytes / self.link_bytes_per_s
