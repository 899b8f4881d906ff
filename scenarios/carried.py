"""A measured profile on a GPU, tensor parallelism or number format where it was not measured: the names looked up."""

from __future__ import annotations

import re

from scenarios.hardware import known_gpu
from scenarios.models import default_drafter, known_model
from scenarios.models import model as find_model
from specsim.analytic import analytic_profile
from specsim.drafters import drafter
from specsim.efficiency import factors_for, gpu_family
from specsim.errors import ProfileError
from specsim.profiles import LatencyProfile
from specsim.serving import ENGINES
from specsim.shapes import Gpu, ModelShape
from specsim.transfer import carried

__all__ = ["carried_to"]


def carried_to(
    profile: LatencyProfile,
    gpu: Gpu,
    *,
    tp: int | None = None,
    weight_dtype: str | None = None,
    target: str | None = None,
) -> LatencyProfile:
    """The profile on another GPU, labelled transferred; as it is where it is of that GPU, split and dtype already.

    `tp` and `weight_dtype` None: as measured. `target`: name or config.json of the model, where it goes by another name
    in the profile.

    Raises:
        ProfileError: it was measured on a device that the catalogue does not list, or says too little of itself.
        CatalogueError: its models are not in the catalogue, or cannot be split so.
    """
    covers = profile.covers
    own = known_gpu(covers.get("gpu", ""))
    if own is None:
        raise ProfileError(
            f"profile '{profile.name}' was measured on '{covers.get('gpu', 'an unnamed device')}', which the catalogue "
            f"does not list, so that no ratio to {gpu.name} is known; measure there, or leave the profile out"
        )
    lacking = [name for name in ("target", "tp", "weight_dtype", "kv_dtype", "method") if name not in covers]
    if lacking:
        raise ProfileError(f"profile '{profile.name}' does not say its {', '.join(lacking)}, so that it cannot be "
                           f"carried to {gpu.name}")  # fmt: skip
    own_tp = _whole(profile, "tp")
    dtype = covers["weight_dtype"] if weight_dtype is None else weight_dtype
    ranks = own_tp if tp is None else tp
    if (own.name, own_tp, covers["weight_dtype"]) == (gpu.name, ranks, dtype):
        return profile
    shape = find_model(target or covers["target"])
    here = _analytic(profile, shape, own, own_tp, covers["weight_dtype"])
    there = _analytic(profile, shape, gpu, ranks, dtype)
    return carried(profile, here=here, there=there, families=(gpu_family(own), gpu_family(gpu)))


def _analytic(profile: LatencyProfile, target: ModelShape, gpu: Gpu, tp: int, weight_dtype: str) -> LatencyProfile:
    """The analytic profile of the same models, drafter and engine on some GPU."""
    covers = profile.covers
    method = covers["method"]
    engine = next((name for name, it in ENGINES.items() if covers.get("engine", "").startswith(it.title)), "vllm")
    options = {
        option: _whole(profile, key)
        for option, key in (("layers", "draft_layers"), ("heads", "draft_heads"))
        if key in covers
    }
    own_tp = _whole(profile, "tp")
    draft_tp = _whole(profile, "draft_tp") if "draft_tp" in covers else own_tp
    # a drafter that is split like the target stays so
    ranks = tp if draft_tp == own_tp else min(draft_tp, tp)
    own = profile.draft is not None and drafter(method).loads != "layers"
    return analytic_profile(
        target, gpu, tp=tp, weight_dtype=_single(weight_dtype), kv_dtype=covers["kv_dtype"],
        draft=_draft(profile, target, options), method=method, options=options,
        draft_tp=ranks if own else None,
        draft_weight_dtype=covers.get("draft_weight_dtype") if own else None,
        draft_kv_dtype=covers.get("draft_kv_dtype") if own else None,
        engine=engine, factors=factors_for(engine),
    )  # fmt: skip


def _whole(profile: LatencyProfile, key: str) -> int:
    """A whole number >= 1 that the profile covers.

    Raises:
        ProfileError: it is none.
    """
    text = profile.covers[key]
    if not re.fullmatch("[1-9][0-9]{0,4}", text):
        raise ProfileError(f"profile '{profile.name}': covers.{key} must be a whole number in 1..99999, is '{text}'; "
                           f"correct it there, or measure again")  # fmt: skip
    return int(text)


def _single(weight_dtype: str) -> str | None:
    """The dtype, or None for a checkpoint that stores experts otherwise (`bf16, experts mxfp4`)."""
    return None if "," in weight_dtype else weight_dtype


def _draft(profile: LatencyProfile, target: ModelShape, options: dict[str, int]) -> ModelShape | None:
    covers = profile.covers
    if profile.draft is None:
        return None
    listed = None if options else known_model(covers.get("draft", ""))
    # a head that the catalogue does not list was derived from the target
    return listed or default_drafter(target, covers["method"], options)
