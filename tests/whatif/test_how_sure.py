"""How sure a what-if is: ranges against simulations, and what errors and measurements must do to a choice."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from fleets import changed, question, rent, traffic

from calibrate.acceptance.methods import METHODS
from specsim.config import Slo
from specsim.planner.question import PlanSettings, Question, Side
from specsim.planner.uncertainty import (
    GROUPS,
    MEASURED_ACCEPTANCE,
    MEASURED_LATENCY,
    draw,
    rounds_of,
    unsettled,
)
from specsim.planner.whatif import WhatIfJob, make_group
from specsim.planner.whatif_answer import run_whatif
from specsim.profiles import LatencyProfile, PassCost
from specsim.shapes import Gpu

SLO = Slo(tpot_s=0.03)


def scaled(profile: LatencyProfile, factor: float) -> LatencyProfile:
    """Every second of the profile times a factor."""

    def by(record: Any) -> dict[str, float]:
        return {f.name: getattr(record, f.name) * factor for f in fields(record) if f.name.endswith("_s")}

    target = replace(profile.target, **by(profile.target))
    draft: PassCost | None = None if profile.draft is None else replace(profile.draft, **by(profile.draft))
    return replace(profile, target=target, draft=draft, **by(profile))


def with_profile(asked: Question, factor: float = 1.0, error: float | None = None) -> Question:
    def side(own: Side) -> Side:
        profile = scaled(own.profile, factor)
        return replace(own, profile=profile if error is None else replace(profile, relative_error=error))

    return replace(asked, off=side(asked.off), on=side(asked.on))


def what_if(
    devices: dict[str, Gpu], patch: pytest.MonkeyPatch, *, error: float | None = None, acceptance_error: float = 0.1,
    factor: float = 1.0, prices: dict[str, float] | None = None, rate_per_s: float = 40.0, slo: Slo = SLO,
) -> dict[str, Any]:  # fmt: skip
    trace = traffic(rate_per_s, requests=200)
    groups = []
    for device in devices.values():
        asked = with_profile(question(device, patch, slo=slo), factor, error)
        groups.append(make_group(replace(asked, acceptance_error=acceptance_error), trace, ("off", "static")))
    costs = {name: rent((prices or {}).get(name, 1.0)) for name in devices}
    settings = PlanSettings(replications=2, jobs=1)
    return run_whatif(WhatIfJob(tuple(groups), (), trace, trace, slo, settings, (), costs, None, ()))


BASE = {"base": changed("base")}


def test_a_range_holds_what_is_simulated_with_other_step_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closed form behind the ranges, against simulations: 90% of draws within one sigma or so."""
    result = what_if(BASE, monkeypatch, error=0.12, acceptance_error=0.0)
    for factor in (0.9, 1.1):
        other = what_if(BASE, monkeypatch, factor=factor)
        for row, simulated in zip(result["options"], other["options"], strict=True):
            low, high = row["range"]["gpus_low"], row["range"]["gpus_high"]
            assert low <= row["gpus"] <= (high or math.inf)
            assert low <= (simulated["gpus"] or math.inf) <= (high or math.inf)
            assert row["range"]["tpot_p95_low_s"] < row["proof"]["at"]["metrics"]["tpot_p95_s"]["mean"]


def test_without_errors_nothing_flips_and_nothing_needs_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    result = what_if(BASE | {"fast": changed("fast", compute=2.0, bandwidth=2.0)}, monkeypatch, error=1e-9,
                     acceptance_error=0.0, prices={"fast": 1.9})  # fmt: skip
    part = result["uncertainty"]
    assert part["flip_probability"] == part["too_small_probability"] == part["speculation_flip_probability"] == 0.0
    assert part["measure"] == []
    for row in result["options"]:
        if row["verdict"] == "holds":
            found = row["range"]
            assert found["gpus_low"] == found["gpus_high"] == row["gpus"], (
                "the closed form is anchored at what was found"
            )
            tpot = row["proof"]["at"]["metrics"]["tpot_p95_s"]["mean"]
            assert found["tpot_p95_low_s"] == pytest.approx(tpot, rel=1e-3)


def test_larger_errors_flip_more_and_widen_every_range(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = BASE | {"fast": changed("fast", compute=1.5, bandwidth=1.5)}
    flips, widths = [], []
    for error in (0.03, 0.1, 0.25):
        result = what_if(devices, monkeypatch, error=error, prices={"fast": 1.6})
        flips.append(result["uncertainty"]["flip_probability"])
        found = result["options"][0]["range"]
        widths.append((found["tpot_p95_high_s"] or math.inf) - found["tpot_p95_low_s"])
    assert flips == sorted(flips)
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_what_is_most_uncertain_is_what_settles_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that are known leave acceptance; acceptance that is known leaves the GPU on which the choice hangs."""
    costs_known = what_if(BASE, monkeypatch, error=0.001, acceptance_error=0.3)["uncertainty"]
    assert costs_known["flip_probability"] > 0.02
    assert costs_known["measure"][0]["what"] == "acceptance"
    assert costs_known["measure"][0]["flip_probability"] < 0.02
    assert "acceptance on your prompts" in " ".join(costs_known["text"])
    devices = BASE | {"never": changed("never", bandwidth=0.2)}
    costs = what_if(devices, monkeypatch, error=0.25, acceptance_error=0.001)["uncertainty"]
    assert (costs["measure"][0]["what"], costs["measure"][0]["gpu"]) == ("latency", "base")
    left = [it["flip_probability"] for it in costs["measure"]]
    assert left == sorted(left)
    assert left[0] < 0.5 * costs["flip_probability"]
    terms = {it["term"]: it["flip_probability"] for it in costs["terms"]}
    assert min(terms, key=lambda name: terms[name]) == "reading weights and cache", "what most of a step is here"
    assert "above all reading weights and cache" in " ".join(costs["text"])


def test_what_is_too_slow_alone_may_hold_if_steps_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    result = what_if(BASE, monkeypatch, error=0.2, slo=Slo(tpot_s=0.021))
    row = next(row for row in result["options"] if row["policy_kind"] == "off")
    assert row["verdict"] == "never"
    assert 0.01 < row["range"]["holds_probability"] < 0.6
    assert row["range"]["enough_probability"] is None
    hopeless = what_if(BASE, monkeypatch, error=0.2, slo=Slo(tpot_s=0.001))
    assert hopeless["uncertainty"]["flip_probability"] is None
    assert {row["range"]["gpus_low"] for row in hopeless["options"]} == {None}


def test_draws_in_which_nothing_holds_are_credited_to_no_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one option may hold, so that no other kind can ever be the cheapest."""
    trace, slo = traffic(40.0, requests=200), Slo(tpot_s=0.0225)
    asked = replace(with_profile(question(changed("base"), monkeypatch, slo=slo), error=0.2), acceptance_error=0.0)
    group = make_group(asked, trace, ("off",))
    settings = PlanSettings(replications=2, jobs=1)
    result = run_whatif(WhatIfJob((group,), (), trace, trace, slo, settings, (), {"base": rent(1.0)}, None, ()))
    part, row = result["uncertainty"], result["options"][0]
    assert row["verdict"] == "holds"
    assert part["nothing_holds_probability"] == pytest.approx(1 - row["range"]["holds_probability"])
    assert 0.05 < part["nothing_holds_probability"] < 0.6
    assert part["flip_probability"] == 0.0
    assert part["alternatives"] == [{"option": 0, "probability": row["range"]["holds_probability"]}]
    said = " ".join(part["text"])
    assert f"in {part['nothing_holds_probability']:.0%} nothing holds" in said
    assert "Cheapest instead" not in said


def test_the_word_of_confidence_is_that_of_the_draws_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    words = []
    for error in (1e-9, 0.05, 0.3):
        result = what_if(BASE, monkeypatch, error=error, acceptance_error=0.0)
        part, close = result["uncertainty"], result["options"][result["verdict"]["cheapest"]]["close"]
        wrong = part["wrong_probability"]
        lowest = max(part[f"{name}_probability"] for name in ("flip", "nothing_holds", "too_small"))
        assert lowest <= wrong <= part["flip_probability"] + part["too_small_probability"] + 1e-9
        wanted = "sure" if wrong < 0.0228 and not close else "likely" if wrong < 0.1587 else "unsure"
        assert part["confidence"] == wanted
        assert part["text"][0].startswith(f"Confidence: {wanted}.")
        words.append(wanted)
    assert words[0] in ("sure", "likely")
    assert words[-1] == "unsure"


def test_errors_of_one_gpu_do_not_depend_on_the_others_and_share_half_of_their_variance() -> None:
    one, two = draw(["a"], seed=3), draw(["b", "a"], seed=3)
    assert np.array_equal(one.costs["a"], two.costs["a"])
    assert not np.array_equal(one.costs["a"], draw(["a"], seed=4).costs["a"])
    correlations = [np.corrcoef(two.costs["a"][:, g], two.costs["b"][:, g])[0, 1] for g in range(len(GROUPS))]
    # 2000 draws: one standard error is 0.017
    assert correlations == pytest.approx([0.5] * len(GROUPS), abs=0.07)
    factors = one.cost_factors("a", 0.25)
    assert np.median(factors) == pytest.approx(1.0, abs=0.03)
    assert np.percentile(factors, 84) == pytest.approx(1.25, abs=0.04)


def test_parts_of_a_round_add_up_to_the_step_that_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = question(changed("base"), monkeypatch)
    batches = [1, 8, 64]
    for k in (None, 0, 3):
        rounds = rounds_of(asked, 1000.0, k, batches)
        side = asked.off if k is None else asked.on
        steps = [side.cost.decode_step_s(b, 1000.0, k or 0, machinery=k is not None) for b in batches]
        assert rounds.parts_s.sum(axis=1) == pytest.approx(steps, rel=1e-9)
        assert rounds.token_s(None, "base")[0] == pytest.approx(
            np.array(steps) / (asked.acceptance.expected_length(k) if k else 1.0)
        )


def test_knowing_a_source_leaves_what_the_others_do() -> None:
    draws = draw(["a"], seed=0)
    by_cost = lambda it: (it.costs["a"][:, 0] > 0).astype(int)  # noqa: E731
    assert unsettled(draws, by_cost, None) == pytest.approx(0.5, abs=0.1)
    assert unsettled(draws, by_cost, ("latency", "a")) == 0.0
    assert unsettled(draws, by_cost, ("acceptance", "")) == pytest.approx(0.5, abs=0.1)


def test_the_commands_are_of_methods_that_are_measured() -> None:
    assert set(MEASURED_ACCEPTANCE) == set(METHODS)
    from specsim.cli.calibrate_latency import latency

    (said,) = [p.help for p in latency.params if p.name == "methods"]
    assert said is not None
    assert all(name in said for name in MEASURED_LATENCY)
