"""GGUF files as Hugging Face directories: dequantised once, kept in a cache directory.

transformers reads the metadata, undoes the layout of each architecture and dequantises, which takes half a minute for a
small model and is therefore done once a file. The cache is `$SPECSIM_CACHE` or `~/.cache/specsim`; it may be deleted
at any time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from specsim.errors import ScenarioError

__all__ = ["cache_directory", "converted", "described", "gguf_config", "quiet"]


def cache_directory() -> Path:
    """Where converted models lie."""
    given = os.environ.get("SPECSIM_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "specsim"


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars of transformers, which are put back as they were."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


def converted(path: Path) -> Path:
    """A directory with config, float32 safetensors and tokenizer of a GGUF file.

    It belongs to this very file: name, size and time of change are in its name. Two processes that convert at the same
    time both succeed.

    Raises:
        ScenarioError: the file cannot be read, its architecture is unknown, or the cache cannot be written.
    """
    return _kept(path, "gguf", _convert)


def described(path: Path) -> Path:
    """A directory with the config of a GGUF file, whose weights are not read; that of `converted` where it is there.

    Raises:
        ScenarioError: see `converted`.
    """
    whole = _home(path, "gguf")
    if whole.is_dir():
        return whole
    return _kept(path, "gguf-config", lambda file, home: gguf_config(file).save_pretrained(home))


def _home(path: Path, kind: str) -> Path:
    try:
        stat = path.stat()
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror})") from None
    mark = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {transformers.__version__}"
    return cache_directory() / kind / f"{path.stem}-{hashlib.sha256(mark.encode()).hexdigest()[:16]}"


def _kept(path: Path, kind: str, make: Callable[[Path, Path], object]) -> Path:
    """The directory that `make` fills with what is made of a file, from the cache where it lies there."""
    home = _home(path, kind)
    if home.is_dir():
        return home
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=home.parent))
    except OSError as error:
        raise ScenarioError(f"{home.parent}: cannot be written ({error.strerror}); set SPECSIM_CACHE") from None
    try:
        make(path, scratch)
        scratch.rename(home)
    except OSError as error:
        if not home.is_dir():  # else another process was faster
            raise ScenarioError(f"{home}: cannot be written ({error.strerror}); set SPECSIM_CACHE") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return home


def gguf_config(path: Path) -> transformers.PretrainedConfig:
    """The configuration in a GGUF file's metadata; weights are not read.

    Raises:
        ScenarioError: the file cannot be read, or its architecture is unknown.
    """
    try:
        with quiet():
            return transformers.AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror or str(error).splitlines()[0]})") from None
    except _UNUSABLE as error:
        raise _unusable(path, error) from None


_UNUSABLE = (ValueError, KeyError, NotImplementedError, ImportError, struct.error)


def _unusable(path: Path, error: Exception) -> ScenarioError:
    return ScenarioError(f"{path}: not a GGUF file that can be used ({str(error).splitlines()[0]})")


def _convert(path: Path, home: Path) -> None:
    where, file = str(path.parent), path.name
    try:
        with quiet():
            causal_lm = transformers.AutoModelForCausalLM.from_pretrained(where, gguf_file=file, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, gguf_file=file)
    except _UNUSABLE as error:
        raise _unusable(path, error) from None
    tensors, seen = {}, set()
    for name, tensor in causal_lm.state_dict().items():
        if tensor.data_ptr() not in seen:  # a head tied to the embedding is stored once
            seen.add(tensor.data_ptr())
            tensors[name] = tensor.contiguous()
    config = causal_lm.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(causal_lm).__name__]
    config.save_pretrained(home)
    tokenizer.save_pretrained(home)
    save_file(tensors, home / "model.safetensors", metadata={"format": "pt"})
