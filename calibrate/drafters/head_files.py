"""Tensors of drafting heads: those of a directory, in safetensors or the older format of torch.

What is not there, has another shape, is quantised, or stands there unused is refused by name: a head without one of its
tensors is another head.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open

from calibrate.models import FlatModel
from specsim.errors import ScenarioError, SpecsimError

__all__ = ["fill", "head_tensors", "in_one_line", "refuse_form", "take", "tensor_names"]

_FORMS = (
    ("an EAGLE-3 head (--method eagle3)", ("midlayer.", "layers.0.hidden_norm.")),
    ("an EAGLE head (--method eagle)", ("fusion_fc.", "layers.0.self_attn.", "transformer.self_attn.")),
    ("Medusa heads (--method medusa)", ("blocks.0.", "0.0.linear.")),
    ("an MTP module (--method mtp)", ("mtp.", "mtp_layers.", "model.mtp_layers.")),
    ("a whole model (--method draft_model)", ("model.layers.",)),
)
"""What a directory holds, by beginnings of its tensors' names; the first that fits."""


_Loaded = TypeVar("_Loaded")


def in_one_line(load: Callable[[str | Path, FlatModel], _Loaded]) -> Callable[[str | Path, FlatModel], _Loaded]:
    """A loader whose every refusal is one line that names the folder."""

    @wraps(load)
    def told(folder: str | Path, target: FlatModel) -> _Loaded:
        try:
            return load(folder, target)
        except (SpecsimError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # what torch and transformers raise at odd numbers shares no base
            said = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = said[-1] if said else type(error).__name__
            raise ScenarioError(
                f"{folder}: its config.json describes no head that can be built ({reason:.160})"
            ) from None

    return told


def head_tensors(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, torch.Tensor]:
    """Tensors of *.safetensors, else of *.bin and *.pt, which may hold nothing but tensors.

    Args:
        wanted: by name; others are not read, so that a layer can be taken out of a large model.

    Raises:
        ScenarioError: there are no files, or they cannot be read.
    """
    found: dict[str, torch.Tensor] = {}
    for file in _files(folder):
        try:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as opened:
                    found |= {name: opened.get_tensor(name) for name in opened.keys() if wanted(name)}  # noqa: SIM118
            else:
                whole = torch.load(file, map_location="cpu", weights_only=True)
                found |= {name: tensor for name, tensor in whole.items() if wanted(name)}
        except (
            OSError, ValueError, RuntimeError, TypeError, AttributeError, SafetensorError, pickle.UnpicklingError,
        ) as error:  # fmt: skip
            raise ScenarioError(f"{file}: cannot be read as tensors ({str(error).splitlines()[0]:.120})") from None
    packed = [n for n, t in found.items() if n.endswith("_scale_inv") or (t.is_floating_point() and t.itemsize < 2)]
    if packed:
        raise ScenarioError(f"{folder}: tensor '{packed[0]}' is quantised; heads are read in 16 or 32 bits")
    return found


def tensor_names(folder: Path) -> list[str]:
    """Names of all tensors, without reading those of *.safetensors; as `head_tensors` otherwise."""
    names: list[str] = []

    def noted(name: str) -> bool:
        names.append(name)
        return False

    head_tensors(folder, noted)
    return names


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors")) or sorted([*folder.glob("*.bin"), *folder.glob("*.pt")])
    if not files:
        raise ScenarioError(f"{folder}: holds no weights (*.safetensors, *.bin, *.pt)")
    return files


def take(
    tensors: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...], folder: Path, *, whole: bool = False
) -> torch.Tensor:
    """A tensor by name: weights, or whole numbers where `whole`.

    Raises:
        ScenarioError: it is missing, has another shape or kind of numbers, or weights that are not finite.
    """
    if name not in tensors:
        raise ScenarioError(f"{folder}: has no tensor '{name}'; its tensors: {_some(tensors)}")
    if tuple(tensors[name].shape) != shape:
        raise ScenarioError(f"{folder}: tensor '{name}' has shape {list(tensors[name].shape)}, expected {list(shape)}")
    tensor = tensors[name]
    kind = str(tensor.dtype).removeprefix("torch.")
    if whole and (tensor.is_floating_point() or tensor.is_complex()):
        raise ScenarioError(f"{folder}: tensor '{name}' is of {kind}, and must be of whole numbers")
    if not whole and not tensor.is_floating_point():
        raise ScenarioError(
            f"{folder}: tensor '{name}' is of {kind}; heads are read in 16 or 32 bits of floating point"
        )
    if not whole and not bool(tensor.isfinite().all()):
        bad = tensor.numel() - int(tensor.isfinite().sum())
        raise ScenarioError(
            f"{folder}: tensor '{name}' has {bad:,} of {tensor.numel():,} values that are no finite number (NaN or "
            f"infinite), with which nothing is ever accepted; train or convert the head anew"
        )
    return tensor


def fill(
    module: torch.nn.Module,
    tensors: Mapping[str, torch.Tensor],
    theirs: Callable[[str], str],
    folder: Path,
    *,
    unused: Collection[str] = (),
) -> None:
    """Load a module's parameters.

    Args:
        theirs: name of a parameter -> its name in the file.
        unused: names of the file that are of use to others, or were taken already.

    Raises:
        ScenarioError: a tensor is missing, has another shape, or is there and has no place.
    """
    ours = module.state_dict()
    module.load_state_dict({name: take(tensors, theirs(name), tuple(t.shape), folder) for name, t in ours.items()})
    known = {theirs(name) for name in ours}
    left = sorted(name for name in tensors if name not in known and name not in unused and "inv_freq" not in name)
    if left:
        raise ScenarioError(
            f"{folder}: {len(left)} tensors have no place in a head of this kind, the first of them '{left[0]}'; this "
            f"variant is not read here"
        )


def refuse_form(folder: Path, names: Collection[str], wanted: str, looked_for: str) -> ScenarioError:
    """What to say of a directory with tensors of other names: what was looked for, and what it seems to hold."""
    seems = next((what for what, marks in _FORMS if any(name.startswith(marks) for name in names)), "")
    seems = f"seems to be {seems}; " if seems else ""
    return ScenarioError(f"{folder}: is no {wanted}, with {looked_for}; {seems}its tensors: {_some(names)}")


def _some(names: Collection[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:4]) + (f", ... ({len(names)})" if len(names) > 4 else "") if names else "none"
