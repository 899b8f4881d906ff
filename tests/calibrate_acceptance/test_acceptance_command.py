"""`specsim calibrate acceptance`: from prompts to a file that plan, simulate and crossover take."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from tiny_acceptance import save_model, write_jsonl  # noqa: E402

from calibrate.acceptance.journal import Journal  # noqa: E402
from specsim.acceptance import read_measured  # noqa: E402
from specsim.cli import cli  # noqa: E402

PROMPTS = [
    {
        "id": f"p{n}",
        "task": "chat" if n % 2 else "code",
        "prompt": " ".join(f"w{6 + (n * 7 + i) % 50}" for i in range(6)),
    }
    for n in range(5)
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    save_model(home / "target")
    save_model(home / "draft", noise=0.02)
    return home


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "prompts.jsonl", PROMPTS)


def run(models: Path, *words: str, out: str = "a.jsonl", draft: bool = False) -> Result:
    flags = ["--target", str(models / "target"), "--prompts", "prompts.jsonl", "-o", out, "--max-tokens", "24"]
    if draft:
        flags += ["--draft", str(models / "draft")]
    return CliRunner().invoke(cli, ["calibrate", "acceptance", *flags, *words])


def used_by(models: Path, *words: str) -> list[str]:
    """A crossover of the target that was measured, at lengths that fit it."""
    target = ["--target", str(models / "target"), "--isl", "40", "--osl", "20", "--seeds", "3"]
    return ["crossover", *target, *words]


def rows_of(path: str) -> list[dict[str, Any]]:
    raw = Path(path).read_bytes()
    return [json.loads(line) for line in (gzip.decompress(raw) if path.endswith(".gz") else raw).splitlines()]


METHODS = ("--method", "ngram", "--method", "layer_skip", "--method", "draft_model", "--method", "suffix")
OPTIONS = ("--draft-option", "ngram.min_tokens=1", "--draft-option", "ngram.max_tokens=3")


def test_greedy_acceptance_is_measured_and_used(models: Path) -> None:
    done = run(models, *METHODS, *OPTIONS, "--k", "1,3,5", "--json", draft=True)
    assert done.exit_code == 0, done.output
    assert "5 prompts, 5 of them through the tokenizer's chat template" in done.stderr
    rows = rows_of("a.jsonl")
    assert [row["request"] for row in rows] == [p["id"] for p in PROMPTS]
    assert list(rows[0]) == [
        "request", "task", "prompt_tokens", "output_tokens", "k_max", "measured", "ngram", "ngram_drafts", "layer_skip",
        "draft_model", "suffix_rounds", "suffix_rounds_drafts",
    ]  # fmt: skip
    for row in rows:
        assert {len(row[key]) for key in ("ngram", "layer_skip", "draft_model")} == {row["output_tokens"]}
        assert {sum(tokens) for tokens in row["suffix_rounds"].values()} == {row["output_tokens"]}
        assert row["prompt_tokens"] == 8
    said = json.loads(done.stdout)["drafters"]
    draft = read_measured("a.jsonl", drafter="draft_model")
    assert said[2]["by_k"][1]["k"] == 3
    assert said[2]["by_k"][1]["length"] > 1.1
    assert set(said[2]["by_k"][1]["by_task"]) == {"chat", "code"} == set(draft.tasks)
    assert not list(Path().glob("*.unfinished"))
    for method in ("suffix", "ngram"):
        words = used_by(models, "--method", method, "--k", "3", "--acceptance-file", "a.jsonl", "--concurrency", "1,8")
        used = CliRunner().invoke(cli, words)
        assert used.exit_code == 0, used.output
        assert f"measured {method} in a.jsonl: 5 requests" in used.output


@pytest.mark.parametrize("method", ["medusa", "eagle", "eagle3", "mtp"])
def test_heads_are_measured_and_used(models: Path, method: str, tmp_path: Path) -> None:
    from tiny_heads import save_eagle, save_eagle3, save_medusa, save_mtp

    from calibrate.models import load_model

    target = load_model(models / "target", dtype=torch.float64)
    texts = [[(7 * n + i * i) % 61 for i in range(30)] for n in range(4)]
    if method == "medusa":
        folder = save_medusa(tmp_path / "heads", target, texts, project_form=False)
    elif method == "eagle":
        folder = save_eagle(tmp_path / "heads", target, texts, speculators_form=False)
    elif method == "mtp":
        folder = save_mtp(tmp_path / "heads", target, texts, form="qwen")
    else:
        folder = save_eagle3(tmp_path / "heads", target, texts, speculators_form=False)
    done = run(models, "--method", method, "--draft", str(folder), "--k-max", "4", "--k", "3")
    assert done.exit_code == 0, done.output
    assert {len(row[method]) == row["output_tokens"] for row in rows_of("a.jsonl")} == {True}
    words = used_by(models, "--method", method, "--k", "3", "--acceptance-file", "a.jsonl", "--concurrency", "4")
    if method == "mtp":  # the catalogue knows such modules within their own targets only
        glm = ["glm-4.5-air" if word == words[2] else word for word in words]
        other = CliRunner().invoke(cli, [*glm, "--tp", "8"])
        assert "was measured on target, and deployment.target is glm-4.5-air (layers 3 and" in other.stderr
        assert read_measured("a.jsonl", drafter="mtp").lengths()[2] >= 1
        return
    used = CliRunner().invoke(cli, words)
    assert used.exit_code == 0, used.output
    assert f"measured {method} in a.jsonl: 5 requests" in used.output


def test_trees_and_lookahead_are_measured_and_used(models: Path, tmp_path: Path) -> None:
    from tiny_heads import save_eagle

    from calibrate.models import load_model

    target = load_model(models / "target", dtype=torch.float64)
    texts = [[(7 * n + i * i) % 61 for i in range(30)] for n in range(4)]
    folder = save_eagle(tmp_path / "heads", target, texts, speculators_form=True)
    Path("paths.json").write_text("[[0], [1], [0, 0], [0, 0, 0]]")
    flags = ("--k-max", "4", "--k", "2,3")
    eagle = ("--method", "eagle", "--draft", str(folder), "--tree", "paths.json", *flags)
    static = run(models, *eagle, out="static.jsonl")
    assert static.exit_code == 0, static.output
    assert {max(row["eagle_drafts"]) for row in rows_of("static.jsonl")} == {3}, "levels of the tree"
    assert {row["eagle_tree"] for row in rows_of("static.jsonl")} == {"2,1,1"}, "nodes by level"
    both = ("--method", "eagle2", "--method", "eagle", "--method", "lookahead", "--draft-option", "lookahead.window=4")
    grown = run(models, *both, "--draft", str(folder), *flags, out="grown.jsonl")
    assert grown.exit_code == 0, grown.output
    for row in rows_of("grown.jsonl"):
        assert {sum(tokens) for name in ("eagle2", "lookahead") for tokens in row[f"{name}_rounds"].values()} == {
            row["output_tokens"]
        }
        assert max(row["eagle2_rounds_drafts"]["3"]) == 3
        assert row["eagle2_tree"] == "60 nodes, topk 10"
        assert "eagle_tree" not in row
    chain = used_by(models, "--k", "3", "--concurrency", "4", "--acceptance-file")
    without = CliRunner().invoke(cli, [*chain, "static.jsonl", "--method", "eagle"])
    assert without.exit_code == 2
    assert "was measured over trees (2,1,1), and speculation verifies a chain" in without.stderr
    for method, file, tree in (
        ("eagle", "static", ["--tree", "2,1,1"]), ("eagle", "grown", []), ("eagle2", "grown", []),
        ("lookahead", "grown", []),
    ):  # fmt: skip
        used = CliRunner().invoke(cli, [*chain, f"{file}.jsonl", "--method", method, *tree])
        assert used.exit_code == 0, used.output
        assert f"measured {method} in {file}.jsonl: 5 requests" in used.output
        assert "as a chain" not in " ".join(used.output.split()), "what was measured over a tree is not bent to one"
    bent = CliRunner().invoke(cli, [*chain, "grown.jsonl", "--method", "eagle", "--tree", "2,1,1"])
    assert "as a chain" in " ".join(bent.output.split()), "the guard: what was measured on a chain is"
    mixed = [row if n else row | {"eagle_tree": "3"} for n, row in enumerate(rows_of("static.jsonl"))]
    write_jsonl(Path("mixed.jsonl"), mixed)
    refused = CliRunner().invoke(cli, [*chain, "mixed.jsonl", "--method", "eagle"])
    assert "line 2: 'eagle_tree' must be the same in every request, got '2,1,1' behind '3'" in refused.stderr


def test_an_mtp_module_lies_in_the_targets_own_folder(models: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file
    from tiny_heads import save_mtp

    from calibrate.models import load_model

    shutil.copytree(models / "target", tmp_path / "target")
    texts = [[(7 * n + i * i) % 61 for i in range(30)] for n in range(4)]
    without = run(tmp_path, "--method", "mtp")
    assert without.exit_code == 2
    assert "target: is no checkpoint with an MTP module" in without.stderr
    assert "seems to be a whole model" in without.stderr.splitlines()[-1]
    folder = save_mtp(tmp_path / "head", load_model(models / "target", dtype=torch.float64), texts, form="mimo")
    both = load_file(tmp_path / "target" / "model.safetensors")
    both |= {name: t.float() for name, t in load_file(folder / "model.safetensors").items() if "mtp_layers" in name}
    save_file(both, tmp_path / "target" / "model.safetensors", metadata={"format": "pt"})
    done = run(tmp_path, "--method", "mtp", "--k-max", "3", "--k", "3")
    assert done.exit_code == 0, done.output
    apart = run(models, "--method", "mtp", "--draft", str(folder), "--k-max", "3", "--k", "3", out="b.jsonl")
    assert apart.exit_code == 0, apart.output
    ours, theirs = ([row | {"measured": None} for row in rows_of(path)] for path in ("a.jsonl", "b.jsonl"))
    assert ours == theirs
    named = [rows_of(path)[0]["measured"]["drafters"]["mtp"]["model"]["name"] for path in ("a.jsonl", "b.jsonl")]
    assert named == ["target", "head"]


def test_a_head_with_a_tokenizer_of_other_tokens_is_refused(models: Path, tmp_path: Path) -> None:
    from tiny_heads import save_medusa

    from calibrate.models import load_model

    texts = [[(7 * n + i * i) % 61 for i in range(30)] for n in range(4)]
    folder = save_medusa(
        tmp_path / "heads", load_model(models / "target", dtype=torch.float64), texts, project_form=False
    )
    other = save_model(tmp_path / "other", words=[f"v{n}" for n in range(6, 61)])
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(other / file, folder)
    done = run(models, "--method", "medusa", "--draft", str(folder))
    assert done.exit_code == 2
    assert "differ at token 6 ('w6' and 'v6')" in done.stderr.splitlines()[-1]


def test_the_same_whatever_the_batch_and_packed_alike(models: Path) -> None:
    flags = (*METHODS, *OPTIONS, "--k", "2", "--temperature", "0.9", "--top-k", "30", "--top-p", "0.9")
    for batch, out in (("1", "a.jsonl"), ("4", "b.jsonl"), ("4", "c.jsonl.gz")):
        done = run(models, *flags, "--batch", batch, "--draft-sampling", "probabilistic", out=out, draft=True)
        assert done.exit_code == 0, done.output
    assert (
        Path("a.jsonl").read_bytes() == Path("b.jsonl").read_bytes() == gzip.decompress(Path("c.jsonl.gz").read_bytes())
    )
    row = rows_of("a.jsonl")[0]
    assert {key for key in row if key.endswith("_rounds")} == {f"{method}_rounds" for method in METHODS[1::2]}
    other = run(models, *flags, "--seed", "1", out="d.jsonl", draft=True)
    assert other.exit_code == 0
    assert rows_of("d.jsonl") != rows_of("a.jsonl")
    used = CliRunner().invoke(
        cli, used_by(models, "--method", "suffix", "--k", "2", "--acceptance-file", "a.jsonl", "--concurrency", "4")
    )
    assert used.exit_code == 0, used.output


@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_a_killed_run_goes_on_and_repeats_nothing(
    models: Path, temperature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--method", "suffix", "--method", "ngram", *OPTIONS, "--k", "1,3", "--temperature", temperature)
    assert run(models, *flags, "--batch", "2", out="whole.jsonl").exit_code == 0
    add, pieces = Journal.add, []

    def killed(self: Journal, key: tuple[Any, ...], piece: Any) -> None:
        add(self, key, piece)
        pieces.append(key)
        if len(pieces) in (2, 6, 9):
            with self.path.open("ab") as file:
                file.write(b'{"key":["text",4],"outp')  # cut off in the middle of a line
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "add", killed)
    for _ in range(3):
        assert run(models, *flags, "--batch", "2", out="a.jsonl").exit_code != 0
        assert not Path("a.jsonl").exists()
    done = run(models, *flags, "--batch", "3", out="a.jsonl")
    assert done.exit_code == 0, done.output
    assert "going on where it stopped, 9 pieces are there" in done.stderr
    assert Path("a.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert len(pieces) == len(set(pieces)), "nothing twice"


def test_an_unfinished_measurement_of_something_else_is_not_mixed_in(models: Path) -> None:
    asked = json.dumps({"format": 1, "target": "other"}) + "\n"
    Path("a.jsonl.unfinished").write_text(asked)
    done = run(models)
    assert done.exit_code == 2
    assert "an unfinished measurement with another target, " in done.stderr.splitlines()[-1]
    assert Path("a.jsonl.unfinished").read_text() == asked
    Path("a.jsonl.unfinished").write_text("not JSON\n")
    assert "is no unfinished measurement" in run(models).stderr


def test_vocabularies_that_do_not_fit_are_refused(models: Path, tmp_path: Path) -> None:
    words = [f"v{n}" for n in range(6, 61)]
    drafts = {
        save_model(tmp_path / "smaller", vocab_size=50): "50 tokens in its vocabulary",
        save_model(tmp_path / "other", words=words): "differ at token 6 ('w6' and 'v6'), and at 55 in all",
        save_model(tmp_path / "mute", tokenizer=False): "has no tokenizer, so that its vocabulary cannot be compared",
    }
    for draft, said in drafts.items():
        done = run(models, "--draft", str(draft))
        assert done.exit_code == 2
        assert said in done.stderr.splitlines()[-1]
    assert not list(Path().glob("a.jsonl*"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--method", "dflash"), "'dflash' cannot be run here"),
        (("--method", "medusa"), "medusa needs the folder of Medusa heads; give it with --draft"),
        (("--method", "ngram", "--draft", "x"), "--draft is for draft_model, medusa, eagle, eagle2, eagle3, mtp"),
        (("--method", "medusa", "--method", "draft_model", "--draft", "x"), "medusa and draft_model need one"),
        (("--method", "draft_model"), "give it with --draft"),
        (("--method", "eagle", "--draft", "x"), "--draft x: no such folder; eagle needs the folder of an EAGLE head"),
        (("--method", "ngram", "--draft-option", "depth=3"), "ngram has no option 'depth'"),
        (("--method", "ngram", "--method", "suffix", "--draft-option", "depth=3"), "say of which method"),
        (("--method", "ngram", "--draft-option", "min_tokens=x"), "must be NAME=N with a number"),
        (("--method", "ngram", "--draft-option", "min_tokens=9"), "n-grams need 1 <= min_tokens <= max_tokens"),
        (("--method", "layer_skip", "--draft-option", "layers=3"), "its first layers are 1 to 2"),
        (("--method", "ngram", "--tree", "2x2"), "--tree is for medusa, eagle, eagle3, mtp, and --method says ngram"),
        (("--method", "lookahead", "--tree", "2x2"), "--method says lookahead; lookahead grows its own"),
        (("--method", "lookahead", "--draft-option", "window=0"), "window and guesses in 1..64"),
        (("--k", "65"), "--k must be at most 64"),
        (("--prompts", "nowhere.jsonl"), "nowhere.jsonl"),
        (("-o", "a.txt"), "must end in .jsonl or .gz"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(models: Path, flags: tuple[str, ...], said: str) -> None:
    words = ["--target", str(models / "target"), "--prompts", "prompts.jsonl", "-o", "a.jsonl", "--max-tokens", "24"]
    if flags[0] in words:
        del words[words.index(flags[0]) : words.index(flags[0]) + 2]
    done = CliRunner().invoke(cli, ["calibrate", "acceptance", *words, *flags])
    assert done.exit_code == 2
    assert said in done.stderr.splitlines()[-1]
    assert done.stdout == ""


def test_a_target_without_weights_is_refused(models: Path) -> None:
    Path("config.json").write_text((models / "target" / "config.json").read_text())
    words = ["--target", "config.json", "--prompts", "prompts.jsonl", "-o", "a.jsonl"]
    done = CliRunner().invoke(cli, ["calibrate", "acceptance", *words])
    assert done.exit_code == 2
    assert "acceptance of random ones says nothing" in done.stderr.splitlines()[-1]
