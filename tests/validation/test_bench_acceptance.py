"""Acceptance that an engine counted: what no round of so many drafts can emit is refused with the file that says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench_files import FIGURES, aiperf_export, sglang_line, vllm_result, write
from click.testing import CliRunner, Result

from specsim.cli import cli

FLAGS = ("--gpu", "h100-sxm", "--method", "eagle3", "--no-store")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bench(*words: str) -> Result:
    return CliRunner().invoke(cli, ["validate", "bench", *words, *FLAGS])


def vllm(length: float, **changes: Any) -> dict[str, Any]:
    return vllm_result(dict(FIGURES), spec_decode_acceptance_length=length, **changes)


SERVER = {"speculative_algorithm": "EAGLE3", "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4,
          "model_path": "meta-llama/Llama-3.1-8B-Instruct"}  # fmt: skip
FILES = {
    "vllm.json": (vllm(4.7), ("--k", "3")),
    "sglang.jsonl": (sglang_line(dict(FIGURES), server=SERVER, accept_length=4.7), ()),
    "aiperf.json": (aiperf_export(dict(FIGURES), spec_decode_acceptance_length={"unit": "tokens", "avg": 4.7}),
                    ("--k", "3")),
    # counts of three positions that are at odds with the length
    "ranks.json": (vllm(4.7, spec_decode_per_position_acceptance_rates=[0.6, 0.4, 0.2]), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_length_that_no_round_can_emit_is_refused_with_its_file(name: str) -> None:
    content, words = FILES[name]
    done = bench(write(Path(name), content), *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"{name}: acceptance length 4.7 is more than the 4 tokens that a round of k=3 can emit" in done.stderr
    assert "give the k that was served with --k" in done.stderr


def test_of_several_files_the_one_that_says_it_is_named() -> None:
    files = [write(Path(f"{n}.json"), vllm(length)) for n, length in enumerate((2.1, 2.2, 5.5))]
    done = bench(*files, "--k", "3")
    assert done.exit_code == 2
    assert "2.json: acceptance length 5.5 is more than the 4 tokens" in done.stderr


def test_more_than_any_round_can_emit_is_refused_with_its_file() -> None:
    for name, content in (
        ("vllm.json", vllm(70.0)),
        ("aiperf.json", aiperf_export(dict(FIGURES), spec_decode_acceptance_length={"unit": "tokens", "avg": 70.0})),
    ):
        done = bench(write(Path(name), content), "--k", "3")
        assert done.exit_code == 2
        assert done.stderr.startswith(f"Error: {name}: ") and "must be at most 65, is 70" in done.stderr


def test_possible_lengths_and_lengths_of_ones_own_pass() -> None:
    for length, words in ((3.9, ("--k", "3")), (4.7, ("--k", "5")), (4.7, ("--k", "3", "--acceptance-length", "2"))):
        done = bench(write(Path("v.json"), vllm(length)), *words)
        assert done.exit_code == 0, done.output
