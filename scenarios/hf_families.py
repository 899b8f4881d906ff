"""Model families by the `model_type` of a config.json: what each key means and what an absent one stands for.

Models: how windows, experts and MLPs are laid out in each family, after the configuration and modelling classes of the
transformers library. Leaves out: families with layers other than attention and MLP; those seen often are named, so
that the refusal can say why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

__all__ = ["FAMILIES", "HYBRIDS", "NESTED_DEFAULTS", "Family"]

Window = Literal["none", "all", "upper", "periodic"]
Experts = Literal["", "every_layer", "sparse_step", "after_first"]


@dataclass(frozen=True, slots=True)
class Family:
    """How the models of one `model_type` are built."""

    window: Window = "none"
    """Which layers `sliding_window` applies to when `layer_types` is absent."""
    full_every: int = 1
    """`periodic` windows: every so many layers one has full attention."""
    experts: Experts = ""
    """Which layers are MoE: all, every `decoder_sparse_step`-th, or those after `first_k_dense_replace`."""
    latent_attention: bool = False
    tie_embeddings: bool = False
    """What an absent `tie_word_embeddings` means."""
    gated_mlp: bool = True
    mtp: bool = False
    """Whether `num_nextn_predict_layers` announces MTP layers."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Sizes that published files of the family leave out."""


_PLAIN = Family()
_TIED = Family(tie_embeddings=True)
_UNGATED = Family(gated_mlp=False)
_DEEPSEEK = Family(experts="after_first", latent_attention=True, mtp=True)
_GEMMA3 = Family(
    window="periodic",
    full_every=6,
    tie_embeddings=True,
    defaults={"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
              "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
              "max_position_embeddings": 131072, "sliding_window": 4096},
)  # fmt: skip

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": _PLAIN,
        "mistral": Family(window="all"),
        "mixtral": Family(window="all", experts="every_layer"),
        "qwen2": Family(window="upper"),
        "qwen2_moe": Family(window="upper", experts="sparse_step"),
        "qwen3": Family(window="upper", defaults={"head_dim": 128}),
        "qwen3_moe": Family(window="upper", experts="sparse_step"),
        "gemma": Family(tie_embeddings=True, defaults={"head_dim": 256}),
        "gemma2": Family(window="periodic", full_every=2, tie_embeddings=True, defaults={"head_dim": 256}),
        "gemma3_text": _GEMMA3,
        "phi": _UNGATED,
        "phi3": Family(window="all"),
        "phimoe": Family(window="all", experts="every_layer"),
        "gpt_oss": Family(window="periodic", full_every=2, experts="every_layer", defaults={"head_dim": 64}),
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK,
        "kimi_k2": _DEEPSEEK,
        "glm": Family(defaults={"head_dim": 128}),
        "glm4": Family(defaults={"head_dim": 128}),
        "glm4_moe": Family(experts="after_first", mtp=True),
        "cohere": _TIED,
        "cohere2": Family(window="periodic", full_every=4, tie_embeddings=True),
        "smollm3": _TIED,
        "olmo2": _PLAIN,
        "olmoe": Family(experts="every_layer"),
        "granite": _PLAIN,
        "granitemoe": Family(experts="every_layer"),
        "stablelm": _PLAIN,
        "internlm2": _PLAIN,
        "seed_oss": _PLAIN,
        "mimo": Family(mtp=True),
        "starcoder2": Family(window="all", tie_embeddings=True, gated_mlp=False),
        "nemotron": _UNGATED,
        "arcee": _UNGATED,
    }
)
"""Families by `model_type`."""

HYBRIDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv7"), "state-space"),
        **dict.fromkeys(("jamba", "bamba", "zamba", "zamba2", "falcon_h1", "nemotron_h", "granitemoehybrid",
                         "plamo2"), "state-space (Mamba)"),
        **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "kimi_linear",
                         "minimax", "minimax_m1", "bailing_moe_linear"), "linear-attention"),
        **dict.fromkeys(("lfm2", "lfm2_moe"), "convolution"),
        "recurrent_gemma": "recurrent",
        **dict.fromkeys(("llama4", "llama4_text"), "chunked-attention"),
        **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), "sparse-attention"),
        **dict.fromkeys(("t5", "bart", "whisper", "mbart"), "encoder"),
    }
)  # fmt: skip
"""Families that are refused, with the kind of layer that is the reason."""

NESTED_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "gemma3": "gemma3_text",
        "mistral3": "mistral",
        "llava": "llama",
        "llava_next": "llama",
        "eagle": "llama",
        "deepseek_mtp": "deepseek_v3",
        "qwen2_5_vl": "qwen2",
        "qwen2_5_vl_text": "qwen2",
        "qwen2_vl": "qwen2",
        "qwen2_vl_text": "qwen2",
        "qwen3_vl": "qwen3",
        "qwen3_vl_text": "qwen3",
        "qwen3_vl_moe": "qwen3_moe",
        "qwen3_vl_moe_text": "qwen3_moe",
        "glm4v_moe": "glm4_moe",
        "glm4v_moe_text": "glm4_moe",
    }
)
"""Family of the text part of wrappers whose inner part has no `model_type`, or one of its own."""
