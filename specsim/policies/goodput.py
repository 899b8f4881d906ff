"""The k with most expected tokens per second, from the cost model and the expected acceptance.

Models: a planner that knows its costs exactly and its acceptance on average (goodput-optimal speculation length, as in
SmartSpec, arXiv 2406.14066). No engine offers it for its usual drafters; it is what a schedule can be measured against.
Leaves out: learning; what it was told of acceptance holds throughout. Numbers: the profile and the acceptance model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from specsim.errors import ScenarioError
from specsim.policies.base import Ahead, EngineView, Policy, StepSeconds
from specsim.policies.kind import PolicyKind
from specsim.policies.spec import PolicySpec

__all__ = ["KIND", "Goodput"]


class Goodput(Policy):
    """Choices are remembered by batch and by context in steps of one eighth of an octave."""

    def __init__(self, num_spec_tokens: int, expected_length: Callable[[int], float], step_s: StepSeconds) -> None:
        super().__init__(num_spec_tokens)
        self._lengths = [1.0] + [expected_length(k) for k in range(1, num_spec_tokens + 1)]
        self._step_s = step_s
        self._choice: dict[tuple[int, int], int] = {}
        self._ahead: Ahead | None = None

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        bucket, octave = _bucket(kv_tokens, decode_requests)
        key = (batch, bucket)
        k = self._choice.get(key)
        if k is None:
            middle = bucket + (1 << octave) / 2
            rates = [length / self._step_s(batch, middle, k) for k, length in enumerate(self._lengths)]
            k = self._choice[key] = max(range(len(rates)), key=rates.__getitem__)
        return k

    def ahead(self, most_requests: int) -> Ahead:
        if self._ahead is None or self._ahead.ks.shape[1] <= most_requests:
            ks = np.full((len(_BUCKETS), most_requests + 1), -1, dtype=np.int8)
            self._ahead = Ahead(ks, np.array(_BUCKETS, dtype=np.int64))
        return self._ahead

    def steady_for(self, batch: int, kv_tokens: int, decode_requests: int) -> tuple[int, int]:
        bucket, octave = _bucket(kv_tokens, decode_requests)
        return self.ALWAYS, (bucket + (1 << octave)) * decode_requests


def _bucket(kv_tokens: int, decode_requests: int) -> tuple[int, int]:
    """(smallest context of the step of the mean context, log2 of that step's width)."""
    context = kv_tokens // decode_requests if decode_requests else 0
    octave = max(0, context.bit_length() - 4)
    return (context >> octave) << octave, octave


_BUCKETS = sorted({_bucket(tokens << octave, 1)[0] for octave in range(40) for tokens in range(8, 16)} | {*range(8)})
"""Where the steps of the context begin."""


def _make(spec: PolicySpec, view: EngineView) -> Policy:
    if view.expected_length is None or view.step_s is None:
        raise ScenarioError("policy goodput needs an acceptance model and a latency profile")
    return Goodput(spec.num_spec_tokens, view.expected_length, view.step_s)


KIND = PolicyKind(
    name="goodput",
    summary="the k of 0..`num_spec_tokens` with most expected tokens per second at this batch and context; tables show "
    "it as `adaptive<=5`; no engine offers it",
    make=_make,
    label=lambda spec: f"adaptive<={spec.num_spec_tokens}",
    spelling="goodput:K",
    example="goodput:5",
    rank=5,
)
