"""A transformers configuration for a `ModelShape`: an architecture whose layers have that shape, to be measured.

The catalogue names shapes, not implementations. Dense layers become Llama's, windowed ones Qwen3's, experts Qwen's MoE,
latent attention DeepSeek-V3's; small differences of the true architecture (biases, query norms, router scoring) cost
nothing that can be measured.
"""

from __future__ import annotations

from typing import Any

from specsim.errors import ScenarioError
from specsim.shapes import ModelShape

__all__ = ["config_values"]


def config_values(shape: ModelShape) -> dict[str, Any]:
    """The content of a config.json for a shape, to be given to `load_model`.

    Raises:
        ScenarioError: drafter heads, which are no models of their own; combinations that no architecture here has.
    """
    if shape.kind != "model":
        raise ScenarioError(
            f"{shape.name} is a drafter of kind {shape.kind}, which does not run alone; name its target"
        )
    values: dict[str, Any] = {
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size or shape.moe_intermediate_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_tokens,
        "tie_word_embeddings": shape.tie_embeddings,
    }
    dense = shape.num_layers - shape.moe_layers
    experts = {"num_experts_per_tok": shape.experts_per_token, "moe_intermediate_size": shape.moe_intermediate_size}
    if not shape.gated_mlp:
        raise ScenarioError(f"{shape.name}: MLPs of two matrices are not measured; give the model's own config.json")
    if shape.is_mla:
        return values | _latent(shape) | experts
    if shape.windowed_layers and shape.moe_layers:
        raise ScenarioError(
            f"{shape.name}: windows with experts are not measured by name; give the model's config.json"
        )
    if shape.windowed_layers:
        return values | {
            "model_type": "qwen3",
            "use_sliding_window": True,
            "sliding_window": shape.window_tokens,
            "layer_types": _spread(shape.num_layers, shape.windowed_layers),
        }
    if not shape.moe_layers:
        return values | {"model_type": "llama"}
    values |= experts | {
        "num_experts": shape.num_experts,
        "mlp_only_layers": list(range(dense)),
        "decoder_sparse_step": 1,
    }
    if shape.shared_expert_intermediate_size:
        shared = {"shared_expert_intermediate_size": shape.shared_expert_intermediate_size}
        return values | shared | {"model_type": "qwen2_moe"}
    return values | {"model_type": "qwen3_moe", "norm_topk_prob": True}


def _spread(layers: int, windowed: int) -> list[str]:
    """Kinds of attention layer by layer, the full ones spread evenly and last in their stretch."""
    full = layers - windowed
    return [
        "full_attention" if (n + 1) * full // layers > n * full // layers else "sliding_attention"
        for n in range(layers)
    ]


def _latent(shape: ModelShape) -> dict[str, Any]:
    shared, width = shape.shared_expert_intermediate_size, shape.moe_intermediate_size
    if not shape.moe_layers or shared % width:
        raise ScenarioError(
            f"{shape.name}: latent attention is measured with experts of one width; give its config.json"
        )
    return {
        "model_type": "deepseek_v3",
        "num_key_value_heads": shape.num_heads,
        "head_dim": shape.qk_rope_head_dim,  # the part that is turned, in the words of transformers
        "q_lora_rank": shape.q_lora_rank or None,
        "kv_lora_rank": shape.kv_lora_rank,
        "qk_rope_head_dim": shape.qk_rope_head_dim,
        "qk_nope_head_dim": shape.qk_nope_head_dim,
        "v_head_dim": shape.v_head_dim,
        "n_routed_experts": shape.num_experts,
        "n_shared_experts": shared // width,
        "first_k_dense_replace": shape.num_layers - shape.moe_layers,
        "n_group": 1,
        "topk_group": 1,
    }
