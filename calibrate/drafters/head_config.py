"""config.json of a drafting head: read, and its numbers held against what a head can have before one is built.

Leaves out: whether they fit tensors and target, which the loaders see.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specsim.errors import ScenarioError

__all__ = ["head_config", "not_buildable"]

_WHOLE = {
    "hidden_size": (1, 1 << 17), "target_hidden_size": (1, 1 << 17), "intermediate_size": (1, 1 << 20),
    "num_attention_heads": (1, 4096), "num_key_value_heads": (1, 4096), "head_dim": (1, 8192),
    "vocab_size": (1, 1 << 22), "draft_vocab_size": (1, 1 << 22), "truncated_vocab_size": (1, 1 << 22),
    "max_position_embeddings": (1, 10**8), "num_hidden_layers": (1, 1000), "medusa_num_heads": (1, 64),
    "medusa_num_layers": (0, 64), "num_heads": (1, 64),
}  # fmt: skip
"""Key -> least and most, both far from every published head: what lies beyond is a slip, or takes all memory."""
_MAY_BE_NULL = ("target_hidden_size", "num_key_value_heads", "head_dim", "draft_vocab_size", "truncated_vocab_size")
"""Written as null where the value follows from others."""
_MOST_EPS = 0.1
_NESTED = ("transformer_layer_config", "text_config", "eagle_config", "speculators_config")


def head_config(folder: Path) -> dict[str, Any]:
    """The content of config.json, its sizes checked, those of nested objects too.

    Raises:
        ScenarioError: it cannot be read, or a number is none that a head can have.
    """
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ScenarioError(f"{file}: cannot be read ({error}); --draft needs the folder of a drafting head") from None
    if not isinstance(values, dict):
        raise ScenarioError(f"{file}: a config.json holds an object, this holds a {type(values).__name__}")
    _check(folder, values, "")
    for name in _NESTED:
        inner = values.get(name)
        if inner is not None and not isinstance(inner, dict):
            raise not_buildable(folder, name, inner, "an object")
        _check(folder, inner or {}, f"{name}.")
    return values


def not_buildable(folder: Path, key: str, value: Any, wanted: str) -> ScenarioError:
    """What to say of a value of config.json that no head can have."""
    return ScenarioError(
        f"{folder}: its config.json describes no head that can be built: '{key}' is {json.dumps(value):.60}, and must "
        f"be {wanted}; take the config.json that came with the weights"
    )


def _check(folder: Path, values: Mapping[str, Any], place: str) -> None:
    for key, (low, high) in _WHOLE.items():
        value = values.get(key)
        if key not in values or (value is None and key in _MAY_BE_NULL):
            continue
        if type(value) is not int or not low <= value <= high:
            raise not_buildable(folder, place + key, value, f"a whole number in {low}..{high}")
    eps = values.get("rms_norm_eps", 1e-6)
    if type(eps) not in (int, float) or not 0 < eps <= _MOST_EPS:
        raise not_buildable(folder, f"{place}rms_norm_eps", eps, f"a number above 0 and up to {_MOST_EPS:g}")
