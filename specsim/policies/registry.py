"""Every kind of policy, by name: a new one is its own module and one line here.

Models: nothing. Leaves out: nothing. Numbers: none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from specsim.errors import ScenarioError, nearest
from specsim.policies import budget, context, ema, gate, goodput, off, off_above, schedule, static, trt_gate
from specsim.policies.base import EngineView, Policy
from specsim.policies.kind import PolicyKind
from specsim.policies.spec import PolicySpec
from specsim.policies.spellings import SPELLINGS

__all__ = ["KINDS", "kind_of", "make_policy", "parse_policy"]

KINDS: Mapping[str, PolicyKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            off.KIND,
            static.KIND,
            schedule.KIND,
            off_above.KIND,
            context.KIND,
            goodput.KIND,
            budget.KIND,
            ema.KIND,
            gate.KIND,
            trt_gate.KIND,
        )
    }
)
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
