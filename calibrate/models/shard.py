"""One GPU's share of a model under tensor parallelism, as a configuration with narrower layers.

Heads, the width of every MLP and the rows of embedding and head are divided by the number of GPUs; key and value heads
are repeated when there are fewer of them than GPUs. Hidden size and number of experts stay. Collectives between GPUs
are not part of the shard.
"""

from __future__ import annotations

import transformers

from specsim.errors import ScenarioError

__all__ = ["shard"]

_DIVIDED = (
    "num_attention_heads",
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "vocab_size",
)


def shard(config: transformers.PretrainedConfig, tp: int, name: str) -> transformers.PretrainedConfig:
    """The configuration of one of `tp` GPUs.

    Raises:
        ScenarioError: a width that does not divide, or a configuration that does not name its heads.
    """
    if tp < 1:
        raise ScenarioError(f"tp must be >= 1, got {tp}")
    values = config.to_dict()
    if not values.get("num_attention_heads"):
        raise ScenarioError(f"{name}: model_type '{config.model_type}' does not name num_attention_heads; use tp 1")
    heads = values["num_attention_heads"]
    values["head_dim"] = values.get("head_dim") or values["hidden_size"] // heads
    kv_heads = values.get("num_key_value_heads") or heads
    for key in _DIVIDED:
        width = values.get(key)
        if not width:
            continue
        if key == "vocab_size":
            values[key] = -(-width // tp)
        elif width % tp:
            raise ScenarioError(f"{name}: {key} {width} is not a multiple of tp {tp}; choose a tp that divides it")
        else:
            values[key] = width // tp
    if kv_heads % tp and tp % kv_heads:
        raise ScenarioError(f"{name}: {kv_heads} key-value heads are not shared out evenly over tp {tp}")
    values["num_key_value_heads"] = max(1, kv_heads // tp)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        values[key] = None  # they may lie outside a shard of the vocabulary
    return type(config).from_dict(values)
