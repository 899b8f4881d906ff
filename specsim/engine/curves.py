"""What an engine measures of its own passes when it starts, for policies that weigh drafting against verifying.

Models: dummy steps of decoding requests of one context, all with the same number of drafts; the target pass and the
drafter's passes timed apart, host time in neither.
Leaves out: noise of such a measurement. Numbers: the latency profile.
"""

from __future__ import annotations

from functools import cached_property

from specsim.config import ReplicaLimits
from specsim.latency import StepCost, StepWork, captured_sizes

__all__ = ["StartUpCurves"]

_DRAFTER = ("draft", "lookup")
_HOST = ("host", "speculation")


class StartUpCurves:
    """See `specsim.policies.base.Curves`."""

    def __init__(self, cost: StepCost, limits: ReplicaLimits, num_spec_tokens: int) -> None:
        self._cost = cost
        self._limits = limits
        self._widest = 1 + num_spec_tokens

    @cached_property
    def captured_tokens(self) -> list[int]:
        return captured_sizes(self._cost.profile.captured_tokens_max)

    @property
    def max_requests(self) -> int:
        return self._limits.max_num_seqs

    @property
    def max_tokens(self) -> int:
        limits = self._limits
        if limits.discipline.decode_budget == "cut":
            return limits.max_num_batched_tokens
        return limits.max_num_batched_tokens + limits.max_num_seqs * self._widest

    def draft_s(self, requests: int, num_spec_tokens: int, context_tokens: int) -> float:
        parts = self._parts(requests, requests * num_spec_tokens, num_spec_tokens, context_tokens)
        return sum(seconds for name, seconds in parts.items() if name in _DRAFTER)

    def verify_s(self, tokens: int, num_spec_tokens: int, context_tokens: int) -> float:
        requests = -(-tokens // (1 + num_spec_tokens))
        parts = self._parts(requests, tokens - requests, num_spec_tokens, context_tokens)
        return sum(seconds for name, seconds in parts.items() if name not in _DRAFTER + _HOST)

    def _parts(self, requests: int, drafts: int, num_spec_tokens: int, context_tokens: int) -> dict[str, float]:
        context = min(context_tokens, self._limits.max_model_len - 1 - num_spec_tokens)
        window = self._cost.window_tokens
        return self._cost.parts(
            StepWork(
                decode_requests=requests,
                draft_tokens=drafts,
                draft_requests=min(drafts, requests),
                kv_tokens=requests * context,
                windowed_kv_tokens=requests * min(context, window),
                next_num_spec_tokens=num_spec_tokens,
                machinery=True,
            )
        )
