"""`specsim calibrate latency` on tiny real models on the CPU: everything is measured once, kept, and gone on with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.latency.device import find_device
from calibrate.latency.job import Model, check_vocabularies
from calibrate.points import read_points
from specsim.cli import cli
from specsim.errors import ScenarioError
from specsim.profiles import LatencyProfile

TINY = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = TINY | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                  "decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": []}  # fmt: skip
SMALL = ("--device", "cpu", "--threads", "1", "--clock", "cpu", "--max-batch", "4", "--max-context", "32",
         "--max-chunk", "16", "--k-max", "2", "--budget", "1s")  # fmt: skip


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The command sets the threads of the whole process."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def config(folder: Path, **changes: object) -> str:
    values = (EXPERTS if changes.get("model_type") == "qwen3_moe" else TINY) | changes
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return str(folder / "config.json")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["calibrate", "latency", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_ngram_and_layer_skip_are_measured_once_and_a_second_run_adds_nothing(tmp_path: Path) -> None:
    out = tmp_path / "tiny.json"
    arguments = (
        "--target",
        config(tmp_path / "m"),
        "--method",
        "ngram",
        "--method",
        "layer_skip",
        "-o",
        str(out),
        *SMALL,
    )
    said = run(*arguments, "--draft-option", "layers=2")
    assert "of roofline" in said
    setup, points, _ = read_points(tmp_path / "tiny.points.jsonl")
    hosts = {(p.method, len(p.parts)) for p in points if p.kind == "host"}
    assert hosts == {(method, count) for method in ("", "ngram", "layer_skip") for count in (1, 4)}
    kinds = {(point.kind, point.role) for point in points}
    assert {("copy", "device"), ("matrix", "device"), ("body", "target"), ("head", "target"), ("sample", "target"),
            ("accept", "target"), ("body", "draft"), ("head", "draft"), ("draft_round", "draft")} <= kinds  # fmt: skip
    bodies = [p for p in points if p.kind == "body" and p.role == "target"]
    assert {max(n for n, _ in p.parts) for p in bodies if not p.is_prefill} >= {1, 2}
    assert {p.is_prefill for p in bodies} == {True, False}
    assert all(p.repeats >= 3 and p.low_s <= p.seconds <= p.high_s and p.reference_s > 0 and p.utc for p in bodies)
    assert all(p.roofline > 0 for p in bodies)
    assert setup.attention_backend.startswith("torch ")
    assert setup.draft_layers == 2
    skip = LatencyProfile.from_dict(json.loads((tmp_path / "tiny-layer_skip.json").read_text("utf-8")))
    ngram = LatencyProfile.from_dict(json.loads((tmp_path / "tiny-ngram.json").read_text("utf-8")))
    assert (skip.draft_mode, ngram.draft_mode) == ("serial", "none")
    assert skip.target == ngram.target
    assert skip.host_s > 0
    assert skip.host_s == ngram.host_s
    assert ngram.lookup_request_s > 0
    assert skip.covers["draft_layers"] == "2"
    assert skip.evidence is not None
    assert {"copy_bytes_per_s", "matrix_flops_per_s", "memory_bytes"} <= set(skip.evidence.ceilings)
    before = {point.key: point.seconds for point in points}
    again = run(*arguments, "--draft-option", "layers=2", "--force")
    assert "are there already and are not measured again" in again
    after = {point.key: point.seconds for point in read_points(tmp_path / "tiny.points.jsonl")[1]}
    assert before.items() <= after.items()


def test_experts_are_measured_and_fitted(tmp_path: Path) -> None:
    out = tmp_path / "moe.json"
    run("--target", config(tmp_path / "m", model_type="qwen3_moe"), "-o", str(out), *SMALL)
    profile = LatencyProfile.from_dict(json.loads(out.read_text("utf-8")))
    assert profile.target.num_experts == 8
    assert profile.target.experts_per_token == 2


def test_a_draft_model_is_measured_beside_its_target(tmp_path: Path) -> None:
    out = tmp_path / "pair.json"
    draft = config(tmp_path / "d", num_hidden_layers=1)
    run("--target", config(tmp_path / "m"), "--draft", draft, "-o", str(out), *SMALL)
    profile = LatencyProfile.from_dict(json.loads(out.read_text("utf-8")))
    assert profile.covers["method"] == "draft_model"
    assert profile.draft is not None
    assert profile.draft_catches_up


def test_a_head_is_measured_at_its_shape_on_points_of_the_target_that_are_there(tmp_path: Path) -> None:
    target = config(tmp_path / "m")
    run("--target", target, "--points", str(tmp_path / "target.jsonl"), *SMALL)
    out = tmp_path / "head.json"
    given = ("--target", target, "--method", "eagle3", "--target-points", str(tmp_path / "target.jsonl"))
    said = run(*given, "-o", str(out), *SMALL)
    assert "points of the target are taken" in said
    assert "The head has random weights" in said
    profile = LatencyProfile.from_dict(json.loads(out.read_text("utf-8")))
    assert (profile.covers["method"], profile.covers["launch"]) == ("eagle3", "eager")
    assert (profile.captured_tokens_max, profile.uncaptured_s) == (0, 0.0)
    assert profile.draft is not None
    setup, points, _ = read_points(tmp_path / "head.points.jsonl")
    ours = [p.to_dict() for p in points if p.role == "target"]
    theirs = [p.to_dict() for p in read_points(tmp_path / "target.jsonl")[1] if p.role == "target"]
    assert ours == theirs
    assert len(ours) > 10
    assert setup.shapes["draft"]["kind"] == "eagle3"
    again = run(*given, "--eager", "--points", str(tmp_path / "other.jsonl"), *SMALL, code=2)
    assert "points of the very same target are needed" in again


def test_a_shard_of_some_layers_says_what_was_not_measured(tmp_path: Path) -> None:
    out = tmp_path / "shard.json"
    target = config(tmp_path / "m", num_hidden_layers=8)
    said = run("--target", target, "--tp", "2", "--layers", "2", "--link-gpu", "h100-sxm", "-o", str(out), *SMALL)
    profile = LatencyProfile.from_dict(json.loads(out.read_text("utf-8")))
    assert "Measured by layer: 2 of 8 layers" in said
    assert "modelled from the link of h100-sxm" in said
    assert profile.target.collective_token_s > 0
    setup, points, _ = read_points(tmp_path / "shard.points.jsonl")
    assert {p.layers for p in points if p.kind == "body"} == {1, 2}
    assert (setup.tp, setup.measured_layers, setup.num_layers) == (2, 2, 8)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--draft", "VOCAB"), "have 300 tokens|has 300 tokens and"),
        (("--method", "draft_model"), "needs a drafter; give it with --draft"),
        (("--method", "dflash"), "drafts with a head that is not measured here"),
        (("--method", "eagle3", "--draft", "eagle3-llama-3.1-8b"), "is a head for a target of vocab_size 128256"),
        (("--method", "eagle3", "--tp", "2"), "heads are measured whole"),
        (("--target-points", "no-such.jsonl"), "no-such.jsonl"),
        (("--method", "ngram", "--draft", "SAME"), "--draft is used by none of the methods"),
        (("--method", "layer_skip", "--draft-option", "layers=4"), "of which fewer must draft"),
        (("--layers", "9"), "--layers 9 must lie in 1..4"),
        (("--clock", "device"), "needs a GPU with events"),
        (("--clock", "sun"), "--clock 'sun' is not auto"),
        (("--budget", "soon"), "must be a time such as 90s"),
        (("--method", "ngrm"), "ngram"),
        (("--tp", "3"), "not a multiple of tp 3|not shared out"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    models = {"VOCAB": config(tmp_path / "d", vocab_size=200), "SAME": config(tmp_path / "s", num_hidden_layers=1)}
    given = [models.get(flag, flag) for flag in flags]
    usual = [("--budget", "1s"), ("--clock", "cpu"), ("--threads", "1")]
    more = [word for pair in usual if pair[0] not in given for word in pair]
    points = str(tmp_path / "p.jsonl")
    said = run("--target", config(tmp_path / "m"), "--points", points, "--device", "cpu", *more, *given, code=2)
    assert re.search(message, said), said


def test_a_target_that_is_nothing_is_refused() -> None:
    assert "neither a file nor a name of the catalogue" in run("--target", "no-such-model-at-all", *SMALL, code=2)


@pytest.mark.parametrize("wanted", ["cuda:99", "tpu", "mps"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(wanted: str) -> None:
    import torch

    if wanted == "mps" and torch.backends.mps.is_available():
        pytest.skip("there is one")
    if wanted == "cuda:99" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ScenarioError, match=r"finds|is no device"):
        find_device(wanted)


def test_a_drafter_without_the_targets_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"t": {"a": 0, "b": 1, "c": 2}, "same": {"a": 0, "b": 1, "c": 2}, "other": {"a": 0, "c": 1, "b": 2}}

    class Tokenizer:
        def __init__(self, name: str) -> None:
            self.name = name

        def get_vocab(self) -> dict[str, int]:
            return words[self.name]

    monkeypatch.setattr("calibrate.latency.job.load_tokenizer", lambda source: Tokenizer(Path(source).name))
    target = Model("target", tmp_path / "t", {"vocab_size": 3}, has_tokenizer=True)
    check_vocabularies(target, Model("same", tmp_path / "same", {"vocab_size": 3}, has_tokenizer=True))
    with pytest.raises(ScenarioError, match="differ at token 1 \\('b' and 'c'\\), and at 2 in all"):
        check_vocabularies(target, Model("other", tmp_path / "other", {"vocab_size": 3}, has_tokenizer=True))
    with pytest.raises(ScenarioError, match="silent has no tokenizer"):
        check_vocabularies(target, Model("silent", tmp_path / "silent", {"vocab_size": 3}))
