"""TensorRT-LLM's gate on acceptance: once it falls below a threshold, nothing is drafted ever again.

Models: its SpeculationGate in both forms. `steps` (1.3.0rc27 and later: acceptance_rate_window_size and
acceptance_rate_threshold): accepted / drafted of each iteration that drafted, averaged over the last `window` of them.
`requests` (1.2: acceptance_window and acceptance_length_threshold): tokens an iteration less one, that is accepted
drafts without the bonus token, of each completed request, averaged over the last `window` requests. It trips when the
window is full and its mean below the threshold.
Leaves out: nothing of the gate; what zero drafts cost is the profile's. Numbers: the user's, TensorRT-LLM has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specsim.checks import number, whole
from specsim.policies.base import Ahead, EngineView, Observed, Policy
from specsim.policies.gate import RollingMean
from specsim.policies.kind import PolicyKind
from specsim.policies.spec import LARGEST_K, PolicySpec
from specsim.type_checks import check_types

__all__ = ["KIND", "TrtGateOverRequests", "TrtGateOverSteps", "TrtGateSettings"]


@dataclass(frozen=True, slots=True)
class TrtGateSettings:
    """Settings of `trt_gate`.

    Raises:
        ScenarioError: a value out of range.
    """

    threshold: float = 0.4
    """Mean below which drafting ends: accepted / drafted over steps, accepted drafts an iteration over requests."""
    window: int = 100
    """Steps with drafts, or completed requests, that are averaged."""
    over: Literal["steps", "requests"] = "steps"
    """What is averaged: iterations (1.3.0rc27 and later) or completed requests (1.2)."""

    def __post_init__(self) -> None:
        check_types(self, "policy")
        number("policy.threshold", self.threshold, 0, 1 if self.over == "steps" else LARGEST_K)
        whole("policy.window", self.window, 1, 1_000_000)


class _TrtGate(Policy):
    """See the module."""

    def __init__(self, num_spec_tokens: int, settings: TrtGateSettings) -> None:
        super().__init__(num_spec_tokens)
        self._threshold = settings.threshold
        self._mean = RollingMean(settings.window)
        self._tripped = False

    def ahead(self, most_requests: int) -> Ahead:
        return Ahead.until_told(self.next_k(0, 0, 0), most_requests, self.steady_for(0, 0, 0)[0])

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        return 0 if self._tripped else self.num_spec_tokens

    def _add(self, sample: float) -> None:
        mean = self._mean.add(sample)
        self._tripped = self._tripped or (mean is not None and mean < self._threshold)


class TrtGateOverSteps(_TrtGate):
    """The form of 1.3.0rc27 and later."""

    watches = "totals"

    def observe(self, seen: Observed) -> None:
        if seen.drafted and not self._tripped:
            self._add(seen.accepted / seen.drafted)

    def steady_for(self, batch: int, kv_tokens: int, decode_requests: int) -> tuple[int, int]:
        return self.ALWAYS if self._tripped else max(1, self._mean.missing), self.ALWAYS


class TrtGateOverRequests(_TrtGate):
    """The form of 1.2."""

    watches = "completed"

    def observe(self, seen: Observed) -> None:
        for tokens, iterations in seen.completed:
            self._add(tokens / iterations - 1.0)

    def steady_for(self, batch: int, kv_tokens: int, decode_requests: int) -> tuple[int, int]:
        return self.ALWAYS, self.ALWAYS  # until a request completes


def _make(spec: PolicySpec, view: EngineView) -> Policy:
    form = TrtGateOverSteps if spec.settings.over == "steps" else TrtGateOverRequests
    return form(spec.num_spec_tokens, spec.settings)


KIND = PolicyKind(
    name="trt_gate",
    summary="`num_spec_tokens` until acceptance falls below `threshold` once, then none for good, as TensorRT-LLM",
    make=_make,
    label=lambda spec: f"k={spec.num_spec_tokens} until {spec.settings.threshold:g} over {spec.settings.window}",
    spelling="trt_gate:K:THRESHOLD:WINDOW",
    example="trt_gate:3:0.4:100",
    positional=("num_spec_tokens", "threshold", "window"),
    settings=TrtGateSettings,
    engines=("trtllm",),
    rank=5,
)
