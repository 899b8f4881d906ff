"""Measured requests: the file format, their replay, and changes of acceptance."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from specsim.acceptance import Empirical, read_measured
from specsim.acceptance.base import round_starts
from specsim.errors import ProfileError

ROWS = [
    {"request": 0, "task": "math", "prompt_tokens": 9, "output_tokens": 6, "eagle": [4, 3, 2, 1, 2, 1]},
    {"request": 1, "task": "chat", "prompt_tokens": 5, "output_tokens": 3, "eagle": [1, 2, 1]},
]


def write(path: Path, rows: list) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def replay(path: Path, drafter: str = "eagle", *, proposal_rate: float = 1.0) -> Empirical:
    return Empirical.of(read_measured(path, drafter=drafter), proposal_rate=proposal_rate)


def test_values_become_runs_and_the_middle_gives_way(tmp_path: Path) -> None:
    model = Empirical.of(read_measured(write(tmp_path / "a.jsonl", ROWS), drafter="eagle", task="math"))
    assert model.max_spec_tokens == 3
    assert model.luck(0, 0, np.array([6])).run.tolist() == [3, 2, 1, 0, 1, 0]
    assert model.luck(0, 0, np.array([4])).run.tolist() == [3, 2, 1, 0]
    assert model.luck(0, 0, np.array([3])).run.tolist() == [3, 1, 0]
    assert model.luck(0, 0, np.array([11])).run.tolist() == [3, 2, 1, 2, 1, 0, 1, 2, 0, 1, 0]
    assert model.expected_length(1) == pytest.approx(6 / 3)  # 2 + 2 + 2: the request replayed at k = 1
    assert model.expected_length(3) == pytest.approx(6 / 2)  # 4 + 2


def test_gzip_and_byte_order_mark_read_the_same(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.jsonl", ROWS)
    packed = tmp_path / "b.whatever"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain.read_bytes()))
    a, b = (replay(path).luck(3, 0, np.full(20, 9)) for path in (plain, packed))
    assert np.array_equal(a.run, b.run)


def test_requests_are_drawn_by_their_own_id(tmp_path: Path) -> None:
    model = replay(write(tmp_path / "a.jsonl", ROWS))
    whole = model.luck(5, 100, np.full(200, 4))
    assert np.array_equal(whole.of(150)[0], model.luck(5, 250, np.array([4])).run)
    starts = whole.run[whole.offsets[:-1]]
    assert set(starts.tolist()) == {0, 3}  # both measured requests occur


def test_change_moves_the_length_the_right_way(tmp_path: Path) -> None:
    draws = np.random.default_rng(4)
    rows = [{"eagle": (1 + draws.geometric(0.4, 200).clip(1, 8) - 1).tolist(), "task": "chat"} for _ in range(30)]
    model = replay(write(tmp_path / "a.jsonl", rows))
    worse, better = model.with_change(-0.2), model.with_change(0.1)
    assert worse.expected_length(3) < model.expected_length(3) < better.expected_length(3)
    lengths = np.full(200, 300)
    base, low, high = (m.luck(1, 0, lengths).run.mean() for m in (model, worse, better))
    assert low < base < high
    assert model.with_change(-1.0).expected_length(3) == 1.0


def test_a_proposal_rate_adds_idle_proposals(tmp_path: Path) -> None:
    rows = [{"ngram": [1] * 9 + [3], "task": "chat"}]
    model = replay(write(tmp_path / "a.jsonl", rows), "ngram", proposal_rate=0.4)
    luck = model.luck(2, 0, np.full(5000, 10))
    assert luck.drafts is not None
    assert luck.drafts[luck.run > 0].all()
    # 50,000 positions, 45,000 of them drawn: 5 binomial errors are 0.011, a false alarm below 1e-6
    assert (luck.drafts > 0).mean() == pytest.approx(0.4, abs=0.011)


def test_measured_proposals_are_replayed(tmp_path: Path) -> None:
    rows = [{"ngram": [3, 2, 1, 1], "ngram_drafts": [2, 5, 0, 1], "task": "chat"}]
    model = replay(write(tmp_path / "a.jsonl", rows), "ngram")
    luck = model.luck(2, 0, np.full(3, 4))
    assert luck.drafts is not None and luck.drafts.reshape(3, 4).tolist() == [[2, 5, 0, 1]] * 3
    assert model.proposal_rate == 0.75
    assert model.expected_drafts(2) == pytest.approx((2 + 1) / 2)  # rounds at positions 0 and 3
    better = model.with_change(0.5).luck(2, 0, np.full(200, 4))
    assert better.drafts is not None and (better.run <= better.drafts).all()
    assert better.run.mean() > luck.run.mean()


def test_requests_of_a_similar_length_are_replayed(tmp_path: Path) -> None:
    """Two lengths a factor of ten apart: the nearer one has all but e^-12 of the weight."""
    rows = [{"eagle": [2] * 20}, {"eagle": [1] * 200}]
    model = replay(write(tmp_path / "a.jsonl", rows))
    luck = model.luck(0, 0, np.tile([20, 200], 50))
    assert luck.run[:20].all() and not luck.run[20:220].any()
    assert luck.run.sum() == 50 * 20
    assert model.luck(0, 0, np.full(40, 63)).run.any(), "between the two, both occur"


def test_round_starts_are_those_of_a_walk_request_by_request() -> None:
    draws = np.random.default_rng(3)
    sizes = draws.integers(1, 40, size=30)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    run = draws.integers(0, 6, size=offsets[-1]).astype(np.int8)
    for k in (0, 1, 4):
        expected = []
        for first, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            at = first
            while at < end:
                expected.append(at)
                at += min(k, int(run[at])) + 1
        assert round_starts(run, offsets, k).tolist() == expected


def test_expected_length_is_that_of_the_requests_replayed_once(tmp_path: Path) -> None:
    model = replay(write(tmp_path / "a.jsonl", ROWS))
    assert model.expected_length(1) == pytest.approx((2 + 2 + 2 + 1 + 2) / 5)
    assert model.expected_drafts(3) == 3.0
    assert model.conditional[0] == pytest.approx(model.expected_length(1) - 1)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no measured request"),
        (["{"], "line 1: not a JSON object"),
        (["[1]"], "line 1: expected an object"),
        ([ROWS[0], {"task": "math"}], "line 2: no drafter 'eagle'"),
        ([{"eagles": [1]}], "did you mean 'eagles'"),
        ([{"eagle": []}], "line 1: 'eagle' must be a list"),
        ([{"eagle": "111"}], "line 1: 'eagle' must be a list"),
        ([ROWS[0], {"eagle": [1, 0]}], "line 2: 'eagle' position 1 must be a whole number 1..65"),
        ([{"eagle": [1.5]}], "got 1.5"),
        ([{"eagle": [True]}], "got True"),
        ([{"eagle": [66]}], "got 66"),
        (['{"eagle": [NaN]}'], "got nan"),
        (["[" * 100_000], "line 1: not a JSON object"),
        ([{"eagle": [1], "task": 5}], "'task' must be a word"),
        ([{"eagle": [2], "eagle_drafts": [0]}], "position 0 is 0, but 1 drafts match there"),
        ([{"eagle": [2], "eagle_drafts": [1, 1]}], "'eagle_drafts' has 2 positions and 'eagle' 1"),
        ([{"eagle": [2], "eagle_drafts": [65]}], "0..64"),
        ([{"eagle": [2], "eagle_drafts": [1]}, {"eagle": [1]}], "line 2: 'eagle_drafts' is there in some requests"),
    ],
)
def test_bad_files_are_refused_with_the_line(tmp_path: Path, rows: list, words: str) -> None:
    with pytest.raises(ProfileError) as caught:
        read_measured(write(tmp_path / "bad.jsonl", rows), drafter="eagle")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_truncated_and_wrongly_encoded_files(tmp_path: Path) -> None:
    truncated = tmp_path / "t.gz"
    truncated.write_bytes(gzip.compress(b'{"eagle": [1, 2]}\n' * 100)[:-9])
    utf16 = tmp_path / "u.jsonl"
    utf16.write_bytes('{"eagle": [1]}'.encode("utf-16"))
    for path in (tmp_path / "none.jsonl", tmp_path, truncated, utf16):
        with pytest.raises(ProfileError) as caught:
            read_measured(path, drafter="eagle")
        assert "\n" not in str(caught.value)


def test_unknown_task_lists_those_there(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="task 'code'; tasks there: chat, math"):
        read_measured(write(tmp_path / "a.jsonl", ROWS), drafter="eagle", task="code")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"eagle": None}, "'eagle' must be a list with one number per output position, got None"),
        ({"eagle": "1,2"}, "'eagle' must be a list"),
        ({"eagle": [1], "output_tokens": None}, "'output_tokens' must be a whole number >= 0, got None"),
        ({"eagle": [1], "output_tokens": -3}, "'output_tokens' must be a whole number >= 0, got -3"),
        ({"eagle": [1], "prompt_tokens": "9"}, "'prompt_tokens' must be a whole number >= 0, got '9'"),
        ('{"eagle": [1], "eagle": [2]}', "key 'eagle' stands there twice"),
        ('{"eagle": [1], "task": "a", "task": "b"}', "key 'task' stands there twice"),
    ],
)
def test_lines_that_say_something_else_than_the_format_are_refused(tmp_path: Path, row: object, said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        replay(write(tmp_path / "a.jsonl", [ROWS[0], row]))
    assert f"line 2: {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["request", "task", "prompt_tokens", "output_tokens", "eagle_drafts"])
def test_keys_of_the_format_are_no_drafters(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProfileError, match=f"drafter '{name}' is a key of the file format; those there: eagle"):
        replay(write(tmp_path / "a.jsonl", ROWS), name)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, mark: str) -> None:
    """Other separators of Unicode may stand inside a JSON text."""
    path = tmp_path / "a.jsonl"
    row = dict(ROWS[0], task=f"ma{mark}th")
    path.write_text(
        json.dumps(row, ensure_ascii=False) + "\r\n" + json.dumps(ROWS[1]) + "\n", encoding="utf-8", newline=""
    )
    assert len(read_measured(path, drafter="eagle").runs) == 2
