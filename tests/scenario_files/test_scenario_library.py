"""Ready scenarios: each opens with its question, source and expected answer, and that answer still comes out."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from scenarios.loader import dump_scenario, library_names, load_scenario, parse_scenario
from specsim.cli import cli

EXPECTED_GAIN = {
    "bursty-chat-off-above": (0.95, 1.15),
    "chat-ngram": (1.15, 1.40),
    "deepseek-v3-h200x8-mtp": (1.2, 1.7),
    "llama-70b-h100x4-eagle3": (1.6, 2.6),
    "llama-8b-h100-eagle": (1.35, 1.7),
    "qwen3-30b-a3b-moe": (1.3, 1.75),
}
"""Library name -> mean TPOT of `off` over that of the scenario's own policy, as its header says, with room for changes
of the cost model that do not turn the answer."""


def mean_tpot_s(name: str, *more: str) -> float:
    result = CliRunner().invoke(cli, ["simulate", name, "--no-store", "--json", *more])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["metrics"]["tpot_mean_s"]


def test_every_ready_scenario_has_an_expected_answer() -> None:
    assert set(library_names()) == set(EXPECTED_GAIN)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXPECTED_GAIN))
def test_the_expected_answer_still_comes_out(name: str) -> None:
    low, high = EXPECTED_GAIN[name]
    assert low <= mean_tpot_s(name, "--policy", "off") / mean_tpot_s(name) <= high


@pytest.mark.parametrize("name", sorted(EXPECTED_GAIN))
def test_headers_say_question_source_and_answer(name: str) -> None:
    scenario = load_scenario(name)
    header = scenario.path.read_text(encoding="utf-8").split("\n[")[0]
    assert all(f"# {word}: " in header for word in ("Question", "Numbers", "Expected"))
    assert parse_scenario(dump_scenario(scenario), scenario.path) == scenario
