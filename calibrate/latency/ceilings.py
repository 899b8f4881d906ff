"""Two limits of a device, measured: bytes a second of a large copy, operations a second of a large matrix product."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from calibrate.latency.device import Device
from calibrate.latency.timing import Repeats, Timed, time_in_turns
from calibrate.points import Kind, Point
from specsim.shapes import ModelShape

__all__ = ["least_s", "measured_ceilings"]

_COPY_BYTES = {"cpu": 256 << 20}
_COPY_BYTES_GPU = 1 << 30
_MATRIX = {"cpu": 1024}
_MATRIX_GPU = 8192
_REPEATS = Repeats(least=7, most=15, seconds=5.0)


def measured_ceilings(device: Device, dtype: torch.dtype) -> list[Point]:
    """A point of kind copy (bytes read and written) and one of kind matrix (multiplications and additions)."""
    kind = device.torch_device.type
    size = _MATRIX.get(kind, _MATRIX_GPU)
    count = _COPY_BYTES.get(kind, _COPY_BYTES_GPU) // dtype.itemsize
    source = torch.zeros(count, dtype=dtype, device=device.torch_device)
    sink = torch.empty_like(source)
    left = torch.ones(size, size, dtype=dtype, device=device.torch_device)
    right, product = torch.ones_like(left), torch.empty_like(left)
    copied, multiplied = time_in_turns(
        [lambda: sink.copy_(source), lambda: torch.mm(left, right, out=product)], device.time_s, _REPEATS
    )
    made: tuple[tuple[Kind, Timed, float], ...] = (
        ("copy", copied, 2.0 * source.nbytes),
        ("matrix", multiplied, 2.0 * size**3),
    )
    return [
        Point(
            kind, "device", amount=amount, seconds=timed.seconds, low_s=timed.low_s, high_s=timed.high_s,
            repeats=timed.repeats,
        )
        for kind, timed, amount in made
    ]  # fmt: skip


def least_s(point: Point, shape: Mapping[str, Any], ceilings: Mapping[str, float], *, weight_bytes: float) -> float:
    """Least seconds of a pass or head by measured ceilings: the larger of its bytes by the copy bandwidth and its
    operations by the matrix rate. nan without ceilings or shape, and for kinds that are no pass.

    Args:
        shape: fields of `ModelShape`.
        ceilings: copy_bytes_per_s and matrix_flops_per_s.
        weight_bytes: of one stored weight.
    """
    passes = ("body", "head", "whole") if shape and shape.get("kind") == "medusa" else ("body", "head")
    if not shape or {"copy_bytes_per_s", "matrix_flops_per_s"} - set(ceilings) or point.kind not in passes:
        return math.nan
    known = {name: shape[name] for name in shape if name in ModelShape.__dataclass_fields__}
    model = ModelShape(**{**known, "doubtful": tuple(known.get("doubtful", ()))})
    if point.kind == "head":
        moved, operations = model.head_parameters * weight_bytes, 2.0 * model.head_parameters * point.rows
    elif model.kind == "medusa":
        read = point.drafts * (model.dense_mlp_parameters / model.num_layers)
        read += point.drafts * model.head_parameters if point.kind == "whole" else 0
        moved, operations = read * weight_bytes, 2.0 * point.tokens * read
    else:
        share = point.layers / model.num_layers if point.layers else 1.0
        dense = model.attention_parameters + model.dense_mlp_parameters + model.fusion_parameters
        routed, active = model.routed_expert_parameters, 0.0
        if model.num_experts and routed:
            one = model.experts_per_token / model.num_experts
            active = routed * one
            routed = round(routed * (1.0 - (1.0 - one) ** point.tokens))
        moved = (dense + routed) * weight_bytes * share
        moved += point.cached_tokens * model.kv_values_per_layer * model.num_layers * weight_bytes * share
        attention = 4.0 * point.pairs * model.num_heads * model.head_dim * model.num_layers
        operations = (2.0 * point.tokens * (dense + active) + attention) * share
    return max(moved / ceilings["copy_bytes_per_s"], operations / ceilings["matrix_flops_per_s"])
