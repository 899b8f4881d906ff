"""Heads that run at once on a machine of known law: what is measured of them, fitted, and priced at every k."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.fit.assemble import FittedProfile, fit_profile
from calibrate.fit.law import Architecture, Law, Work
from calibrate.fit.predict import predicted_s
from calibrate.fit.priors import priors_of
from calibrate.latency.grid import Grid, candidates, holdout, reference_point, rows_ladder, seeds
from calibrate.latency.session import Measuring, Session
from calibrate.latency.timing import Repeats
from calibrate.points import Point, PointFile
from specsim.drafters.medusa import medusa_heads
from specsim.latency import StepCost, StepWork
from specsim.profiles import LatencyProfile, PassCost
from specsim.shapes import ModelShape
from tests.calibrate_latency.machines import Machine, make_points, make_setup, measured, true_pass

TARGET = ModelShape(
    name="smollm2-135m", num_layers=30, hidden_size=576, num_heads=9, num_kv_heads=3, head_dim=64,
    intermediate_size=1536, vocab_size=49152, max_position_tokens=8192, tie_embeddings=True,
)  # fmt: skip
GRID = Grid(requests=24, role="draft", heads=5)
TRUE_HEAD = PassCost(
    weights_s=4e-4,
    token_s=3e-5,
    head_weights_s=6e-3,
    head_row_s=6e-4,
    kv_token_s=0.0,
    kv_pair_s=0.0,
    fixed_s=5e-4,
    sample_row_s=3e-5,
    knee=1.7,
)


def true_profile(head: PassCost = TRUE_HEAD) -> LatencyProfile:
    return LatencyProfile("true", "measured", true_pass(), draft=head, draft_mode="heads", draft_catches_up=False)


def setup_of(heads: int = 5) -> dict[str, object]:
    shapes = {"target": asdict(TARGET), "draft": asdict(medusa_heads(TARGET, {"heads": heads}))}
    return {"methods": ("medusa",), "draft": f"{heads} medusa heads", "shapes": shapes}


def at_once(true: LatencyProfile, path: Path, grid: Grid = GRID, budget_s: float = 60.0) -> list[Point]:
    """Points of the heads of a machine, as a session measures them."""
    machine = Machine(true)
    with PointFile(path, make_setup(**setup_of())) as file:
        how = Measuring(file=file, time_s=machine.time_s, budget_s=budget_s, repeats=Repeats(least=3, most=5),
                        now=lambda: machine.clock_s)  # fmt: skip
        Session(how, lambda fits: machine, grid, Architecture()).measure()
        return list(file.points)


def fitted(true: LatencyProfile, points: list[Point]) -> FittedProfile:
    target = measured(make_points(Grid(8, 4, 256, 64)), true)
    setup = make_setup(**setup_of())
    return fit_profile(setup, [*target, *points], method="medusa", name="x", priors=priors_of(setup, points))


@st.composite
def heads(draw: st.DrawFn) -> PassCost:
    """From memory-bound heads to compute-bound ones, with little and much fixed time."""
    scale = 10 ** draw(st.floats(-5, -2))
    return PassCost(
        weights_s=scale * draw(st.floats(0.02, 0.5)),
        token_s=scale * 10 ** draw(st.floats(-4, -1)),
        head_weights_s=scale,
        head_row_s=scale * 10 ** draw(st.floats(-3, -0.5)),
        kv_token_s=0.0,
        kv_pair_s=0.0,
        fixed_s=scale * draw(st.floats(0.0, 2.0)),
        knee=draw(st.floats(1.0, 4.0)),
    )


@given(heads(), st.integers(1, 64), st.integers(1, 16))
def test_the_law_of_a_fit_is_the_one_that_simulates(cost: PassCost, requests: int, count: int) -> None:
    profile = true_profile(cost)
    law = Law(Architecture())
    terms = {name: getattr(cost, name) for name in ("weights_s", "experts_s", "token_s", "fixed_s", "request_s",
             "kv_token_s", "kv_pair_s", "decode_kv_pair_s", "head_weights_s", "head_row_s", "sample_row_s", "knee",
             "attention_knee")}  # fmt: skip
    grid = Grid(requests=64, role="draft", heads=16)
    whole = grid.at_once(requests, count)
    for point in (whole, replace(whole, kind="body", rows=0), Point("head", "draft", rows=requests)):
        (seconds,) = law.seconds(Work.of([point], Architecture()), terms | {"attention_knee": 1.0}, *[np.zeros(0)] * 2)
        assert predicted_s(profile, point) == pytest.approx(seconds, rel=1e-9)


@given(st.integers(1, 64), st.integers(1, 5))
def test_a_round_of_the_profile_is_what_a_step_pays_for_it(requests: int, count: int) -> None:
    profile = true_profile()
    point = replace(GRID.at_once(requests, count), kind="draft_round")
    work = StepWork(decode_requests=requests, next_num_spec_tokens=count, machinery=True)
    sampled = requests * count * TRUE_HEAD.sample_row_s
    assert predicted_s(profile, point) == pytest.approx(StepCost(profile).parts(work)["draft"], rel=1e-12)
    bare = predicted_s(profile, GRID.at_once(requests, count))
    assert predicted_s(profile, point) == pytest.approx((bare or 0.0) + sampled, rel=1e-12)


def test_rounds_blocks_and_output_heads_are_measured_at_several_counts_of_both(tmp_path: Path) -> None:
    points = at_once(true_profile(), tmp_path / "p.jsonl")
    wholes = [p for p in points if p.kind == "whole"]
    assert {p.drafts for p in wholes if not p.is_holdout} == {1, 2, 3, 4, 5}
    assert {1, 24} <= {len(p.parts) for p in wholes}
    assert all(p.rows == len(p.parts) == p.tokens for p in wholes)
    assert {p.key for p in seeds(GRID)} <= {p.key for p in points if not p.is_holdout}
    assert {p.rows for p in points if p.kind == "head"} == set(rows_ladder(GRID)) == {1, 2, 3, 4, 6, 8, 16}
    assert {p.kind for p in points if p.is_holdout} == {"whole"}
    assert sum(p.is_holdout for p in points) >= 5
    assert not any(p.is_prefill for p in points)
    assert len({p.key for p in points}) == len(points)
    assert reference_point(GRID).key not in {p.key for p in points}


@settings(max_examples=4)
@given(heads(), st.integers(0, 100))
def test_a_known_law_of_heads_is_recovered_at_every_count(cost: PassCost, seed: int) -> None:
    """False alarms: none, since the draws are the same every time."""
    true, rng = true_profile(replace(cost, sample_row_s=2e-6)), np.random.default_rng(seed)
    wanted = {p.key: p for p in (*seeds(GRID), *candidates(GRID), *(holdout(GRID, rng) for _ in range(12)))}
    ends = [Point(kind, "draft", rows=n) for kind in ("head", "sample") for n in rows_ladder(GRID)]  # type: ignore[arg-type]
    found = fitted(true, measured([*wanted.values(), *ends], true, seed=seed)).profile
    assert (found.draft_mode, found.draft_catches_up, found.at_zero_drafts) == ("heads", False, "skipped")
    for count in range(1, 6):
        for requests in (1, 3, 10, 24):
            point = replace(GRID.at_once(requests, count), kind="draft_round")
            assert predicted_s(found, point) == pytest.approx(predicted_s(true, point), rel=0.05)
    assert found.evidence is not None
    assert found.evidence.holdout_median < 0.03


def test_each_further_head_costs_as_much_as_the_first_and_fixed_time_is_paid_once(tmp_path: Path) -> None:
    """Measured with two heads and five, priced with one and sixteen: no count but the steps' own is in the terms."""
    true = true_profile()
    points = [p for p in at_once(true, tmp_path / "p.jsonl") if not (p.kind == "whole" and p.drafts not in (2, 5))]
    found = fitted(true, points).profile
    cost, law = StepCost(found), StepCost(true)
    none = [it.parts(StepWork(decode_requests=8, machinery=True))["draft"] for it in (cost, law)]
    assert none == [0.0, 0.0], "without drafts nothing runs"

    def drafting(it: StepCost, count: int) -> float:
        return it.parts(StepWork(decode_requests=8, next_num_spec_tokens=count, machinery=True))["draft"]

    for count in (1, 2, 5, 16):
        assert drafting(cost, count) == pytest.approx(drafting(law, count), rel=0.05)
    steps = np.diff([drafting(cost, count) for count in range(1, 8)])
    assert steps == pytest.approx(np.full(6, steps[0]))
    assert drafting(cost, 1) > steps[0], "the first also pays what is fixed"


def test_the_profile_says_how_many_heads_and_what_of_their_memory_is_not_theirs() -> None:
    true = true_profile()
    wanted = [*seeds(GRID), *(Point("head", "draft", rows=n) for n in rows_ladder(GRID))]
    points = measured(wanted, true)
    found = fitted(true, points).profile
    assert (found.covers["draft_heads"], found.covers["method"]) == ("5", "medusa")
    said = " ".join(found.notes)
    assert "Up to 5 heads were measured at once" in said
    assert "Memory is planned" not in said
    shapes = {"target": asdict(TARGET), "draft": asdict(medusa_heads(TARGET, {"heads": 5}, blocks=2, rows=32_000))}
    setup = make_setup(**{**setup_of(), "shapes": shapes})
    target = measured(make_points(Grid(8, 4, 256, 64)), true)
    other = fit_profile(setup, [*target, *points], method="medusa", name="x").profile
    assert "Memory is planned for heads of one residual block over the whole vocabulary" in " ".join(other.notes)


def test_sampling_that_the_steps_have_is_not_counted_with_the_heads_again() -> None:
    """Reading tokens back takes 1 ms whatever their number, once a round, and a step of the engine has it."""
    true = true_profile(replace(TRUE_HEAD, sample_row_s=0.0))
    points = measured([*seeds(GRID), *(Point("head", "draft", rows=n) for n in rows_ladder(GRID))], true, noise=1e-4)
    timed = {"low_s": 0.99e-3, "high_s": 1.01e-3, "seconds": 1e-3}
    samples = [Point("sample", "draft", rows=n, **timed) for n in rows_ladder(GRID)]  # type: ignore[arg-type]
    hosts = [
        Point("host", "engine", ((1, 30),) * n, rows=n, drafts=drafts, method=method, **timed)  # type: ignore[arg-type]
        for n in (1, 8)
        for method, drafts in (("", 0), ("medusa", 5))
    ]
    alone, beside = (fitted(true, [*points, *samples, *more]).profile for more in ([], hosts))
    assert alone.draft is not None and beside.draft is not None
    assert alone.draft.fixed_s - beside.draft.fixed_s == pytest.approx(1e-3, rel=0.01)


def test_wide_rounds_are_measured_at_some_widths_and_narrow_ones_at_all() -> None:
    def widths(width: int) -> set[int]:
        return {max(n for n, _ in p.parts) for p in seeds(Grid(width=width)) if not p.is_prefill}

    assert widths(6) == set(range(1, 7))
    assert widths(16) == set(range(1, 17))
    wide = widths(64)
    assert set(range(1, 17)) | {64} <= wide
    assert len(wide) < 25
    assert {max(n for n, _ in p.parts) for p in candidates(Grid(width=64)) if not p.is_prefill} == wide
