"""Acceptance measured by round instead of by position, and what measured requests say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.acceptance import Empirical, read_measured
from specsim.acceptance.base import round_starts
from specsim.acceptance.measured import drafters_in
from specsim.acceptance.measured_summary import summary_of
from specsim.acceptance.round_statistics import round_statistics
from specsim.errors import ProfileError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "acceptance_smollm2_135m.jsonl.gz"

ROWS: list[dict[str, Any]] = [
    {
        "request": 0, "task": "chat", "output_tokens": 8,
        "suffix_rounds": {"1": [2, 1, 1, 2, 2], "5": [4, 1, 3]},
        "suffix_rounds_drafts": {"1": [1, 0, 1, 1, 1], "5": [5, 0, 2]},
    },
    {
        "request": 1, "task": "code", "output_tokens": 3,
        "suffix_rounds": {"1": [1, 1, 1], "5": [1, 2]},
        "suffix_rounds_drafts": {"1": [0, 0, 1], "5": [0, 1]},
    },
]  # fmt: skip


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_rounds_become_runs_that_are_exact_at_the_largest_k(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    assert drafters_in(path) == ("suffix",)
    found = read_measured(path, drafter="suffix")
    assert [run.tolist() for run in found.runs] == [[3, 2, 1, 0, 0, 2, 1, 0], [0, 1, 0]]
    assert found.drafts is not None
    assert [drafts.tolist() for drafts in found.drafts] == [[5, 4, 3, 2, 0, 2, 1, 0], [0, 1, 0]]
    assert round_starts(found.runs[0], np.array([0, 8]), 5).tolist() == [0, 4, 5]
    assert found.max_spec_tokens == 5
    model = Empirical.of(found)
    assert model.expected_length(5) == pytest.approx(11 / 5)
    assert model.expected_drafts(5) == pytest.approx(8 / 5)
    code = found.of_task("code")
    assert code.rounds is not None and {k: len(rounds) for k, rounds in code.rounds.items()} == {1: 1, 5: 1}


@pytest.mark.parametrize("key", ["suffix", "suffix_rounds", "suffix_rounds_drafts", "task"])
def test_only_drafters_are_drafters(tmp_path: Path, key: str) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    if key == "suffix":
        read_measured(path, drafter=key)
        return
    with pytest.raises(ProfileError, match="those there: suffix"):
        read_measured(path, drafter=key)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"suffix_rounds": []}, "must be an object with the rounds of each k"),
        ({"suffix_rounds": {}}, "must be an object with the rounds of each k"),
        ({"suffix_rounds": {"0": [1]}}, "has the k '0'; give whole numbers 1..64"),
        ({"suffix_rounds": {"x": [1]}}, "has the k 'x'"),
        ({"suffix_rounds": {"1": [3, 1], "5": [4]}}, "'suffix_rounds 1' position 0 must be a whole number 1..2"),
        ({"suffix_rounds": {"3": [4, 4]}}, "must have the same values of k in every request"),
        ({"suffix_rounds_drafts": {"1": [1]}}, "must have the values of k"),
        ({"suffix_rounds_drafts": {"1": [1], "5": [5, 0, 2]}}, "has 1 rounds at k=1, and there are 5"),
        ({"suffix_rounds_drafts": {"1": [0, 0, 1, 1, 1], "5": [5, 0, 2]}}, "fewer drafts than were accepted"),
    ],
)
def test_bad_rounds_are_refused_with_their_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    row = ROWS[0] | change
    if "suffix_rounds" in change:
        row = {key: value for key, value in row.items() if key != "suffix_rounds_drafts"}
    path = write(tmp_path / "a.jsonl", [{key: v for key, v in ROWS[1].items() if key in row}, row])
    with pytest.raises(ProfileError, match="line 2") as error:
        read_measured(path, drafter="suffix")
    assert said in str(error.value)


def test_most_drafts_that_were_measured(tmp_path: Path) -> None:
    rows = [{"eagle": [1, 3, 2], "k_max": 20}, {"eagle": [1, 1]}]
    assert read_measured(write(tmp_path / "a.jsonl", rows), drafter="eagle").max_spec_tokens == 2, "not said of all"
    rows[1]["k_max"] = 20
    assert Empirical.of(read_measured(write(tmp_path / "a.jsonl", rows), drafter="eagle")).max_spec_tokens == 20
    for wrong, said in ((0, "must be a whole number"), ("3", "must be a whole number"), (1, "2 drafts that match")):
        rows[0]["k_max"] = wrong
        with pytest.raises(ProfileError, match="line 1: 'k_max'") as error:
            read_measured(write(tmp_path / "a.jsonl", rows), drafter="eagle")
        assert said in str(error.value)


def test_a_request_measured_by_position_among_others_by_round_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [ROWS[0], {"suffix": [1, 2, 1]}])
    with pytest.raises(ProfileError, match="line 2: 'suffix_rounds' must have the same values of k in every request"):
        read_measured(path, drafter="suffix")


def test_summary_takes_the_rounds_that_were_run(tmp_path: Path) -> None:
    found = summary_of(read_measured(write(tmp_path / "a.jsonl", ROWS), drafter="suffix"), (1, 3, 5))
    assert [at.k for at in found.by_k] == [1, 5], "k = 3 was not run"
    one, five = found.by_k
    assert one.length == pytest.approx(11 / 8)
    assert one.accepted == (3 / 8,)
    assert one.drafted == pytest.approx(5 / 8)
    assert five.length == pytest.approx(11 / 5)
    assert five.accepted == pytest.approx((3 / 5, 2 / 5, 1 / 5, 0, 0))
    assert five.by_task == pytest.approx({"chat": 8 / 3, "code": 3 / 2})
    assert (found.requests, found.output_tokens) == (2, 11)


def sample(rng: np.random.Generator, requests: int) -> list[dict[str, Any]]:
    """Requests that differ: each has an acceptance of its own; lengths differ too."""
    rows = []
    for _ in range(requests):
        matches = rng.random(int(rng.integers(40, 160))) < rng.beta(6, 4)
        run, length = [], 0
        for match in matches[::-1].tolist():
            length = min(length + 1, 5) if match else 0
            run.append(length + 1)
        rows.append({"eagle": run[::-1]})
    return rows


def test_the_interval_holds_and_the_prompts_that_it_needs_are_right(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    truth = summary_of(read_measured(write(tmp_path / "all.jsonl", sample(rng, 4000)), drafter="eagle"), (3,)).by_k[0]
    inside, wanted = 0, []
    for n in range(60):
        path = write(tmp_path / f"{n}.jsonl", sample(rng, 50))
        at = summary_of(read_measured(path, drafter="eagle"), (3,), wanted_interval=0.03).by_k[0]
        assert at.low is not None and at.high is not None and at.prompts_wanted is not None
        inside += at.low <= truth.length <= at.high
        wanted.append(at.prompts_wanted)
    # a 95 % interval misses 3 of 60 on the mean; 10 or more misses have a chance below 0.1 %
    assert inside > 50
    needed = int(np.median(wanted))
    halves = []
    for n in range(20):
        path = write(tmp_path / f"needed-{n}.jsonl", sample(rng, needed))
        at = summary_of(read_measured(path, drafter="eagle"), (3,)).by_k[0]
        assert at.low is not None and at.high is not None
        halves.append((at.high - at.low) / 2 / at.length)
    assert np.mean(halves) == pytest.approx(0.03, rel=0.1)


def test_what_a_smaller_k_loses_is_small_on_the_example() -> None:
    """Suffix decoding, run at k = 1, 3, 5 and 10: replayed from its rounds at 10, beside its own at the others."""
    found = read_measured(EXAMPLE, drafter="suffix")
    model = Empirical.of(found)
    errors = {at.k: model.expected_length(at.k) / at.length - 1 for at in summary_of(found, (1, 3, 5, 10)).by_k}
    assert errors[10] == pytest.approx(0, abs=1e-12)
    assert all(-0.025 < error < 0.025 for error in errors.values())
    assert errors[1] == pytest.approx(-0.022, abs=0.001), "as the reference says"
    assert errors[5] == pytest.approx(-0.008, abs=0.001), "as the reference says"


@pytest.mark.parametrize("drafter", ["ngram", "layer_skip"])
def test_the_memory_and_spread_of_the_example_are_replayed(drafter: str) -> None:
    """Acceptance is not independent on real text; the replay has what was measured, within sampling error."""
    found = read_measured(EXAMPLE, drafter=drafter)
    at = summary_of(found, (3,)).by_k[0]
    outputs = np.tile([len(run) for run in found.runs], 20)
    luck = Empirical.of(found).luck(1, 0, outputs)
    replayed = round_statistics(luck.run, luck.offsets, 3)
    assert replayed.length == pytest.approx(at.length, rel=0.06)
    assert replayed.autocorrelation == pytest.approx(at.autocorrelation, abs=0.08)
    assert (at.autocorrelation > 0.2) == (drafter == "ngram")


def test_one_request_has_no_interval(tmp_path: Path) -> None:
    at = summary_of(
        read_measured(write(tmp_path / "a.jsonl", ROWS[:1]), drafter="suffix"), (5,), wanted_interval=0.1
    ).by_k[0]
    assert (at.low, at.high, at.prompts_wanted, at.by_task) == (None, None, None, {})
