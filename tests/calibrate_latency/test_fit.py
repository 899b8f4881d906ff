"""A fit recovers a known law from noisy points, says how sure it is, and flags what does not belong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.fit.assemble import fit_profile
from calibrate.fit.law import Architecture, Law, Work
from calibrate.fit.predict import predicted_s
from calibrate.fit.solve import fit_pass
from calibrate.latency.grid import Grid
from calibrate.points import Point
from specsim.errors import ProfileError
from specsim.latency import StepCost, StepWork
from specsim.profiles import LatencyProfile, PassCost
from tests.calibrate_latency.machines import make_points, make_setup, measured, true_pass, true_profile

GRID = Grid(requests=16, width=6, context_tokens=512, chunk_tokens=256)
DENSE = Architecture()


def errors(points: list[Point], profile: LatencyProfile) -> np.ndarray:
    return np.array([abs((predicted_s(profile, p) or 0.0) / p.seconds - 1) for p in points if p.is_holdout])


@st.composite
def costs(draw: st.DrawFn) -> PassCost:
    """Passes from memory-bound to compute-bound, as a small machine and a large one have them."""
    scale = 10 ** draw(st.floats(-4, -1))
    return true_pass(
        weights_s=scale,
        token_s=scale * 10 ** draw(st.floats(-3, -1)),
        fixed_s=scale * draw(st.floats(0.01, 0.3)),
        request_s=scale * 10 ** draw(st.floats(-4, -2)),
        kv_token_s=scale * 10 ** draw(st.floats(-6, -4)),
        kv_pair_s=scale * 10 ** draw(st.floats(-7, -5)),
        decode_kv_pair_s=scale * 10 ** draw(st.floats(-7, -5)),
        head_weights_s=scale * draw(st.floats(0.05, 0.5)),
        head_row_s=scale * 10 ** draw(st.floats(-3, -1.5)),
        knee=draw(st.floats(1.0, 4.0)),
        attention_knee=draw(st.floats(1.0, 4.0)),
    )


@settings(max_examples=8, deadline=None)
@given(costs(), st.integers(0, 1000))
def test_a_known_law_is_recovered_from_noisy_points(cost: PassCost, seed: int) -> None:
    """At points that the fit has not seen, its error stays near the noise of 1 %."""
    true = true_profile(cost)
    points = measured(make_points(GRID, held_out=25, seed=seed), true, seed=seed)
    fitted = fit_profile(make_setup(), points, method="ngram", name="fit").profile
    exact = [replace(p, seconds=predicted_s(true, p) or 0.0) for p in points]
    missed = errors(exact, fitted)
    assert len(missed) > 10
    assert np.median(missed) < 0.02
    assert np.quantile(missed, 0.95) < 0.08


def test_terms_that_points_tell_apart_lie_in_their_intervals() -> None:
    true = true_pass(knee=1.0, decode_kv_pair_s=1e-9, attention_knee=1.0)
    inside = 0
    names = ("token_s", "kv_token_s", "kv_pair_s", "head_row_s", "request_s")
    for seed in range(5):
        fitted = fit_pass(measured(make_points(GRID), true_profile(true), seed=seed), DENSE)
        for name in names:
            low, high = fitted.intervals()[name]
            assert low < fitted.terms[name] < high
            inside += low <= getattr(true, name) <= high
    assert inside >= 0.85 * 5 * len(names)


def test_kernels_that_are_chosen_by_size_are_seen() -> None:
    """A law with a step at one, two and three tokens, as matrix libraries have it."""
    bumpy = true_pass(size_factors=((1, 0.75), (2, 1.2), (3, 1.3), (4, 1.0)))
    points = measured(make_points(GRID, held_out=25), true_profile(bumpy), noise=0.005)
    fitted = fit_profile(make_setup(), points, method="ngram", name="fit").profile
    assert np.quantile(errors(points, fitted), 0.95) < 0.06
    smooth = replace(fitted, target=replace(fitted.target, size_factors=()))
    assert np.quantile(errors(points, smooth), 0.95) > 0.1, "the guard: without factors the step is missed"


@pytest.mark.parametrize("factor", [1.5, 3.0, 0.5])
@pytest.mark.parametrize("index", [0, 4, 7, 11])
def test_a_planted_slow_or_fast_measurement_is_flagged(index: int, factor: float) -> None:
    points = measured(make_points(GRID), true_profile())
    bad = points[index]
    points[index] = replace(bad, seconds=bad.seconds * factor, low_s=bad.low_s * factor, high_s=bad.high_s * factor)
    fitted = fit_pass(points, DENSE)
    assert index in fitted.flagged
    assert "against the law" in fitted.flagged[index]
    assert len(fitted.flagged) <= 2
    good = fit_pass([p for n, p in enumerate(points) if n != index], DENSE)
    assert fitted.predict(points) == pytest.approx(good.predict(points), rel=0.03), "it does not pull the fit"


def test_a_noisy_measurement_is_flagged_and_counts_little() -> None:
    points = measured(make_points(GRID), true_profile())
    points[3] = replace(
        points[3], seconds=points[3].seconds * 1.4, low_s=points[3].seconds, high_s=points[3].seconds * 2
    )
    fitted = fit_pass(points, DENSE)
    assert fitted.flagged[3].startswith("noisy")
    good = fit_pass([p for n, p in enumerate(points) if n != 3], DENSE)
    assert fitted.predict(points) == pytest.approx(good.predict(points), rel=0.03)


def test_flags_reach_the_profile_and_its_notes() -> None:
    points = measured(make_points(GRID), true_profile())
    points[4] = replace(points[4], seconds=points[4].seconds * 2, high_s=points[4].high_s * 2)
    profile = fit_profile(make_setup(), points, method="ngram", name="fit").profile
    assert profile.evidence is not None
    assert any(points[4].label in flag for flag in profile.evidence.flagged)
    assert any("Flagged" in note for note in profile.notes)


def test_a_law_that_explains_nothing_flags_nothing() -> None:
    """Points far off everywhere are the law's fault: leaving them out would hide it, and the hold-out error tells."""
    rng = np.random.default_rng(5)
    points = [
        replace(p, seconds=p.seconds * f, low_s=p.low_s * f, high_s=p.high_s * f)
        for p, f in zip(
            measured(make_points(GRID), true_profile()), np.exp(rng.normal(0, 0.6, 1000)).tolist(), strict=False
        )
    ]
    result = fit_profile(make_setup(), points, method="ngram", name="fit")
    assert all(result.fits["target"].used == [not p.is_holdout for p in points])
    assert result.profile.evidence is not None
    assert result.profile.evidence.holdout_median > 0.1
    assert result.profile.relative_error > 0.1


def test_drift_of_the_machine_is_taken_out_by_the_reference_point() -> None:
    points = measured(make_points(GRID, held_out=25), true_profile(), drift=0.3)
    fitted = fit_pass(points, DENSE)
    assert fitted.drift_share == pytest.approx(1.0, abs=0.1)
    calm = [replace(p, seconds=predicted_s(true_profile(), p) or 0.0, reference_s=0.0) for p in points]
    at_median = np.median([p.reference_s for p in points]) / 0.04
    ratio = fitted.predict(calm, drifted=False) / np.array([p.seconds for p in calm]) / at_median
    assert np.median(np.abs(ratio - 1)) < 0.03


@settings(max_examples=40, deadline=None)
@given(costs(), st.integers(1, 16), st.integers(1, 6), st.integers(1, 2000), st.booleans())
def test_the_law_of_the_fit_is_the_law_of_the_simulator(
    cost: PassCost, requests: int, width: int, context: int, moe: bool
) -> None:
    """Body and head at once against StepCost with no host: the same seconds to rounding."""
    cost = replace(
        cost, size_factors=((1, 0.8), (4, 1.1)), head_factors=((2, 1.2),), sample_row_s=0.0,
        num_experts=64 if moe else 0, experts_per_token=4 if moe else 0, experts_s=0.1 if moe else 0.0,
    )  # fmt: skip
    profile = true_profile(cost)
    parts = tuple((width, context) for _ in range(requests))
    rows = requests * width
    points = [Point("whole", "target", parts, rows=rows), Point("whole", "target", parts[:1], rows=1, is_prefill=True)]
    steps = [
        StepWork(decode_requests=requests, draft_tokens=rows - requests, kv_tokens=requests * context),
        StepWork(prefill_tokens=width, prefill_rows=1, prefill_kv_tokens=context, prefill_pairs=points[1].pairs),
    ]
    terms = {name: getattr(cost, name) for name in ("weights_s", "experts_s", "token_s", "fixed_s", "request_s",
             "kv_token_s", "kv_pair_s", "decode_kv_pair_s", "head_weights_s", "head_row_s", "sample_row_s", "knee",
             "attention_knee")}  # fmt: skip
    architecture = Architecture(num_experts=cost.num_experts, experts_per_token=cost.experts_per_token)
    law = Law(architecture, (1, 4), (2,))
    factors, head = np.log([0.8, 1.1]), np.log([1.2])
    fast = law.seconds(Work.of(points, architecture), terms, factors, head)
    for point, step, seconds in zip(points, steps, fast, strict=True):
        assert predicted_s(profile, point) == pytest.approx(seconds, rel=1e-9)
        assert StepCost(profile).step_s(step) == pytest.approx(seconds, rel=1e-9)
    assert law.pass_cost(terms, factors, head) == replace(
        cost, size_factors=law.pass_cost(terms, factors, head).size_factors,
        head_factors=law.pass_cost(terms, factors, head).head_factors,
    )  # fmt: skip


def test_too_few_points_are_refused_with_a_way_out() -> None:
    points = measured([GRID.decode(1, 1, 64), GRID.decode(1, 2, 64)], true_profile())
    with pytest.raises(ProfileError, match="2 different sizes; a fit needs at least 3"):
        fit_pass(points, DENSE, place="x.jsonl")


def test_a_method_that_was_not_measured_is_refused() -> None:
    points = measured(make_points(GRID), true_profile())
    with pytest.raises(ProfileError, match="not of layer_skip"):
        fit_profile(make_setup(), points, method="layer_skip", name="fit")
    with pytest.raises(ProfileError, match="no points of the draft"):
        fit_profile(make_setup(methods=()), points, method="layer_skip", name="fit")


def test_drafter_acceptance_lookup_and_host_terms_are_fitted_beside_the_target() -> None:
    draft = true_pass(weights_s=8e-3, token_s=5e-4, fixed_s=1e-3)
    true = replace(
        true_profile(draft=draft), covers={"method": "layer_skip"}, draft_catches_up=False, speculation_host_s=3e-4,
        speculation_request_s=2e-5, host_s=2e-3, host_request_s=1e-4,
    )  # fmt: skip
    bodies = make_points(GRID) + make_points(replace(GRID, role="draft"))
    rounds = [
        Point("draft_round", "draft", GRID.decode(b, 1, 100).parts, drafts=k, is_holdout=True)
        for b in (1, 4) for k in (1, 5)
    ]  # fmt: skip
    accepting = [Point("accept", "target", ((5, 0),) * n) for n in (1, 4, 16)]
    host = [Point("host", "engine", GRID.decode(n, w, 100).parts, rows=n * w, drafts=k, method=method)
            for n in (1, 4, 16) for method, w, k in (("", 1, 0), ("layer_skip", 4, 3))]  # fmt: skip
    points = measured([*bodies, *rounds, *accepting, *host], true, noise=0.002)
    setup = make_setup(methods=("layer_skip",), draft="first 7 layers of smollm2-135m")
    profile = fit_profile(setup, points, method="layer_skip", name="fit").profile
    assert profile.draft_mode == "serial"
    assert not profile.draft_catches_up
    assert profile.speculation_host_s == pytest.approx(3e-4, rel=0.3)
    assert profile.speculation_request_s == pytest.approx(2e-5, rel=0.5)
    assert profile.host_s == pytest.approx(2e-3, rel=0.05)
    assert profile.host_request_s == pytest.approx(1e-4, rel=0.05)
    for point in rounds:
        assert predicted_s(profile, point) == pytest.approx(predicted_s(true, point), rel=0.06)
