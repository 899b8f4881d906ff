"""Tiny random models of many architectures, and the plain way to run them: transformers alone, without a cache."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from calibrate.models import FlatModel

__all__ = ["ARCHITECTURES", "VOCAB", "causal_lm", "flat", "reference_logits"]

VOCAB = 61
_COMMON = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "gemma2": {"sliding_window": 6, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 6, "query_pre_attn_scalar": 8},
    "phi3": {},
    "olmo2": {},
    "cohere": {},
    "granite": {"logits_scaling": 3.0},
    "mixtral": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "gpt_oss": _EXPERTS | {"sliding_window": 6},
    "deepseek_v3": {
        "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 12, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_shared_experts": 1,
    },
}  # fmt: skip
"""model_type -> what differs from a tiny Llama."""


def causal_lm(model_type: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """A transformers model with random weights, large enough that its greedy text does not run into a loop at once."""
    values = _COMMON | ARCHITECTURES[model_type] | changes
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = transformers.AutoConfig.for_model(model_type, **values)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
        )
        for weight in model.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def flat(model_type: str = "llama", **changes: Any) -> FlatModel:
    """The same model, to be run on flat batches."""
    return FlatModel(causal_lm(model_type, **changes), name=model_type)


@torch.inference_mode()
def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocabulary] of one sequence by transformers alone."""
    logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits
