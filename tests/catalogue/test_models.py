"""Model shapes reproduce published parameter counts, cache sizes and drafters; names are found however spelt."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.models import default_drafter, known_drafters, load_models, model
from specsim.drafters.eagle import eagle_head
from specsim.drafters.mtp import mtp_head
from specsim.errors import CatalogueError, ScenarioError
from specsim.shapes import ModelShape

# Published total parameters in units of 1e9. The sources are the model cards and reports named beside each.
TOTAL = {
    "llama-3.1-8b": 8.03,  # model card: safetensors count
    "llama-3.1-70b": 70.6,  # model card
    "llama-3.1-405b": 405.9,  # model card (current revision, 8 KV heads)
    "llama-3.2-1b": 1.24,  # model card
    "llama-3.2-3b": 3.21,  # model card
    "llama-3.3-70b": 70.6,  # model card
    "llama-2-7b": 6.74,  # model card
    "llama-2-13b": 13.0,  # model card
    "llama-2-70b": 69.0,  # model card
    "qwen3-0.6b": 0.6,  # model card
    "qwen3-1.7b": 1.7,  # model card
    "qwen3-4b": 4.0,  # model card
    "qwen3-8b": 8.2,  # model card
    "qwen3-14b": 14.8,  # model card
    "qwen3-32b": 32.8,  # model card
    "qwen3-30b-a3b": 30.5,  # model card
    "qwen3-235b-a22b": 235.0,  # model card
    "qwen3-coder-480b-a35b": 480.0,  # model card
    "qwen2.5-0.5b": 0.49,  # model card
    "qwen2.5-1.5b": 1.54,  # model card
    "qwen2.5-3b": 3.09,  # model card
    "qwen2.5-7b": 7.61,  # model card
    "qwen2.5-14b": 14.7,  # model card
    "qwen2.5-32b": 32.5,  # model card
    "qwen2.5-72b": 72.7,  # model card
    "deepseek-v3": 671.0,  # DeepSeek-V3 README_WEIGHTS, main model
    "deepseek-r1": 671.0,  # the same network
    "deepseek-v2-lite": 15.7,  # DeepSeek-V2 model card
    "kimi-k2": 1026.0,  # safetensors count; the card rounds to 1T
    "gpt-oss-20b": 20.9,  # gpt-oss model card, table 1
    "gpt-oss-120b": 116.8,  # gpt-oss model card, table 1
    "gemma-3-1b": 1.000,  # Gemma 3 report, table 1: 302M embedding + 698M
    "gemma-3-4b": 3.884,  # 675M + 3209M, vision encoder apart
    "gemma-3-12b": 11.771,  # 1012M + 10759M
    "gemma-3-27b": 27.016,  # 1416M + 25600M
    "gemma-2-2b": 2.61,  # Gemma 2 report, table 2: 590M + 2024M
    "gemma-2-9b": 9.24,  # 918M + 8324M
    "gemma-2-27b": 27.2,  # 1180M + 26047M
    "mistral-7b-v0.3": 7.25,  # model card: safetensors count
    "mistral-nemo-12b": 12.2,  # model card: safetensors count
    "mistral-small-24b": 23.6,  # model card: safetensors count
    "mixtral-8x7b": 46.7,  # announcement
    "mixtral-8x22b": 140.6,  # announcement: 141B
    "glm-4.5-air": 106.0,  # GLM-4.5 report
    "glm-4.5": 355.0,  # GLM-4.5 report
    "phi-3-mini": 3.82,  # model card
    "phi-3-medium": 14.0,  # model card
    "phi-4": 14.7,  # model card: safetensors count
    "phi-4-mini": 3.836,  # safetensors count: 3,836,021,760
    "smollm2-135m": 0.1345,  # safetensors count: 134,515,008
    "smollm2-360m": 0.362,  # safetensors count
    "smollm2-1.7b": 1.71,  # safetensors count
    "tinyllama-1.1b": 1.10,  # model card
    "llama-160m": 0.162,  # safetensors count
    "llama-68m": 0.068,  # by name
    "eagle-llama-3.1-8b": 0.25,  # EAGLE repository, table of weights
    "eagle-llama-3-70b": 0.99,  # EAGLE repository, table of weights
    "mtp-deepseek-v3": 11.5,  # DeepSeek-V3 README_WEIGHTS: parameters of the MTP module of its own
}

# Published active parameters in units of 1e9, and whether that figure counts the input embedding.
ACTIVE = {
    "deepseek-v3": (36.6, False),  # DeepSeek-V3 README_WEIGHTS: "36.6B (including 0.9B for the output Head)"
    "gpt-oss-20b": (3.61, False),  # gpt-oss model card, table 1
    "gpt-oss-120b": (5.13, False),  # gpt-oss model card, table 1
    "qwen3-30b-a3b": (3.3, True),  # model card
    "qwen3-235b-a22b": (22.0, True),  # model card
    "qwen3-coder-480b-a35b": (35.0, True),  # model card
    "mixtral-8x7b": (12.9, True),  # announcement
    "mixtral-8x22b": (39.1, True),  # announcement: 39B
    "kimi-k2": (32.0, False),  # model card
}


@pytest.mark.parametrize("name", TOTAL)
def test_total_parameters_are_the_published_ones(name: str) -> None:
    assert load_models()[name].total_parameters == pytest.approx(TOTAL[name] * 1e9, rel=0.02)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_the_published_ones(name: str) -> None:
    published, with_embedding = ACTIVE[name]
    shape = load_models()[name]
    counted = shape.active_parameters + (shape.embedding_parameters if with_embedding else 0)
    assert counted == pytest.approx(published * 1e9, rel=0.02)


def test_llama_3_1_8b_exactly() -> None:
    """The checkpoint has 8,030,261,248 values, of which 266,240 are norms (65 vectors of 4,096)."""
    assert load_models()["llama-3.1-8b"].total_parameters == 8_030_261_248 - 65 * 4096


def test_eagle3_head_matches_its_tensors() -> None:
    """fc [4096, 12288], q [4096, 8192], k and v [1024, 8192], o [4096, 4096], three MLP matrices of 14,336 x 4096 and
    a head [32000, 4096]: the tensors of a published head, norms aside."""
    head = load_models()["eagle3-llama-3.1-8b"]
    tensors = 4096 * 12288 + 4096 * 8192 + 2 * 1024 * 8192 + 4096 * 4096 + 3 * 14336 * 4096 + 32000 * 4096
    assert head.total_parameters == tensors
    assert head.active_parameters == tensors


def test_eagle3_with_more_layers_widens_only_the_first() -> None:
    head = load_models()["eagle3-llama-3.1-8b"]
    two = replace(head, num_layers=2)
    plain_layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    assert two.total_parameters - head.total_parameters == plain_layer


def test_fusion_uses_the_width_of_the_target() -> None:
    head = load_models()["eagle3-llama-3.1-8b"]
    assert replace(head, target_hidden_size=8192).fusion_parameters == 3 * 8192 * 4096
    first = load_models()["eagle-llama-3.1-8b"]
    assert first.fusion_parameters == 2 * 4096 * 4096
    assert replace(first, target_hidden_size=8192).fusion_parameters == (8192 + 4096) * 4096


@pytest.mark.parametrize(
    ("name", "values_per_token"),
    [
        ("llama-3.1-8b", 32 * 2 * 8 * 128),
        ("deepseek-v3", 61 * 576),  # DeepSeek-V2 report: 512 latent and 64 rope values a layer
        ("gpt-oss-120b", 36 * 2 * 8 * 64),
        ("gemma-3-27b", 62 * 2 * 16 * 128),
    ],
)
def test_cache_values_per_token(name: str, values_per_token: int) -> None:
    shape = load_models()[name]
    assert shape.num_layers * shape.kv_values_per_layer == values_per_token


@pytest.mark.parametrize(
    ("name", "window", "windowed", "full"),
    [
        ("gpt-oss-20b", 128, 12, 12),
        ("gpt-oss-120b", 128, 18, 18),
        ("gemma-3-1b", 512, 22, 4),
        ("gemma-3-4b", 1024, 29, 5),
        ("gemma-3-12b", 1024, 40, 8),
        ("gemma-3-27b", 1024, 52, 10),
        ("llama-3.1-8b", 0, 0, 32),
    ],
)
def test_windows(name: str, window: int, windowed: int, full: int) -> None:
    shape = load_models()[name]
    assert (shape.window_tokens, shape.windowed_layers, shape.full_attention_layers) == (window, windowed, full)


def test_native_dtypes() -> None:
    models = load_models()
    assert models["deepseek-v3"].native_weight_dtype == "fp8"
    assert (models["gpt-oss-120b"].native_weight_dtype, models["gpt-oss-120b"].native_expert_dtype) == ("bf16", "mxfp4")
    assert models["llama-3.1-8b"].native_weight_dtype == "bf16"


def test_coverage_and_provenance() -> None:
    models = load_models()
    assert sum(shape.kind == "model" for shape in models.values()) >= 40
    assert {shape.kind for shape in models.values()} == {"model", "eagle", "eagle3", "mtp"}
    for shape in models.values():
        assert shape.source, shape.name
        assert re.fullmatch(r"20\d\d(-[01]\d)?", shape.date), shape.name
        assert all(hasattr(shape, name) for name in shape.doubtful), shape.name
        assert bool(shape.notes) or not shape.doubtful, f"{shape.name}: doubtful without a reason"


def test_drafters_fit_their_targets() -> None:
    """An EAGLE-type head reads its target's vectors; every drafter shares the vocabulary and is smaller."""
    models = load_models()
    checked = 0
    for target in models.values():
        for method, name in known_drafters(target).items():
            drafter = models[name]
            checked += 1
            assert drafter.total_parameters < target.total_parameters / 1.5, (target.name, name)
            assert abs(drafter.vocab_size - target.vocab_size) <= 128, (target.name, name)  # padding rows differ
            if method == "draft_model":
                assert drafter.kind == "model"
            else:
                assert drafter.kind == method
                assert drafter.hidden_size == target.hidden_size, (target.name, name)
    assert checked >= 50


@pytest.mark.parametrize(
    ("target", "method", "drafter"),
    [
        ("llama-3.1-8b", "eagle", "eagle-llama-3.1-8b"),
        ("llama-3.1-8b", "eagle3", "eagle3-llama-3.1-8b"),
        ("llama-3.1-8b", "draft_model", "llama-3.2-1b"),
        ("llama-3.3-70b", "eagle3", "eagle3-llama-3.3-70b"),
        ("qwen3-32b", "draft_model", "qwen3-0.6b"),
        ("qwen3-30b-a3b", "eagle3", "eagle3-qwen3-30b-a3b"),
        ("deepseek-r1", "mtp", "mtp-deepseek-v3"),
        ("glm-4.5-air", "mtp", "mtp-glm-4.5-air"),
        ("gpt-oss-120b", "eagle3", "eagle3-gpt-oss-120b"),
    ],
)
def test_default_drafters(target: str, method: str, drafter: str) -> None:
    found = default_drafter(model(target), method)
    assert found is not None and found.name == drafter


@pytest.mark.parametrize("method", ["ngram", "suffix", "retrieval", "lookahead"])
def test_lookup_methods_have_no_drafter(method: str) -> None:
    assert default_drafter(model("llama-3.1-8b"), method) is None


def test_a_target_under_another_name_keeps_its_drafters() -> None:
    mine = replace(model("llama-3.1-8b"), name="my-tune", max_position_tokens=4096, source="elsewhere")
    found = default_drafter(mine, "eagle3")
    assert found is not None and found.name == "eagle3-llama-3.1-8b"
    other = replace(mine, intermediate_size=14337)
    assumed = default_drafter(other, "eagle3")
    assert assumed is not None and assumed.name == "eagle3 head assumed for my-tune" and assumed.doubtful


def test_assumed_heads_have_the_proportions_of_published_ones() -> None:
    """Within 2 % of the published head for dense targets; an MLA target gets plain attention."""
    models = load_models()
    for name, kind in (("llama-3.1-8b", "eagle"), ("llama-3.1-8b", "eagle3"), ("qwen3-8b", "eagle3")):
        published = models[f"{kind}-{name}"]
        assumed = eagle_head(models[name], "eagle3" if kind == "eagle3" else "eagle")
        assert assumed.total_parameters == pytest.approx(published.total_parameters, rel=0.02)
    head = eagle_head(models["deepseek-v3"], "eagle3")
    assert (head.is_mla, head.num_heads, head.num_kv_heads, head.head_dim) == (False, 56, 8, 128)


def test_derived_mtp_layer_is_the_catalogue_one() -> None:
    for target, layer in (("deepseek-v3", "mtp-deepseek-v3"), ("glm-4.5-air", "mtp-glm-4.5-air")):
        derived, listed = mtp_head(load_models()[target]), load_models()[layer]
        assert replace(derived, name="", source="", date="") == replace(listed, name="", source="", date="")


def test_missing_drafters_are_said() -> None:
    with pytest.raises(CatalogueError, match="ships no MTP layer"):
        default_drafter(model("llama-3.1-8b"), "mtp")
    with pytest.raises(CatalogueError, match="no smaller model with the same vocabulary"):
        default_drafter(model("phi-4"), "draft_model")
    with pytest.raises(ScenarioError, match=r"method 'eagel' is not one of .* \(did you mean 'eagle'\?\)"):
        default_drafter(model("phi-4"), "eagel")


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507"),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "eagle3-llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1"),
        ("unsloth/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert model(spelling).name == name


@pytest.mark.parametrize(
    ("name", "original", "dtype"),
    [
        ("Qwen/Qwen3-8B-FP8", "qwen3-8b", "fp8"),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b", "int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "qwen2.5-7b", "int8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3.1-8b", "fp8"),
    ],
)
def test_quantized_copies(name: str, original: str, dtype: str) -> None:
    shape, plain = model(name), load_models()[original]
    assert shape.native_weight_dtype == dtype and shape.name != original
    assert replace(shape, name=original, native_weight_dtype="bf16") == plain
    assert known_drafters(shape) == known_drafters(plain)


def test_no_copy_of_a_copy() -> None:
    with pytest.raises(CatalogueError, match="is not in the catalogue"):
        model("gpt-oss-120b-fp8")  # its experts are stored in 4 bits already


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("llama-3.1-9b", "did you mean 'llama-3.1-8b'"),
        ("gpt-oss-12b", "did you mean 'gpt-oss-120b'"),
        ("zzzzzz", "is not in the catalogue; `specsim model list`"),
        ("", "the model name is empty"),
        ("./no-such-directory", "no such file"),
    ],
)
def test_unknown_models_are_said_in_one_line(wrong: str, message: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        model(wrong)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@given(st.text(max_size=30).filter(lambda text: not text.startswith(("/", "~", "."))))
def test_any_name_is_a_model_or_one_clear_line(name: str) -> None:
    try:
        assert isinstance(model(name), ModelShape)
    except CatalogueError as error:
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers must be a whole number >= 1"),
        ({"hidden_size": -1}, "hidden_size must be a whole number >= 1"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"vocab_size": 1.5}, "vocab_size must be a whole number"),
        ({"num_kv_heads": 5}, "not a multiple of num_kv_heads"),
        ({"windowed_layers": 40, "window_tokens": 8}, "more windowed or MoE layers than layers"),
        ({"windowed_layers": 4}, "window_tokens is 0"),
        ({"moe_layers": 4}, "moe_layers needs num_experts"),
        ({"intermediate_size": 0}, "intermediate_size is 0"),
        ({"kv_lora_rank": 8}, "MLA needs"),
        ({"native_weight_dtype": "fp7"}, "native_weight_dtype 'fp7' is not one of"),
    ],
)
def test_contradictory_shapes_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CatalogueError, match=re.escape(message)):
        replace(model("llama-3.1-8b"), **changes)
