"""Efficiency factors: how far real kernels stay below datasheets, all in one place, each with its source.

Models: nothing by itself; `specsim.analytic` multiplies and divides by these. They were set from a published linear
cost fit (Llama-3.1-8B, bf16, one H100, vLLM: target 3.926e-8 s per cached token + 2.101e-5 s per token + 5.886e-3 s,
EAGLE round of three passes 2.135e-3 s, 1.207e-3 s a step on the host; below "the 8B fit") together with physics, so
that both ends of the range stay sensible; then compared with other published measurements without tuning to rows.
Leaves out: clocks and power limits, kernel versions, CPU speed. Hence the wide band of an analytic profile.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from specsim.shapes import Gpu

__all__ = ["FACTORS", "Factors", "GpuFamily", "factor_sources", "factors_for", "gpu_family"]

GpuFamily = Literal["nvidia-datacentre", "nvidia-older", "amd"]

_BLACKWELL = ("B200", "B300", "GB200", "GB300")
_SPLITTING = ("H100", "H200", "H20", "GH200", *_BLACKWELL)


def gpu_family(gpu: Gpu) -> GpuFamily:
    """Kernel family by name: Hopper and data-centre Blackwell, AMD Instinct, or everything else (FlashAttention 2)."""
    first = _first_word(gpu)
    if first.startswith("MI") and first[2:3].isdigit():
        return "amd"
    return "nvidia-datacentre" if first in _SPLITTING else "nvidia-older"


def _first_word(gpu: Gpu) -> str:
    name = gpu.name.upper()
    for maker in ("NVIDIA", "AMD", "INSTINCT"):
        name = name.replace(maker, "")
    words = name.replace("-", " ").split()
    return words[0] if words else ""


@dataclass(frozen=True, slots=True)
class Factors:
    """The numbers. Efficiencies are shares of the datasheet figure, times are seconds."""

    weight_bandwidth: float = 0.87
    kv_bandwidth: float = 0.95
    amd_compute_factor: float = 0.65
    moe_compute_factor: float = 0.75
    expert_sharing: float = 0.70
    """Exponent of `specsim.profiles.PassCost.expert_sharing`."""
    attention_compute: float = 0.50
    activation_bytes: float = 20.0
    """Bytes moved per hidden value, token and layer outside of matrix products."""
    sampling_bytes: float = 12.0
    """Bytes moved per vocabulary entry and row of logits of the target."""
    draft_sampling_bytes: float = 4.0
    """The same for the drafter, which takes the largest logit."""
    dequantise: float = 0.85
    """What weight-only quantised products keep of bandwidth and of the compute rate."""
    knee: float = 2.0
    draft_knee: float = 2.0
    layer_fixed_s: float = 20e-6
    quantised_layer_s: float = 20e-6
    """Added per layer whose activations are quantised (8- and 4-bit products)."""
    mla_layer_s: float = 40e-6
    """Added per layer with latent attention."""
    pass_fixed_s: float = 30e-6
    draft_pass_fixed_s: float = 130e-6
    eagle3_pass_s: float = 0.0
    """Added per pass of an EAGLE-3 head."""
    host_s: float = 1.2e-3
    host_request_s: float = 10e-6
    """Host time per decoding request and step."""
    speculation_host_s: float = 0.25e-3
    loaded_host_s: float = 0.30e-3
    loaded_request_s: float = 1e-6
    lookup_loaded_host_s: float = 0.15e-3
    lookup_request_s: float = 2e-6
    switch_s: float = 0.0
    """What a step costs more whose k is not that of the step before."""
    fast_link_latency_s: float = 9e-6
    slow_link_latency_s: float = 25e-6
    between_servers_latency_s: float = 35e-6
    fast_link_bytes_per_s: float = 150e9
    """A link at least this fast counts as fast (NVLink, xGMI); slower ones are PCIe."""
    between_servers_bytes_per_s: float = 50e9
    fast_link_bandwidth: float = 0.70
    slow_link_bandwidth: float = 0.60
    kv_pull_latency_s: float = 1e-3
    """From the wish to read a prompt's cache on another server until its bytes flow."""
    mixed_layer_s: float = 5e-6
    uncaptured_layer_s: float = 10e-6
    unsplit_blocks: int = 108
    relative_error: float = 0.25

    def compute_efficiency(self, dtype: str) -> float:
        """Share of the dense peak that large products reach in a compute dtype (`bf16`, `fp8`, `int8`, `fp4`)."""
        return {"bf16": 0.74, "fp8": 0.60, "int8": 0.55, "fp4": 0.50}[dtype]


FACTORS = Factors()
"""The shipped set: vLLM from 0.11 on."""

_ENGINES: Mapping[str, Factors] = {
    "vllm": FACTORS,
    "sglang": replace(FACTORS, host_s=0.5e-3, host_request_s=3e-6, lookup_loaded_host_s=0.05e-3),
    "trtllm": replace(FACTORS, host_s=0.4e-3, host_request_s=3e-6),
    "llamacpp": replace(FACTORS, host_s=0.2e-3, host_request_s=5e-6, weight_bandwidth=0.75, dequantise=0.7),
}
"""What differs by engine; everything else belongs to the GPU's kernels, which the engines share."""
_ERAS: Mapping[str, tuple[tuple[int, ...], Mapping[str, Any]]] = {
    "vllm": ((0, 11), {"eagle3_pass_s": 0.5e-3}),
    "sglang": ((0, 5, 6), {"loaded_host_s": 1.5e-3, "loaded_request_s": 80e-6}),
}
"""Engine -> first version of today's era, and what was different before it."""


def factors_for(engine: str = "vllm", version: str | None = None) -> Factors:
    """One set of factors for an engine and its era.

    vLLM before 0.11: an EAGLE-3 pass costs half a millisecond more. SGLang before 0.5.6: scheduling did not overlap
    with speculation. An engine without a set of its own gets vLLM's. `version` None: a current one.
    """
    found = _ENGINES.get(engine, FACTORS)
    if engine in _ERAS and version is not None:
        first, before = _ERAS[engine]
        parts = tuple(int(part) for part in itertools.takewhile(str.isdecimal, version.split(".")))
        if parts and parts < first:
            found = replace(found, **before)
    return found


_FIT = "the 8B fit (cost model of the simulator published with arXiv 2601.11580: Llama-3.1-8B, bf16, one H100, vLLM)"

_SOURCES: Mapping[str, str] = {
    "weight_bandwidth": f"{_FIT}: 15.0 GB of weights in 5.886 ms less 20 us a layer; aiconfigurator assumes 0.8",
    "kv_bandwidth": f"{_FIT}: 3.926e-8 s for 131,072 bytes is 0.997 of the datasheet; lowered for kernel tails",
    "compute": f"{_FIT}: 2.101e-5 s a token; public GEMM tests on H100 reach about 720 of 989 TFLOP/s",
    "amd_compute_factor": "public GEMM tests on MI300X reach about 620 of 1307 TFLOP/s, 0.47",
    "moe_compute_factor": "assumed: grouped products have few rows per expert",
    "attention_compute": "FlashAttention papers: 0.35 to 0.75 of the peak forward, by version and length",
    "activation_bytes": "half of the elementwise reads and writes of norms, rope and MLP; the rest stays in cache",
    "sampling_bytes": "logits written, widened to 32 bits, and passed over by soft-max and sampling",
    "dequantise": "assumed: weight-only kernels such as Marlin lose some of both rates",
    "knee": f"assumed: a product takes little more than the larger of reading and computing. {_FIT} is straight in the "
    "tokens, since host time grows with the requests: both together stay within 9 % of it from 1 to 512",
    "draft_knee": f"{_FIT}: 8.4e-7 s a draft token, far below its compute, so most of it hides behind the weights",
    "draft_sampling_bytes": "greedy drafts: logits written and read once",
    "layer_fixed_s": "about ten graph-launched kernels a layer at 2 us",
    "pass_fixed_s": "assumed: input preparation and graph launch",
    "quantised_layer_s": "published fp8 baselines (SGLang, Qwen3-8B on H100, 5.65 ms at 4; Gemma-4-31B on H100 NVL, "
    "14.4 ms at 2) lie about that far above their weights",
    "mla_layer_s": "assumed: more and smaller kernels; single streams of DeepSeek-V3 stay well below its roofline",
    "eagle3_pass_s": "vLLM before 0.11: its PR 20780 has about 0.5 ms a pass more than the bytes explain, and EAGLE-3 "
    "of arXiv 2601.11580 (0.10.1) gains no more than EAGLE; the Qwen3 table of AngelSlim, later, has none",
    "draft_pass_fixed_s": f"{_FIT}: 2.135 ms for three EAGLE passes less 1.55 GB read in each",
    "host_s": f"{_FIT}: 1.207 ms per step; SGLang: 158.34 tokens/s of Llama-3.1-8B on H100 in its docs leave 0.5 ms; "
    "TensorRT-LLM and llama.cpp: assumed",
    "host_request_s": "assumed: scheduling, input tensors and detokenising; a study of vLLM's scheduling overhead "
    "(WukLab of UC San Diego, 2024) finds it growing with the batch, and SGLang's far smaller",
    "expert_sharing": "Cohere, 'Why MoE models get more from speculative decoding' (2026-04): the second token shares "
    "38 % of the experts of the first, four tokens touch 31 % fewer than strangers would; both are 0.70",
    "speculation_host_s": "vLLM PR 20780: EAGLE steps at k=2..7 extrapolated to k=0 lie 0.65 ms over plain decoding; "
    "shared with loaded_host_s",
    "loaded_host_s": "vLLM issue 49548: k=0 with the machinery loaded costs +6.6 % TPOT at concurrency 2; "
    "the 0.65 ms of vLLM PR 20780 leave less. SGLang before 0.5.6: table 3 of arXiv 2503.01840 (SGLang 0.4.4) with "
    "the acceptance lengths that vLLM PR 20780 has for the same heads",
    "loaded_request_s": "vLLM issue 49548: +21.6 % at concurrency 189 on a 31B model; the published EAGLE rows at "
    "batch 128 (arXiv 2601.11580) leave room for far less, so a compromise",
    "lookup_loaded_host_s": "assumed: n-gram rows of arXiv 2601.11580 at batch 1 show between 0 and 0.7 ms a step",
    "lookup_request_s": "assumed: compiled n-gram match on the CPU over a few hundred tokens",
    "switch_s": "assumed: graphs of every k are there from the start, and another set is selected (SGLang's runtime "
    "states, vLLM's V2 runner); no measurement was found",
    "fast_link_latency_s": "assumed: one-shot all-reduce of a small message over NVLink or xGMI",
    "slow_link_latency_s": "assumed: the same over PCIe",
    "between_servers_latency_s": "assumed: the same over a server network",
    "fast_link_bytes_per_s": "lies between PCIe 5 (64 GB/s) and the slowest NVLink of the catalogue (300 GB/s)",
    "between_servers_bytes_per_s": "400 Gbit/s a GPU",
    "fast_link_bandwidth": "assumed share of the datasheet for large all-reduces",
    "slow_link_bandwidth": "assumed share of the datasheet for large all-reduces",
    "kv_pull_latency_s": "assumed: messages between two engines, descriptors posted, the end noticed at a step",
    "mixed_layer_s": "assumed: attention launched outside the graph",
    "uncaptured_layer_s": "assumed: launches partly hidden behind long kernels",
    "unsplit_blocks": "flash-attention issues 176 and 190: FlashAttention 2 does not split the cache for more "
    "than one query, 7-23x at 31K on one request; 108 thread blocks fill the GPU",
    "relative_error": "largest deviations from published baselines that were not used for fitting",
}


def factor_sources() -> dict[str, str]:
    """Factor -> where its number came from, a fresh dictionary."""
    return dict(_SOURCES)
