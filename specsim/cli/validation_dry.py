"""`specsim validate serve --dry-run`: what would be done and for how long; no weights are read and nothing is measured.

Models: runs and the measurement of acceptance on the profile's clock, with published acceptance where one would be
measured. Leaves out: loading and warming up. Numbers: the profile, and the catalogue's acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specsim.cli.doubts import say_doubts
from specsim.cli.validation_input import Asked, asked, minutes_said, runs_said

if TYPE_CHECKING:
    from specsim.planner.question import Question

__all__ = ["planned"]

_AT_A_TIME = 16
"""Requests that acceptance is measured on at a time, at most."""


def planned(values: Mapping[str, Any], *, say: Callable[[str], None]) -> dict[str, Any]:
    """Say what would be done; the same as a JSON object.

    Raises:
        ScenarioError, ProfileError, CatalogueError, TraceError: see `specsim.cli.validation_input.asked`.
    """
    from calibrate.latency.job import Model, check_vocabularies
    from calibrate.validation.runs import predicted_s

    given = asked(values, to_load=False)
    if isinstance(given.draft, Model) and not any(str(m.source).endswith(".gguf") for m in (given.target, given.draft)):
        check_vocabularies(given.target, given.draft)
    say_doubts([given.question])
    for check in given.checks:
        if check not in given.question.doubts:
            say(check)
    drafter = given.draft.name if given.draft is not None else ""
    loaded = f"{given.target.name} and {drafter}" if drafter else given.target.name
    say(f"would load {loaded} in {given.dtype} on {given.device.name}, and serve {len(given.trace)} requests")
    question, measuring_s = given.question, None
    if given.measures_acceptance:
        question, measuring_s = _published(given), _measuring_s(given)
        k = values["k"]
        say(
            f"acceptance would be measured first, on {values['acceptance_prompts']} other prompts: about "
            f"{minutes_said(measuring_s)} by the profile's clock; times below take "
            f"{question.acceptance.expected_length(k):.2f} tokens a round at k={k} ({question.acceptance_source})"
        )
    world = given.world(question)
    say(runs_said(world))
    say(f"arms: {', '.join(policy.label for policy in world.policies)}; loads: "
        f"{', '.join(load.label for load in world.loads)}; nothing was loaded, measured or served")  # fmt: skip
    return {
        "dry_run": True,
        "target": given.target.name,
        "draft": drafter or None,
        "method": given.method,
        "device": given.device.name,
        "dtype": given.dtype,
        "requests": len(given.trace),
        "policies": [policy.label for policy in world.policies],
        "loads": [load.label for load in world.loads],
        "repeats": world.repeats,
        "runs": world.repeats * len(world.loads) * len(world.policies),
        "runs_s": predicted_s(world),
        "measures_acceptance": given.measures_acceptance,
        "measuring_s": measuring_s,
        "acceptance": None if given.method == "none" else question.acceptance_source,
        "checks": list(given.checks),
    }


def _published(given: Asked) -> Question:
    """The question with what is published of the method, which stands in until acceptance is measured."""
    from scenarios.acceptance import default_acceptance
    from specsim.errors import ScenarioError

    try:
        model, said = default_acceptance(given.method, given.target.name, None)
    except ScenarioError:
        return replace(given.question, acceptance_source="assumed, since nothing is published of the method")
    return replace(given.question, acceptance=model, acceptance_source=said)


def _measuring_s(given: Asked) -> float:
    """Seconds of measuring acceptance: drafts are made in every step, and none of them is verified to count."""
    import numpy as np

    from specsim.acceptance import PerPosition
    from specsim.config import PolicySpec
    from specsim.engine.simulator import simulate
    from specsim.traces.model import Trace
    from specsim.workload import Workload

    trace, count = given.trace, given.values["acceptance_prompts"]
    which = np.arange(count) % len(trace)
    other = Trace(
        arrival_s=np.zeros(count), prompt_tokens=trace.prompt_tokens[which],
        output_tokens=trace.output_tokens[which], meta=trace.meta,
    )  # fmt: skip
    side = given.question.on
    found = simulate(
        Workload(other, PerPosition((0.0,)), seed=given.values["seed"]), side.cost, limits=side.limits,
        policy=PolicySpec("static", given.values["k"]), concurrency=min(count, _AT_A_TIME),
    )  # fmt: skip
    return float(found.end_s)
