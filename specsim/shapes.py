"""Shapes of models, and facts about GPUs: what the analytic profile and the memory plan need to know.

Models: decoder-only transformers with full, sliding-window or latent (MLA) attention, dense or MoE layers,
and drafters that are a whole model, an EAGLE-type head or MTP layers.
Leaves out: state-space and linear-attention layers, encoders. Numbers come from the catalogue
(`scenarios/catalogue`) or from a Hugging Face `config.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from specsim.errors import CatalogueError
from specsim.type_checks import check_types

__all__ = ["WEIGHT_BITS", "Gpu", "ModelKind", "ModelShape", "Price"]

ModelKind = Literal["model", "eagle", "eagle3", "mtp", "dflash", "medusa", "layers"]

WEIGHT_BITS: Mapping[str, float] = {
    "fp32": 32.0,
    "bf16": 16.0,
    "fp16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "int4": 4.25,  # group of 128 with a 16-bit scale and zero point: 4 + 32/128
    "mxfp4": 4.25,  # 8-bit scale per 32 weights
    "nvfp4": 4.5,  # 8-bit scale per 16 weights
}
"""Stored bits a weight, scales included."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Every size that decides how many bytes and operations a pass needs. Counts are per model, not per GPU.

    Raises:
        CatalogueError: when a size is not a positive whole number or sizes contradict each other.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Width of the dense MLP; 0 when every layer is MoE."""
    vocab_size: int
    max_position_tokens: int
    tie_embeddings: bool = False
    gated_mlp: bool = True
    """Three MLP matrices (gate, up, down) instead of two."""
    kind: ModelKind = "model"
    """`model` runs alone. `eagle`, `eagle3`, `mtp` and `dflash` are drafters that need their target's hidden states;
    `medusa` is `num_layers` heads without attention, each `intermediate_size / hidden_size` square residual blocks and
    an output head; `layers` are the first layers of a target."""
    # sliding-window attention
    windowed_layers: int = 0
    window_tokens: int = 0
    # mixture of experts
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    """Total width of the always-active experts in one MoE layer."""
    moe_layers: int = 0
    # multi-head latent attention (DeepSeek); kv_lora_rank > 0 turns it on
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    # drafters
    num_mtp_layers: int = 0
    """Multi-token-prediction layers that ship with this target."""
    fused_hidden_states: int = 0
    """Hidden vectors concatenated and projected to `hidden_size` on entry: EAGLE 2, EAGLE-3 3 (the target's
    low, middle and high layer), MTP 2, DFlash 5, plain models 0."""
    target_hidden_size: int = 0
    """Width of the target's hidden vectors when it differs from the drafter's own; 0 means `hidden_size`."""
    draft_vocab_size: int = 0
    """Rows of the drafter's own output head (EAGLE-3 heads often use 32,000); 0 means `vocab_size`."""
    shares_target_head: bool = False
    """The drafter reuses the target's embedding and output head (EAGLE, MTP): no memory of its own for them."""
    native_weight_dtype: str = "bf16"
    """Dtype in which the published checkpoint stores most weights, e.g. `fp8` for DeepSeek-V3. A checkpoint in fp32
    counts as bf16: engines load it in 16 bits."""
    native_expert_dtype: str = ""
    """Dtype of the routed experts when it differs, e.g. `mxfp4` for GPT-OSS; empty means the same."""
    source: str = ""
    date: str = ""
    doubtful: tuple[str, ...] = ()
    """Names of the fields that could not be verified."""
    notes: str = ""

    def __post_init__(self) -> None:
        check_types(self, "model", CatalogueError)
        positive = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size",
                    "max_position_tokens")  # fmt: skip
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type != "int":
                continue
            low = 1 if f.name in positive else 0
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise CatalogueError(f"model {self.name}: {f.name} must be a whole number >= {low}, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise CatalogueError(
                f"model {self.name}: num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.windowed_layers > self.num_layers or self.moe_layers > self.num_layers:
            raise CatalogueError(f"model {self.name}: more windowed or MoE layers than layers ({self.num_layers})")
        if self.windowed_layers and not self.window_tokens:
            raise CatalogueError(f"model {self.name}: windowed_layers is set but window_tokens is 0")
        if self.moe_layers and not (0 < self.experts_per_token <= self.num_experts and self.moe_intermediate_size):
            raise CatalogueError(
                f"model {self.name}: moe_layers needs num_experts, experts_per_token <= num_experts and "
                f"moe_intermediate_size"
            )
        if self.moe_layers < self.num_layers and not self.intermediate_size:
            raise CatalogueError(f"model {self.name}: intermediate_size is 0 but {self.num_layers - self.moe_layers} "
                                 f"layers are dense")  # fmt: skip
        if self.kv_lora_rank and not (self.qk_rope_head_dim and self.qk_nope_head_dim and self.v_head_dim):
            raise CatalogueError(f"model {self.name}: MLA needs qk_rope_head_dim, qk_nope_head_dim and v_head_dim")
        for name in ("native_weight_dtype", "native_expert_dtype"):
            value = getattr(self, name)
            if value and value not in WEIGHT_BITS:
                raise CatalogueError(f"model {self.name}: {name} '{value}' is not one of {', '.join(WEIGHT_BITS)}")

    # Parameters. Biases, norms and rotary tables are left out: under 0.1 % of any catalogue model.

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def attention_parameters(self) -> int:
        """Attention weights of all layers: q, k, v, o projections, or their low-rank MLA forms."""
        if self.kind == "medusa":
            return 0
        h, heads = self.hidden_size, self.num_heads
        if self.is_mla:
            qk = self.qk_nope_head_dim + self.qk_rope_head_dim
            entry_width = (self.q_lora_rank or heads * qk) + self.kv_lora_rank + self.qk_rope_head_dim
            inner = self.q_lora_rank * heads * qk  # 0 without a low-rank query
            inner += self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
            inner += heads * self.v_head_dim * h
        else:
            entry_width = (heads + 2 * self.num_kv_heads) * self.head_dim
            inner = heads * self.head_dim * h
        # the first EAGLE-3 layer attends over [embedding; fused hidden state], twice as wide
        entries = self.num_layers + (1 if self.kind == "eagle3" else 0)
        return entries * h * entry_width + self.num_layers * inner

    @property
    def dense_mlp_parameters(self) -> int:
        """MLP weights read for every token: dense layers, shared experts and routers; Medusa's residual blocks."""
        if self.kind == "medusa":
            return self.num_layers * self.hidden_size * self.intermediate_size
        matrices = 3 if self.gated_mlp else 2
        dense = (self.num_layers - self.moe_layers) * matrices * self.hidden_size * self.intermediate_size
        shared = self.moe_layers * matrices * self.hidden_size * self.shared_expert_intermediate_size
        return dense + shared + self.moe_layers * self.hidden_size * self.num_experts

    @property
    def routed_expert_parameters(self) -> int:
        """Weights of all routed experts of all layers."""
        matrices = 3 if self.gated_mlp else 2
        return self.moe_layers * self.num_experts * matrices * self.hidden_size * self.moe_intermediate_size

    @property
    def fusion_parameters(self) -> int:
        """Projection of concatenated hidden states on entry of EAGLE-type and MTP drafters."""
        if self.kind in ("eagle3", "dflash"):  # only target vectors are fused
            return self.fused_hidden_states * (self.target_hidden_size or self.hidden_size) * self.hidden_size
        target = min(self.fused_hidden_states, 1) * (self.target_hidden_size or self.hidden_size)
        own = max(self.fused_hidden_states - 1, 0) * self.hidden_size
        return (target + own) * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Output head, read once a pass whoever owns it; of Medusa's heads, that of one."""
        return self.hidden_size * (self.draft_vocab_size or self.vocab_size)

    @property
    def embedding_parameters(self) -> int:
        """Input embedding table; looked up, never read whole."""
        return self.hidden_size * self.vocab_size

    @property
    def total_parameters(self) -> int:
        """Weights that this model adds to memory (what it shares with its target is not counted)."""
        body = (
            self.attention_parameters
            + self.dense_mlp_parameters
            + self.routed_expert_parameters
            + self.fusion_parameters
        )
        if self.kind == "layers":
            return 0
        if self.kind == "medusa":
            return body + self.num_layers * self.head_parameters
        if self.shares_target_head:
            return body + (self.head_parameters if self.draft_vocab_size else 0)
        return body + self.embedding_parameters + (0 if self.tie_embeddings else self.head_parameters)

    @property
    def active_parameters(self) -> int:
        """Weights that one token is multiplied with, output head included, embedding left out."""
        routed = 0
        if self.moe_layers:
            routed = self.routed_expert_parameters * self.experts_per_token // self.num_experts
        return (
            self.attention_parameters
            + self.dense_mlp_parameters
            + routed
            + self.fusion_parameters
            + self.head_parameters * (self.num_layers if self.kind == "medusa" else 1)
        )

    @property
    def kv_values_per_layer(self) -> int:
        """Numbers cached per token and layer: 2 x kv heads x head_dim, or the MLA latent with its rope key."""
        if self.kind == "medusa":
            return 0
        if self.is_mla:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def full_attention_layers(self) -> int:
        return self.num_layers - self.windowed_layers


@dataclass(frozen=True, slots=True)
class Price:
    """One dated price of one GPU-hour."""

    usd_per_gpu_h: float
    provider: str
    source: str
    date: str
    doubtful: str = ""
    """Why the figure is not to be trusted; empty when nothing speaks against it."""

    def __post_init__(self) -> None:
        check_types(self, "price", CatalogueError)
        if not (math.isfinite(self.usd_per_gpu_h) and self.usd_per_gpu_h > 0):
            raise CatalogueError(f"price of {self.provider}: usd_per_gpu_h must be finite and > 0, got "
                                 f"{self.usd_per_gpu_h!r}")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpu:
    """Datasheet facts of one GPU: dense rates, one direction of its link.

    Raises:
        CatalogueError: when a figure is not finite and positive.
    """

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    """Dense operations per second by compute dtype: `bf16`, and `fp8`, `fp4` where the hardware has them."""
    link_bytes_per_s: float
    tdp_w: float
    max_tp: int = 8
    """GPUs that share the fast link in the usual server."""
    aliases: tuple[str, ...] = ()
    prices: tuple[Price, ...] = ()
    source: str = ""
    date: str = ""
    doubtful: tuple[str, ...] = ()
    """Names of the figures on which sources disagree or that could not be verified."""
    notes: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self, "gpu", CatalogueError)
        figures = {"memory_bytes": self.memory_bytes, "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
                   "link_bytes_per_s": self.link_bytes_per_s, "tdp_w": self.tdp_w,
                   **{f"flops_per_s.{k}": v for k, v in self.flops_per_s.items()}}  # fmt: skip
        for name, value in figures.items():
            if not (math.isfinite(value) and value > 0):
                raise CatalogueError(f"gpu {self.name}: {name} must be finite and > 0, got {value!r}")
        if "bf16" not in self.flops_per_s:
            raise CatalogueError(f"gpu {self.name}: flops_per_s needs at least bf16")
