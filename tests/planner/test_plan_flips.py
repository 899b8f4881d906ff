"""How likely a plan's answer turns round, and what would settle it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plan_cli import QUICK, plan, write_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("flips") / "log.csv", requests=120, gap_s=0.1, output=40)


def planned(log: Path, *flags: object) -> dict[str, Any]:
    k3 = ["3" if word == "1,3" else "120" if word == "40" else word for word in QUICK]
    done = plan("--trace", log, *k3, "--no-store", "--json", *flags)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_answer_far_from_break_even_stands_and_one_at_it_is_open(log: Path) -> None:
    sure = planned(log, "--acceptance", "0.9,0.9,0.9")
    assert sure["recommendation"]["policy"] == "k=3"
    assert sure["recommendation"]["flip_probability"] < 0.02
    assert sure["measure_next"]["options"] == []
    even = sure["measure_next"]["break_even_acceptance_length"]
    open_ = planned(log, "--acceptance-length", even)
    assert 0.2 < open_["recommendation"]["flip_probability"] < 0.8
    options = open_["measure_next"]["options"]
    assert {it["what"] for it in options} == {"acceptance", "latency", "replications"}
    left = [it["flip_probability"] for it in options]
    assert left == sorted(left)
    assert left[0] < open_["recommendation"]["flip_probability"]
    assert open_["measure_next"]["what"] == next(it["what"] for it in options if it["what"] != "replications")
    assert "on or off is wrong in" in open_["measure_next"]["text"]
    said = plan("--trace", log, *QUICK, "--no-store", "--acceptance-length", even, "--acceptance-length-k", 3).stdout
    assert "turn on or off round in" in " ".join(said.split())


def test_the_same_plan_gives_the_same_probability(log: Path) -> None:
    first, again = (planned(log, "--acceptance", "0.3,0.2,0.1")["recommendation"] for _ in range(2))
    assert first["flip_probability"] == again["flip_probability"]
    assert first["policy_flip_probability"] == again["policy_flip_probability"]
