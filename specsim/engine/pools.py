"""What the replicas of two pools offer beyond `specsim.engine.replica.Replica`, and how their settings differ.

Models: a prefill replica yields one token a request and keeps the blocks until they have been read; it runs the
drafter's first pass where the drafter has a cache, which is sent along. A decode replica shares no prefixes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from specsim.config import PolicySpec, ReplicaLimits
from specsim.engine.replica import Replica
from specsim.errors import ScenarioError
from specsim.latency import StepCost
from specsim.workload import Workload

__all__ = ["DecodeReplica", "PrefillReplica", "Pull", "decode_limits", "prefill_limits", "prefill_policy",
           "prefill_workload"]  # fmt: skip

Pull = Callable[[int, int, float], None]
"""Called with (request, decode replica, now_s) when the request has its blocks there and its cache may be read."""


class PrefillReplica(Replica, Protocol):
    """Computes prompts. Requests that it finishes keep their blocks."""

    def sent(self, request: int) -> None:
        """The cache of a finished request has been read: its blocks are free."""
        ...


class DecodeReplica(Replica, Protocol):
    """Decodes. `submit` hands it a prompt that was computed elsewhere, for which it calls `Pull` once it has blocks."""

    def receive(self, request: int) -> None:
        """The cache of a pulled request is here."""
        ...


def prefill_limits(limits: ReplicaLimits) -> ReplicaLimits:
    """Limits of a prefill replica of a deployment whose replicas have these.

    Raises:
        ScenarioError: when the discipline has no two pools.
    """
    rules = limits.discipline
    if rules.order == "batch" or rules.reserve == "slot":
        raise ScenarioError(f"discipline '{rules.name}' has no prefill and decode replicas; choose another engine")
    if rules.hand_over == "recompute" and (rules.order != "mixed" or rules.admission == "estimate"):
        raise ScenarioError(f"discipline '{rules.name}' computes prompts apart, so that hand_over must be token")
    rules = replace(rules, extra_step=False, first_round_placeholders=False)
    return replace(limits, discipline=rules, asked_output_tokens=0, tree_nodes=())


def decode_limits(limits: ReplicaLimits) -> ReplicaLimits:
    """Limits of a decode replica of a deployment whose replicas have these."""
    rules = limits.discipline
    rules = replace(rules, first_round_placeholders=rules.hand_over == "recompute", prefix_caching=False)
    return replace(limits, discipline=rules, enable_prefix_caching=False)


def prefill_policy(policy: PolicySpec, cost: StepCost) -> PolicySpec:
    """Static with one draft where the drafter keeps a cache, which has to be filled; off where it has none."""
    profile = cost.profile
    fills = policy.kind != "off" and profile.draft is not None and profile.at_zero_drafts != "skipped"
    return PolicySpec("static", 1) if fills else PolicySpec("off")


def prefill_workload(workload: Workload) -> Workload:
    """The same prompts with an output of one token each."""
    trace = workload.trace
    one = replace(trace, output_tokens=np.ones_like(trace.output_tokens))
    return Workload(one, None, seed=workload.seed, first_request_id=workload.first_request_id)
