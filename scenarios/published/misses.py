"""Why published rows come out wrong, by group, as far as it is known.

Leaves out: which rows do; that depends on what is simulated. Numbers: none; the sentences are in `misses.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.lookup import check_keys, packaged_toml
from specsim.errors import CatalogueError

__all__ = ["known_misses"]


def known_misses() -> tuple[Mapping[str, Any], ...]:
    """Groups in the order of the file: `rows`, `why`, and optionally `protocols` and `methods`."""
    found = packaged_toml("misses.toml", folder="published").get("miss", [])
    for number, group in enumerate(found, start=1):
        place = f"misses.toml, group {number}"
        check_keys(group, ("rows", "protocols", "methods", "why"), place)
        if not group.get("rows") or not group.get("why"):
            raise CatalogueError(f"{place}: needs rows and why")
    return tuple(found)
