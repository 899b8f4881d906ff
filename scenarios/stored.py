"""A question from the inputs of a stored plan: what was deployed, how it speculated, which policies were compared.

Leaves out: the acceptance model, of which only the acceptance by position is kept with a result; engine flags need no
more of it than the shape of a tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from scenarios.resolve import resolve
from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.errors import InputError, ScenarioError
from specsim.planner.question import Question
from specsim.policies import kind_of
from specsim.profiles import LatencyProfile

__all__ = ["stored_policies", "stored_question"]

_Record = TypeVar("_Record")
_FIGURES = (
    "acceptance", "acceptance_length", "acceptance_length_k", "acceptance_file", "acceptance_drafter",
    "acceptance_model", "task", "temperature", "draft_sampling",
)  # fmt: skip
"""Fields of a speculation that only decide its acceptance, or need the figures that do."""


def stored_question(
    inputs: Mapping[str, Any], result: Mapping[str, Any], *, profile: LatencyProfile | None = None
) -> Question:
    """The question of a plan, from its `inputs` and JSON `result` as the database gives them.

    `profile`: its measured step times as they were stored with it; None: from where the deployment names them.

    Raises:
        ScenarioError: it was stored by a version whose fields are not those of this one, or a file that it names has
            gone or changed.
    """
    plan = result.get("plan_id", "the plan")
    deployment = _record(Deployment, inputs, "deployment", plan)
    # of the result, since inputs leave the path of measured requests out
    speculation = _record(Speculation, result["deployment"], "speculation", plan)
    conditional = tuple(result["profile"]["acceptance"]["conditional"])
    known: dict[str, Any] = {**dict.fromkeys(_FIGURES), "acceptance": conditional}
    try:
        slo = _record(Slo, inputs, "slo", plan)
        question = resolve(deployment, replace(speculation, **known), slo, profile=profile)
    except InputError as error:
        raise ScenarioError(f"{plan} cannot be set up again: {error}") from error
    return replace(question, speculation=speculation)


def stored_policies(inputs: Mapping[str, Any], plan: str) -> dict[str, PolicySpec]:
    """The policies that were compared, by label, in the order of the plan.

    Raises:
        ScenarioError: one of them is unknown to this version.
    """
    found = {}
    for item in inputs["policies"]:
        kind = kind_of(item["kind"])
        settings = item["settings"]
        if settings is not None and kind.settings is not None:
            settings = _made(kind.settings, settings, f"policy {kind.name}", plan)
        policy = _made(PolicySpec, {**item, "settings": settings}, "policy", plan)
        found[policy.label] = policy
    return found


def _record(record: type[_Record], inputs: Mapping[str, Any], name: str, plan: str) -> _Record:
    if not isinstance(inputs.get(name), Mapping):
        raise ScenarioError(f"{plan} holds no {name}; run the plan again")
    return _made(record, inputs[name], name, plan)


def _made(record: type[_Record], values: Mapping[str, Any], name: str, plan: str) -> _Record:
    """A record from its JSON form, in which tuples are lists."""
    unknown = sorted(set(values) - {field.name for field in fields(record)})  # type: ignore[arg-type]
    if unknown:
        raise ScenarioError(
            f"{plan}: {name}.{unknown[0]} is not known to this version of specsim; run the plan again with it"
        )
    return record(**{key: _tuples(value) for key, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
