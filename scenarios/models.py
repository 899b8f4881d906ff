"""Models of the catalogue, a user's own config.json beside them, and the usual drafter of each target.

Leaves out: quality, tokenizers, chat templates; two models are taken to share a vocabulary only when the catalogue
says so. Numbers come from `scenarios/catalogue/models.toml`, which names the config.json behind each shape.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scenarios.lookup import NameIndex, check_keys, one_line, packaged_toml
from specsim.drafters import drafter
from specsim.errors import CatalogueError
from specsim.shapes import ModelKind, ModelShape

__all__ = ["catalogue_name", "default_drafter", "known_drafters", "known_model", "load_models", "model", "named_like"]

_DTYPE_SUFFIXES = {
    "-fp8": "fp8",
    "-fp8-dynamic": "fp8",
    "-awq": "int4",
    "-gptq-int4": "int4",
    "-gptq-int8": "int8",
    "-quantized.w4a16": "int4",
    "-quantized.w8a8": "int8",
    "-nvfp4": "nvfp4",
}
"""Endings by which repositories name a quantized copy of a model, and the dtype they store."""
_GGUF_FILE = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_GGUF_TYPE = re.compile(r"[-._](i?q\d[0-9a-z_]*|bf16|f16|f32|fp16|fp32)$", re.IGNORECASE)
"""How GGUF files name the number format that they store."""
_SHAPE_KEYS = tuple(f.name for f in fields(ModelShape))
_LABEL_KEYS = ("name", "max_position_tokens", "native_weight_dtype", "native_expert_dtype", "source", "date",
               "doubtful", "notes")  # fmt: skip
"""Fields that do not change the network."""
_MODEL_KEYS = (*_SHAPE_KEYS, "repos", "drafters")


@dataclass(frozen=True, slots=True)
class _Entry:
    shape: ModelShape
    repos: tuple[str, ...]
    drafters: Mapping[str, str]


@cache
def _entries() -> Mapping[str, _Entry]:
    entries: dict[str, _Entry] = {}
    for row in packaged_toml("models.toml")["model"]:
        check_keys(row, _MODEL_KEYS, f"models.toml, {row.get('name')}")
        repos = tuple(row.get("repos", ()))
        values: dict[str, Any] = {key: value for key, value in row.items() if key in _SHAPE_KEYS}
        values.setdefault("intermediate_size", 0)
        values["doubtful"] = tuple(row.get("doubtful", ()))
        values.setdefault("source", f"config.json of {repos[0]}" if repos else "")
        entries[row["name"]] = _Entry(ModelShape(**values), repos, row.get("drafters", {}))
    for name, entry in entries.items():
        for method, listed in entry.drafters.items():
            if listed not in entries:
                raise CatalogueError(f"models.toml, {name}: drafter '{listed}' ({method}) is not in the catalogue")
            if drafter(method).kind != entries[listed].shape.kind:
                raise CatalogueError(f"models.toml, {name}: drafter '{listed}' is no drafter for {method}")
    return MappingProxyType(entries)


@cache
def load_models() -> Mapping[str, ModelShape]:
    """Every model and drafter of the catalogue by its name, in catalogue order."""
    return MappingProxyType({name: entry.shape for name, entry in _entries().items()})


@cache
def _index() -> NameIndex:
    names = {}
    for name, entry in _entries().items():
        names[name] = (*entry.repos, *(repo.split("/")[-1] for repo in entry.repos))
    return NameIndex("model", names)


def model(name_or_path: str, *, kind: ModelKind | None = None) -> ModelShape:
    """The shape of a catalogue model (by name or Hugging Face repository) or of a config.json on disk.

    The catalogue is asked first; `./name` always means the disk. A mirror of a listed repository under another owner
    has its shape, and a catalogue name with the ending of a quantized copy (`qwen3-8b-fp8`, `Qwen/Qwen3-8B-AWQ`) is
    that model with the dtype of the copy. `kind` says what a file is used as, for EAGLE heads whose config is that of
    a plain one-layer model, and for the MTP layer inside a target's own config.

    Raises:
        CatalogueError: when it is neither, or the file cannot be understood.
    """
    if not name_or_path.strip():
        raise CatalogueError("the model name is empty; `specsim model list` shows the catalogue")
    found = known_model(name_or_path, kind=kind)
    if found is not None:
        return found
    raise CatalogueError(
        f"model '{one_line(name_or_path)}' is not in the catalogue{_index().suggestion(name_or_path)}; "
        f"`specsim model list` shows all {len(load_models())}, or give the path of its config.json"
    )


def known_model(name_or_path: str, *, kind: ModelKind | None = None) -> ModelShape | None:
    """As `model`, but None for what is neither: the search for the nearest name is left out, which takes most time.

    Raises:
        CatalogueError: when it is a file that cannot be understood.
    """
    on_disk = name_or_path.startswith((".", "/", "~"))
    hit = None if on_disk else _index().get(name_or_path)
    if hit is not None:
        return load_models()[hit]
    path = Path(name_or_path)
    if name_or_path.startswith("~"):
        path = Path(os.path.expanduser(name_or_path))
    if on_disk or name_or_path.endswith(".json") or _exists(path):
        from scenarios.hf_config import read_config

        return read_config(path, kind=kind)
    return _mirror_or_copy(name_or_path)


def catalogue_name(name: str) -> str | None:
    """Name in the catalogue of the model that a folder, GGUF file or repository is called after; None: of none.

    A copy in another number format is that model. The disk is not looked at, so a file of that name need not be there.
    """
    repo = _GGUF_FILE.sub("", name).split("/")[-1]
    whole = _GGUF_TYPE.sub("", repo)
    ends = (suffix for suffix in _DTYPE_SUFFIXES if whole.lower().endswith(suffix))
    texts = (repo, whole, *(whole[: -len(suffix)] for suffix in ends))
    return next((hit for hit in map(_index().get, texts) if hit is not None), None)


def _mirror_or_copy(name: str) -> ModelShape | None:
    """The catalogue model that a repository of another owner, or a quantized copy, goes back to."""
    repo = name.split("/")[-1]
    hit = _index().get(repo)
    if hit is not None:
        return load_models()[hit]
    for suffix, dtype in _DTYPE_SUFFIXES.items():
        if repo.lower().endswith(suffix):
            hit = _index().get(repo[: -len(suffix)])
            shape = load_models()[hit] if hit is not None else None
            if shape is not None and shape.native_weight_dtype == "bf16" and not shape.native_expert_dtype:
                return replace(shape, name=f"{shape.name}{suffix}", native_weight_dtype=dtype)
    return None


def default_drafter(target: ModelShape, method: str, options: Mapping[str, int] | None = None) -> ModelShape | None:
    """The usual drafter of `target` for `method`; None for methods that run no model.

    A target read from a file is recognised in the catalogue by its sizes. Without a catalogue entry, or where options
    ask for another shape, it is derived from the target as the method says, marked in `doubtful` when assumed.

    Raises:
        CatalogueError: when there is no such drafter for this target.
        ScenarioError: when method or option is unknown.
    """
    known = drafter(method)
    chosen = known.chosen(target, options or {})
    if not known.runs_model:
        return None
    listed = known_drafters(target)
    if not options:
        for name in (known.name, *known.listed_as):
            if name in listed:
                return load_models()[listed[name]]
    if known.derive is not None:
        return known.derive(target, chosen)
    raise CatalogueError(
        f"model {target.name}: no smaller model with the same vocabulary is known as its drafter; "
        f"name one from `specsim model list` or give the path of its config.json"
    )


def known_drafters(target: ModelShape) -> Mapping[str, str]:
    """Names of the usual drafters of `target` in the catalogue, by method; empty when it knows none."""
    entry = _entries().get(target.name) or _twin(target)
    return MappingProxyType(dict(entry.drafters)) if entry is not None else MappingProxyType({})


def named_like(shape: ModelShape) -> str | None:
    """Name of the catalogue model with the sizes of `shape`, None when it lists none."""
    twin = _twin(shape)
    return None if twin is None else twin.shape.name


def _twin(target: ModelShape) -> _Entry | None:
    """The first catalogue entry with the same sizes, context aside: the same network under another name."""
    same = [key for key in _SHAPE_KEYS if key not in _LABEL_KEYS]
    for entry in _entries().values():
        if all(getattr(entry.shape, key) == getattr(target, key) for key in same):
            return entry
    return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long or with a NUL is no path
        return False
