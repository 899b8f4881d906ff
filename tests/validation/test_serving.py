"""Real serving beside predictions: right profiles are right, wrong ones are shown as wrong, noise is noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from builders import make_profile, make_trace  # noqa: E402
from serving import (  # noqa: E402
    OFF,
    ON,
    OTHER,
    SERVED,
    acceptance,
    make_world,
    really_serving,
    requests,
    serving,
    slower,
)

from calibrate.engine.replay import recorded_rounds  # noqa: E402
from calibrate.validation.judge import judged  # noqa: E402
from calibrate.validation.overlap import overlap_sentences, shared_loads  # noqa: E402
from calibrate.validation.runs import make_runs, predict, predicted_s  # noqa: E402
from calibrate.validation.world import Load, Trial, World  # noqa: E402
from specsim.acceptance import Empirical  # noqa: E402
from specsim.errors import ProfileError, ScenarioError  # noqa: E402
from specsim.evidence import Evidence  # noqa: E402
from specsim.report.served import served_section, served_text  # noqa: E402
from specsim.workload import Workload  # noqa: E402
from tests.calibrate_latency.machines import make_points  # noqa: E402


@pytest.fixture(scope="module")
def known() -> Iterator[Empirical]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield acceptance(OTHER)
    torch.set_num_threads(threads)


def judge(world: World, **how: Any) -> dict[str, Any]:
    runs, complete = make_runs(world, serving(world, acceptance(SERVED), **how))
    assert complete
    return judged(world, runs, partial(predict, world))


def figure(result: dict[str, Any], load: str, policy: str, name: str) -> dict[str, Any]:
    (row,) = [row for row in result["rows"] if (row["load"], row["policy"]) == (load, policy)]
    found: dict[str, Any] = row["figures"][name]
    return found


def test_the_right_profile_is_right_without_speculation_to_the_last_digit(known: Empirical) -> None:
    result = judge(make_world(known))
    for load in ("2 in flight", "5 in flight"):
        for name in ("output_tokens_per_s", "ttft_p50_s", "tpot_p99_s"):
            assert figure(result, load, "off", name)["error"] == pytest.approx(0, abs=1e-9)
        assert figure(result, load, "off", "tpot_mean_s")["noise"] == 0
    assert result["replay"]["within"] and result["replay"]["unmatched_steps"] == 0
    assert max(abs(error) for error in result["replay"]["worst_errors"].values()) < 1e-9


def test_a_planted_wrong_profile_is_shown_as_wrong(known: Empirical) -> None:
    """Weights of the machine take twice what the profile says: throughput is promised too high, latency too low."""
    result = judge(make_world(known), truth=slower(2.0))
    for load in ("2 in flight", "5 in flight"):
        for policy in ("off", ON.label):
            throughput = figure(result, load, policy, "output_tokens_per_s")
            assert throughput["error"] > 0.3 and throughput["within"] is False
            assert figure(result, load, policy, "tpot_mean_s")["error"] < -0.25
    assert result["verdict"]["within"] == 0
    assert result["replay"]["within"], "a replay takes the run's own times, so that it knows nothing of profiles"
    result |= {"subject": "a planted fault", **_facts()}
    text = served_text(result)
    assert "0 of 8 throughputs" in text and "%*" in text


def test_noise_is_what_repeats_differ_by_and_excuses_no_more(known: Empirical) -> None:
    noisy = judge(make_world(known, repeats=5, policies=(OFF,)), noise=0.1)
    found = figure(noisy, "5 in flight", "off", "tpot_mean_s")
    assert 0.05 < found["noise"] < 0.4
    assert found["within"] and abs(found["error"]) <= found["noise"]
    single = judge(make_world(known, repeats=1, policies=(OFF,)))
    assert figure(single, "5 in flight", "off", "tpot_mean_s")["noise"] is None


def test_a_machine_that_is_slower_today_is_known_by_its_reference_point(known: Empirical) -> None:
    """The reference took 10 ms when the profile was made and takes 15 ms now, as does everything else."""
    profile = dataclasses.replace(
        make_profile(lookup=True), evidence=Evidence(points=9, references={"target": (0.010, 1.0)})
    )
    world = make_world(known, profile=profile, policies=(OFF,), loads=(Load(2), Load(rate_per_s=20.0)))
    fast = serving(world, acceptance(SERVED))
    runs, _ = make_runs(world, lambda trial, arrival_s: _stretched(fast, trial, arrival_s, 1.5))
    result = judged(world, runs, partial(predict, world))
    assert result["pace"] == {"median": pytest.approx(1.5), "low": pytest.approx(1.5), "high": pytest.approx(1.5)}
    for load in ("2 in flight", "20/s"):
        for name in ("output_tokens_per_s", "ttft_mean_s", "tpot_mean_s"):
            assert figure(result, load, "off", name)["error_at_pace"] == pytest.approx(0, abs=1e-6), (load, name)
    assert figure(result, "2 in flight", "off", "tpot_mean_s")["error"] == pytest.approx(1 / 1.5 - 1)
    assert result["verdict"]["within_at_pace"] == result["verdict"]["figures"] > result["verdict"]["within"]


def test_repeats_at_different_paces_are_each_compared_at_their_own(known: Empirical) -> None:
    """Two repeats, the second at twice the pace of the first: raw noise is a third, at pace nothing is left."""
    profile = dataclasses.replace(
        make_profile(lookup=True), evidence=Evidence(points=9, references={"target": (0.010, 1.0)})
    )
    world = make_world(known, profile=profile, policies=(OFF, ON), loads=(Load(2),), repeats=2)
    fast = serving(world, acceptance(SERVED))
    runs, _ = make_runs(world, lambda trial, arrival_s: _stretched(fast, trial, arrival_s, 1.0 + trial.repeat))
    result = judged(world, runs, partial(predict, world))
    found = figure(result, "2 in flight", "off", "tpot_mean_s")
    assert found["noise"] == pytest.approx(1 / 3) and found["noise_at_pace"] == pytest.approx(0, abs=1e-9)
    assert found["error_at_pace"] == pytest.approx(0, abs=1e-6)
    gain = result["speedups"][0]
    assert gain["measured_at_pace"] == pytest.approx(gain["measured"])
    text = served_text(result | {"subject": "two paces", **_facts()})
    assert "+0.0% ±0.0%" in text


def test_a_slow_stretch_of_a_run_counts_by_its_work(known: Empirical) -> None:
    """Half of the work at pace 1 and half at pace 3 takes twice the time, in which three samples of four are slow."""
    profile = dataclasses.replace(
        make_profile(lookup=True), evidence=Evidence(points=9, references={"target": (0.010, 1.0)})
    )
    world = make_world(known, profile=profile, policies=(OFF,), loads=(Load(2),), repeats=1)
    fast = serving(world, acceptance(SERVED))

    def sampled(trial: Trial, arrival_s: np.ndarray) -> Any:
        served = _stretched(fast, trial, arrival_s, 2.0)
        served.reference_s = [0.010, 0.030, 0.030, 0.030]
        return served

    result = judged(world, make_runs(world, sampled)[0], partial(predict, world))
    assert result["pace"]["median"] == pytest.approx(2.0)
    assert figure(result, "2 in flight", "off", "tpot_mean_s")["error_at_pace"] == pytest.approx(0, abs=1e-6)


def test_the_reference_is_the_point_that_the_profile_was_calibrated_beside() -> None:
    from calibrate.latency.grid import Grid, reference_point
    from calibrate.validation.reference import reference_of
    from scenarios.profiles import load_profile

    usual = reference_point(Grid())
    assert reference_of(load_profile("smollm2-135m-cpu-ngram")) == usual, "from before it was kept"

    def known(words: str, **ranges: tuple[float, float]) -> Any:
        evidence = Evidence(points=9, references={"target": (0.01, 1.0)}, ranges=ranges,
                            reference_parts={"target": words} if words else {})  # fmt: skip
        return reference_of(dataclasses.replace(make_profile(lookup=True), evidence=evidence))

    assert known("1@16 1@24").parts == ((1, 16), (1, 24))
    assert known("2@48 2@80 layers=8") is None, "a part of the layers is not the whole model"
    assert known("", requests=(1, 32), width=(1, 6), context_tokens=(2, 1024)) == usual
    assert known("", requests=(1, 2), width=(1, 6), context_tokens=(2, 1024)) is None, "a smaller grid had another one"
    assert reference_of(make_profile(lookup=True)) is None
    for damaged in ("2@", "2@48 x@3", "layers=all", "quick"):
        with pytest.raises(ProfileError, match="is not of the form"):
            known(damaged)


def test_figures_that_do_not_exist_are_no_misses(known: Empirical) -> None:
    """Outputs of one token have no TPOT: neither within nor outside of any bound."""
    world = make_world(known, policies=(OFF,))
    single = make_trace(arrival_s=[0.0] * 6, prompt_tokens=[9] * 6, output_tokens=[1] * 6)
    world = dataclasses.replace(world, trace=single)
    result = judged(world, make_runs(world, serving(world, acceptance(SERVED)))[0], partial(predict, world))
    assert figure(result, "2 in flight", "off", "tpot_mean_s")["measured"] is None
    assert (result["verdict"]["within"], result["verdict"]["figures"]) == (2, 2)


def _stretched(serve: Any, trial: Trial, arrival_s: np.ndarray, factor: float) -> Any:
    """The same run on a machine whose every step takes `factor` times as long: another unit of time."""
    served = serve(trial, arrival_s / factor)
    served.reference_s = [0.010 * factor]
    rows = served.result.requests
    for name in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s"):
        setattr(rows, name, getattr(rows, name) * factor)
    served.result = dataclasses.replace(
        served.result, end_s=served.result.end_s * factor, measure_until_s=served.result.measure_until_s * factor
    )
    served.steps[:] = [dataclasses.replace(s, began_s=s.began_s * factor, ended_s=s.ended_s * factor)
                       for s in served.steps]  # fmt: skip
    return served


def test_acceptance_of_the_own_prompts_predicts_the_run_itself(known: Empirical) -> None:
    """Watched position by position, the drafter accepts what it does in rounds: the guard of what is measured."""
    trace, own = requests(), acceptance(SERVED)
    served = really_serving(make_world(own))(Trial(0, Load(concurrency=5), ON), trace.arrival_s)
    rounds = recorded_rounds(served, Workload(trace, None, seed=0))
    compared = 0
    for record in served.rounds:
        seen = min(int(own.runs[record.request][record.position]), record.drafted)
        assert record.drafted <= int(own.drafts[record.request][record.position])  # type: ignore[index]
        if record.position + seen + 1 < len(own.runs[record.request]):
            assert record.emitted - 1 == seen
            compared += record.drafted > 0
    assert compared > 10 and rounds.expected_length(3) > 1


def test_an_interrupt_keeps_what_is_finished(known: Empirical) -> None:
    world = make_world(known)
    whole = serving(world, acceptance(SERVED))
    made = []

    def stopped(trial: Trial, arrival_s: np.ndarray) -> Any:
        if len(made) == 5:
            raise KeyboardInterrupt
        made.append(trial)
        return whole(trial, arrival_s)

    runs, complete = make_runs(world, stopped)
    assert (len(runs), complete) == (5, False)
    result = judged(world, runs, partial(predict, world))
    assert [row["repeats"] for row in result["rows"]] == [1, 2, 1, 1], "the second repeat begins with the second arm"


def test_arms_take_turns_and_repeats_are_far_apart(known: Empirical) -> None:
    trials = list(make_world(known, repeats=2).trials())
    assert [(t.repeat, t.load.concurrency, t.policy.label) for t in trials] == [
        (0, 2, "off"), (0, 2, "k=3"), (0, 5, "off"), (0, 5, "k=3"),
        (1, 2, "k=3"), (1, 2, "off"), (1, 5, "k=3"), (1, 5, "off"),
    ]  # fmt: skip
    world = make_world(known)
    each = [world.simulate(load, policy).end_s for load in world.loads for policy in world.policies]
    assert predicted_s(world) == pytest.approx(2 * sum(each))


def test_batches_of_the_fit_are_named() -> None:
    from calibrate.latency.grid import Grid

    points = make_points(Grid(requests=8, width=4, context_tokens=256, chunk_tokens=64))
    loads = (Load(concurrency=8), Load(concurrency=7))
    assert shared_loads(loads, points) == (8,)
    said = " ".join(overlap_sentences(loads, points))
    assert "NOT INDEPENDENT: 8 in flight" in said and "7 in flight are batches that it has not seen" in said
    assert "Not checked" in overlap_sentences(loads, None)[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"acceptance": None}, "no acceptance is known"),
        ({"loads": (Load(2), Load(2))}, "a load is given twice"),
        ({"policies": (OFF, OFF)}, "policy off is given twice"),
        ({"repeats": 0}, "at least one of each"),
    ],
)
def test_worlds_that_make_no_sense_are_refused(known: Empirical, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        make_world(known, **change)


def test_loads_scale_arrivals(known: Empirical) -> None:
    trace = requests()
    own = Load(rate_per_s=2 * trace.rate_per_s).arrival_s(trace, 0)
    assert own[0] == 0 and own[-1] == pytest.approx(trace.span_s / 2)
    drawn = Load(rate_per_s=5.0, arrivals="poisson").arrival_s(trace, 0)
    assert len(drawn) == len(trace) and not np.allclose(np.diff(drawn), np.diff(own))
    with pytest.raises(ScenarioError, match="give one of them"):
        Load()


def _facts() -> dict[str, Any]:
    return {
        "date": "2026-01-31", "status": "complete", "runs": 8, "runs_asked": 8, "repeats": 2, "clock": "cpu",
        "profile": {"name": "p", "date": None}, "weights": "random", "checks": ["first", "second"],
        "trace": {"source": "made", "requests": 16, "prompt_tokens_mean": 16.0, "output_tokens_mean": 15.0},
    }  # fmt: skip


def test_a_page_prints_errors_noise_and_signs(known: Empirical) -> None:
    result = {**judge(make_world(known)), "subject": "tiny | model", **_facts()}
    page = served_section([result])
    assert served_section([]) == ""
    assert "### 2026-01-31: tiny" in page
    line = next(line for line in page.split("\n") if line.startswith("| 5 in flight | k=3 |"))
    assert line.count("|") == next(x for x in page.split("\n") if x.startswith("| load")).count("|")
    gain = next(g for g in result["speedups"] if g["load"] == "5 in flight")
    assert f"{gain['measured']:.3f}" in line
    assert not any(math.isnan(v) for row in result["rows"] for f in row["figures"].values() for v in f.values()
                   if isinstance(v, float))  # fmt: skip
