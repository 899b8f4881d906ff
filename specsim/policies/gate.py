"""Drafts until acceptance falls below a threshold, then plain decoding for a while, then drafts again to see.

Models: a gate on accepted / drafted, averaged over the last `window` steps that had drafts, which closes for
`reprobe_steps` decode steps and opens with an empty window. TensorRT-LLM's gate, which never opens again, is
`specsim.policies.trt_gate`.
Leaves out: gates by request; acceptance is that of the whole batch. Numbers: defaults are assumed, no engine has it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from specsim.checks import number, whole
from specsim.policies.base import Ahead, Observed, Policy
from specsim.policies.kind import PolicyKind
from specsim.type_checks import check_types

__all__ = ["KIND", "Gate", "GateSettings", "RollingMean"]


class RollingMean:
    """Mean of the last `window` samples (each >= 0), once there are so many."""

    __slots__ = ("_samples", "_sum")

    def __init__(self, window: int) -> None:
        self._samples: deque[float] = deque(maxlen=window)
        self._sum = 0.0

    def add(self, sample: float) -> float | None:
        """Take a sample; the mean, or None while there are fewer than `window`."""
        samples = self._samples
        if len(samples) == samples.maxlen:
            self._sum -= samples[0]
        samples.append(sample)
        self._sum += sample
        # samples are never negative, but what rounding leaves of a sum may be
        return max(0.0, self._sum) / len(samples) if len(samples) == samples.maxlen else None

    @property
    def missing(self) -> int:
        """Samples until there is a mean."""
        return (self._samples.maxlen or 0) - len(self._samples)

    def clear(self) -> None:
        """Forget all samples."""
        self._samples.clear()
        self._sum = 0.0


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Settings of `gate`.

    Raises:
        ScenarioError: a value out of range.
    """

    threshold: float = 0.4
    """Accepted drafts over drafts, in the mean of the window, below which drafting stops."""
    window: int = 20
    """Steps with drafts that are averaged."""
    reprobe_steps: int = 200
    """Decode steps without drafts after which drafting is tried again."""

    def __post_init__(self) -> None:
        check_types(self, "policy")
        number("policy.threshold", self.threshold, 0, 1)
        whole("policy.window", self.window, 1, 1_000_000)
        whole("policy.reprobe_steps", self.reprobe_steps, 1, 1_000_000_000)


class Gate(Policy):
    """See the module."""

    watches = "totals"

    def __init__(self, num_spec_tokens: int, settings: GateSettings) -> None:
        super().__init__(num_spec_tokens)
        self._threshold = settings.threshold
        self._reprobe_steps = settings.reprobe_steps
        self._rate = RollingMean(settings.window)
        self._closed_for = 0
        """Decode steps that the gate stays closed."""

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        return 0 if self._closed_for else self.num_spec_tokens

    def observe(self, seen: Observed) -> None:
        if self._closed_for:
            self._closed_for -= seen.rounds > 0
        elif seen.drafted:
            rate = self._rate.add(seen.accepted / seen.drafted)
            if rate is not None and rate < self._threshold:
                self._closed_for = self._reprobe_steps
                self._rate.clear()

    def ahead(self, most_requests: int) -> Ahead:
        return Ahead.until_told(self.next_k(0, 0, 0), most_requests, self.steady_for(0, 0, 0)[0])

    def steady_for(self, batch: int, kv_tokens: int, decode_requests: int) -> tuple[int, int]:
        return self._closed_for or max(1, self._rate.missing), self.ALWAYS


KIND = PolicyKind(
    name="gate",
    summary="`num_spec_tokens` until accepted over drafted falls below `threshold`, then none for `reprobe_steps`",
    make=lambda spec, view: Gate(spec.num_spec_tokens, spec.settings),
    label=lambda spec: f"k={spec.num_spec_tokens} if {spec.settings.threshold:g} accepted",
    spelling="gate:K:THRESHOLD",
    example="gate:3:0.4",
    positional=("num_spec_tokens", "threshold"),
    settings=GateSettings,
    rank=5,
)
