"""Sentences, tables and JSON of a plan over made-up points: they agree with one another, whatever the points are."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from builders import make_limits, make_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_tables import make_question

from specsim.config import PolicySpec
from specsim.planner.plan import PlanJob, answer, prepare
from specsim.planner.question import PlanSettings
from specsim.report.plan import plan_text

LOADS = (1.0, 2.0, 4.0, 8.0)


@cache
def job() -> PlanJob:
    trace = make_trace(arrival_s=np.arange(60) * 0.5, prompt_tokens=200, output_tokens=20)
    question = make_question(limits=make_limits(max_num_seqs=16))
    return prepare(question, trace, PlanSettings(replications=3, max_requests=60, loads_per_s=LOADS, jobs=1))


def points(times: dict[tuple[str, float], list[float | None]], share: float) -> dict[Any, dict[str, Any]]:
    found = {}
    for batch in job().batches():
        for load in batch.loads_per_s:
            value = times[batch.policy.label, load][batch.stretch.index]
            key = (batch.policy.label, load, batch.stretch.index, batch.acceptance_change)
            found[key] = {
                "e2e_mean_s": value, "tpot_mean_s": value, "slo_share": share, "rejected": 0, "running_batch": 3.0,
                "served_requests_per_s": load, "offered_requests_per_s": load, "utilisation": 0.5,
            }  # fmt: skip
    return found


@st.composite
def made_up(draw: st.DrawFn) -> tuple[dict[tuple[str, float], list[float | None]], float]:
    value = st.one_of(st.floats(0.2, 5.0), st.none()) if draw(st.booleans()) else st.floats(0.2, 5.0)
    times = {}
    for policy in job().policies:
        base = draw(st.floats(0.2, 5.0))
        for load in job().loads_per_s:
            if draw(st.booleans()):
                times[policy.label, load] = [base * x for x in (0.999, 1.0, 1.001)]
            else:
                times[policy.label, load] = [draw(value) for _ in range(3)]
    return times, draw(st.floats(0.0, 1.0))


def verdicts(result: dict[str, Any], policy: str) -> dict[float, str]:
    return {row["load_per_s"]: row["verdict"] for row in result["comparison"] if row["policy"] == policy}


@given(made_up())
@settings(max_examples=20, derandomize=True, deadline=None)
def test_sentences_agree_with_the_table(made: tuple[dict[tuple[str, float], list[float | None]], float]) -> None:
    times, share = made
    result = answer(job(), job().trace, points(times, share))
    json.dumps(result, allow_nan=False)
    own = job().own_per_s
    said = result["recommendation"]
    first, second = said["text"][:2]
    compared = verdicts(result, said["compared_policy"])
    if first.startswith("Turn speculation on with"):
        assert said["policy"] in first
        assert said["e2e_speedup"]["low"] > 1
        assert compared[own] == "faster"
    else:
        assert said["policy"] == "off"
    if first.startswith("Leave speculation off"):
        assert compared[own] == "slower"
    if "no separable difference" in first or "No answer" in first:
        assert compared[own] in ("tie", "unknown")
        assert said["confidence"] == "unsure"
    seen = set(compared.values())
    if "at every load" in second:
        assert seen - {"unknown"} == {"faster"}
    if "at no load simulated, from" in second:
        assert seen - {"unknown"} == {"slower"}
    if "stops paying" in second or "begins to pay" in second:
        assert {"faster", "slower"} <= seen
    text = plan_text(result, full=True)
    assert not [line for line in text.splitlines() if len(line) > 100 and not line.startswith("vllm serve")]
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", text)
    assert "…" not in text, "nothing is cut off"


def test_an_objective_that_is_missed_is_a_warning() -> None:
    times = {(p.label, load): [1.0, 1.0, 1.0] for p in job().policies for load in job().loads_per_s}
    missed = answer(job(), job().trace, points(times, 0.5))["warnings"]
    met = answer(job(), job().trace, points(times, 1.0))["warnings"]
    assert [w for w in missed if "only 50% of the requests meet the objective" in w]
    assert not [w for w in met if "objective" in w]


def test_every_warning_and_note_is_a_sentence() -> None:
    times = {(p.label, load): [1.0, 1.0, 1.0] for p in job().policies for load in job().loads_per_s}
    result = answer(job(), job().trace, points(times, 0.5))
    for sentence in [*result["warnings"], *result["notes"], *result["recommendation"]["text"]]:
        assert sentence[0].upper() == sentence[0]
        assert sentence.endswith((".", ")"))


@pytest.mark.parametrize(("factor", "said"), [(0.5, True), (0.995, False), (2.0, False)])
def test_a_faster_policy_that_the_engine_lacks_is_named(factor: float, said: bool) -> None:
    def time_of(policy: PolicySpec) -> float:
        return 1.0 if policy.kind == "off" else factor if policy.kind == "goodput" else 3.0

    assert not job().question.offers(PolicySpec("goodput", 5)), "vLLM has none"
    times = {
        (policy.label, load): [time_of(policy) * x for x in (0.999, 1.0, 1.001)]
        for policy in job().policies for load in job().loads_per_s
    }  # fmt: skip
    result = answer(job(), job().trace, points(times, 1.0))
    assert result["recommendation"]["policy"] == "off"
    found = [line for line in result["recommendation"]["text"] if "vLLM has no such rule" in line]
    assert bool(found) is said
    assert not found or "would be 2.00x as fast as off" in found[0]
