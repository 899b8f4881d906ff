"""Latency profiles from datasheets: a roofline of each pass with the factors of `specsim.efficiency`.

Models: weights and cache read at a share of the memory bandwidth, matrix work at a share of the dense rate, weights
dequantised where the GPU cannot multiply their dtype, the output head kept at 16 bits, tensor parallelism with
replicated KV heads (and a replicated latent cache for MLA), two all-reduces a layer, MoE by expert coverage; drafters
as `specsim.drafters` describes them, under tensor parallelism and dtypes of their own.
Leaves out: pipeline and expert parallelism, overlap of collectives with compute, correlated routing, clocks.
Numbers: the catalogue and `specsim.efficiency`; the result is labelled analytic, with a wide relative error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specsim.drafters import Drafter, find_drafter, method_names
from specsim.efficiency import FACTORS, Factors, factor_sources, gpu_family
from specsim.errors import CatalogueError, ProfileError, nearest
from specsim.profiles import LatencyProfile, PassCost, ZeroDrafts
from specsim.serving import ENGINES
from specsim.shapes import WEIGHT_BITS, Gpu, ModelShape

__all__ = [
    "KV_BYTES",
    "analytic_profile",
    "collectives_s",
    "divides",
    "kv_bytes",
    "kv_values_per_rank",
    "weight_dtypes",
]

KV_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5625}
"""Bytes of one cached number by KV dtype."""

_FULL_PRECISION = ("fp32", "bf16", "fp16")
_AT_ZERO_DRAFTS: Mapping[str, ZeroDrafts] = {"trtllm": "stale"}
"""TensorRT-LLM PR 16888; the others keep the drafter's cache complete (vLLM issue 53420, SGLang's eagle_worker_v2)."""
_STALE = (
    "TensorRT-LLM's one-model path leaves gaps in the drafter's cache while k is 0: drafts of requests that ran then "
    "never match again."
)
_COMPUTE_DTYPE = {"fp8": "fp8", "int8": "int8", "mxfp4": "fp4", "nvfp4": "fp4"}


def analytic_profile(
    target: ModelShape,
    gpu: Gpu,
    *,
    tp: int = 1,
    weight_dtype: str | None = None,
    kv_dtype: str = "bf16",
    draft: ModelShape | None = None,
    method: str = "none",
    options: Mapping[str, int] | None = None,
    draft_tp: int | None = None,
    draft_weight_dtype: str | None = None,
    draft_kv_dtype: str | None = None,
    max_captured: int | None = None,
    is_async: bool = False,
    engine: str = "vllm",
    factors: Factors = FACTORS,
) -> LatencyProfile:
    """Seconds of prefill, draft and verify for a model on a GPU, from datasheet figures.

    `method` is the name of a drafter or `none`, `options` those of the drafter. `weight_dtype` None: as the checkpoint
    stores it. `draft_tp` and `draft_kv_dtype` None: as the target. `engine` decides which steps have captured graphs
    (up to `max_captured`; None: its default for the GPU), how many tokens a pass takes, and what the drafter does in
    steps that draft nothing. `is_async`: host work runs beside the device's.

    Raises:
        CatalogueError: when `tp` does not divide the heads of a model.
        ProfileError: unknown dtype or method, or a method that needs a drafter without one.
        ScenarioError: an option that the drafter does not have.
    """
    drafter = None if method == "none" else find_drafter(method)
    if drafter is None and method != "none":
        known = ("none", *method_names())
        raise ProfileError(f"method '{method}' is unknown{nearest(method, known)}; one of {', '.join(known)}")
    if drafter is not None and drafter.runs_model and draft is None:
        raise ProfileError(f"method '{method}' needs a drafter for {target.name}; give one with --draft")
    serving = ENGINES[engine]
    cost = _pass_cost(target, gpu, tp, weight_dtype, kv_dtype, factors)
    older = gpu_family(gpu) == "nvidia-older"
    unsplit = factors.unsplit_blocks / max(1, target.num_kv_heads // tp) if older and not target.is_mla else 0.0
    dense, experts = weight_dtypes(target, weight_dtype)
    weights = dense if experts == dense or not target.moe_layers else f"{dense}, experts {experts}"
    covers = {"target": target.name, "gpu": gpu.name, "tp": str(tp), "weight_dtype": weights, "kv_dtype": kv_dtype,
              "method": method, "attention_backend": "FlashAttention 2" if older else "splits the cache at any width",
              "engine": f"{serving.title} with default graphs and one server process"}  # fmt: skip
    graphs = serving.graphs(gpu, tp, speculating=drafter is not None, largest=max_captured)
    # vLLM schedules ahead only where drafts do not come from a search on the host.
    hides = is_async and not (drafter is not None and drafter.looks_up)
    profile = LatencyProfile(
        name=f"analytic {target.name} {weights} {gpu.name} tp{tp} {method}",
        kind="analytic",
        target=cost,
        host_s=factors.host_s,
        host_request_s=factors.host_request_s,
        host_overlaps=hides,
        verify_unsplit_requests=unsplit,
        captured_tokens_max=graphs.tokens_max,
        captured_requests=graphs.requests,
        captured_exactly=graphs.exactly,
        pass_tokens_max=serving.pass_tokens,
        uncaptured_s=target.num_layers * factors.uncaptured_layer_s,
        mixed_s=target.num_layers * factors.mixed_layer_s,
        relative_error=factors.relative_error,
        covers=covers,
        sources={"gpu": gpu.source or "given", "target": target.source or "given", **factor_sources()},
        notes=_notes(target, gpu, tp, weight_dtype, older=older),
    )
    if drafter is None:
        return profile
    chosen = drafter.chosen(target, options or {})
    profile = replace(
        profile,
        speculation_host_s=factors.speculation_host_s,
        loaded_host_s=factors.loaded_host_s if drafter.runs_model else factors.lookup_loaded_host_s,
        loaded_request_s=factors.loaded_request_s if drafter.runs_model else 0.0,
        lookup_request_s=factors.lookup_request_s if drafter.looks_up else 0.0,
        switch_s=factors.switch_s,
        verify_skip_share=drafter.verify_skip(target, chosen) if drafter.verify_skip is not None else 0.0,
    )
    if not drafter.runs_model or draft is None:
        return profile
    ranks = tp if draft_tp is None else draft_tp
    stored = draft_weight_dtype
    if drafter.loads == "layers":
        stored = weight_dtype
        if ranks != tp or draft_weight_dtype is not None or draft_kv_dtype is not None:
            raise ProfileError(f"method '{method}' drafts with the target's own layers; leave out draft_tp, "
                               f"draft_weight_dtype and draft_kv_dtype")  # fmt: skip
    if not 1 <= ranks <= tp:
        raise ProfileError(f"draft_tp {ranks} must lie in 1..{tp}, the GPUs of the target")
    # of several heads the cost of one is what a profile holds
    one = replace(draft, num_layers=1) if drafter.mode == "heads" else draft
    at_zero = _AT_ZERO_DRAFTS.get(engine, "synced") if drafter.catches_up else "skipped"
    draft_cost = _pass_cost(one, gpu, ranks, stored, draft_kv_dtype or kv_dtype, factors, is_draft=True)
    return replace(
        profile,
        draft=draft_cost,
        draft_mode=drafter.mode,
        draft_catches_up=drafter.catches_up,
        at_zero_drafts=at_zero,
        notes=(*profile.notes, _STALE) if at_zero == "stale" else profile.notes,
        draft_rows_fixed=drafter.extra_rows.fixed,
        draft_rows_per_draft=drafter.extra_rows.each,
        draft_catch_up_share=_catch_up_share(drafter, draft),
        covers=covers
        | {"draft": draft.name, "draft_tp": str(ranks), "draft_weight_dtype": weight_dtypes(draft, stored)[0],
           "draft_kv_dtype": draft_kv_dtype or kv_dtype},
    )  # fmt: skip


def _catch_up_share(drafter: Drafter, draft: ModelShape) -> float:
    """Share of a token's matrix work that catching up costs: of a block drafter, fusing hidden states and projecting
    them to keys and values."""
    if drafter.mode != "block":
        return 1.0
    projected = draft.fusion_parameters + draft.num_layers * draft.hidden_size * draft.kv_values_per_layer
    return min(1.0, projected / (draft.attention_parameters + draft.dense_mlp_parameters + draft.fusion_parameters))


def divides(shape: ModelShape, tp: int) -> bool:
    """Whether `tp` GPUs can split the model: query heads evenly, KV heads evenly or replicated evenly."""
    if shape.kind == "medusa":  # heads on hidden states have no attention to split
        return True
    heads = shape.num_heads % tp == 0
    return heads and (shape.is_mla or shape.num_kv_heads % tp == 0 or tp % shape.num_kv_heads == 0)


def weight_dtypes(shape: ModelShape, weight_dtype: str | None) -> tuple[str, str]:
    """Dtype of (dense weights, routed experts); None: as the checkpoint stores them.

    Raises:
        ProfileError: for an unknown dtype.
    """
    if weight_dtype is None:
        return shape.native_weight_dtype, shape.native_expert_dtype or shape.native_weight_dtype
    if weight_dtype not in WEIGHT_BITS:
        raise ProfileError(
            f"weight dtype '{weight_dtype}' is not one of {', '.join(WEIGHT_BITS)}{nearest(weight_dtype, WEIGHT_BITS)}"
        )
    return weight_dtype, weight_dtype


def kv_values_per_rank(shape: ModelShape, tp: int) -> int:
    """Numbers cached per token and layer on one GPU: KV heads divided, at least one each; the MLA latent undivided."""
    if shape.is_mla or not shape.kv_values_per_layer:
        return shape.kv_values_per_layer
    return 2 * max(1, shape.num_kv_heads // tp) * shape.head_dim


def kv_bytes(kv_dtype: str) -> float:
    """Bytes of one cached number.

    Raises:
        ProfileError: for an unknown KV dtype.
    """
    if kv_dtype not in KV_BYTES:
        raise ProfileError(f"kv dtype '{kv_dtype}' is not one of {', '.join(KV_BYTES)}{nearest(kv_dtype, KV_BYTES)}")
    return KV_BYTES[kv_dtype]


def _rates(gpu: Gpu, dtype: str, factors: Factors) -> tuple[float, float]:
    """(bytes of weights per second, operations per second) of matrix products with weights in `dtype`."""
    usual = gpu.flops_per_s["bf16"] * factors.compute_efficiency("bf16")
    vendor = factors.amd_compute_factor if gpu_family(gpu) == "amd" else 1.0
    bandwidth = gpu.bandwidth_bytes_per_s * factors.weight_bandwidth
    if dtype in _FULL_PRECISION:
        return bandwidth, usual * vendor
    native = _COMPUTE_DTYPE.get(dtype)
    if native is not None and native in gpu.flops_per_s:
        rate = gpu.flops_per_s[native] * factors.compute_efficiency(native)
        if rate > usual:
            return bandwidth, rate * vendor
    return bandwidth * factors.dequantise, usual * vendor * factors.dequantise


def _pass_cost(
    shape: ModelShape,
    gpu: Gpu,
    tp: int,
    weight_dtype: str | None,
    kv_dtype: str,
    factors: Factors,
    *,
    is_draft: bool = False,
) -> PassCost:
    if not divides(shape, tp):
        options = ", ".join(str(n) for n in range(1, 17) if divides(shape, n))
        raise CatalogueError(
            f"tp {tp} cannot split {shape.name} with {shape.num_heads} heads and {shape.num_kv_heads} KV heads; "
            f"use one of {options}"
        )
    dense_dtype, expert_dtype = weight_dtypes(shape, weight_dtype)
    dense_bandwidth, dense_flops = _rates(gpu, dense_dtype, factors)
    expert_bandwidth, expert_flops = _rates(gpu, expert_dtype, factors)
    head_dtype = dense_dtype if dense_dtype in _FULL_PRECISION else "bf16"
    head_bandwidth, head_flops = _rates(gpu, head_dtype, factors)
    dense = shape.attention_parameters + shape.dense_mlp_parameters + shape.fusion_parameters
    routed = shape.routed_expert_parameters
    active = routed * shape.experts_per_token / shape.num_experts if shape.num_experts else 0.0
    elementwise = factors.activation_bytes * shape.hidden_size * shape.num_layers * (0.5 + 0.5 / tp)
    token_s = (
        2.0 * dense / tp / dense_flops
        + 2.0 * active / tp / (expert_flops * factors.moe_compute_factor)
        + elementwise / head_bandwidth
    )
    row_bytes = factors.draft_sampling_bytes if is_draft else factors.sampling_bytes
    sampling = row_bytes * (shape.draft_vocab_size or shape.vocab_size) / head_bandwidth
    latency, collective_token_s = collectives_s(shape, gpu, tp, factors)
    fixed = shape.num_layers * factors.layer_fixed_s + factors.pass_fixed_s + latency
    if any(_COMPUTE_DTYPE.get(dtype) in gpu.flops_per_s for dtype in (dense_dtype, expert_dtype)):
        fixed += shape.num_layers * factors.quantised_layer_s
    if shape.is_mla:
        fixed += shape.num_layers * factors.mla_layer_s
    if is_draft:
        fixed += factors.draft_pass_fixed_s + (factors.eagle3_pass_s if shape.kind == "eagle3" else 0.0)
    cached = kv_values_per_rank(shape, tp) * kv_bytes(kv_dtype) / (gpu.bandwidth_bytes_per_s * factors.kv_bandwidth)
    vendor = factors.amd_compute_factor if gpu_family(gpu) == "amd" else 1.0
    attention_flops = gpu.flops_per_s["bf16"] * vendor * factors.attention_compute
    heads = shape.num_heads / tp
    if shape.is_mla:
        pair = 2.0 * heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim + shape.v_head_dim) / attention_flops
        decode_pair = 2.0 * heads * (2 * shape.kv_lora_rank + shape.qk_rope_head_dim) / attention_flops
    else:
        pair = 4.0 * heads * shape.head_dim / attention_flops
        decode_pair = 0.0
    full, windowed = shape.full_attention_layers, shape.windowed_layers
    return PassCost(
        weights_s=dense * WEIGHT_BITS[dense_dtype] / 8 / tp / dense_bandwidth,
        token_s=token_s,
        head_weights_s=shape.head_parameters * WEIGHT_BITS[head_dtype] / 8 / tp / head_bandwidth,
        head_row_s=2.0 * shape.head_parameters / tp / head_flops + sampling,
        kv_token_s=full * cached,
        kv_pair_s=full * pair,
        decode_kv_pair_s=full * decode_pair,
        fixed_s=fixed,
        collective_token_s=collective_token_s,
        windowed_kv_token_s=windowed * cached,
        windowed_kv_pair_s=windowed * max(pair, decode_pair),
        window_tokens=shape.window_tokens if windowed else 0,
        experts_s=routed * WEIGHT_BITS[expert_dtype] / 8 / tp / expert_bandwidth,
        num_experts=shape.num_experts if routed else 0,
        experts_per_token=shape.experts_per_token if routed else 0,
        expert_sharing=factors.expert_sharing if routed else 1.0,
        knee=factors.draft_knee if is_draft else factors.knee,
    )


def collectives_s(shape: ModelShape, gpu: Gpu, tp: int, factors: Factors = FACTORS) -> tuple[float, float]:
    """(latency a pass, seconds a token) of two all-reduces a layer and one for embedding and logits."""
    if tp == 1:
        return 0.0, 0.0
    fast = gpu.link_bytes_per_s >= factors.fast_link_bytes_per_s
    link = gpu.link_bytes_per_s * (factors.fast_link_bandwidth if fast else factors.slow_link_bandwidth)
    latency = factors.fast_link_latency_s if fast else factors.slow_link_latency_s
    if gpu_family(gpu) == "amd" and tp < 8:
        link *= (tp - 1) / 7  # a full mesh: only the links to the other members of the group carry its traffic
    if tp > gpu.max_tp:
        link = min(link, factors.between_servers_bytes_per_s * factors.slow_link_bandwidth)
        latency = factors.between_servers_latency_s
    count = 2 * shape.num_layers + 1
    token_bytes = 2.0 * shape.hidden_size * 2.0 * (tp - 1) / tp
    return count * latency, count * token_bytes / link


def _notes(target: ModelShape, gpu: Gpu, tp: int, weight_dtype: str | None, *, older: bool) -> tuple[str, ...]:
    notes = ["Analytic: from datasheets and published fits, not measured on this deployment."]
    doubtful = [name for name in gpu.doubtful if not name.startswith("tdp")]
    if doubtful:
        notes.append(f"Doubtful figures of {gpu.name}: {', '.join(doubtful)}.")
    if target.doubtful:
        notes.append(f"Doubtful sizes of {target.name}: {', '.join(target.doubtful)}.")
    if tp > gpu.max_tp:
        notes.append(f"tp {tp} is larger than the {gpu.max_tp} {gpu.name} that share a fast link: "
                     f"collectives are charged at 50 GB/s between servers.")  # fmt: skip
    for dtype in sorted(set(weight_dtypes(target, weight_dtype)) - set(_FULL_PRECISION)):
        if _COMPUTE_DTYPE.get(dtype) not in gpu.flops_per_s:
            notes.append(
                f"{gpu.name} does not multiply {dtype}: weights are dequantised, compute runs at the bf16 rate."
            )
    if older:
        notes.append("Verify attention is assumed not to split the cache (FlashAttention 2): slow at small batch and "
                     "long context.")  # fmt: skip
    if target.moe_layers:
        notes.append(
            "Experts: requests pick theirs independently, w neighbours of one request as w^0.7 strangers would."
        )
    return tuple(notes)
