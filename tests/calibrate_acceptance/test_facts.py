"""What `calibrate acceptance` writes about a measurement, that prompts are read before weights, and its trees."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from tiny_acceptance import save_model, write_jsonl  # noqa: E402

import specsim  # noqa: E402
from calibrate.acceptance.facts import model_name  # noqa: E402
from calibrate.drafters.planting import StaticTree, read_tree, tree_of_paths  # noqa: E402
from specsim.acceptance import read_measured  # noqa: E402
from specsim.cli import cli  # noqa: E402
from specsim.trees import level_paths  # noqa: E402

PROMPTS = [{"prompt": " ".join(f"w{6 + (n * 7 + i) % 50}" for i in range(6))} for n in range(3)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_heads import save_eagle

    from calibrate.models import load_model

    home = tmp_path_factory.mktemp("models")
    save_model(home / "my-target")
    save_model(home / "my-draft", noise=0.02)
    target = load_model(home / "my-target", dtype=torch.float64)
    texts = [[(7 * n + i * i) % 61 for i in range(30)] for n in range(4)]
    save_eagle(home / "my-head", target, texts, speculators_form=True)
    return home


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "prompts.jsonl", PROMPTS)


def calibrate(models: Path, *words: str, out: str = "a.jsonl") -> Result:
    flags = ["--target", str(models / "my-target"), "--prompts", "prompts.jsonl", "-o", out, "--max-tokens", "12"]
    return CliRunner().invoke(cli, ["calibrate", "acceptance", *flags, *words])


def rows(path: str = "a.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_every_row_says_what_it_was_measured_on(models: Path) -> None:
    flags = ("--method", "ngram", "--method", "draft_model", "--draft", str(models / "my-draft"), "--k", "2",
             "--draft-option", "ngram.min_tokens=1", "--seed", "5")  # fmt: skip
    before = datetime.now(UTC).date()
    done = calibrate(models, *flags)
    assert done.exit_code == 0, done.output
    (facts,) = {json.dumps(row["measured"]): row["measured"] for row in rows()}.values()
    assert facts.pop("date") in {str(before), str(before + timedelta(days=1))}
    assert facts == {
        "target": {"name": "my-target", "layers": 3, "hidden_size": 32},
        "drafters": {
            "ngram": {"method": "ngram", "options": {"min_tokens": 1, "max_tokens": 5}},
            "draft_model": {"method": "draft_model", "options": {},
                            "model": facts["target"] | {"name": "my-draft"}},
        },
        "temperature": 0.0, "top_k": None, "top_p": 1.0, "draft_sampling": "greedy", "dtype": "fp32", "seed": 5,
        "prompts": 3, "specsim": specsim.__version__,
    }  # fmt: skip
    assert str(models) not in Path("a.jsonl").read_text(), "names, no paths"
    said = "measured on my-target by draft_model with drafter my-draft, greedy, fp32, 3 prompts, seed 5"
    assert said in " ".join(done.stdout.split())
    assert read_measured("a.jsonl", drafter="draft_model").on is not None
    summary = json.loads(calibrate(models, *flags, "--json", "--force").stdout)["drafters"]
    assert summary[0]["measured_on"].startswith("on my-target by ngram (max_tokens 5, min_tokens 1), greedy")


def test_sampling_and_heads_are_said_too(models: Path) -> None:
    flags = ("--method", "eagle", "--draft", str(models / "my-head"), "--k", "2", "--temperature", "0.8", "--top-k",
             "30", "--top-p", "0.9", "--draft-sampling", "probabilistic")  # fmt: skip
    done = calibrate(models, *flags)
    assert done.exit_code == 0, done.output
    facts = rows()[0]["measured"]
    assert [facts[key] for key in ("temperature", "top_k", "top_p", "draft_sampling")] == [
        0.8,
        30,
        0.9,
        "probabilistic",
    ]
    assert facts["drafters"]["eagle"]["model"] == {"name": "my-head"}
    assert "temperature 0.8 (top-k 30, top-p 0.9, probabilistic drafts)" in " ".join(done.stdout.split())


def test_the_file_is_for_its_own_target(models: Path) -> None:
    assert calibrate(models, "--method", "ngram", "--k", "2").exit_code == 0
    words = ["crossover", "--method", "ngram", "--k", "2", "--acceptance-file", "a.jsonl", "--concurrency", "2",
             "--isl", "20", "--osl", "9", "--seeds", "3"]  # fmt: skip
    own = CliRunner().invoke(cli, [*words, "--target", str(models / "my-target")])
    assert own.exit_code == 0, own.output
    assert "on my-target by ngram" in " ".join(own.stdout.split())
    assert own.stderr == ""
    renamed = CliRunner().invoke(cli, [*words, "--target", str(models / "my-draft")])
    assert "a.jsonl was measured on my-target; whether that is my-draft cannot be told" in renamed.stderr
    other = CliRunner().invoke(cli, words)
    assert (other.exit_code, other.stdout) == (2, "")
    assert "was measured on my-target, and deployment.target is llama-3.1-8b (layers 3 and 32)" in other.stderr


def test_names_are_those_of_folders_files_and_the_download_cache(tmp_path: Path) -> None:
    assert model_name("/somewhere/else/SmolLM2-135M.Q4_1.gguf") == "SmolLM2-135M.Q4_1.gguf"
    assert model_name("models/mine/") == "mine"
    hub = "/cache/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/0e9e39f249a16976918f6564b8830bc894c89659"
    assert model_name(hub) == "meta-llama/Llama-3.1-8B-Instruct"
    assert model_name(".") == tmp_path.name


BAD = {
    "missing": lambda: Path("prompts.jsonl").unlink(),
    "empty": lambda: Path("prompts.jsonl").write_text(""),
    "no JSON": lambda: Path("prompts.jsonl").write_text("hello\n"),
    "no prompt": lambda: Path("prompts.jsonl").write_text('{"text": "w7"}\n'),
    "a token that is not there": lambda: Path("prompts.jsonl").write_text('{"token_ids": [7, 61]}\n'),
    "too long": lambda: write_jsonl(Path("prompts.jsonl"), [{"token_ids": [7] * 9, "max_tokens": 100_000}]),
    "strict": lambda: write_jsonl(Path("prompts.jsonl"), [*PROMPTS, {"prompt": 3}]),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_prompts_are_refused_before_any_weights_are_read(models: Path, tmp_path: Path, bad: str) -> None:
    """The weights are no weights, which whoever reads them would notice."""
    shutil.copytree(models / "my-target", tmp_path / "my-target")
    (tmp_path / "my-target" / "model.safetensors").write_bytes(b"not read")
    good = calibrate(tmp_path)
    assert good.exit_code != 0 and "prompts.jsonl" not in str(good.output), "the guard"
    BAD[bad]()
    done = calibrate(tmp_path, *(("--strict",) if bad == "strict" else ()))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "prompts.jsonl: " in done.stderr.splitlines()[-1]
    assert len(done.stderr.splitlines()) == 1
    assert not list(Path().glob("a.jsonl*"))


@pytest.mark.parametrize("text", ["4,8,8", "4x2x1"])
def test_trees_have_the_same_two_spellings_as_elsewhere(models: Path, text: str) -> None:
    flags = ("--method", "eagle", "--draft", str(models / "my-head"), "--k", "3", "--k-max", "3", "--tree", text)
    done = calibrate(models, *flags)
    assert done.exit_code == 0, done.output
    assert {row["eagle_tree"] for row in rows()} == {"4,8,8"}
    assert rows()[0]["measured"]["drafters"]["eagle"]["tree"] == text
    words = ["crossover", "--k", "3", "--acceptance-file", "a.jsonl", "--concurrency", "2", "--isl", "20", "--osl", "9",
             "--seeds", "3", "--target", str(models / "my-target")]  # fmt: skip
    for tree in ("4,8,8", "4x2x1"):
        used = CliRunner().invoke(cli, [*words, "--tree", tree])
        assert used.exit_code == 0, used.output
    wrong = CliRunner().invoke(cli, [*words, "--tree", "4x2x2"])
    assert "was measured over trees of 4,8,8 nodes by level, and speculation verifies 4,8,16" in wrong.stderr


def test_nodes_by_level_hang_below_the_likeliest() -> None:
    likeliest = tree_of_paths(set(level_paths((0.7, 0.6), (3, 6))), "3,6")
    full = read_tree("3x2")
    assert isinstance(full, StaticTree)
    assert likeliest.shape == full.shape == "3,6"
    assert full.children == {(): 3, (0,): 2, (1,): 2, (2,): 2}
    assert likeliest.children[(0,)] > 2, "the same number of nodes, elsewhere"


def test_a_tree_that_is_none_names_both_spellings(models: Path) -> None:
    done = calibrate(models, "--method", "eagle", "--draft", str(models / "my-head"), "--tree", "4x2,1")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "nodes by level like 4,8,8, nor candidates behind each node like 4x2x1" in done.stderr
