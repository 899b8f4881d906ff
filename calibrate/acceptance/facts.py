"""What a measurement of acceptance was made on, as its file says it; see `specsim.acceptance.measured_on`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import specsim
from calibrate.acceptance.methods import NEEDS_DRAFT, Draft, Method
from calibrate.drafters.planting import CHAIN, Planting
from calibrate.engine.verify import Sampling
from calibrate.models import FlatModel

__all__ = ["measured_facts", "model_name"]


def model_name(given: str) -> str:
    """What a model is called by its folder or file; in the download cache of the hub, the repository. No path."""
    path = Path(given).expanduser().absolute()
    hub = next((part for part in reversed(path.parts) if part.startswith("models--")), None)
    name = path.name if hub is None else "/".join(hub.split("--")[1:])
    return "".join(char if char.isprintable() else "?" for char in name)[:200] or "unnamed"


def measured_facts(
    target: tuple[str, FlatModel],
    draft: tuple[str, Draft] | None,
    methods: Sequence[Method],
    sampling: Sampling,
    *,
    planting: Planting = CHAIN,
    dtype: str,
    prompts: int,
) -> dict[str, Any]:
    """The `measured` of every row, without its date.

    Args:
        target: what the user gave, and the model.
        draft: likewise; None: no method has weights of its own.
        planting: the shape of the drafts of the method that has it.
        prompts: requests of the measurement.
    """
    return {
        "target": _model(*target),
        "drafters": {method.name: _drafter(method, draft, planting) for method in methods},
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "draft_sampling": sampling.drafts,
        "dtype": dtype,
        "seed": sampling.seed,
        "prompts": prompts,
        "specsim": specsim.__version__,
    }


def _drafter(method: Method, draft: tuple[str, Draft] | None, planting: Planting) -> dict[str, Any]:
    options = {name: int(value) if value == int(value) else value for name, value in method.options.items()}
    found: dict[str, Any] = {"method": method.name, "options": options}
    if method.tree and method.tree == planting.shape:
        found["tree"] = Path(planting.name).name
    if draft is not None and method.name in NEEDS_DRAFT:
        found["model"] = _model(*draft)
    return found


def _model(given: str, model: Draft) -> dict[str, Any]:
    """Heads have no name but their folder's; layers of a head are few and say little."""
    found: dict[str, Any] = {"name": model_name(given)}
    sizes: Mapping[str, Any] = {}
    if isinstance(model, FlatModel):
        sizes = {"layers": model.num_layers, "hidden_size": getattr(model.config, "hidden_size", None)}
    return found | {name: size for name, size in sizes.items() if size is not None}
