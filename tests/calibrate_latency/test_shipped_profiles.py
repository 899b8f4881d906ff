"""The profiles that ship with specsim: they follow from their points, hold at points not fitted, and are usable."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from calibrate.fit.predict import predicted_s
from calibrate.points import read_points
from scenarios.profiles import load_profile, points_beside, profile_names
from specsim.cli import cli
from specsim.cli.calibrate_fit import fitted_profile

SMOLLM2 = tuple(f"smollm2-135m-cpu-{method}" for method in ("draft_model", "layer_skip", "ngram"))


def test_smollm2_is_there_with_three_drafters() -> None:
    assert set(SMOLLM2) <= set(profile_names())


@pytest.mark.parametrize("name", profile_names())
def test_held_out_points_are_met(name: str) -> None:
    """Median error at most 5 %, 95th percentile at most 15 %, or within the noise where that is larger."""
    evidence = load_profile(name).evidence
    assert evidence is not None
    assert evidence.holdout_points >= 10
    assert evidence.holdout_median <= max(0.05, evidence.noise)
    assert evidence.holdout_p95 <= max(0.15, evidence.noise_p95)


@pytest.mark.parametrize("name", profile_names())
def test_the_profile_follows_from_its_points(name: str) -> None:
    profile, path = load_profile(name), points_beside(name)
    assert path is not None
    setup, points, sha256 = read_points(path)
    assert profile.evidence is not None
    assert profile.evidence.points_sha256 == sha256
    again = fitted_profile(setup, points, profile.covers["method"], sha256=sha256, name=profile.name)
    assert again.covers == profile.covers
    for point in points:
        old, new = predicted_s(profile, point), predicted_s(again, point)
        assert old is None or new == pytest.approx(old, rel=0.02)


@pytest.mark.parametrize("name", SMOLLM2)
def test_passes_and_host_times_add_up_to_what_was_measured(name: str) -> None:
    """Every measured pass, host step and round of drafting lies near the profile, flagged ones apart; nothing that is
    less than a hundredth of a step counts."""
    profile, path = load_profile(name), points_beside(name)
    assert path is not None
    checked = 0
    for point in read_points(path)[1]:
        predicted = predicted_s(profile, point) if point.kind in ("body", "head", "draft_round", "host") else None
        if predicted is not None and not any(point.label in flag for flag in profile.evidence.flagged):  # type: ignore[union-attr]
            checked += 1
            assert predicted == pytest.approx(point.seconds, rel=0.35, abs=0.01 * profile.target.weights_s)
    assert checked > 50


def test_a_shipped_profile_is_used_by_its_name() -> None:
    arguments = ("crossover", "--profile", "smollm2-135m-cpu-ngram", "--k", "3", "--acceptance-length", "1.6", "--isl",
                 "100", "--osl", "40", "--concurrency", "1,8", "--seeds", "3", "--json")  # fmt: skip
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["deployment"]["target"] == "smollm2-135m"
    assert result["profile"]["on"]["kind"] == "measured"
    shown = CliRunner().invoke(cli, ["profile", "show", "smollm2-135m-cpu-ngram"])
    assert "verify" in shown.output
