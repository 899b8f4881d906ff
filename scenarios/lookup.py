"""Reading of catalogue files, shared by GPUs and models: checked TOML tables in, names found however they are spelt.

Leaves out: the meaning of any field, which belongs to `hardware` and `models`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from specsim.errors import CatalogueError, nearest

__all__ = ["NameIndex", "check_keys", "name_key", "one_line", "packaged_toml"]


def packaged_toml(name: str, *, folder: str = "catalogue") -> dict[str, Any]:
    """The parsed file `name` of the packaged catalogue, or of another packaged folder."""
    return tomllib.loads(files("scenarios").joinpath(folder, name).read_text(encoding="utf-8"))


def check_keys(entry: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    """Raise `CatalogueError` naming the first key of `entry` that is not in `known`, with the nearest right one."""
    names = list(known)
    for key in entry:
        if key not in names:
            raise CatalogueError(f"{place}: unknown key '{key}'{nearest(key, names)}")


def name_key(name: str) -> str:
    """Spelling-insensitive form of a name: letters and digits only, lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def one_line(text: str) -> str:
    """`text` as a message may show it: 80 printable characters at most."""
    clean = "".join(char if char.isprintable() else "?" for char in text)
    return clean if len(clean) <= 80 else clean[:77] + "..."


class NameIndex:
    """Canonical names by any spelling of themselves or of their aliases.

    Raises:
        CatalogueError: when two entries claim the same spelling.
    """

    def __init__(self, kind: str, names: Mapping[str, Iterable[str]]) -> None:
        self._by_key: dict[str, str] = {}
        self._by_spelling: dict[str, str] = {}
        for name, aliases in names.items():
            for spelling in (name, *aliases):
                owner = self._by_key.setdefault(name_key(spelling), name)
                if owner != name:
                    raise CatalogueError(f"{kind} catalogue: '{spelling}' names both {owner} and {name}")
                self._by_spelling[spelling.lower()] = name

    def get(self, name: str) -> str | None:
        """The canonical name, or None when no entry is spelt like `name`."""
        return self._by_key.get(name_key(name))

    def suggestion(self, name: str) -> str:
        """`" (did you mean 'x'?)"` for the entry spelt most like `name`, or an empty string."""
        close = difflib.get_close_matches(name.lower().strip(), self._by_spelling, n=1, cutoff=0.6)
        return f" (did you mean '{self._by_spelling[close[0]]}'?)" if close else ""
