"""Short, unambiguous headings for policies whose labels are too long for a table, and what they stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

__all__ = ["headings", "legend"]

_FITS = 12
_OWN = ("schedule", "adaptive")
"""Headings of the planner's own policies, which section 4 of its report explains."""


def headings(labels: Sequence[str]) -> dict[str, str]:
    """Label -> heading of at most about 12 characters; different labels, different headings."""
    words = {label: label if _is_short(label) else label.split(" ")[0].split("<")[0] for label in labels}
    times = Counter(words.values())
    found: dict[str, str] = {}
    for label in labels:
        word = words[label]
        if times[word] == 1:
            found[label] = word
        elif len(label) <= _FITS and label not in found.values():
            found[label] = label
        else:
            numbers = (f"{word} #{n}" for n in range(1, len(labels) + 1))
            found[label] = next(name for name in numbers if name not in found.values())
    return found


def legend(names: Mapping[str, str]) -> str:
    """What the headings stand for, as one sentence; empty where they say it themselves."""
    said = [f"{name} is '{label}'" for label, name in names.items() if name not in (label, *_OWN)]
    return "" if not said else "; ".join(said) + "."


def _is_short(label: str) -> bool:
    return label.startswith("k=") and len(label) <= _FITS
