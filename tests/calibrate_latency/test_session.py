"""Measuring on machines of known law: what is measured, in which order, when it ends, and what a kill costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrate.fit.assemble import fit_profile
from calibrate.fit.law import Architecture
from calibrate.fit.predict import predicted_s
from calibrate.latency.grid import Grid, choose, holdout, rows_ladder, seeds
from calibrate.latency.session import HOLDOUTS, Measuring, Session
from calibrate.latency.timing import Repeats, time_in_turns
from calibrate.points import Point, PointFile, Setup, read_points
from specsim.errors import SpecsimError
from specsim.profiles import LatencyProfile
from tests.calibrate_latency.machines import Machine, make_setup, true_pass, true_profile

GRID = Grid(requests=8, width=4, context_tokens=256, chunk_tokens=128)


class Killed(Exception):
    """Stands for a kill between two points."""


def run(
    path: Path,
    machine: Machine,
    *,
    budget_s: float = 40.0,
    grid: Grid = GRID,
    layers: int = 0,
    setup: Setup | None = None,
    killed_after: int | None = None,
    said: list[str] | None = None,
) -> list[Point]:
    """Measure the target of a machine into `path`."""
    with PointFile(path, setup or make_setup()) as file:

        def progress(share: float, text: str) -> None:
            if killed_after is not None and len(file.points) >= killed_after:
                raise Killed

        how = Measuring(
            file=file, time_s=machine.time_s, budget_s=budget_s, repeats=Repeats(least=3, most=5),
            say=(said if said is not None else []).append, progress=progress, now=lambda: machine.clock_s,
        )  # fmt: skip
        Session(how, lambda fits: machine, grid, Architecture(), layers=layers).measure()
        return list(file.points)


def test_seeds_heads_and_held_out_points_are_measured_and_the_fit_is_good(tmp_path: Path) -> None:
    true = true_profile()
    points = run(tmp_path / "p.jsonl", Machine(true))
    keys = {point.key for point in points}
    assert {point.key for point in seeds(GRID)} <= keys
    assert {p.rows for p in points if p.kind == "head"} == set(rows_ladder(GRID))
    assert sum(p.is_holdout for p in points) >= 4
    assert any(p.is_prefill for p in points)
    profile = fit_profile(make_setup(), points, method="ngram", name="x").profile
    assert profile.evidence is not None
    assert profile.evidence.holdout_median < 0.03
    assert profile.evidence.ranges["requests"] == (1, 8)
    assert profile.evidence.ranges["width"] == (1, 4)


def test_measuring_ends_with_the_budget_or_when_every_prediction_is_certain(tmp_path: Path) -> None:
    short = Machine(true_profile())
    run(tmp_path / "short.jsonl", short, budget_s=30.0)
    assert short.clock_s < 30.0 * 1.3
    long, said = Machine(true_profile(), noise=0.001), []
    points = run(tmp_path / "long.jsonl", long, budget_s=1e6, said=said)
    assert long.clock_s < 1e5, "it does not measure for the sake of it"
    assert any("certain" in line for line in said) or len(points) > 150
    assert sum(p.is_holdout for p in points) >= HOLDOUTS


@pytest.mark.parametrize("after", [1, 17, 40])
def test_a_killed_run_goes_on_and_repeats_nothing(tmp_path: Path, after: int) -> None:
    path = tmp_path / "p.jsonl"
    first = Machine(true_profile())
    with pytest.raises(Killed):
        run(path, first, killed_after=after)
    kept = read_points(path)[1]
    assert len(kept) >= after
    second = Machine(true_profile(), seed=1)
    points = run(path, second)
    assert points[: len(kept)] == kept
    again = {point.key for point in kept if point.kind != "reference"}
    assert not again & {key for key in second.calls if not key.startswith("reference")}
    assert len({point.key for point in points}) == len(points), "no point twice"


def test_points_are_timed_in_turns_with_the_reference(tmp_path: Path) -> None:
    """No point is timed twice in a row while others of its batch are open, and the reference comes in every turn."""
    machine = Machine(true_profile())
    run(tmp_path / "p.jsonl", machine, budget_s=30.0)
    assert not any(a == b for a, b in zip(machine.calls, machine.calls[1:], strict=False))
    counts = Counter(key.split()[0] for key in machine.calls)
    assert counts["reference"] >= counts["body"] / 5


def test_a_slow_spell_of_the_machine_shows_in_the_reference(tmp_path: Path) -> None:
    """Everything is twice as slow for a third of the run; the terms hold for the calm machine all the same."""
    machine = Machine(true_profile())
    machine.slow = lambda point: 2.0 if 100 < len(machine.calls) < 180 else 1.0
    points = run(tmp_path / "p.jsonl", machine, budget_s=60.0)
    profile = fit_profile(make_setup(), points, method="ngram", name="x").profile
    assert profile.evidence is not None
    assert profile.evidence.drift > 0.5
    calm = [p for p in points if p.kind == "body" and not p.is_holdout]
    ratios = [(predicted_s(profile, p) or 0.0) / (predicted_s(true_profile(), p) or 1.0) for p in calm]
    assert np.median(ratios) == pytest.approx(1.0, abs=0.03)


def test_out_of_memory_shrinks_the_grid_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    points = run(tmp_path / "p.jsonl", Machine(true_profile(), memory_tokens=1200), said=said)
    assert any("out of memory; the grid shrinks from 8 to 4 requests" in line for line in said)
    assert points
    assert max(sum(n + c for n, c in p.parts) for p in points) <= 1200
    fit_profile(make_setup(), points, method="ngram", name="x")


def test_a_device_that_holds_nothing_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(SpecsimError, match=r"does not fit the memory of the device.*--layers"):
        run(tmp_path / "p.jsonl", Machine(true_profile(), memory_tokens=3))


def test_an_error_that_is_not_about_memory_is_not_swallowed(tmp_path: Path) -> None:
    class Broken(Machine):
        def work(self, point: Point) -> Callable[[], object]:
            raise RuntimeError("illegal instruction")

    with pytest.raises(RuntimeError, match="illegal instruction"):
        run(tmp_path / "p.jsonl", Broken(true_profile()))


class Layered(Machine):
    """A machine that runs some of 24 layers: the law of the whole, with 5 ms that belong to no layer."""

    outside_s = 5e-3

    def time_s(self, work: Callable[[], object]) -> float:
        work()
        assert self._current is not None
        point = self._current
        whole = (
            predicted_s(self.profile, replace(point, kind="body" if point.kind == "reference" else point.kind)) or 1e-4
        )
        seconds = whole
        if point.layers:
            seconds = (whole - self.outside_s) * point.layers / 24 + self.outside_s
        seconds *= float(np.exp(self._rng.normal(0, 0.003)))
        self.clock_s += seconds
        self.calls.append(point.key)
        return seconds


def test_a_model_composed_from_layers_costs_what_the_whole_model_does(tmp_path: Path) -> None:
    true = true_profile(true_pass(fixed_s=8e-3))
    setup = make_setup(num_layers=24, measured_layers=6)
    points = run(tmp_path / "p.jsonl", Layered(true), layers=6, setup=setup, budget_s=40.0)
    assert {p.layers for p in points if p.kind == "body"} == {3, 6}
    profile = fit_profile(setup, points, method="ngram", name="x").profile
    whole = run(tmp_path / "whole.jsonl", Machine(true, noise=0.003), budget_s=40.0)
    errors = [abs((predicted_s(profile, p) or 0.0) / p.seconds - 1) for p in whole if p.kind == "body"]
    assert np.median(errors) < 0.04
    assert any("6 of 24 layers" in note for note in profile.notes)


def test_the_next_points_are_those_of_which_the_fit_knows_least(tmp_path: Path) -> None:
    """After corners only, long contexts are uncertain when none was measured, and are chosen."""
    short = [p for p in run(tmp_path / "p.jsonl", Machine(true_profile()), grid=replace(GRID, context_tokens=64))
             if p.kind in ("body", "head")]  # fmt: skip
    from calibrate.fit.solve import fit_pass

    fit = fit_pass(short, Architecture())
    wide = replace(GRID, context_tokens=2048)
    chosen = choose(fit, wide, [p for p in short if p.kind == "body"], 4)
    assert len({p.key for p in chosen}) == 4
    assert max(context for p in chosen for _, context in p.parts) > 512
    assert not {p.key for p in chosen} & {p.key for p in short}


def test_held_out_points_lie_within_the_grid_and_are_not_on_it() -> None:
    rng = np.random.default_rng(0)
    drawn = [holdout(GRID, rng) for _ in range(200)]
    assert all(GRID.holds(point) and point.is_holdout for point in drawn)
    assert {len(p.parts) for p in drawn if not p.is_prefill} >= {1, 3, 5, 7}
    assert 0.1 < np.mean([p.is_prefill for p in drawn]) < 0.3


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_repeats_end_when_the_median_is_known(spread: float) -> None:
    rng = np.random.default_rng(0)
    calls: list[int] = []

    def time_it(work: Callable[[], object]) -> float:
        calls.append(1)
        return float(np.exp(rng.normal(0, spread)))

    (timed,) = time_in_turns([lambda: None], time_it, Repeats(least=5, most=40, width=0.02))
    assert timed.repeats == len(calls)
    assert timed.repeats == (40 if spread else 5)
    assert timed.low_s <= timed.seconds <= timed.high_s
    if spread:
        assert (timed.high_s - timed.low_s) / 2 > 0.02, "the noise that is left is said"


def test_the_interval_of_a_median_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        (timed,) = time_in_turns([lambda: None], lambda work: float(np.exp(rng.normal(0, 0.1))), Repeats(9, 9))
        hits += timed.low_s <= 1.0 <= timed.high_s
    assert 0.85 <= hits / 300 <= 0.99


def test_the_same_seed_gives_the_same_points(tmp_path: Path) -> None:
    runs = [run(tmp_path / f"{n}.jsonl", Machine(true_profile()), budget_s=15.0) for n in range(2)]
    first, second = ([replace(p, utc="") for p in points] for points in runs)
    assert first == second


def profile_of(points: list[Point]) -> LatencyProfile:
    return fit_profile(make_setup(), points, method="ngram", name="x").profile


def test_the_same_points_give_the_same_profile(tmp_path: Path) -> None:
    points = run(tmp_path / "p.jsonl", Machine(true_profile()), budget_s=10.0)
    assert profile_of(points).sha256 == profile_of(read_points(tmp_path / "p.jsonl")[1]).sha256
