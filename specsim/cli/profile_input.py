"""`--profile`: the deployment that a profile was measured for stands in for every flag that is not given."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["profile_fills_in"]

_FLAGS = {"target": "target", "gpu": "gpu", "tp": "tp", "weight_dtype": "weight_dtype", "kv_dtype": "kv_dtype",
          "method": "method", "draft": "draft"}  # fmt: skip
"""Field that a profile covers -> name of the click argument."""


def profile_fills_in(values: dict[str, Any]) -> None:
    """Complete the flags of a command from `--profile`, if it is there; a file's path is made to start at the working
    directory.

    Raises:
        ProfileError: there is no such profile, or it is malformed.
    """
    name = values.get("profile")
    if name is None:
        return
    from scenarios.measured_costs import deployment_of
    from scenarios.profiles import load_profile, profile_names

    profile = load_profile(name)
    if name not in profile_names() or os.path.isfile(name):
        values["profile"] = os.path.abspath(os.path.expanduser(name))
    for field, value in deployment_of(profile).items():
        if values.get(_FLAGS[field]) is None:
            values[_FLAGS[field]] = value
    layers = profile.covers.get("draft_layers")
    if layers and values.get("method") == profile.covers.get("method") and not values.get("draft_option"):
        values["draft_option"] = (f"layers={layers}",)
