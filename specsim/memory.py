"""Memory of one replica: what weights, drafter, reserve and cache take of each GPU, and how many requests fit.

Models: vLLM's start-up: `gpu_memory_utilization` of the memory, less weights (target and drafter on the same GPUs),
less activations of the largest step, and the rest cut into KV blocks in which the drafter's layers have a share;
sliding-window layers as fixed blocks a request; KV heads replicated under tensor parallelism, the MLA latent undivided.
Leaves out: fragmentation, per-request savings of windowed layers below their window, LoRA, state-space layers.
Numbers: shapes and GPU from the catalogue; the reserve is counted from shapes, see `reserve_bytes`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from specsim.analytic import divides, kv_bytes, kv_values_per_rank, weight_dtypes
from specsim.config import Deployment, ReplicaLimits
from specsim.errors import CapacityError
from specsim.shapes import WEIGHT_BITS, Gpu, ModelShape

__all__ = ["MemoryPlan", "plan_memory", "replica_limits", "reserve_bytes", "server_defaults", "weight_bytes_per_gpu"]

_GIB = 2.0**30
_CONTEXT_BYTES = 0.5e9  # CUDA or ROCm context with cuBLAS workspaces: about 0.5 GB on current drivers
_COLLECTIVE_BYTES = 0.3e9  # buffers of NCCL or RCCL and of the custom all-reduce


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one GPU of a replica, and what they hold."""

    gpu: str
    tp: int
    memory_bytes: float
    usable_bytes: float
    """`gpu_memory_utilization` of the memory."""
    weight_bytes: float
    draft_weight_bytes: float
    reserve_bytes: float
    kv_bytes_per_token: float
    """Cache of one token in all full-attention layers, drafter's included."""
    draft_kv_bytes_per_token: float
    """The drafter's part of that."""
    windowed_bytes_per_request: float
    """Cache of the sliding-window layers of one request."""
    block_size_tokens: int
    num_kv_blocks: int
    fixed_blocks_per_request: int
    max_model_len: int
    """Longest sequence served: the asked or the model's own, or what the cache holds when that is less."""
    notes: tuple[str, ...] = ()

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the cache holds, fixed blocks left out."""
        return self.num_kv_blocks * self.block_size_tokens

    def max_concurrent_requests(self, context_tokens: int, num_spec_tokens: int = 0) -> int:
        """Requests that fit at `context_tokens` cached tokens each, with room for one round and its lookahead."""
        tokens = context_tokens + 1 + 2 * num_spec_tokens
        blocks = math.ceil(tokens / self.block_size_tokens) + self.fixed_blocks_per_request
        return self.num_kv_blocks // blocks


def server_defaults(gpu: Gpu) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of the vLLM 0.33 server by GPU memory (vLLM 0.33.0 sources)."""
    gib = gpu.memory_bytes / _GIB
    if gib >= 160:
        return 16384, 1024
    if gib >= 70 and "A100" not in gpu.name.upper():
        return 8192, 1024
    return 2048, 256


def weight_bytes_per_gpu(shape: ModelShape, tp: int, weight_dtype: str | None) -> float:
    """Weights of one rank: matrices in their dtype, embedding and output head at 16 bits, all divided by tp."""
    dense_dtype, expert_dtype = weight_dtypes(shape, weight_dtype)
    routed = shape.routed_expert_parameters
    body = shape.attention_parameters + shape.dense_mlp_parameters + shape.fusion_parameters
    ends = shape.total_parameters - body - routed
    ends_bits = WEIGHT_BITS["fp32" if dense_dtype == "fp32" else "bf16"]
    return (body * WEIGHT_BITS[dense_dtype] + routed * WEIGHT_BITS[expert_dtype] + ends * ends_bits) / 8 / tp


def reserve_bytes(shape: ModelShape, tp: int, max_num_batched_tokens: int, max_num_seqs: int) -> float:
    """Context, collectives, activations of the largest step and logits of the largest batch, counted from shapes.

    Activations: four hidden vectors and three MLP rows per token at 16 bits; logits three times at 32 bits. Gives
    3.0 GB for Llama-3.1-8B with an H100's defaults; aiconfigurator reserves a flat 3.5 GB.
    """
    moe = shape.moe_intermediate_size * shape.experts_per_token + shape.shared_expert_intermediate_size
    widest = max(shape.intermediate_size if shape.moe_layers < shape.num_layers else 0, moe)
    activations = 2.0 * max_num_batched_tokens * (4 * shape.hidden_size + 3 * widest / tp)
    logits = 3 * 4.0 * min(max_num_seqs, max_num_batched_tokens) * shape.vocab_size
    return _CONTEXT_BYTES + (_COLLECTIVE_BYTES if tp > 1 else 0.0) + activations + logits


def plan_memory(
    target: ModelShape, gpu: Gpu, deployment: Deployment, *, draft: ModelShape | None = None, method: str = "none"
) -> MemoryPlan:
    """Memory of one GPU of a replica; `draft` is loaded unless the method is a lookup or `none`.

    Raises:
        CapacityError: when weights and reserve leave no room for a cache, or the asked max_model_len does not fit;
            one line with all numbers and the way out.
    """
    plan = _plan(target, gpu, deployment, draft if method not in ("none", "ngram") else None)
    if plan.num_kv_blocks >= 1 and plan.max_model_len >= 1:
        asked = deployment.max_model_len
        if asked is None or asked <= plan.max_model_len:
            return plan
        raise CapacityError(
            f"max_model_len {asked} of {target.name} does not fit {gpu.name} with tp {deployment.tp}: the cache of "
            f"{plan.num_kv_blocks * plan.block_size_tokens} tokens holds one sequence of {plan.max_model_len}; "
            f"lower max_model_len{_way_out(target, gpu, deployment, draft, method)}"
        )
    raise CapacityError(
        f"{target.name} does not fit {gpu.name} with tp {deployment.tp}: {_gb(plan.memory_bytes)} x "
        f"{deployment.gpu_memory_utilization:g} = {_gb(plan.usable_bytes)} usable, weights {_gb(plan.weight_bytes)}, "
        f"drafter {_gb(plan.draft_weight_bytes)}, reserve {_gb(plan.reserve_bytes)} a GPU, so "
        f"{_gb(_free(plan))} left for the cache{_way_out(target, gpu, deployment, draft, method)}"
    )


def replica_limits(
    target: ModelShape, gpu: Gpu, deployment: Deployment, *, draft: ModelShape | None = None, method: str = "none"
) -> ReplicaLimits:
    """Limits of one replica: the memory plan and the engine's defaults where the deployment leaves them open.

    Raises:
        CapacityError: as `plan_memory`.
    """
    plan = plan_memory(target, gpu, deployment, draft=draft, method=method)
    batched_tokens, sequences = server_defaults(gpu)
    return ReplicaLimits(
        num_kv_blocks=plan.num_kv_blocks,
        block_size_tokens=plan.block_size_tokens,
        max_num_seqs=deployment.max_num_seqs or sequences,
        max_num_batched_tokens=deployment.max_num_batched_tokens or batched_tokens,
        max_model_len=plan.max_model_len,
        fixed_blocks_per_request=plan.fixed_blocks_per_request,
        lookahead_drafts=method not in ("none", "ngram"),
        enable_prefix_caching=deployment.enable_prefix_caching,
    )


def _plan(target: ModelShape, gpu: Gpu, deployment: Deployment, draft: ModelShape | None) -> MemoryPlan:
    tp, size = deployment.tp, deployment.block_size_tokens
    batched_tokens, sequences = server_defaults(gpu)
    number = kv_bytes(deployment.kv_dtype)
    per_token = windowed = draft_per_token = 0.0
    for shape in (target, draft):
        if shape is None:
            continue
        layer = kv_values_per_rank(shape, min(tp, shape.num_heads)) * number
        full = shape.full_attention_layers
        if full:
            windowed += shape.windowed_layers * layer * (math.ceil(shape.window_tokens / size) + 1) * size
        else:
            full = shape.num_layers  # no full layer to share blocks with: every token counts, the window is not used
        per_token += full * layer
        draft_per_token = full * layer if shape is draft else draft_per_token
    block = per_token * size
    plan = MemoryPlan(
        gpu=gpu.name,
        tp=tp,
        memory_bytes=gpu.memory_bytes,
        usable_bytes=gpu.memory_bytes * deployment.gpu_memory_utilization,
        weight_bytes=weight_bytes_per_gpu(target, tp, deployment.weight_dtype),
        draft_weight_bytes=0.0 if draft is None else weight_bytes_per_gpu(draft, tp, None),
        reserve_bytes=reserve_bytes(
            target, tp, deployment.max_num_batched_tokens or batched_tokens, deployment.max_num_seqs or sequences
        ),
        kv_bytes_per_token=per_token,
        draft_kv_bytes_per_token=draft_per_token,
        windowed_bytes_per_request=windowed,
        block_size_tokens=size,
        num_kv_blocks=0,
        fixed_blocks_per_request=math.ceil(windowed / block),
        max_model_len=deployment.max_model_len or target.max_position_tokens,
    )
    blocks = max(0, math.floor(_free(plan) / block))
    holds = (blocks - plan.fixed_blocks_per_request) * size
    notes = []
    if holds < plan.max_model_len:
        notes.append(f"max_model_len cut from {plan.max_model_len} to {max(0, holds)}, what the cache holds for one "
                     f"sequence; vLLM would refuse to start without --max-model-len.")  # fmt: skip
    return dataclasses.replace(
        plan, num_kv_blocks=blocks, max_model_len=max(0, min(plan.max_model_len, holds)), notes=tuple(notes)
    )


def _free(plan: MemoryPlan) -> float:
    return plan.usable_bytes - plan.weight_bytes - plan.draft_weight_bytes - plan.reserve_bytes


def _gb(value: float) -> str:
    return f"{value / 1e9:.1f} GB"


def _way_out(target: ModelShape, gpu: Gpu, deployment: Deployment, draft: ModelShape | None, method: str) -> str:
    """`; tp 4 fits` or `; fp8 weights fit`: the least change that works, or what to do when none does."""
    loaded = draft if method not in ("none", "ngram") else None
    needed = deployment.max_model_len or 1

    def fits(change: Deployment) -> bool:
        plan = _plan(target, gpu, change, loaded)
        return plan.num_kv_blocks >= 1 and plan.max_model_len >= needed

    stored = min(WEIGHT_BITS[dtype] for dtype in weight_dtypes(target, deployment.weight_dtype))
    dtypes = [None, *(dtype for dtype in ("fp8", "int4") if WEIGHT_BITS[dtype] < stored)]
    splits = [
        tp
        for tp in range(deployment.tp, max(gpu.max_tp, deployment.tp) + 1)
        if divides(target, tp) and (loaded is None or divides(loaded, tp))
    ]
    ways = []
    for dtype in dtypes:
        asked = dtype or deployment.weight_dtype
        least = next((tp for tp in splits if fits(dataclasses.replace(deployment, tp=tp, weight_dtype=asked))), None)
        if least is not None:
            words = ([f"tp {least}"] if least != deployment.tp else []) + ([f"weight dtype {dtype}"] if dtype else [])
            ways.append(" with ".join(words))
    ways = ways[:2]
    return f"; {' or '.join(ways)} fits" if ways else "; it needs GPUs with more memory or a smaller model"
