"""Seconds of passes over many points at once, as `specsim.passes` has them, so that a fit can ask thousands of times.

Models: the terms of one `PassCost` for points of kinds body, head, sample and whole; of heads that run at once the
terms of one, fixed time once (`specsim.draft_passes`). Leaves out: windowed layers apart from full ones (their terms
follow from those by the number of layers), captured sizes. A test holds every law here against `specsim.latency`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.points import Point
from specsim.profiles import PassCost

__all__ = ["SHAPE_TERMS", "TERMS", "Architecture", "Law", "Work"]

TERMS = ("weights_s", "experts_s", "token_s", "fixed_s", "request_s", "kv_token_s", "kv_pair_s", "decode_kv_pair_s",
         "head_weights_s", "head_row_s", "sample_row_s")  # fmt: skip
"""Terms that are seconds, in the order of a fit's parameters."""
SHAPE_TERMS = ("knee", "attention_knee")
"""Exponents."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Counts of a model that the law needs beside its terms."""

    num_experts: int = 0
    experts_per_token: int = 0
    full_layers: int = 1
    windowed_layers: int = 0
    window_tokens: int = 0


@dataclass(frozen=True)
class Work:
    """What points contain, as columns of equal length."""

    tokens: np.ndarray
    """Through all layers."""
    requests: np.ndarray
    """That decode; 0 for prompt chunks."""
    cached: np.ndarray
    """Cached tokens that decoding requests read, windowed layers counted by their share."""
    width: np.ndarray
    prefix: np.ndarray
    """Cached tokens before prompt chunks."""
    pairs: np.ndarray
    rows: np.ndarray
    """Of the output head."""
    samples: np.ndarray
    """Rows that are sampled."""
    heads: np.ndarray
    """How often all but fixed time is spent: heads that run at once on the same rows, 1 for a model."""

    @classmethod
    def of(cls, points: Sequence[Point], architecture: Architecture) -> Work:
        """The columns of `points`; kinds other than body, head, sample, whole and reference are refused."""
        rows = [_row(point, architecture) for point in points]
        columns = np.array(rows, dtype=np.float64).reshape(len(rows), 9).T
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.tokens)


def _row(point: Point, a: Architecture) -> tuple[float, ...]:
    if point.kind == "head":
        return (0, 0, 0, 1, 0, 0, point.rows, 0, 1)
    if point.kind == "sample":
        return (0, 0, 0, 1, 0, 0, 0, point.rows, 1)
    if point.kind not in ("body", "whole", "reference"):
        raise ValueError(f"a point of kind {point.kind} is no pass")
    n, requests = point.tokens, len(point.parts)
    rows = point.rows
    if point.drafts:
        return (n, 0, 0, 1, 0, 0, rows, 0, point.drafts)
    if point.is_prefill:
        return (n, 0, 0, 1, _seen(point, a), _pairs(point, a), rows, 0, 1)
    return (n, requests, _seen(point, a), n / requests, 0, 0, rows, 0, 1)


def _seen(point: Point, a: Architecture) -> float:
    """Cached tokens, in windowed layers cut at the window: the mean over layers, full layers counting 1."""
    if not a.windowed_layers:
        return float(point.cached_tokens)
    cut = sum(min(context, a.window_tokens) for _, context in point.parts)
    return (point.cached_tokens * a.full_layers + cut * a.windowed_layers) / max(1, a.full_layers)


def _pairs(point: Point, a: Architecture) -> float:
    if not a.windowed_layers:
        return float(point.pairs)
    cut = min(point.pairs, point.tokens * a.window_tokens)
    return (point.pairs * a.full_layers + cut * a.windowed_layers) / max(1, a.full_layers)


def _joined(memory: np.ndarray, compute: np.ndarray, knee: float) -> np.ndarray:
    high = np.maximum(np.maximum(memory, compute), 1e-300)
    low = np.minimum(memory, compute)
    joined: np.ndarray = high * (1.0 + (low / high) ** knee) ** (1.0 / knee)
    return np.where(low > 0, joined, memory + compute)


@dataclass(frozen=True)
class Law:
    """Which factors by size a fit has, and what the model is like."""

    architecture: Architecture
    sizes: tuple[int, ...] = ()
    """Token counts with a factor of their own (`PassCost.size_factors`)."""
    head_sizes: tuple[int, ...] = ()

    def seconds(
        self, work: Work, terms: Mapping[str, float], log_factors: np.ndarray, head_log_factors: np.ndarray
    ) -> np.ndarray:
        """Predicted seconds of each row of `work`. `log_factors` belong to `sizes`, `head_log_factors` to
        `head_sizes`."""
        a, t = self.architecture, terms
        running = work.tokens > 0
        memory = np.full(len(work), t["weights_s"])
        if a.num_experts:
            touched = 1.0 - (1.0 - a.experts_per_token / a.num_experts) ** work.tokens
            memory = memory + t["experts_s"] * touched
        matrix = _joined(memory, work.tokens * t["token_s"], t["knee"]) * _factors(self.sizes, log_factors, work.tokens)
        matrix = np.where(running, work.heads * matrix + t["fixed_s"], 0.0)
        read, paired = work.cached * t["kv_token_s"], work.cached * work.width * t["decode_kv_pair_s"]
        attention = _joined(read, paired, t["attention_knee"])
        chunks = _joined(work.prefix * t["kv_token_s"], work.pairs * t["kv_pair_s"], t["attention_knee"])
        head = _joined(np.where(work.rows > 0, t["head_weights_s"], 0.0), work.rows * t["head_row_s"], t["knee"])
        head = work.heads * head * _factors(self.head_sizes, head_log_factors, work.rows)
        total: np.ndarray = (
            matrix + attention + chunks + work.requests * t["request_s"] + head + work.samples * t["sample_row_s"]
        )
        return total

    def pass_cost(self, terms: Mapping[str, float], log_factors: np.ndarray, head_log_factors: np.ndarray) -> PassCost:
        """The same law as a `PassCost`."""
        a = self.architecture
        share = a.windowed_layers / max(1, a.full_layers)
        return PassCost(
            **{name: float(terms[name]) for name in (*TERMS, *SHAPE_TERMS)},
            windowed_kv_token_s=float(terms["kv_token_s"]) * share,
            windowed_kv_pair_s=float(terms["kv_pair_s"]) * share,
            window_tokens=a.window_tokens if a.windowed_layers else 0,
            num_experts=a.num_experts,
            experts_per_token=a.experts_per_token,
            size_factors=_table(self.sizes, log_factors),
            head_factors=_table(self.head_sizes, head_log_factors),
        )


def _table(sizes: Sequence[int], logs: np.ndarray) -> tuple[tuple[int, float], ...]:
    return tuple((size, float(np.exp(log))) for size, log in zip(sizes, logs, strict=True))


def _factors(sizes: Sequence[int], logs: np.ndarray, counts: np.ndarray) -> np.ndarray:
    if not sizes:
        return np.ones(len(counts))
    found: np.ndarray = np.exp(np.interp(np.log(np.maximum(counts, 1)), np.log(sizes), logs))
    return found
