"""Policies of a scenario file: a table, a text as the command line writes it, or a list of either; and back to TOML.

Models: `[policy]` with a kind, the fields that this kind uses and its settings, all in one flat table; `[[policy]]` for
several; `policy = "ema:5"` or `policy = ["static:3", "ema:5"]` above the first table of the file.
Leaves out: ranges and combinations, which the records check. Numbers: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scenarios.lookup import one_line
from scenarios.schema import keys_of, read_record, write_record
from specsim.errors import ScenarioError, nearest
from specsim.policies import KINDS, PolicyKind, PolicySpec, parse_policy

__all__ = ["policy_keys", "read_policies", "write_policies"]


def policy_keys(kind: PolicyKind) -> tuple[str, ...]:
    """Keys of a `[policy]` table of this kind."""
    settings = () if kind.settings is None else tuple(key.name for key in keys_of(kind.settings))
    return ("kind", *kind.uses, *settings)


def read_policies(value: Any, place: str) -> tuple[PolicySpec, ...]:
    """The policies that `policy` of a file says, in order; `place` names the file.

    Raises:
        ScenarioError: one line: the file, the key, the value, the way out.
    """
    if isinstance(value, list):
        if not value:
            raise ScenarioError(f"{place}: policy is an empty list; give at least one, or leave it out")
        found = tuple(_one(item, f"{place}: policy", f" {n + 1}") for n, item in enumerate(value))
    else:
        found = (_one(value, f"{place}: policy", ""),)
    labels = [policy.label for policy in found]
    for label in labels:
        if labels.count(label) > 1:
            raise ScenarioError(f"{place}: policy '{label}' stands there twice; leave one out")
    return found


def _one(value: Any, place: str, which: str) -> PolicySpec:
    if isinstance(value, str):
        try:
            return parse_policy(value)
        except ScenarioError as error:
            raise ScenarioError(f"{place}{which}: {error}") from None
    if not isinstance(value, Mapping):
        raise ScenarioError(f"{place}{which} must be a table of keys or a text such as 'static:3'")
    names = ", ".join(KINDS)
    if "kind" not in value:
        raise ScenarioError(f"{place}{which}.kind is missing; give one of {names}")
    kind = KINDS.get(value["kind"]) if isinstance(value["kind"], str) else None
    if kind is None:
        said = one_line(repr(value["kind"]))
        raise ScenarioError(f"{place}{which}.kind: {said} is not one of {names}{nearest(str(value['kind']), KINDS)}")
    keys = policy_keys(kind)
    for key in value:
        if key not in keys:
            raise ScenarioError(
                f"{place}{which}.{one_line(key)}: kind '{kind.name}' has no such key{nearest(key, keys)}; its keys are "
                f"{', '.join(keys)}"
            )
    own = {key.name for key in keys_of(PolicySpec)}
    settings: Any = None
    if kind.settings is not None:
        chosen = {key: item for key, item in value.items() if key not in own}
        settings = read_record(kind.settings, chosen, f"{place}{which}")
    rest = {key: item for key, item in value.items() if key in own}
    found = read_record(PolicySpec, rest, f"{place}{which}", extra={"settings": settings})
    if "num_spec_tokens" in kind.uses and "num_spec_tokens" not in value:
        raise ScenarioError(f"{place}{which}.num_spec_tokens is missing; say how many drafts kind '{kind.name}' makes")
    return found


def write_policies(policies: Sequence[PolicySpec]) -> list[str]:
    """One `[policy]` table, or several `[[policy]]`, from which `read_policies` gives back equal policies."""
    head = "[policy]" if len(policies) == 1 else "[[policy]]"
    return ["\n".join([head, *_lines(policy)]) for policy in policies]


def _lines(policy: PolicySpec) -> list[str]:
    settings = [] if policy.settings is None else write_record(policy.settings)
    lines = write_record(policy)
    if not policy.num_spec_tokens and "num_spec_tokens" in KINDS[policy.kind].uses:
        lines.append("num_spec_tokens = 0")
    return [*lines, *settings]
