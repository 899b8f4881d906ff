"""Ready flags for the engine of a deployment, and what that engine cannot do of what the plan says.

Leaves out: whether the flags of another version are the same; each module says which version it was read from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from specsim.config import PolicySpec
from specsim.engine.pools import prefill_policy
from specsim.errors import ScenarioError
from specsim.planner.flags import llamacpp, sglang, trtllm, vllm
from specsim.planner.flags.base import Flags, Role
from specsim.planner.question import Question

__all__ = ["ENGINES", "engine_config"]

ENGINES: Mapping[str, Callable[[Question, PolicySpec, str | None, Role | None], Flags]] = MappingProxyType(
    {"vllm": vllm.flags, "sglang": sglang.flags, "trtllm": trtllm.flags, "llamacpp": llamacpp.flags}
)
"""Engine -> what writes its flags."""


def engine_config(
    question: Question,
    policy: PolicySpec,
    *,
    alternatives: Sequence[PolicySpec] = (),
    engine: str | None = None,
    version: str | None = None,
) -> dict[str, Any]:
    """Command line, speculative config and files that make an engine follow `policy`, with warnings.

    `alternatives` are policies that would do as well; each adds its own speculative config and command. `engine` None:
    that of the deployment; `version` None: that of the deployment, or the one that was read.

    Raises:
        ScenarioError: for an engine whose flags are not known.
    """
    name = engine or question.deployment.engine
    if name == "static":
        return _nothing(question, policy)
    if name not in ENGINES:
        raise ScenarioError(f"no flags are known for engine '{name}'; there are some for {', '.join(ENGINES)}")
    role: Role | None = "decode" if question.deployment.is_disaggregated else None
    found = ENGINES[name](question, policy, version, role)
    before = None
    if role is not None:
        filling = prefill_policy(policy, question.side(policy).cost)
        before = ENGINES[name](question, filling, version, "prefill")
    return {
        "engine": name,
        "engine_version": found.version,
        "policy": policy.label,
        "command": found.command,
        "speculative_config": found.speculative,
        "files": dict(found.files) if before is None else {**before.files, **found.files},
        "prefill_command": None if before is None else before.command,
        "graphs": found.graphs,
        "admission": found.admission,
        "warnings": list(dict.fromkeys((*found.warnings, *(before.warnings if before else ())))),
        "alternatives": [
            {
                "policy": other.label,
                "command": flags.command,
                "speculative_config": flags.speculative,
                "files": dict(flags.files),
            }
            for other, flags in ((other, ENGINES[name](question, other, version, role)) for other in alternatives)
        ],
    }


def _nothing(question: Question, policy: PolicySpec) -> dict[str, Any]:
    """Static batching is a baseline, not an engine."""
    return {
        "engine": "static",
        "engine_version": question.deployment.version,
        "policy": policy.label,
        "command": "",
        "speculative_config": None,
        "files": {},
        "prefill_command": None,
        "graphs": "",
        "admission": "",
        "warnings": ["Static batching is a baseline to compare with: no engine is meant, so there are no flags."],
        "alternatives": [],
    }
