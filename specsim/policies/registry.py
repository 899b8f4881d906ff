"""Every kind of policy, by name: a new one is its own module and one line here (docs/guides/add-a-policy.md).

Models: nothing. Leaves out: nothing. Numbers: none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from specsim.errors import ScenarioError, nearest
from specsim.policies.base import EngineView, Policy
from specsim.policies.kind import PolicyKind
from specsim.policies.spec import PolicySpec
from specsim.policies.spellings import SPELLINGS

__all__ = ["KINDS", "kind_of", "make_policy", "parse_policy", "register", "unregister"]

_FILES = (
    "off",
    "static",
    "schedule",
    "off_above",
    "context",
    "goodput",
    "budget",
    "ema",
    "gate",
    "trt_gate",
)
"""Modules of this package, each with a KIND, in the order of the reference."""

_kinds: dict[str, PolicyKind] = {}
KINDS: Mapping[str, PolicyKind] = MappingProxyType(_kinds)
"""Name -> kind, in the order of the reference."""

_OPTION = re.compile(r"[a-z_]+=")


def kind_of(name: str) -> PolicyKind:
    """The kind of that name.

    Raises:
        ScenarioError: there is none.
    """
    kind = KINDS.get(name)
    if kind is None:
        raise ScenarioError(f"policy.kind '{name}' is unknown{nearest(str(name), KINDS)}; kinds are {', '.join(KINDS)}")
    return kind


def make_policy(spec: PolicySpec, view: EngineView | None = None) -> Policy:
    """A rule for one replica, with a memory of its own.

    Raises:
        ScenarioError: the kind needs costs or acceptance that `view` does not have.
    """
    return kind_of(spec.kind).make(spec, view or EngineView())


def parse_policy(text: str) -> PolicySpec:
    """A policy as the command line writes it: `off`, `static:3`, `schedule:1-16=5,17-512=0`, `off_above:3:64`, ...;
    any setting of its kind may follow as `:name=value`. `SPELLINGS` are understood too.

    Raises:
        ScenarioError: an unknown kind or setting, or figures that do not fit it.
    """
    name, *parts = text.strip().split(":")
    name = name.lower().replace("-", "_")
    if name in SPELLINGS:
        other = SPELLINGS[name]
        try:
            return other.read(parts)
        except ValueError:
            raise ScenarioError(f"policy {text!r} must be {other.spelling}, e.g. {other.example}") from None
    kind = KINDS.get(name)
    if kind is None:
        known = ", ".join(kind.spelling for kind in KINDS.values())
        raise ScenarioError(f"policy {text!r}: unknown kind{nearest(name, [*KINDS, *SPELLINGS])}; one of {known}")
    options: dict[str, str] = {}
    while parts and _OPTION.match(parts[-1]):
        option, _, value = parts.pop().partition("=")
        if option in options:
            raise ScenarioError(f"policy {text!r} sets {option} twice; give it once")
        options[option] = value
    try:
        return kind.parse(parts, options)
    except ValueError:
        raise ScenarioError(f"policy {text!r} must be {kind.spelling}, e.g. {kind.example}") from None


def register(kind: PolicyKind) -> PolicyKind:
    """Add a kind at run time; the kind itself.

    Raises:
        ScenarioError: its name is taken or no name, its settings lack a default, or its own example is not read as it.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", kind.name):
        raise ScenarioError(f"policy kind {kind.name!r}: a name is lower-case letters, digits and underscores")
    if kind.name in _kinds or kind.name in SPELLINGS:
        raise ScenarioError(f"policy kind '{kind.name}' is there already; choose another name")
    _kinds[kind.name] = kind
    try:
        read = parse_policy(kind.example).kind
        if read != kind.name:
            raise ScenarioError(f"policy kind '{kind.name}': its example {kind.example!r} is a policy {read}")
    except Exception:
        del _kinds[kind.name]
        raise
    return kind


def unregister(name: str) -> None:
    """Take back what `register` added.

    Raises:
        ScenarioError: the kind belongs to specsim, or there is none.
    """
    if name in _FILES or name not in _kinds:
        raise ScenarioError(f"policy kind '{name}' was not registered at run time")
    del _kinds[name]


for _name in _FILES:
    register(import_module(f"specsim.policies.{_name}").KIND)
