"""A block drafter from its config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.hf_config import read_config
from specsim.shapes import ModelShape

CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 3072,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9216,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "dflash_config": {"target_layer_ids": [1, 7, 13, 19, 25, 31, 37, 43]},
}
"""Sizes of z-lab/Qwen3.5-122B-A10B-DFlash, which calls its model_type qwen3."""


def read(folder: Path, config: dict[str, Any]) -> ModelShape:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return read_config(path)


def test_sizes_by_hand(tmp_path: Path) -> None:
    shape = read(tmp_path, CONFIG)
    assert (shape.kind, shape.num_layers, shape.fused_hidden_states) == ("dflash", 6, 8)
    attention = 3072 * 128 * (32 + 2 * 8 + 32)
    layers, fusing = 6 * (attention + 3 * 3072 * 9216), 8 * 3072 * 3072
    assert shape.total_parameters == pytest.approx(layers + fusing, rel=1e-3), "embedding and head are the target's"


def test_five_hidden_states_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert read(tmp_path, {**CONFIG, "dflash_config": {}}).fused_hidden_states == 5
