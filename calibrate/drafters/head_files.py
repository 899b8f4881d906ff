"""Files of drafting heads: configuration and tensors of a directory, in safetensors or the older format of torch."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from specsim.errors import ScenarioError

__all__ = ["head_config", "head_tensors", "take"]


def head_config(folder: Path) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        ScenarioError: it cannot be read.
    """
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{file}: cannot be read ({error}); --draft needs the folder of a drafting head") from None
    if not isinstance(values, dict):
        raise ScenarioError(f"{file}: a config.json holds an object, this holds a {type(values).__name__}")
    return values


def head_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of *.safetensors, else of *.bin and *.pt, which may hold nothing but tensors.

    Raises:
        ScenarioError: there are none, or they cannot be read.
    """
    files = sorted(folder.glob("*.safetensors")) or sorted([*folder.glob("*.bin"), *folder.glob("*.pt")])
    if not files:
        raise ScenarioError(f"{folder}: holds no weights (*.safetensors, *.bin, *.pt)")
    found: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            if file.suffix == ".safetensors":
                found |= load_file(file)
            else:
                found |= torch.load(file, map_location="cpu", weights_only=True)
        except (OSError, ValueError, RuntimeError, TypeError, pickle.UnpicklingError) as error:
            raise ScenarioError(f"{file}: cannot be read as tensors ({str(error).splitlines()[0]:.120})") from None
    return found


def take(tensors: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...], folder: Path) -> torch.Tensor:
    """A tensor by name.

    Raises:
        ScenarioError: it is missing, or has another shape.
    """
    if name not in tensors:
        raise ScenarioError(f"{folder}: has no tensor '{name}'; its tensors: {', '.join(sorted(tensors)[:6])}, ...")
    if tuple(tensors[name].shape) != shape:
        raise ScenarioError(f"{folder}: tensor '{name}' has shape {list(tensors[name].shape)}, expected {list(shape)}")
    return tensors[name]
