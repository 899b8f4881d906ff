"""Memory of one replica: what weights, drafter, reserve and cache take of each GPU, and how many requests fit.

Models: vLLM's start-up: `gpu_memory_utilization` of the memory, less weights (target and drafter on the same GPUs, the
drafter on the first few of them where its own tensor parallelism says so), less activations of the largest step, and
the rest cut into KV blocks in which the drafter's layers have a share, in their own dtype; sliding-window layers as
fixed blocks a request; KV heads replicated under tensor parallelism, the MLA latent undivided.
Leaves out: fragmentation, per-request savings of windowed layers below their window, LoRA, state-space layers.
Numbers: shapes and GPU from the catalogue; the reserve is counted from shapes, see `reserve_bytes`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from specsim.analytic import divides, kv_bytes, kv_values_per_rank, weight_dtypes
from specsim.config import Deployment, ReplicaLimits
from specsim.drafters import Drafter, PerDraft, drafter
from specsim.errors import CapacityError
from specsim.shapes import WEIGHT_BITS, Gpu, ModelShape
from specsim.trees import Tree

__all__ = ["DraftMemory", "MemoryPlan", "plan_memory", "replica_limits", "reserve_bytes", "tree_limits",
            "weight_bytes_per_gpu"]  # fmt: skip

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


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """How a drafter is kept; None: as the target, weights as its checkpoint stores them."""

    tp: int | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None


_AS_TARGET = DraftMemory()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A drafter in memory; `shape` None: the method loads nothing."""

    method: Drafter | None
    shape: ModelShape | None
    tp: int
    weight_dtype: str | None
    kv_dtype: str

    @property
    def has_kv(self) -> bool:
        return self.shape is not None and self.method is not None and self.method.keeps_kv


def _loaded(
    deployment: Deployment, draft: ModelShape | None, method: str, given: DraftMemory, tp: int | None = None
) -> _Loaded:
    """What of the drafter takes memory; `tp` instead of the deployment's."""
    ranks = tp or deployment.tp
    found = None if method == "none" else drafter(method)
    own = draft if found is not None and found.loads in ("model", "head") else None
    return _Loaded(found, own, min(given.tp or ranks, ranks), given.weight_dtype, given.kv_dtype or deployment.kv_dtype)


def plan_memory(
    target: ModelShape,
    gpu: Gpu,
    deployment: Deployment,
    *,
    draft: ModelShape | None = None,
    method: str = "none",
    kept: DraftMemory = _AS_TARGET,
) -> MemoryPlan:
    """Memory of the fullest GPU of a replica; `draft` is loaded where the method loads a model or head.

    Raises:
        CapacityError: when weights and reserve leave no room for a cache, or the asked max_model_len does not fit;
            one line with all numbers and the way out.
    """
    loaded = _loaded(deployment, draft, method, kept)
    plan = _plan(target, gpu, deployment, loaded)
    if plan.num_kv_blocks >= 1 and plan.max_model_len >= 1:
        asked = deployment.max_model_len
        if asked is None or asked <= plan.max_model_len:
            return plan
        raise CapacityError(
            f"max_model_len {asked} of {target.name} does not fit {gpu.name} with tp {deployment.tp}: the cache of "
            f"{plan.num_kv_blocks * plan.block_size_tokens} tokens holds one sequence of {plan.max_model_len}; "
            f"lower max_model_len{_way_out(target, gpu, deployment, draft, method, kept)}"
        )
    raise CapacityError(
        f"{target.name} does not fit {gpu.name} with tp {deployment.tp}: {_gb(plan.memory_bytes)} x "
        f"{deployment.gpu_memory_utilization:g} = {_gb(plan.usable_bytes)} usable, weights {_gb(plan.weight_bytes)}, "
        f"drafter {_gb(plan.draft_weight_bytes)}, reserve {_gb(plan.reserve_bytes)} a GPU, so "
        f"{_gb(_free(plan))} left for the cache{_way_out(target, gpu, deployment, draft, method, kept)}"
    )


def replica_limits(
    target: ModelShape,
    gpu: Gpu,
    deployment: Deployment,
    *,
    draft: ModelShape | None = None,
    method: str = "none",
    kept: DraftMemory = _AS_TARGET,
) -> ReplicaLimits:
    """Limits of one replica: the memory plan and the engine's defaults where the deployment leaves them open.

    Raises:
        CapacityError: as `plan_memory`.
    """
    plan = plan_memory(target, gpu, deployment, draft=draft, method=method, kept=kept)
    serving, tp = deployment.serving, deployment.tp
    found = None if method == "none" else drafter(method)
    ahead = PerDraft() if found is None else found.lookahead
    sequences = deployment.max_num_seqs or serving.seats(
        gpu,
        tp,
        speculating=found is not None,
        kv_tokens=plan.kv_capacity_tokens,
        context_tokens=target.max_position_tokens,
    )
    # vLLM schedules ahead only where drafts do not come from a search on the host.
    is_late = deployment.async_scheduling and not (found is not None and found.looks_up)
    rules = serving.rules(
        capacity_policy=deployment.capacity_policy,
        chunked_prefill=deployment.chunked_prefill,
        extra_step=is_late if deployment.engine == "vllm" else None,
    )
    length = plan.max_model_len
    if rules.reserve == "slot":
        length = min(length, _slot_tokens(plan, sequences, deployment))
    return ReplicaLimits(
        num_kv_blocks=plan.num_kv_blocks,
        block_size_tokens=plan.block_size_tokens,
        max_num_seqs=sequences,
        max_num_batched_tokens=deployment.max_num_batched_tokens or serving.sizes(gpu, tp).max_num_batched_tokens,
        max_model_len=length,
        fixed_blocks_per_request=plan.fixed_blocks_per_request,
        lookahead_drafts=ahead.each > 0,
        lookahead_extra_tokens=ahead.fixed,
        enable_prefix_caching=deployment.enable_prefix_caching is not False and rules.prefix_caching,
        discipline=rules,
        asked_output_tokens=deployment.asked_output_tokens or 0,
    )


def _slot_tokens(plan: MemoryPlan, slots: int, deployment: Deployment) -> int:
    """Context of each of so many equal slots.

    Raises:
        CapacityError: when it is less than was asked for, or nothing.
    """
    each = (plan.num_kv_blocks // slots - plan.fixed_blocks_per_request) * plan.block_size_tokens
    asked = deployment.max_model_len or 1
    if each < asked:
        raise CapacityError(
            f"{slots} slots of {asked} tokens do not fit the cache of {plan.kv_capacity_tokens} tokens, which holds "
            f"{max(each, 0)} each; lower max_num_seqs (-np) or max_model_len"
        )
    return each


def tree_limits(limits: ReplicaLimits, trees: Sequence[Tree]) -> ReplicaLimits:
    """Limits where a round with k levels of drafts verifies `trees[k - 1]`: no more requests at once than their trees
    fit the token budget, and cache slots for branches that are not taken.

    Raises:
        CapacityError: when the token budget does not hold the tree of one request.
    """
    if not trees:
        return limits
    nodes = tuple(tree.nodes for tree in trees)
    budget = limits.max_num_batched_tokens
    is_free, width = limits.discipline.decode_budget == "none", 1 + nodes[-1] + limits.draft_slots
    if width > budget and not is_free:
        raise CapacityError(
            f"{nodes[-1]} drafts a round do not fit max_num_batched_tokens {budget}; raise it or verify fewer drafts"
        )
    wider = max(tree.nodes - tree.depth for tree in trees)
    return dataclasses.replace(
        limits,
        max_num_seqs=limits.max_num_seqs if is_free else min(limits.max_num_seqs, budget // width),
        fixed_blocks_per_request=limits.fixed_blocks_per_request + math.ceil(wider / limits.block_size_tokens),
        tree_nodes=(0, *nodes),
    )


def _plan(target: ModelShape, gpu: Gpu, deployment: Deployment, loaded: _Loaded) -> MemoryPlan:
    tp, size = deployment.tp, deployment.block_size_tokens or deployment.serving.block_size_tokens
    sizes = deployment.serving.sizes(gpu, tp)
    draft = loaded.shape
    per_token, windowed = _cache(target, tp, deployment.kv_dtype, size)
    draft_per_token = 0.0
    if draft is not None and loaded.has_kv:
        draft_per_token, draft_windowed = _cache(draft, loaded.tp, loaded.kv_dtype, size)
        per_token, windowed = per_token + draft_per_token, windowed + draft_windowed
    block = per_token * size
    plan = MemoryPlan(
        gpu=gpu.name,
        tp=tp,
        memory_bytes=gpu.memory_bytes,
        usable_bytes=gpu.memory_bytes * deployment.gpu_memory_utilization,
        weight_bytes=weight_bytes_per_gpu(target, tp, deployment.weight_dtype),
        draft_weight_bytes=0.0 if draft is None else _draft_bytes(draft, tp, loaded),
        reserve_bytes=reserve_bytes(
            target,
            tp,
            deployment.max_num_batched_tokens or sizes.max_num_batched_tokens,
            deployment.max_num_seqs or sizes.max_num_seqs,
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
                     f"sequence; an engine may refuse to start without its flag for that.")  # fmt: skip
    return dataclasses.replace(
        plan, num_kv_blocks=blocks, max_model_len=max(0, min(plan.max_model_len, holds)), notes=tuple(notes)
    )


def _cache(shape: ModelShape, tp: int, kv_dtype: str, block_size_tokens: int) -> tuple[float, float]:
    """Bytes of one GPU: (a token in all layers that keep every token, a request in its windowed layers)."""
    layer = kv_values_per_rank(shape, min(tp, shape.num_heads)) * kv_bytes(kv_dtype)
    full = shape.full_attention_layers
    if not full:  # no full layer to share blocks with: every token counts, the window is not used
        return shape.num_layers * layer, 0.0
    slots = (math.ceil(shape.window_tokens / block_size_tokens) + 1) * block_size_tokens
    return full * layer, shape.windowed_layers * layer * slots


def _draft_bytes(draft: ModelShape, tp: int, loaded: _Loaded) -> float:
    """Weights of the drafter on one of its GPUs; split otherwise than the target, it cannot share the target's ends."""
    own = weight_bytes_per_gpu(draft, loaded.tp, loaded.weight_dtype)
    if not draft.shares_target_head or loaded.tp == tp:
        return own
    shared = draft.embedding_parameters + (0 if draft.draft_vocab_size else draft.head_parameters)
    return own + 2.0 * shared / loaded.tp


def _free(plan: MemoryPlan) -> float:
    return plan.usable_bytes - plan.weight_bytes - plan.draft_weight_bytes - plan.reserve_bytes


def _gb(value: float) -> str:
    return f"{value / 1e9:.1f} GB"


def _way_out(
    target: ModelShape, gpu: Gpu, deployment: Deployment, draft: ModelShape | None, method: str, kept: DraftMemory
) -> str:
    """`; tp 4 fits` or `; fp8 weights fit`: the least change that works, or what to do when none does."""
    needed = deployment.max_model_len or 1

    def fits(change: Deployment) -> bool:
        plan = _plan(target, gpu, change, _loaded(change, draft, method, kept))
        return plan.num_kv_blocks >= 1 and plan.max_model_len >= needed

    def splits(tp: int) -> bool:
        loaded = _loaded(deployment, draft, method, kept, tp)
        return divides(target, tp) and (loaded.shape is None or divides(loaded.shape, loaded.tp))

    stored = min(WEIGHT_BITS[dtype] for dtype in weight_dtypes(target, deployment.weight_dtype))
    dtypes = [None, *(dtype for dtype in ("fp8", "int4") if WEIGHT_BITS[dtype] < stored)]
    tps = [tp for tp in range(deployment.tp, max(gpu.max_tp, deployment.tp) + 1) if splits(tp)]
    ways = []
    for dtype in dtypes:
        asked = dtype or deployment.weight_dtype
        least = next((tp for tp in tps if fits(dataclasses.replace(deployment, tp=tp, weight_dtype=asked))), None)
        if least is not None:
            words = ([f"tp {least}"] if least != deployment.tp else []) + ([f"weight dtype {dtype}"] if dtype else [])
            ways.append(" with ".join(words))
    ways = ways[:2]
    return f"; {' or '.join(ways)} fits" if ways else "; it needs GPUs with more memory or a smaller model"
