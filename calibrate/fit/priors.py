"""Expected terms of a pass from its shape and two measured ceilings: where a fit begins, and where what no point tells
stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calibrate.points import Point, Setup
from specsim.shapes import ModelShape

__all__ = ["ceilings_of", "priors_of"]

_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
_NAMES = {"copy": "copy_bytes_per_s", "matrix": "matrix_flops_per_s"}


def ceilings_of(points: Sequence[Point]) -> dict[str, float]:
    """copy_bytes_per_s and matrix_flops_per_s, the largest measured; those that were not measured are left out."""
    found: dict[str, float] = {}
    for point in points:
        if point.kind in _NAMES:
            name = _NAMES[point.kind]
            found[name] = max(found.get(name, 0.0), point.amount / point.seconds)
    return found


def priors_of(setup: Setup, points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """Role -> term -> seconds; empty without ceilings or shapes."""
    rates = ceilings_of(points)
    if len(rates) < len(_NAMES) or setup.dtype not in _BYTES:
        return {}
    found = {}
    for role, fields in setup.shapes.items():
        built = setup.measured_layers if role == "target" else setup.draft_layers
        found[role] = _terms(fields, built, setup, rates)
    return found


def _terms(fields: Mapping[str, Any], built: int, setup: Setup, rates: Mapping[str, float]) -> dict[str, float]:
    shape = ModelShape(**{**fields, "doubtful": tuple(fields.get("doubtful", ()))})
    # of several heads that run at once a profile holds the terms of one
    share = (1 if shape.kind == "medusa" else built or shape.num_layers) / shape.num_layers / setup.tp
    size = _BYTES[setup.dtype]
    dense = (shape.attention_parameters + shape.dense_mlp_parameters + shape.fusion_parameters) * share
    routed = shape.routed_expert_parameters * share
    active = dense + (routed * shape.experts_per_token / shape.num_experts if shape.num_experts else 0.0)
    cached = shape.kv_values_per_layer * shape.num_layers * share
    head = shape.head_parameters / setup.tp
    copy, matrix = rates["copy_bytes_per_s"], rates["matrix_flops_per_s"]
    return {
        "weights_s": dense * size / copy,
        "experts_s": routed * size / copy,
        "token_s": 2 * active / matrix,
        "kv_token_s": cached * size / copy,
        "kv_pair_s": 4.0 * shape.num_heads * shape.head_dim * shape.num_layers * share / matrix,
        "head_weights_s": head * size / copy,
        "head_row_s": 2 * head / matrix,
    }
