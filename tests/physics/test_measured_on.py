"""What a file of measured requests says that it was measured on: read, kept, held together; others as before."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from specsim.acceptance import Empirical, read_measured
from specsim.acceptance.measured import drafters_in
from specsim.acceptance.measured_summary import summary_of
from specsim.errors import ProfileError
from specsim.report.measured_acceptance import measured_acceptance_text

ON: dict[str, Any] = {
    "target": {"name": "some-target", "layers": 4, "hidden_size": 64},
    "drafters": {
        "ngram": {"method": "ngram", "options": {"min_tokens": 2, "max_tokens": 4}},
        "head": {"method": "eagle3", "options": {"nodes": 0}, "tree": "4x2x1", "model": {"name": "a-head"}},
    },
    "temperature": 0.0, "top_k": None, "top_p": 1.0, "draft_sampling": "greedy", "dtype": "bf16", "seed": 3,
    "prompts": 4, "date": "2026-11-30", "specsim": "0.1.0",
}  # fmt: skip


def rows(*facts: Any) -> list[dict[str, Any]]:
    """A request for each of the facts; None: without any."""
    return [
        {"request": n, "task": "ab"[n % 2], "prompt_tokens": 3, "output_tokens": 4, "ngram": [2, 1, 1, 1 + n % 2],
         "head": [3, 2, 1, 1], **({} if own is None else {"measured": own})}
        for n, own in enumerate(facts)
    ]  # fmt: skip


def written(path: Path, given: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    return path


def changed(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in {**ON, **values}.items() if value is not ...}


def test_a_file_says_what_it_was_measured_on(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl", rows(ON, ON, ON, ON))
    found = read_measured(path, drafter="ngram")
    assert found.on is not None and found.on.target is not None
    assert (found.on.target.name, found.on.target.layers, found.on.target.hidden_size) == ("some-target", 4, 64)
    assert dict(found.on.options) == {"min_tokens": 2, "max_tokens": 4}
    assert found.on.sentence == (
        "on some-target by ngram (max_tokens 4, min_tokens 2), greedy, bf16, 4 prompts, seed 3, 2026-11-30, "
        "specsim 0.1.0"
    )
    head = read_measured(path, drafter="head").on
    assert head is not None
    assert head.sentence.startswith("on some-target by eagle3 (tree 4x2x1) with drafter a-head, greedy")
    assert drafters_in(path) == ("ngram", "head"), "what it was measured on is no drafter"
    with pytest.raises(ProfileError, match="'measured' is a key of the file format"):
        read_measured(path, drafter="measured")


def test_it_stays_with_some_of_the_requests_and_goes_to_other_processes(tmp_path: Path) -> None:
    found = read_measured(written(tmp_path / "m.jsonl", rows(ON, ON, ON, ON)), drafter="ngram")
    assert found.of_task("a").on == found.of_requests([3]).on == found.on
    assert pickle.loads(pickle.dumps(found)).on == found.on
    part = read_measured(written(tmp_path / "part.jsonl", rows(ON, ON, ON, ON)[2:]), drafter="ngram")
    assert part.on == found.on


def test_a_file_without_it_is_read_as_before(tmp_path: Path) -> None:
    plain = read_measured(written(tmp_path / "plain.jsonl", rows(None, None)), drafter="ngram")
    told = read_measured(written(tmp_path / "told.jsonl", rows(ON, ON)), drafter="ngram")
    assert plain.on is None
    assert [run.tolist() for run in plain.runs] == [run.tolist() for run in told.runs]
    assert Empirical.of(plain, proposal_rate=0.5).expected_length(2) == Empirical.of(
        told, proposal_rate=0.5
    ).expected_length(2)
    for example in ("gsm8k", "sharegpt"):
        path = Path(__file__).resolve().parents[2] / "examples" / f"acceptance_llama31_8b_{example}.jsonl.gz"
        assert read_measured(path, drafter="eagle").on is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"target": {"name": "t"}}, "on t"),
        ({}, "on an unnamed target"),
        (changed(temperature=0.8, top_k=30, top_p=0.9), "temperature 0.8 (top-k 30, top-p 0.9, greedy drafts)"),
        (changed(temperature=0.8, draft_sampling="probabilistic"), "temperature 0.8 (probabilistic drafts)"),
        (changed(temperature=...), "by ngram (max_tokens 4, min_tokens 2), bf16"),
        (changed(drafters={}), "on some-target, greedy"),
    ],
)
def test_any_part_may_be_missing(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    found = read_measured(written(tmp_path / "m.jsonl", rows(given)), drafter="ngram")
    assert found.on is not None
    assert words in found.on.sentence


BAD = [
    (["x"], "'measured' must be an object, got ['x']"),
    (changed(targt=3), "'measured' has the key 'targt' (did you mean 'target'?); its keys are target, drafters"),
    (changed(target="t"), "'measured.target' must be an object, got 't'"),
    (changed(target={"layers": 3}), "'measured.target' has no name"),
    (changed(target={"name": "t", "layers": 0}), "'measured.target.layers' must be a whole number >= 1, got 0"),
    (changed(target={"name": "two\nlines"}), "'measured.target.name' must be a word or a short text"),
    (changed(drafters={"ngram": {"kind": "x"}}), "'measured.drafters.ngram' has the key 'kind'"),
    (changed(drafters={"ngram": {"options": {"a": "b"}}}), "'measured.drafters.ngram.options.a' must be a finite"),
    (changed(drafters={"ngram": {"options": {"a": None}}}), "'measured.drafters.ngram.options.a' must be a finite"),
    (changed(temperature=-1), "'measured.temperature' must be a finite number >= 0, got -1"),
    (changed(temperature=True), "'measured.temperature' must be a finite number >= 0, got True"),
    (changed(temperature=float("nan")), "'measured.temperature' must be a finite number >= 0, got nan"),
    (changed(top_p=1.5), "'measured.top_p' must be a finite number in 0..1, got 1.5"),
    (changed(top_k=0), "'measured.top_k' must be a whole number >= 1, got 0"),
    (changed(dtype=16), "'measured.dtype' must be a word or a short text, got 16"),
    (changed(prompts=2.5), "'measured.prompts' must be a whole number >= 1, got 2.5"),
    (changed(date="yesterday"), "'measured.date' must be a day such as 2026-11-30, got 'yesterday'"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), BAD)
def test_what_makes_no_sense_is_refused_with_file_and_line(tmp_path: Path, given: Any, said: str) -> None:
    path = written(tmp_path / "m.jsonl", rows(ON, ON, given)[2:])
    with pytest.raises(ProfileError) as caught:
        read_measured(path, drafter="ngram")
    assert str(caught.value).startswith(f"{path}: line 1: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (None, "'measured' is there in some requests only"),
        (changed(target={"name": "other"}), "'measured' says target other, and a request before it some-target"),
        (changed(temperature=0.7), "'measured' says temperature 0.7, and a request before it 0.0"),
        (changed(dtype="fp32"), "says dtype fp32, and a request before it bf16"),
        (changed(drafters={"ngram": {"method": "suffix"}}), "says method suffix, and a request before it ngram"),
        (
            changed(drafters={"ngram": {"method": "ngram", "options": {"min_tokens": 5}}}),
            "says options min_tokens 5, and a request before it max_tokens 4, min_tokens 2",
        ),
    ],
)
def test_requests_of_different_measurements_are_not_mixed(tmp_path: Path, other: Any, said: str) -> None:
    path = written(tmp_path / "m.jsonl", rows(ON, ON, other))
    with pytest.raises(ProfileError) as caught:
        read_measured(path, drafter="ngram")
    assert f"{path}: line 3: " in str(caught.value) and said in str(caught.value)
    written(path, rows(*([ON, ON, other][::-1])))
    with pytest.raises(ProfileError, match="line 2"):
        read_measured(path, drafter="ngram")


def test_requests_of_one_kind_measured_on_two_days_go_together(tmp_path: Path) -> None:
    later = changed(date="2026-12-01", seed=4, prompts=9, specsim="0.2.0")
    found = read_measured(written(tmp_path / "m.jsonl", rows(ON, later)), drafter="ngram").on
    assert found is not None
    assert (found.date, found.seed, found.prompts, found.specsim) == (None, None, None, None)
    assert found.sentence == "on some-target by ngram (max_tokens 4, min_tokens 2), greedy, bf16"
    other_drafter = changed(drafters={**ON["drafters"], "head": {"method": "medusa"}})
    read_measured(written(tmp_path / "m.jsonl", rows(ON, other_drafter)), drafter="ngram")
    with pytest.raises(ProfileError, match="says method medusa"):
        read_measured(tmp_path / "m.jsonl", drafter="head")


def test_summaries_say_it_where_the_file_does(tmp_path: Path) -> None:
    for facts, there in ((ON, True), (None, False)):
        found = read_measured(written(tmp_path / "m.jsonl", rows(facts, facts)), drafter="head")
        summary = summary_of(found, (1, 2))
        assert (summary.measured_on is not None) == there
        text = " ".join(measured_acceptance_text([summary]).split())
        assert ("measured on some-target by eagle3 (tree 4x2x1) with drafter a-head" in text) == there
