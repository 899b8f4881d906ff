"""Versions of engines, as far as flags depend on them.

Models: numbers with dots, and what comes before a release (a, b, rc, dev). Leaves out: anything else, such as build
numbers of llama.cpp, which have no order against its dates; those compare as the version that was read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Version", "version_of"]

_FORM = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.-]?(a|b|rc|dev)(\d*))?(?:[.+-].*)?\Z")
_PARTS = 3


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version that has an order."""

    numbers: tuple[int, ...]
    """Release numbers, filled up with zeros."""
    is_release: bool = True
    """False before the release of those numbers, which is older."""
    number: int = 0
    """Of the candidate."""


def version_of(text: str) -> Version | None:
    """The version of a text such as `0.33.0` or `1.3.0rc27`; None for one that has no order."""
    found = _FORM.match(text.strip().lower())
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    numbers += [0] * (_PARTS - len(numbers))
    return Version(tuple(numbers), found[2] is None, int(found[3] or 0) if found[2] else 0)
