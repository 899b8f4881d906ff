"""Numbers of a config.json that no model has, and keys that its family has no use for: refused, never ignored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.hf_config import read_config
from scenarios.hf_families import FAMILIES, HYBRIDS, NESTED_DEFAULTS
from scenarios.models import model
from specsim.errors import CatalogueError
from specsim.shapes import ModelShape

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def read(tmp_path: Path, **keys: object) -> ModelShape:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, **keys}))
    return read_config(path)


@pytest.mark.parametrize("value", [0, -1, 2**16 + 1, 2.5, True, "128"])
def test_a_head_of_no_width_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(CatalogueError, match=r"key 'head_dim' must be a whole number from 1 to 65536, got "):
        read(tmp_path, head_dim=value)


def test_a_head_width_that_is_absent_is_derived(tmp_path: Path) -> None:
    assert read(tmp_path, head_dim=None).head_dim == read(tmp_path).head_dim == 128


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "vocab_size"])
def test_widths_beyond_any_model_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(CatalogueError, match=f"key '{key}' must be a whole number from 1 to 16777216, got "):
        read(tmp_path, **{key: 2**24 + 1})


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads"])
def test_counts_beyond_any_model_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(CatalogueError, match=f"key '{key}' must be a whole number from 1 to 65536, got "):
        read(tmp_path, **{key: 2**16 + 1})


@pytest.mark.parametrize("key", ["num_local_experts", "num_experts", "n_routed_experts"])
def test_experts_of_a_dense_family_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(CatalogueError, match=f"key '{key}' is 8, but models of this model_type have no experts"):
        read(tmp_path, **{key: 8, "num_experts_per_tok": 2})
    for none in (None, 0, 1):
        assert read(tmp_path, **{key: none}).moe_layers == 0


def test_no_architectures_are_fine(tmp_path: Path) -> None:
    assert read(tmp_path, architectures=[]).kind == "model"


@pytest.mark.parametrize(
    "name", ["x" * 300 + ".json", "x" * 300 + "/y", "~nobody-of-that-name/config.json", "a\nb/c.json", "a\0/b"]
)
def test_odd_names_are_one_line(name: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        model(name)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500
    with pytest.raises(CatalogueError) as caught:
        read_config(Path(name))
    assert len(str(caught.value).splitlines()) == 1


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"the directory holds no config\.json"):
        read_config(tmp_path)
    with pytest.raises(CatalogueError, match="no such file"):
        read_config(tmp_path / "absent.json")
    with pytest.raises(CatalogueError, match="not a regular file"):
        read_config(Path("/dev/null"))
    with pytest.raises(CatalogueError, match="no such file"):
        model("absent.json")


def test_family_tables_do_not_overlap() -> None:
    assert not set(FAMILIES) & set(HYBRIDS)
    assert set(NESTED_DEFAULTS.values()) <= set(FAMILIES)
