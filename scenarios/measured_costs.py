"""A deployment whose step times come from a latency profile: what the profile must agree with, and its two sides.

Leaves out: memory, which is planned from shapes as always; on a device that the catalogue does not list, from what the
profile measured of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from scenarios.hardware import gpu as find_gpu
from scenarios.models import model as find_model
from scenarios.models import named_like
from scenarios.profiles import load_profile, profile_names
from specsim.config import Deployment, Speculation
from specsim.errors import CatalogueError, ProfileError
from specsim.profiles import LatencyProfile
from specsim.shapes import Gpu

__all__ = ["deployment_of", "gpu_of", "profile_of", "sides"]


def profile_of(deployment: Deployment, folder: Path) -> LatencyProfile | None:
    """The profile that a deployment names; None: it names none.

    Raises:
        ProfileError: see `scenarios.profiles.load_profile`.
    """
    if deployment.profile is None:
        return None
    if deployment.profile in profile_names():
        return load_profile(deployment.profile)
    return load_profile(str(folder / Path(deployment.profile).expanduser()))


def deployment_of(profile: LatencyProfile) -> dict[str, str | int]:
    """What a profile was measured for, as fields of `Deployment` and `Speculation` (method, draft)."""
    covers = profile.covers
    found: dict[str, str | int] = {
        name: covers[name]
        for name in ("target", "gpu", "weight_dtype", "kv_dtype", "method", "draft")
        if name in covers
    }
    if covers.get("method") == "none":
        del found["method"]
    derived = {"draft_layers", "draft_heads"} & set(covers)
    if derived or covers.get("draft", "").startswith("first "):
        found.pop("draft", None)
    if covers.get("tp", "").isdecimal():
        found["tp"] = int(covers["tp"])
    return found


def gpu_of(profile: LatencyProfile, wanted: str) -> Gpu:
    """The device of a deployment: that of the catalogue, or, where it lists none of the name, the one measured.

    Raises:
        ProfileError: the profile is of another device, or says too little of its own.
    """
    own = profile.covers.get("gpu", "")
    try:
        device = find_gpu(own)
    except CatalogueError:
        if wanted != own:
            raise ProfileError(
                f"deployment.gpu '{wanted}': the profile was measured on '{own}'; write that, or leave --gpu out"
            ) from None
        return _measured_device(profile, own)
    if find_gpu(wanted).name != device.name:
        raise ProfileError(
            f"deployment.gpu '{wanted}': the profile is of {device.name}; give that one, or carry it over with specsim "
            f"profile transfer"
        )
    return device


def _measured_device(profile: LatencyProfile, name: str) -> Gpu:
    ceilings: Mapping[str, float] = {} if profile.evidence is None else profile.evidence.ceilings
    lacking = {"memory_bytes", "copy_bytes_per_s", "matrix_flops_per_s"} - set(ceilings)
    if lacking:
        raise ProfileError(
            f"the profile's device '{name}' is not in the catalogue, and it says no {', '.join(sorted(lacking))}"
            f"; measure again, or name a GPU of the catalogue in its covers"
        )
    return Gpu(
        name=name,
        memory_bytes=ceilings["memory_bytes"],
        bandwidth_bytes_per_s=ceilings["copy_bytes_per_s"],
        flops_per_s={"bf16": ceilings["matrix_flops_per_s"]},
        link_bytes_per_s=ceilings["copy_bytes_per_s"],
        tdp_w=1.0,
        max_tp=1,
        source="measured with the profile",
        doubtful=("tdp_w",),
    )


def _target_name(wanted: str, measured: str | None) -> str:
    """What a profile would call a deployment's target: a model that the catalogue lacks is named by its folder."""
    shape = find_model(wanted)
    names = (shape.name, shape.name.removesuffix("/config.json"), named_like(shape))
    return shape.name if measured not in names else str(measured)


def sides(profile: LatencyProfile, deployment: Deployment, speculation: Speculation) -> tuple[LatencyProfile, ...]:
    """(profile without speculation, profile with it).

    Raises:
        ProfileError: the deployment or the method is not what was measured, with both.
    """
    covers = profile.covers
    checks = {
        "target": (_target_name(deployment.target, covers.get("target")), covers.get("target")),
        "tp": (str(deployment.tp), covers.get("tp")),
        "weight_dtype": (deployment.weight_dtype or covers.get("weight_dtype"), covers.get("weight_dtype")),
        "kv_dtype": (deployment.kv_dtype, covers.get("kv_dtype")),
        "method": (speculation.method, covers.get("method")),
    }
    for name, (asked, measured) in checks.items():
        if measured is not None and asked != measured:
            raise ProfileError(
                f"{'speculation' if name == 'method' else 'deployment'}.{name} '{asked}': the profile was measured for "
                f"'{measured}'; give that, or another profile"
            )
    if deployment.max_captured is not None or deployment.async_scheduling:
        given = "max_captured" if deployment.max_captured is not None else "async_scheduling"
        raise ProfileError(f"deployment.{given} is part of what was measured; leave it out beside a profile")
    off = replace(
        profile,
        name=f"{profile.name}, off",
        draft=None,
        draft_mode="none",
        verify_skip_share=0.0,
        at_zero_drafts="skipped",
    )
    return off, profile
