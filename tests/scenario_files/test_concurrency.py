"""Speculation by concurrency: a loop in its steady state, exact limits, and where the sign turns."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from builders import FixedLuck, make_limits, make_profile

from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.engine.simulator import simulate
from specsim.errors import ScenarioError
from specsim.metrics import summarise
from specsim.planner.concurrency import CrossoverSettings, Point, run_point, steady_trace
from specsim.planner.crossover import run_crossover
from specsim.planner.question import Question, Side
from specsim.planner.turns import find_turns, surface_batch
from specsim.stats import Estimate
from specsim.traces.recipe import LengthSpec
from specsim.workload import Workload


class Luck(FixedLuck):
    """Fixed luck with the fields that a question reads."""

    @property
    def conditional(self) -> tuple[float, ...]:
        return (1.0 if self.constant else 0.0,) * 8


def make_question(*, constant: int, **changes: object) -> Question:
    profile = make_profile(**changes)
    side = Side(profile, make_limits(max_num_seqs=512, max_num_batched_tokens=4096))
    return Question(
        deployment=Deployment(),
        speculation=Speculation(num_spec_tokens=(3,)),
        slo=Slo(),
        off=side,
        on=side,
        acceptance=Luck(constant=constant),
        acceptance_source="test",
        acceptance_error=0.0,
        names={"target": "t", "gpu": "g", "draft": "d"},
    )


def settings(*concurrency: int, output: int = 40, **changes: object) -> CrossoverSettings:
    values = {"concurrency": concurrency, "prompt": LengthSpec(60), "output": LengthSpec(output)}
    return CrossoverSettings(**{**values, "num_spec_tokens": 3, "seeds": 3, **changes})  # type: ignore[arg-type]


def make_point(concurrency: int, speedup: float, half: float = 0.01) -> Point:
    one = Estimate(1.0, 1.0, 1.0, 3)
    gain = Estimate(speedup, speedup - half, speedup + half, 3)
    return Point(concurrency, one, one, one, one, gain, gain, gain, concurrency, concurrency, 2.0, 0, 0)


def test_first_wave_stands_anywhere_in_its_outputs_with_contexts_to_match() -> None:
    trace = steady_trace(LengthSpec(50), LengthSpec(400), 200, 500, seed=3)
    first, rest = slice(0, 200), slice(200, 500)
    assert (trace.prompt_tokens[first] + trace.output_tokens[first] == 450).all()
    assert (trace.prompt_tokens[rest] == 50).all()
    assert (trace.output_tokens[rest] == 400).all()
    # one place in every stretch of 1/200 of the output: two tokens wide
    assert (np.abs(np.sort(trace.output_tokens[first]) - 2 * np.arange(1, 201)) <= 2).all()


def test_first_wave_of_drawn_lengths_is_longer_than_the_mean() -> None:
    """In flight, outputs count in proportion to their length: mean E[x^2]/E[x] = mean x exp(sigma^2), here 1.75x.

    2000 picks have a standard error of about 4 % of that; the limits are five of them away from 1.
    """
    spec = LengthSpec(300, 900)
    trace = steady_trace(LengthSpec(50), spec, 2000, 6000, seed=1)
    whole = trace.prompt_tokens[:2000] + trace.output_tokens[:2000] - 50
    assert whole.mean() > 1.3 * trace.output_tokens[2000:].mean()


def test_requests_do_not_run_in_lockstep() -> None:
    """The share of steps with a prompt in them: from a synchronised start every wave would arrive in one step."""
    question = make_question(constant=0)
    workload = Workload(steady_trace(LengthSpec(60), LengthSpec(40), 40, 400, 0), None, seed=0)
    result = simulate(workload, question.off.cost, limits=question.off.limits, policy=PolicySpec("off"),
                      concurrency=40, warmup_share=0.15)  # fmt: skip
    starts = np.unique(result.requests.first_scheduled_s[60:])
    assert len(starts) > 200
    assert summarise(result).running_batch == pytest.approx(40, rel=0.02)


def test_throughput_and_tpot_of_certain_acceptance_are_those_of_the_step() -> None:
    """With every draft accepted and prompts of one token, a round gives 4 tokens in the time of one step."""
    question = make_question(constant=3)
    asked = settings(8, output=401, prompt=LengthSpec(1))
    point = run_point(question, asked, 8)
    assert point.tokens_per_round == pytest.approx(4, rel=0.01)
    step_s = question.on.cost.decode_step_s(8, 200, 3)
    plain_s = question.off.cost.decode_step_s(8, 200, 0)
    assert point.throughput_on.mean == pytest.approx(8 * 4 / step_s, rel=0.03)
    assert point.throughput_off.mean == pytest.approx(8 / plain_s, rel=0.03)
    assert point.tpot_on_s.mean == pytest.approx(step_s / 4, rel=0.03)
    assert point.speedup.mean == pytest.approx(4 * plain_s / step_s, rel=0.03)


def test_drafts_that_never_match_only_cost() -> None:
    result = run_crossover(make_question(constant=0), settings(1, 8, 64))
    assert [point["verdict"] for point in result["points"]] == ["slower"] * 3
    assert result["crossover_concurrency"] is None
    assert result["crossover"]["verdict"] == "never"
    assert all(point["tokens_per_round"] == 1 for point in result["points"])


def test_the_turn_lies_between_points_of_opposite_sign_and_near_the_surface() -> None:
    question = make_question(constant=1)
    asked = settings(1, 16, 64, 256)
    result = run_crossover(question, asked)
    gains = {point["concurrency"]: point["speedup"] for point in result["points"]}
    low, high = result["crossover"]["low"], result["crossover"]["high"]
    assert gains[low] > 1 > gains[high]
    assert low < result["crossover_concurrency"] < high
    surface = surface_batch(question, asked)
    assert surface is not None
    assert low <= surface <= 2 * high


def test_same_inputs_same_numbers() -> None:
    question = make_question(constant=1)
    assert run_crossover(question, settings(4, 9)) == run_crossover(make_question(constant=1), settings(4, 9))


def test_turns_are_interpolated_on_logarithms_and_bracketed_by_what_was_separated() -> None:
    points = [make_point(1, 1.5), make_point(16, 1.005), make_point(64, 0.995), make_point(256, 0.5)]
    (turn,) = find_turns(points)
    assert turn.concurrency == pytest.approx(32, rel=0.01)
    assert (turn.low, turn.high, turn.stops) == (1, 256, True)


def test_gains_that_come_and_go_give_every_turn() -> None:
    turns = find_turns([make_point(1, 1.2), make_point(4, 0.8), make_point(16, 1.2), make_point(64, 0.8)])
    assert [turn.stops for turn in turns] == [True, False, True]
    assert [turn.low for turn in turns] == [1, 4, 16]
    assert all(a.concurrency < b.concurrency for a, b in itertools.pairwise(turns))


def test_points_without_a_number_are_passed_over() -> None:
    nan = dataclasses.replace(make_point(4, 1.0), speedup=Estimate(float("nan"), float("nan"), float("nan"), 0))
    assert len(find_turns([make_point(1, 1.2), nan, make_point(16, 0.8)])) == 1
    assert nan.verdict == "tie"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"concurrency": ()}, "concurrency is empty"),
        ({"concurrency": (0,)}, "concurrency must be whole numbers in 1..65536, got 0"),
        ({"num_spec_tokens": -1}, "k must be a whole number >= 0, got -1"),
        ({"seeds": 2}, "seeds must be 3..1000"),
        ({"seed": -1}, "seed must be >= 0"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        settings(*(changes.pop("concurrency", (1,))), **changes)  # type: ignore[misc]


def test_lengths_that_no_request_can_have_are_refused_with_the_numbers() -> None:
    question = make_question(constant=1)
    with pytest.raises(ScenarioError, match="60 prompt and 200000 output tokens do not fit: the longest sequence"):
        run_point(question, settings(1, output=200_000), 1)


def test_a_batch_that_does_not_fit_is_said_to_queue() -> None:
    question = make_question(constant=1)
    small = dataclasses.replace(question.off, limits=make_limits(max_num_seqs=4))
    result = run_crossover(dataclasses.replace(question, off=small, on=small), settings(16))
    assert result["points"][0]["running_on"] == pytest.approx(4, rel=0.02)
    assert any("only 4 (off) and 4 (on)" in warning for warning in result["warnings"])
