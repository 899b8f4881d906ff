"""Every drafter by name and by what people call it. To add one: a file in this package, and its name in `_FILES`.

Leaves out: what a drafter is (`specsim.drafters.base`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from specsim.drafters.base import Drafter
from specsim.errors import ScenarioError, nearest

__all__ = ["all_drafters", "drafter", "find_drafter", "method_names", "register", "unregister"]

_FILES = (
    "draft_model",
    "ngram",
    "suffix",
    "retrieval",
    "medusa",
    "eagle",
    "eagle2",
    "eagle3",
    "mtp",
    "p_eagle",
    "pard",
    "dflash",
    "dspark",
    "layer_skip",
    "lookahead",
    "magicdec",
)
"""One line a drafter: the file that defines it as `DRAFTER`."""

_drafters: dict[str, Drafter] = {}
_spellings: dict[str, str] = {}


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def register(new: Drafter) -> Drafter:
    """Make a drafter known by its name and aliases, as a line in `_FILES` does for the files of this package.

    Raises:
        ScenarioError: when a name or alias belongs to another drafter.
    """
    keys = {_key(spelling): spelling for spelling in (new.name, *new.aliases)}
    for key, spelling in keys.items():
        owner = _spellings.get(key)
        if owner is not None or not key:
            raise ScenarioError(f"drafter {new.name}: '{spelling}' already names {owner}; choose another")
    _drafters[new.name] = new
    _spellings.update(dict.fromkeys(keys, new.name))
    return new


def unregister(name: str) -> None:
    """Forget a drafter that was registered at run time.

    Raises:
        ScenarioError: when it is unknown or one of the package's own.
    """
    if name not in _drafters or name in _FILES:
        raise ScenarioError(f"drafter '{name}' was not registered at run time")
    del _drafters[name]
    for key in [key for key, owner in _spellings.items() if owner == name]:
        del _spellings[key]


def find_drafter(spelling: str) -> Drafter | None:
    """The drafter that is called so, None when there is none. Case, spaces, punctuation and a remark in parentheses do
    not matter: `EAGLE-3`, `eagle3` and `EAGLE 3 (k=3)` are the same."""
    for text in (spelling, re.sub(r"\([^)]*\)", " ", spelling)):
        owner = _spellings.get(_key(text))
        if owner is not None:
            return _drafters[owner]
    return None


def drafter(spelling: str) -> Drafter:
    """The drafter that is called so; see `find_drafter`.

    Raises:
        ScenarioError: when there is none, with the nearest name.
    """
    found = find_drafter(spelling)
    if found is None:
        shown = "".join(char if char.isprintable() else "?" for char in spelling)[:80]
        raise ScenarioError(
            f"method '{shown}' is not one of {', '.join(_drafters)}{nearest(shown.replace('-', '_'), _drafters)}"
        )
    return found


def method_names() -> tuple[str, ...]:
    """Names of all drafters, in the order of the registry."""
    return tuple(_drafters)


def all_drafters() -> Mapping[str, Drafter]:
    """Every drafter by name (read only), in the order of the registry."""
    return MappingProxyType(_drafters)


for _file in _FILES:
    register(import_module(f"specsim.drafters.{_file}").DRAFTER)
