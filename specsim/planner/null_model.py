"""Null models that every prediction is shown beside: what one knows about a speed-up without simulating anything.

Models: `LinearFit`, the published linear step cost of one deployment; `PlainRoofline`, the textbook: a pass takes the
longer of reading all weights and multiplying, plus reading the cache; a round takes a verify pass and its draft passes,
and emits the mean acceptance length: `L T(b) / (T(b w) + k D(b))`, which for T(b w) = T(b) is `E / (1 + k c)`.
Leaves out: everything else. Numbers: the fit is that of the simulator published with arXiv 2601.11580 (Llama-3.1-8B,
one H100, vLLM, EAGLE head); datasheets for the roofline, at full rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from specsim.analytic import kv_bytes, kv_values_per_rank, weight_dtypes
from specsim.shapes import WEIGHT_BITS, Gpu, ModelShape

__all__ = ["LinearFit", "NullModel", "PlainRoofline", "Round", "batch_at_rate", "null_length", "null_speedup",
           "null_speedup_at_rate", "plain_roofline"]  # fmt: skip

_MOST_BATCH = 256.0
_COMPUTE = {"fp8": "fp8", "int8": "int8", "mxfp4": "fp4", "nvfp4": "fp4"}


@dataclass(frozen=True, slots=True)
class Round:
    """One point: `batch` requests at a mean context, rounds of `drafts` verified and `passes` drafter passes."""

    batch: float
    context_tokens: float
    drafts: float
    """Drafts verified a request."""
    passes: float
    """Serial passes of a drafter model; 0 for lookups."""


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Seconds by the published fit; its draft cost is that of a whole round of three passes, taken in proportion."""

    name = "linear fit"
    kv_token_s: float = 3.926e-8
    token_s: float = 2.101e-5
    fixed_s: float = 5.886e-3
    draft_kv_token_s: float = 2.378e-9
    draft_token_s: float = 8.414e-7
    draft_fixed_s: float = 2.135e-3
    step_s: float = 1.207e-3

    def plain_s(self, point: Round) -> float:
        """Seconds of a decode step without drafts."""
        return self._target_s(point, point.batch)

    def round_s(self, point: Round) -> float:
        """Seconds of a round."""
        seconds = self._target_s(point, point.batch * (1.0 + point.drafts))
        if point.passes:
            kv = point.batch * point.context_tokens
            share = point.passes / 3.0
            seconds += share * (self.draft_fixed_s + self.draft_kv_token_s * kv)
            seconds += self.draft_token_s * point.batch * point.drafts
        return seconds

    def _target_s(self, point: Round, tokens: float) -> float:
        kv = point.batch * point.context_tokens
        return self.kv_token_s * kv + self.token_s * tokens + self.fixed_s + self.step_s


@dataclass(frozen=True, slots=True)
class PlainRoofline:
    """Seconds of passes at full datasheet rates."""

    name = "roofline"
    weights_s: float
    token_s: float
    kv_token_s: float
    draft_weights_s: float = 0.0
    draft_token_s: float = 0.0

    def plain_s(self, point: Round) -> float:
        """Seconds of a decode step without drafts."""
        return self._target_s(point, point.batch)

    def round_s(self, point: Round) -> float:
        """Seconds of a round."""
        draft = max(self.draft_weights_s, point.batch * self.draft_token_s)
        return self._target_s(point, point.batch * (1.0 + point.drafts)) + point.passes * draft

    def _target_s(self, point: Round, tokens: float) -> float:
        kv = point.batch * point.context_tokens * self.kv_token_s
        return max(self.weights_s, tokens * self.token_s) + kv


NullModel = LinearFit | PlainRoofline


def plain_roofline(
    target: ModelShape,
    gpu: Gpu,
    *,
    tp: int,
    weight_dtype: str | None,
    kv_dtype: str,
    draft: ModelShape | None,
) -> PlainRoofline:
    """The roofline of a deployment: all weights once a pass, twice the active parameters of operations a token."""

    def weights_and_token_s(shape: ModelShape, dtype: str | None) -> tuple[float, float]:
        dense, experts = weight_dtypes(shape, dtype)
        routed = shape.routed_expert_parameters
        read = shape.total_parameters - routed + (shape.head_parameters if shape.shares_target_head else 0)
        read -= 0 if shape.tie_embeddings or shape.shares_target_head else shape.embedding_parameters
        read_bytes = (read * WEIGHT_BITS[dense] + routed * WEIGHT_BITS[experts]) / 8.0
        usual = gpu.flops_per_s["bf16"]
        rate = max(usual, gpu.flops_per_s.get(_COMPUTE.get(experts if routed else dense, "bf16"), usual))
        return read_bytes / gpu.bandwidth_bytes_per_s / tp, 2.0 * shape.active_parameters / rate / tp

    weights_s, token_s = weights_and_token_s(target, weight_dtype)
    draft_weights_s, draft_token_s = (0.0, 0.0) if draft is None else weights_and_token_s(draft, None)
    cached = target.num_layers * kv_values_per_rank(target, tp) * kv_bytes(kv_dtype)
    return PlainRoofline(weights_s, token_s, cached / gpu.bandwidth_bytes_per_s, draft_weights_s, draft_token_s)


def null_speedup(model: NullModel, point: Round, length: float) -> float:
    """Speed-up of a round that emits `length` tokens on average."""
    return length * model.plain_s(point) / model.round_s(point)


def null_speedup_at_rate(
    model: NullModel, point: Round, length: float, rate_per_s: float, output_tokens: float
) -> float:
    """The same at a rate of arrivals, where each side runs the batch that Little's law gives it."""
    flow = rate_per_s * output_tokens
    plain = replace(point, batch=batch_at_rate(model.plain_s, point, flow))
    rounds = replace(point, batch=batch_at_rate(lambda at: model.round_s(at) / length, point, flow))
    return length * model.plain_s(plain) / model.round_s(rounds)


def batch_at_rate(token_s: Callable[[Round], float], point: Round, tokens_per_s: float) -> float:
    """Batch at which requests leave as they come: tokens per second times seconds per token of one request; at least 1,
    and at most 256 where nothing keeps up."""
    low, high = 1.0, _MOST_BATCH
    for _ in range(60):
        middle = 0.5 * (low + high)
        if tokens_per_s * token_s(replace(point, batch=middle)) > middle:
            low = middle
        else:
            high = middle
    return high


def null_length(model: NullModel, point: Round, speedup: float) -> float:
    """Mean acceptance length at which the null model gives `speedup`."""
    return speedup * model.round_s(point) / model.plain_s(point)
