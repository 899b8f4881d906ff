"""Models by source: directories, GGUF files, configs; some layers only; one GPU's share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
transformers = pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from tiny import ARCHITECTURES, causal_lm, reference_logits  # noqa: E402

from calibrate.models import FlatBatch, FlatModel, Part, SlotCache, load_model  # noqa: E402
from specsim.errors import ScenarioError  # noqa: E402

TOKENS = [5, 9, 13, 8, 12]


def logits_of(model: FlatModel) -> torch.Tensor:
    return model.logits(model.forward(FlatBatch(TOKENS, [Part(0, 0, len(TOKENS))]), SlotCache(1, 8)))


def config_of(model_type: str = "llama", **changes: object) -> dict:
    return causal_lm(model_type).config.to_dict() | changes


def test_a_directory_has_its_own_weights(tmp_path: Path) -> None:
    original = causal_lm(dtype=torch.float32)
    original.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.source == str(tmp_path)
    torch.testing.assert_close(logits_of(model), reference_logits(original, TOKENS))


def test_the_first_layers_of_a_directory(tmp_path: Path) -> None:
    original = causal_lm(dtype=torch.float32)
    original.save_pretrained(tmp_path)
    two = load_model(tmp_path, num_layers=2)
    torch.testing.assert_close(logits_of(two), logits_of(load_model(tmp_path).first_layers(2)))


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_a_config_alone_gives_random_weights_of_its_shape(model_type: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_of(model_type)))
    model = load_model(file, dtype=torch.float64, num_layers=2, seed=3)
    assert (model.num_layers, model.source) == (2, "random, seed 3")
    assert logits_of(model).shape == (len(TOKENS), 61)
    assert torch.equal(logits_of(model), logits_of(load_model(tmp_path, dtype=torch.float64, num_layers=2, seed=3)))
    assert not torch.equal(logits_of(model), logits_of(load_model(file, dtype=torch.float64, num_layers=2, seed=4)))


def test_random_weights_leave_the_global_stream_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    load_model(config_of(), num_layers=1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_a_shard_divides_heads_and_widths(model_type: str) -> None:
    def weights(tp: int) -> dict[str, tuple[int, ...]]:
        model = load_model(config_of(model_type, tie_word_embeddings=False), tp=tp)
        logits_of(model)
        named = dict(model._body.named_parameters()) | {"head": model._head.weight}
        return {name: tuple(weight.shape) for name, weight in named.items() if weight.ndim > 1}

    whole, half = weights(1), weights(2)
    assert whole.keys() == half.keys()
    divided = {name for name in whole if whole[name] != half[name]}
    shared = set(whole) - divided
    assert {"embed_tokens.weight", "head"} <= divided
    assert any("o_proj" in name for name in divided)
    assert any("expert" in name or "mlp" in name for name in divided)
    for name in shared:  # routers, the latent parts of MLA, biases behind a row-parallel product
        assert any(word in name for word in ("gate.weight", "router", "_a_", "kv_a", "down_proj_bias")), name
    for name in divided - {"embed_tokens.weight", "head"}:
        assert torch.Size(whole[name]).numel() == 2 * torch.Size(half[name]).numel(), name


def test_key_value_heads_are_repeated_when_there_are_fewer_than_gpus() -> None:
    model = load_model(config_of(), tp=4)
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (1, 1)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ({"hidden_size": 8}, {}, "needs 'model_type'"),
        ({"model_type": "no-such"}, {}, "model_type 'no-such'"),
        ("nowhere/config.json", {}, "not a readable config.json"),
        ("nowhere/model.gguf", {}, "nowhere/model.gguf: cannot be read"),
        (config_of(), {"num_layers": 4}, "has 3 layers, 4 were asked for"),
        (config_of(), {"tp": 3}, "num_attention_heads 4 is not a multiple of tp 3"),
        ({"model_type": "t5"}, {}, "not a decoder-only language model"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_line(source: object, options: dict, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as error:
        load_model(source, **options)
    assert "\n" not in str(error.value)


def test_a_broken_gguf_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSIM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF but not really")
    with pytest.raises(ScenarioError, match="not a GGUF file that can be used") as error:
        load_model(file)
    assert "\n" not in str(error.value)
    assert list((tmp_path / "cache" / "gguf").iterdir()) == []
