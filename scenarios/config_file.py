"""A config.json as a checked mapping: bytes to JSON object, then typed access that names path and key when wrong.

Leaves out: what any key means (`hf_config`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios.lookup import one_line
from specsim.errors import CatalogueError

__all__ = ["ConfigFile", "load_config_file"]

_MAX_FILE_BYTES = 4 * 2**20
"""Real files have a few kilobytes; whatever is larger is something else, such as weights."""
_MAX_SIZE = 2**40
"""Larger than any width, count or context of a real model; keeps products of sizes finite."""

_HIGHEST: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "target_hidden_size", "intermediate_size", "moe_intermediate_size",
                     "shared_expert_intermediate_size", "vocab_size", "draft_vocab_size"), 2**24),
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "num_experts",
                     "num_local_experts", "n_routed_experts", "num_experts_per_tok", "experts_per_token",
                     "n_shared_experts", "num_nextn_predict_layers"), 2**16),
}  # fmt: skip
"""Closer bounds, some dozen times what any published model has: beyond them a digit too many was typed."""

_REQUIRED: Any = object()


class ConfigFile:
    """Typed view of one JSON object of a config.json.

    Raises:
        CatalogueError: from every getter, when the key is missing without a default or of the wrong type.
    """

    def __init__(self, data: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        self.data = data
        self.path = path
        self.prefix = prefix

    def fail(self, message: str) -> CatalogueError:
        """An error that starts with the path of the file; stays one line whatever the file holds."""
        return CatalogueError("".join(c if c.isprintable() else "?" for c in f"{self.path}: {message}"))

    def _get(self, key: str, default: Any, expected: str) -> Any:
        value = self.data.get(key)
        if value is None:  # null means the same as absent in these files
            if default is _REQUIRED:
                raise self.fail(f"key '{self.prefix}{key}' is missing; it must be {expected}")
            return default
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> CatalogueError:
        shown = json.dumps(value, default=str)
        return self.fail(f"key '{self.prefix}{key}' must be {expected}, got {shown[:60]}")

    def count(self, key: str, default: Any = _REQUIRED, *, low: int = 1) -> int:
        """A whole number >= `low`; JSON true, false, text and fractions are refused."""
        if default is not _REQUIRED and self.data.get(key) is None:
            return default
        high = _HIGHEST.get(key, _MAX_SIZE)
        expected = f"a whole number from {low} to {high}"
        value = self._get(key, default, expected)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(key, value, expected)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A JSON true or false."""
        value = self._get(key, default, "true or false")
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        """A string."""
        value = self._get(key, default, "text")
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; absent or null is the empty list."""
        value = self._get(key, [], "a list of text")
        if not isinstance(value, Sequence) or isinstance(value, str) or any(not isinstance(v, str) for v in value):
            raise self._wrong(key, value, "a list of text")
        return list(value)

    def counts(self, key: str) -> list[int]:
        """A list of whole numbers >= 0; absent or null is the empty list."""
        value = self._get(key, [], "a list of whole numbers")
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in value):
            raise self._wrong(key, value, "a list of whole numbers >= 0")
        return value

    def table(self, key: str) -> ConfigFile | None:
        """A nested object, or None when absent or null."""
        value = self._get(key, None, "an object")
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return ConfigFile(value, self.path, f"{self.prefix}{key}.")

    def nested(self, key: str) -> ConfigFile | None:
        """The nested object `key` with this object's dtype, tying and quantization where it has none of its own."""
        inner = self.table(key)
        if inner is None:
            return None
        shared = ("quantization_config", "tie_word_embeddings", "torch_dtype", "dtype")
        outer = {name: self.data[name] for name in shared if self.data.get(name) is not None}
        return ConfigFile({**outer, **inner.data}, self.path, inner.prefix)


def load_config_file(path: Path) -> ConfigFile:
    """The JSON object at `path`, or in `path`/config.json when it is a directory.

    Raises:
        CatalogueError: when there is no such file or it holds no JSON object in UTF-8.
    """
    if os.path.isdir(path):  # unlike Path.is_dir, also answers for names that no file can have
        inside = path / "config.json"
        if not inside.exists():
            raise CatalogueError(
                f"{path}: the directory holds no config.json; give a model directory or the file itself"
            )
        path = inside
    if not os.path.exists(path):
        raise CatalogueError(
            f"{one_line(str(path))}: no such file; give a config.json, a model directory or a catalogue name"
        )
    if not path.is_file():
        raise CatalogueError(f"{path}: not a regular file; give a config.json or a model directory")
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise CatalogueError(f"{path}: {size / 2**20:.0f} MiB is too large for a config.json; "
                                 f"give the config.json that lies beside the weights")  # fmt: skip
        raw = path.read_bytes()
    except OSError as error:
        raise CatalogueError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from None
    return ConfigFile(_parse(raw, path), path)


def _parse(raw: bytes, path: Path) -> Mapping[str, Any]:
    """The JSON object in `raw`."""
    if not raw.strip():
        raise CatalogueError(f"{path}: the file is empty; a config.json holds one JSON object")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise CatalogueError(f"{path}: the file is UTF-16; save it as UTF-8")
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CatalogueError(f"{path}: not UTF-8 text (byte {error.start}); give a model's config.json") from None
    except json.JSONDecodeError as error:
        raise CatalogueError(f"{path}: not valid JSON at line {error.lineno} column {error.colno} ({error.msg}); "
                             f"give a model's config.json") from None  # fmt: skip
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or nesting without end
        raise CatalogueError(f"{path}: JSON beyond what a config.json holds ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise CatalogueError(f"{path}: holds a JSON {_json_name(value)}, not the object of a model's config.json")
    return value


def _json_name(value: Any) -> str:
    names = {list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")
