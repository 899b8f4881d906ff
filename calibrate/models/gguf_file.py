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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from specsim.errors import ScenarioError

__all__ = ["cache_directory", "converted", "quiet"]


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
    try:
        stat = path.stat()
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror})") from None
    mark = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {transformers.__version__}"
    home = cache_directory() / "gguf" / f"{path.stem}-{hashlib.sha256(mark.encode()).hexdigest()[:16]}"
    if home.is_dir():
        return home
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=home.parent))
    except OSError as error:
        raise ScenarioError(f"{home.parent}: cannot be written ({error.strerror}); set SPECSIM_CACHE") from None
    try:
        _convert(path, scratch)
        scratch.rename(home)
    except OSError as error:
        if not home.is_dir():  # else another process was faster
            raise ScenarioError(f"{home}: cannot be written ({error.strerror}); set SPECSIM_CACHE") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return home


def _convert(path: Path, home: Path) -> None:
    where, file = str(path.parent), path.name
    try:
        with quiet():
            causal_lm = transformers.AutoModelForCausalLM.from_pretrained(where, gguf_file=file, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, gguf_file=file)
    except (ValueError, KeyError, NotImplementedError, ImportError, struct.error) as error:
        raise ScenarioError(f"{path}: not a GGUF file that can be used ({str(error).splitlines()[0]})") from None
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
