"""Models by source: a directory or GGUF file with real weights, or a config alone with random ones.

Random weights have the true shapes and a fixed seed; latency does not depend on values. `num_layers` and `tp` cut a
model that is too large for the device down to some of its layers, and to one GPU's share of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from calibrate.models.flat_model import FlatModel
from calibrate.models.gguf_file import converted, gguf_config, quiet
from calibrate.models.shard import shard
from specsim.errors import ScenarioError

__all__ = ["configuration", "default_dtype", "first_layers_config", "load_model", "load_tokenizer"]

Source = str | Path | Mapping[str, Any] | transformers.PretrainedConfig


def load_model(
    source: Source,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    num_layers: int | None = None,
    tp: int = 1,
    seed: int = 0,
) -> FlatModel:
    """A model, ready to run.

    Args:
        source: a Hugging Face directory with safetensors, a GGUF file (converted once, then cached), a config.json
            (file, or directory without weights), the content of one, or a transformers configuration.
        dtype: of the weights and the cache.
        num_layers: build the first layers only.
        tp: build one GPU's share under tensor parallelism. Weights are then random.
        seed: of random weights.

    Raises:
        ScenarioError: the source cannot be read, is no decoder-only model, or cannot be cut that way.
    """
    directory: Path | None = None
    if isinstance(source, str | Path):
        path = Path(source)
        if path.suffix == ".gguf":
            path = converted(path)
        config = _config_at(path)
        directory = path if path.is_dir() and any(path.glob("*.safetensors")) else None
        name = str(source)
    else:
        config = _config_of(source)
        name = config.model_type
    if config.get_text_config() is not config:
        config, directory = config.get_text_config(), None
    if num_layers is not None:
        config = first_layers_config(config, num_layers, name)
    if tp > 1:
        config, directory = shard(config, tp, name), None
    if directory is None:
        return FlatModel(_random(config, device, dtype, seed, name), name=name, source=f"random, seed {seed}", tp=tp)
    with quiet():
        causal_lm: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory, config=config, dtype=dtype, local_files_only=True
        )
    return FlatModel(causal_lm.to(device), name=name, source=str(source))


def default_dtype(device: str | torch.device) -> torch.dtype:
    """The dtype in which a device is quickest: 16 bits, but 32 on CPUs without instructions for bfloat16."""
    if torch.device(device).type != "cpu":
        return torch.bfloat16
    has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if has_bf16 else torch.float32


def configuration(source: str | Path) -> transformers.PretrainedConfig:
    """Of the language model in a directory, GGUF file or config.json; weights are not read.

    Raises:
        ScenarioError: there is none, or it cannot be read.
    """
    path = Path(source)
    return (gguf_config(path) if path.suffix == ".gguf" else _config_at(path)).get_text_config()


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer of a directory or GGUF file.

    Raises:
        ScenarioError: there is none.
    """
    path = Path(source)
    path = converted(path) if path.suffix == ".gguf" else path
    try:
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{source}: no tokenizer found ({_one_line(error)}); give a directory with one") from None


def _config_at(path: Path) -> transformers.PretrainedConfig:
    file = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{file}: not a readable config.json ({_one_line(error)})") from None
    if not isinstance(content, dict):
        raise ScenarioError(f"{file}: a config.json holds an object, this holds a {type(content).__name__}")
    return _config_of(content)


def _config_of(source: Mapping[str, Any] | transformers.PretrainedConfig) -> transformers.PretrainedConfig:
    if isinstance(source, transformers.PretrainedConfig):
        return source
    values = dict(source)
    model_type = values.pop("model_type", None)
    if not isinstance(model_type, str):
        raise ScenarioError("a model's config needs 'model_type', such as llama")
    try:
        return transformers.AutoConfig.for_model(model_type, **values)
    except (TypeError, ValueError) as error:
        raise ScenarioError(f"model_type '{model_type}': {_one_line(error)}") from None


def first_layers_config(
    config: transformers.PretrainedConfig, num_layers: int, name: str
) -> transformers.PretrainedConfig:
    most = config.num_hidden_layers
    if not 1 <= num_layers <= most:
        raise ScenarioError(f"{name} has {most} layers, {num_layers} were asked for")
    values = config.to_dict()
    for key, value in values.items():  # one entry a layer: kinds of attention, or of MLP
        if isinstance(value, list) and len(value) == most:
            values[key] = value[:num_layers]
    return type(config).from_dict(values | {"num_hidden_layers": num_layers})


def _random(
    config: transformers.PretrainedConfig, device: str | torch.device, dtype: torch.dtype, seed: int, name: str
) -> Any:
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        try:
            return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        except ValueError as error:
            raise ScenarioError(f"{name}: not a decoder-only language model ({_one_line(error)})") from None


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
