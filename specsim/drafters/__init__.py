"""Drafters: one file each, that says what it loads, what drafting costs, what is verified and what it keeps.

    from specsim.drafters import drafter
    drafter("EAGLE-3").mode

Leaves out: acceptance (`specsim.acceptance`) and seconds (`specsim.latency`).
"""

from __future__ import annotations

from specsim.drafters.base import Drafter, DraftMode, EngineName, Option, PerDraft, UsualTree
from specsim.drafters.registry import (
    all_drafters,
    drafter,
    find_drafter,
    method_names,
    register,
    unregister,
)

__all__ = [
    "DraftMode",
    "Drafter",
    "EngineName",
    "Option",
    "PerDraft",
    "UsualTree",
    "all_drafters",
    "drafter",
    "find_drafter",
    "method_names",
    "register",
    "unregister",
]
