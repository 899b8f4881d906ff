"""One run from a scenario file and the flags over it, as `simulate` and every point of `sweep` make it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specsim.cli.profile_input import StoredProfiles, profile_fills_in
from specsim.cli.scenario_input import overruled_workload
from specsim.cli.scenario_options import deployment_from, slo_from, speculation_from

if TYPE_CHECKING:
    from scenarios.loader import ScenarioFile
    from specsim.config import PolicySpec, Speculation

__all__ = ["chosen_policy", "grown", "overruled"]


def overruled(
    item: ScenarioFile, values: dict[str, Any], seed: int | None, *, command: str, kept: StoredProfiles
) -> ScenarioFile:
    """The scenario with every flag that was given laid over it; they are taken out of `values`.

    Raises:
        InputError: a value out of range, a combination that makes no sense, or a flag that does nothing here.
    """
    profile_fills_in(values, kept)
    changes: dict[str, Any] = {}
    if seed is not None:
        changes["seed"] = seed
    warmup = values.pop("warmup_share")
    if warmup is not None:
        changes["warmup_share"] = warmup
    if values.get("trace") not in (None, "-"):
        values["trace"] = os.path.abspath(os.path.expanduser(values["trace"]))
    return replace(
        item,
        deployment=deployment_from(values, item.deployment),
        speculation=speculation_from(values, item.speculation),
        slo=slo_from(values, item.slo),
        plan=replace(item.plan, **changes),
        workload=overruled_workload(item.workload, values, place=str(item.path), command=command),
    )


def grown(speculation: Speculation, policy: PolicySpec) -> Speculation:
    """The speculation whose tree, where one is grown, is grown for the depth that is run."""
    if policy.num_spec_tokens and speculation.has_tree and not speculation.static_levels:
        return replace(speculation, num_spec_tokens=(policy.num_spec_tokens,))
    return speculation


def chosen_policy(item: ScenarioFile, text: str | None, *, command: str) -> tuple[PolicySpec, tuple[str, ...]]:
    """The policy of the flag, of the file, or static at the k nearest to 3; and what is assumed.

    Raises:
        ScenarioError: the file has several.
    """
    from specsim.config import PolicySpec
    from specsim.policies import parse_policy

    if text is not None:
        return parse_policy(text), ()
    if len(item.policies) > 1:
        from specsim.errors import ScenarioError

        labels = ", ".join(policy.label for policy in item.policies)
        what = (
            "simulate runs one: name it"
            if command == "simulate"
            else "they are no grid: give --grid policy=A;B, or one"
        )
        raise ScenarioError(f"{item.path}: has several policies ({labels}), and {what} with --policy")
    if item.policies:
        return item.policies[0], ()
    k = min(item.speculation.num_spec_tokens, key=lambda k: (abs(k - 3), k))
    return PolicySpec("static", k), (f"No policy is given: static k={k} is assumed.",)
