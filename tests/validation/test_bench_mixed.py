"""Files of a call that do not belong together, flags that say otherwise than files: refused, or said in a note."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from bench_files import sglang_line, vllm_result, write
from click.testing import CliRunner, Result

from specsim.cli import cli

GPU = ("--gpu", "h100-sxm", "--no-store", "--luck", "1")
MODEL, OTHER = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B"
SERVER = {"tp_size": 4, "model_path": MODEL, "speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4}
PLAIN = {"tp_size": 2, "model_path": MODEL}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    contents: dict[str, Any] = {
        "off.json": vllm_result(),
        "on2.json": vllm_result(marginals=(0.7, 0.5)),
        "qwen.json": vllm_result(model_id=OTHER),
        "s.jsonl": sglang_line(server=SERVER, accept_length=2.5),
        "plain.jsonl": sglang_line(server=PLAIN),
    }
    for name, data in contents.items():
        write(Path(name), data)
    os.symlink("off.json", "link.json")
    write(Path("both.jsonl"), vllm_result(), sglang_line())


def bench(*words: str) -> Result:
    return CliRunner().invoke(cli, ["validate", "bench", *words, *GPU])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("off.json", "qwen.json"), "off.json: served was model llama-3.1-8b, and in qwen.json qwen3-8b; give files"),
        (("s.jsonl", "plain.jsonl"), "s.jsonl: served was tp 4, and in plain.jsonl 2; give files of one in a call"),
        (("both.jsonl",), "both.jsonl: run 1: served was engine vllm, and in both.jsonl: run 2 sglang; give files"),
        (("off.json", "plain.jsonl"), "off.json: served was engine vllm, and in plain.jsonl sglang"),
        (("off.json", "link.json"), "link.json is the same file as off.json; give each file once"),
        (("off.json", "./off.json"), "./off.json is the same file as off.json"),
        (
            ("plain.jsonl", "off.json", "--method", "eagle3", "--engine", "vllm"),
            "give it as --on off.json or --off off.json",
        ),
    ],
)
def test_files_that_do_not_belong_together_are_refused(words: tuple[str, ...], said: str) -> None:
    done = bench(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("flag", "value"),
    [("topk", "2"), ("draft-dtype", "fp8"), ("draft-tp", "1"), ("draft-kv-dtype", "fp8"), ("draft-sampling", "greedy"),
     ("draft-option", "layers=3"), ("acceptance-drafter", "x"), ("acceptance-model", "constant"), ("k", "3")],
)  # fmt: skip
def test_flags_of_drafting_are_refused_where_no_file_drafted(flag: str, value: str) -> None:
    done = bench("--off", "off.json", f"--{flag}", value)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"--{flag} does nothing: no file was measured with speculation" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("s.jsonl", "--tp", "1"), "Predicted is tp 1; served was tp 4, as s.jsonl says."),
        (("s.jsonl", "--method", "ngram"), "Predicted is method ngram; served was method eagle3, as s.jsonl says."),
        (("s.jsonl", "--k", "7"), "Predicted is k=7; served was k=3, as s.jsonl says. Acceptance behind draft 3"),
        (("on2.json", "--method", "eagle3", "--k", "5"), "Predicted is k=5; served was k=2, as on2.json says. Accep"),
        (("off.json", "--engine", "trtllm"), "Predicted is trtllm; the client of off.json spoke to it as 'vllm'."),
        (("off.json", "qwen.json", "--target", "qwen3-8b"), "Predicted is qwen3-8b; served was 'meta-llama/Llama-3."),
    ],
)
def test_flags_that_say_otherwise_than_the_file_are_noted(words: tuple[str, ...], said: str) -> None:
    done = bench(*words)
    assert done.exit_code == 0, done.output
    assert said in " ".join(done.stdout.split())
