"""A config.json of each family, as published, becomes the catalogue's shape; bad files end in one clear line."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.hf_config import read_config
from scenarios.hf_families import FAMILIES
from scenarios.models import default_drafter, load_models, model
from scenarios.resolve import resolve
from specsim.config import Deployment, Slo, Speculation
from specsim.errors import CatalogueError
from specsim.shapes import ModelShape

# What of each published file bears on the shape, plus a few keys that do not.
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "rope_theta": 500000.0, "eos_token_id": [128001, 128008], "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_1B = {**LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
            "tie_word_embeddings": True}  # fmt: skip
MISTRAL = {"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32768,
           "max_position_embeddings": 32768, "sliding_window": None, "torch_dtype": "bfloat16"}  # fmt: skip
MIXTRAL = {**MISTRAL, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
           "output_router_logits": False}  # fmt: skip
QWEN2 = {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
         "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
         "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28, "torch_dtype": "bfloat16",
         "tie_word_embeddings": False}  # fmt: skip
QWEN3 = {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
         "max_position_embeddings": 40960, "sliding_window": None, "use_sliding_window": False,
         "max_window_layers": 28, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}  # fmt: skip
QWEN3_MOE = {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
             "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
             "max_position_embeddings": 40960, "num_experts": 128, "num_experts_per_tok": 8,
             "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
             "tie_word_embeddings": False, "torch_dtype": "bfloat16"}  # fmt: skip
QWEN2_MOE = {"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
             "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936,
             "max_position_embeddings": 8192, "num_experts": 60, "num_experts_per_tok": 4,
             "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1,
             "sliding_window": 32768, "use_sliding_window": False, "torch_dtype": "bfloat16"}  # fmt: skip
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": 201088, "max_position_embeddings": 131072, "sliding_window": 128, "num_local_experts": 128,
    "num_experts_per_tok": 4, "experts_per_token": 4, "tie_word_embeddings": False,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "vocab_size": 129280, "max_position_embeddings": 163840, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "first_k_dense_replace": 3,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "num_nextn_predict_layers": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    **{k: v for k, v in DEEPSEEK_V3.items() if k not in ("quantization_config", "num_nextn_predict_layers")},
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
    "q_lora_rank": None,
}  # fmt: skip
GLM_AIR = {"model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
           "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151552,
           "max_position_embeddings": 131072, "n_routed_experts": 128, "n_shared_experts": 1,
           "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
           "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "tie_word_embeddings": False,
           "torch_dtype": "bfloat16"}  # fmt: skip
GEMMA3_1B = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 1152,
             "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
             "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "max_position_embeddings": 32768,
             "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16"}  # fmt: skip
GEMMA3_4B = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
             "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                             "num_hidden_layers": 34, "sliding_window": 1024,
                             "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
             "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"}}  # fmt: skip
GEMMA2_9B = {"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000,
             "max_position_embeddings": 8192, "sliding_window": 4096, "torch_dtype": "bfloat16"}  # fmt: skip
PHI3_MINI = {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
             "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064,
             "max_position_embeddings": 4096, "sliding_window": 2047, "torch_dtype": "bfloat16",
             "tie_word_embeddings": False}  # fmt: skip
PHI4_MINI = {**PHI3_MINI, "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 200064,
             "max_position_embeddings": 131072, "sliding_window": 262144, "tie_word_embeddings": True}  # fmt: skip
EAGLE = {**{k: v for k, v in LLAMA.items() if k not in ("rope_scaling",)}, "num_hidden_layers": 1, "bias": False}
EAGLE3 = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000,
          "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28], "use_aux_hidden_state": True}}  # fmt: skip
SPECULATORS = {
    "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": 32000,
    "target_hidden_size": None, "norm_before_residual": True, "torch_dtype": "bfloat16",
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct"}},
    "transformer_layer_config": {k: v for k, v in LLAMA.items() if k != "architectures"} | {"num_hidden_layers": 1},
}  # fmt: skip

PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": LLAMA,
    "llama-3.2-1b": LLAMA_1B,
    "mistral-7b-v0.3": MISTRAL,
    "mixtral-8x7b": MIXTRAL,
    "qwen2.5-7b": QWEN2,
    "qwen3-0.6b": QWEN3,
    "qwen3-30b-a3b": QWEN3_MOE,
    "gpt-oss-120b": GPT_OSS,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v2-lite": DEEPSEEK_V2_LITE,
    "glm-4.5-air": GLM_AIR,
    "gemma-3-1b": GEMMA3_1B,
    "gemma-3-4b": GEMMA3_4B,
    "gemma-2-9b": GEMMA2_9B,
    "phi-3-mini": PHI3_MINI,
    "phi-4-mini": PHI4_MINI,
    "eagle-llama-3.1-8b": EAGLE,
    "eagle3-llama-3.1-8b": EAGLE3,
}


def write(directory: Path, config: object, name: str = "config.json") -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def read(directory: Path, config: object, **kwargs: Any) -> ModelShape:
    return read_config(write(directory, config), **kwargs)


def network(shape: ModelShape) -> ModelShape:
    """The shape without its labels."""
    return replace(shape, name="", source="", date="", doubtful=(), notes="")


def refusal(directory: Path, config: object, **kwargs: Any) -> str:
    path = write(directory, config)
    with pytest.raises(CatalogueError) as caught:
        read_config(path, **kwargs)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and caught.value.exit_code == 2
    return message


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_give_the_catalogue_shape(tmp_path: Path, name: str) -> None:
    shape = read(tmp_path / "m", PUBLISHED[name])
    assert network(shape) == network(load_models()[name])


def test_the_speculators_format_gives_the_same_head(tmp_path: Path) -> None:
    shape = read(tmp_path / "m", SPECULATORS)
    assert network(shape) == network(load_models()["eagle3-llama-3.1-8b"])


def test_an_engine_is_given_the_folder_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "work", LLAMA)
    monkeypatch.chdir(tmp_path)
    for target, folder in (("work/config.json", "work"), ("work", None), ("./work", "./work")):
        names = resolve(Deployment(target=target), Speculation(), Slo()).names
        assert (names["target"], names.get("target_repo")) == ("work/config.json", folder)
    monkeypatch.chdir(tmp_path / "work")
    assert resolve(Deployment(target="config.json"), Speculation(), Slo()).names["target_repo"] == "."


def test_name_and_source(tmp_path: Path) -> None:
    shape = read_config(write(tmp_path / "My-Llama", LLAMA))
    assert shape.name == "My-Llama/config.json" and shape.source == str(tmp_path / "My-Llama" / "config.json")
    cached = tmp_path / "models--meta-llama--Llama-3.1-8B" / "snapshots"
    cached.mkdir(parents=True)
    assert read_config(write(cached / "0e9e39f", LLAMA)).name == "meta-llama/Llama-3.1-8B"
    assert read_config(write(tmp_path, LLAMA, "draft.json")).name == f"{tmp_path.name}/draft.json"


def test_directory_file_and_path_lookup_agree(tmp_path: Path) -> None:
    path = write(tmp_path / "m", QWEN3)
    assert read_config(path) == read_config(path.parent) == model(str(path.parent)) == model(str(path))


def test_catalogue_names_win_over_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "qwen3-8b", QWEN3)
    monkeypatch.chdir(tmp_path)
    assert model("qwen3-8b").hidden_size == 4096
    assert model("./qwen3-8b").hidden_size == 1024
    (tmp_path / "models").mkdir()
    write(tmp_path / "models" / "Qwen3-8B", QWEN3)
    assert model("models/Qwen3-8B").hidden_size == 1024  # on disk; else it would be a mirror of the repository


def test_a_target_from_a_file_finds_its_drafters(tmp_path: Path) -> None:
    drafter = default_drafter(read(tmp_path / "m", {**LLAMA, "quantization_config": {"quant_method": "fp8"}}), "eagle3")
    assert drafter is not None and drafter.name == "eagle3-llama-3.1-8b"
    derived = default_drafter(read(tmp_path / "n", {**GLM_AIR, "num_hidden_layers": 40}), "mtp")
    assert derived is not None and derived.kind == "mtp" and derived.num_layers == 1 and derived.moe_layers == 1


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, "eagle3"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "eagle"),
        ({"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ({"draft_vocab_size": 32000}, "eagle3"),
        ({"bias": True}, "eagle"),
        ({}, "model"),
    ],
)
def test_kind_of_one_layer_files(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    assert read(tmp_path / "m", {**LLAMA, "num_hidden_layers": 1, **changes}).kind == kind


def test_kind_from_the_directory_or_from_the_caller(tmp_path: Path) -> None:
    one_layer = {**LLAMA, "num_hidden_layers": 1}
    assert read(tmp_path / "EAGLE-LLaMA3.1-Instruct-8B", one_layer).kind == "eagle"
    assert read(tmp_path / "EAGLE3-mine", one_layer).kind == "eagle3"
    assert read(tmp_path / "EAGLE3-target", LLAMA).kind == "model"  # 32 layers are no head
    assert read(tmp_path / "m", one_layer, kind="eagle").fused_hidden_states == 2
    own = read(tmp_path / "m", one_layer, kind="eagle3")
    assert own.draft_vocab_size == own.vocab_size == 128256  # an EAGLE-3 head always has its own output rows


def test_eagle3_variants(tmp_path: Path) -> None:
    five = {**EAGLE3, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 8, 15, 22, 29]}}
    assert read(tmp_path / "m", five).fused_hidden_states == 5
    none = {**EAGLE3, "eagle_config": {"use_aux_hidden_state": False}}
    assert read(tmp_path / "m", none).fused_hidden_states == 0
    wide = read(tmp_path / "m", {**EAGLE3, "target_hidden_size": 8192})
    assert wide.fusion_parameters == 3 * 8192 * 4096


def test_mtp_of_a_target_and_of_its_extracted_file(tmp_path: Path) -> None:
    listed = network(load_models()["mtp-deepseek-v3"])
    assert network(read(tmp_path / "m", DEEPSEEK_V3, kind="mtp")) == listed
    extracted = {**DEEPSEEK_V3, "architectures": ["DeepseekV3ForCausalLMNextN"], "num_nextn_predict_layers": 0}
    assert network(read(tmp_path / "m", extracted)) == listed
    assert network(read(tmp_path / "m", {**DEEPSEEK_V3, "model_type": "deepseek_mtp"})) == listed
    assert "ships no MTP layer" in refusal(tmp_path / "m", LLAMA, kind="mtp")


@pytest.mark.parametrize(
    ("config", "windowed", "tokens"),
    [
        ({**MISTRAL, "sliding_window": 4096}, 32, 4096),
        ({**QWEN2, "sliding_window": 4096}, 0, 0),  # use_sliding_window is false
        ({**QWEN2, "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 21}, 7, 4096),
        ({**QWEN2, "use_sliding_window": True, "max_window_layers": 0}, 0, 0),  # window beyond the context
        ({k: v for k, v in GPT_OSS.items() if k != "layer_types"}, 18, 128),
        ({**GEMMA3_1B, "layer_types": ["sliding_attention"] * 25 + ["full_attention"]}, 25, 512),
        ({k: v for k, v in GEMMA3_1B.items() if k != "sliding_window_pattern"}, 22, 512),
        ({**GEMMA3_1B, "sliding_window_pattern": None, "_sliding_window_pattern": 13}, 24, 512),
        ({**MISTRAL, "model_type": "cohere2", "sliding_window": 4096}, 24, 4096),
        ({**LLAMA, "sliding_window": 4096}, 0, 0),  # a llama ignores the key
    ],
)
def test_windows(tmp_path: Path, config: dict[str, Any], windowed: int, tokens: int) -> None:
    shape = read(tmp_path / "m", config)
    assert (shape.windowed_layers, shape.window_tokens) == (windowed, tokens)


def test_moe_layouts(tmp_path: Path) -> None:
    shape = read(tmp_path / "m", QWEN2_MOE)
    assert shape.total_parameters == pytest.approx(14.3e9, rel=0.02)  # Qwen1.5-MoE-A2.7B model card
    assert shape.active_parameters + shape.embedding_parameters == pytest.approx(2.7e9, rel=0.02)
    sparse = read(tmp_path / "m", {**QWEN3_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1, 2]})
    assert (sparse.moe_layers, sparse.intermediate_size) == (23, 6144)
    dense = read(tmp_path / "m", {**DEEPSEEK_V3, "n_routed_experts": None})
    assert (dense.moe_layers, dense.intermediate_size) == (0, 18432)
    every_other = read(tmp_path / "m", {**DEEPSEEK_V3, "moe_layer_freq": 2})
    assert every_other.moe_layers == 29  # of layers 3 to 60 the even ones
    nothing = read(tmp_path / "m", {**DEEPSEEK_V3, "first_k_dense_replace": 99})
    assert nothing.moe_layers == 0


def test_absent_keys_mean_what_the_library_says(tmp_path: Path) -> None:
    bare = {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "tie_word_embeddings", "torch_dtype")}
    shape = read(tmp_path / "m", bare)
    assert (shape.num_kv_heads, shape.head_dim, shape.tie_embeddings, shape.native_weight_dtype) == (
        32,
        128,
        False,
        "bf16",
    )
    assert read(tmp_path / "m", {**LLAMA, "head_dim": None}).head_dim == 128
    assert read(tmp_path / "m", {k: v for k, v in QWEN3.items() if k != "head_dim"}).head_dim == 128
    assert read(tmp_path / "m", {k: v for k, v in GEMMA2_9B.items() if k != "head_dim"}).tie_embeddings is True


def test_ungated_mlp(tmp_path: Path) -> None:
    phi2 = {"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 51200, "max_position_embeddings": 2048,
            "tie_word_embeddings": False, "torch_dtype": "float16"}  # fmt: skip
    shape = read(tmp_path / "m", phi2)
    assert shape.total_parameters == pytest.approx(2.78e9, rel=0.02)  # Phi-2: safetensors count
    assert shape.native_weight_dtype == "fp16" and not shape.gated_mlp


@pytest.mark.parametrize("inner", ["text_config", "llm_config", "language_config"])
def test_nested_text_parts(tmp_path: Path, inner: str) -> None:
    wrapped = {"model_type": "internvl_chat", inner: QWEN3, "vision_config": {"hidden_size": 1024},
               "quantization_config": {"quant_method": "fp8"}}  # fmt: skip
    shape = read(tmp_path / "m", wrapped)
    assert (shape.hidden_size, shape.native_weight_dtype) == (1024, "fp8") and "vision" in shape.notes


W4 = {"num_bits": 4, "type": "int", "group_size": 128}


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "int4"),
        ({"quant_method": "awq", "w_bit": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 4, "desc_act": False}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": W4}}}, "int4"),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8"),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}}}, "int8"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, "fp8"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "fp8"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, "mxfp4"),
        ({"group_size": 64, "bits": 4}, "int4"),
        ({}, "bf16"),
        (None, "bf16"),
    ],
)  # fmt: skip
def test_quantized_checkpoints(tmp_path: Path, quantization: object, dtype: str) -> None:
    assert read(tmp_path / "m", {**LLAMA, "quantization_config": quantization}).native_weight_dtype == dtype


def test_experts_quantized_alone(tmp_path: Path) -> None:
    quantization = {"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"],
                    "config_groups": {"group_0": {"weights": {**W4, "group_size": 32}}}}  # fmt: skip
    shape = read(tmp_path / "m", {**DEEPSEEK_V3, "quantization_config": quantization})
    assert (shape.native_weight_dtype, shape.native_expert_dtype) == ("bf16", "int4")
    dense = read(tmp_path / "m", {**LLAMA, "quantization_config": quantization})
    assert (dense.native_weight_dtype, dense.native_expert_dtype) == ("int4", "")


def test_fp32_checkpoints_are_served_in_16_bits(tmp_path: Path) -> None:
    assert read(tmp_path / "m", {**LLAMA, "torch_dtype": "float32"}).native_weight_dtype == "bf16"
    assert read(tmp_path / "m", {**LLAMA, "torch_dtype": None, "dtype": "float16"}).native_weight_dtype == "fp16"


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "aqlm"}, "quantization method 'aqlm' is not modelled"),
        ({"quant_method": "gptq", "bits": 3}, "3-bit integer weights"),
        ({"quant_method": "gptq"}, "key 'quantization_config.bits' is missing"),
        ({"quant_method": 8}, "key 'quantization_config.quant_method' must be text, got 8"),
        ({"quant_method": "modelopt", "quant_algo": "W1"}, "'quantization_config.quant_algo' 'W1' is not one of"),
        ({"quant_method": "compressed-tensors"}, "holds 0 weight dtypes"),
        ({"quant_method": "compressed-tensors", "config_groups": {
            "a": {"weights": W4}, "b": {"weights": {"num_bits": 8}}}}, "holds 2 weight dtypes (int4, int8)"),
        ("fp8", "key 'quantization_config' must be an object"),
    ],
)  # fmt: skip
def test_quantizations_that_are_not_modelled(tmp_path: Path, quantization: object, message: str) -> None:
    assert message in refusal(tmp_path / "m", {**LLAMA, "quantization_config": quantization})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "key 'hidden_size' is missing"),
        ({"hidden_size": "4096"}, "key 'hidden_size' must be a whole number from 1"),
        ({"hidden_size": 4096.0}, "key 'hidden_size' must be a whole number"),
        ({"hidden_size": True}, "key 'hidden_size' must be a whole number"),
        ({"hidden_size": -4096}, "key 'hidden_size' must be a whole number"),
        ({"hidden_size": 10**30}, "key 'hidden_size' must be a whole number"),
        ({"hidden_size": float("nan")}, "key 'hidden_size' must be a whole number"),
        ({"num_hidden_layers": 0}, "key 'num_hidden_layers' must be a whole number"),
        ({"num_hidden_layers": [32]}, "key 'num_hidden_layers' must be a whole number"),
        ({"num_attention_heads": 33, "num_key_value_heads": 3}, "key 'head_dim' is missing and hidden_size 4096"),
        ({"num_key_value_heads": 5}, "not a multiple of num_kv_heads 5"),
        ({"tie_word_embeddings": "yes"}, "key 'tie_word_embeddings' must be true or false"),
        ({"torch_dtype": "float64"}, "'torch_dtype' 'float64' is not one of"),
        ({"architectures": "LlamaForCausalLM"}, "key 'architectures' must be a list of text"),
        ({"layer_types": ["full_attention"] * 31}, "has 31 entries for 32 layers"),
        ({"layer_types": ["sliding_attention"] * 32}, "key 'sliding_window' is missing though 32 layers"),
        ({"layer_types": ["full_attention"] * 31 + ["linear_attention"]}, "has 'linear_attention', which specsim"),
        ({"model_type": "ll\nama"}, "'ll?ama' is not modelled"),
        ({"model_type": 7}, "key 'model_type' must be text"),
        ({"model_type": "lama"}, "'lama' is not modelled (did you mean 'llama'?)"),
        ({"model_type": "qwen3_next"}, "has linear-attention layers, which specsim does not model"),
        ({"model_type": "mamba2"}, "has state-space layers, which specsim does not model"),
        ({"model_type": "llama4_text"}, "chunked-attention"),
        ({"text_config": []}, "key 'text_config' must be an object"),
        ({"speculators_model_type": "dflash"}, "speculators_model_type 'dflash' is not modelled"),
        ({"speculators_model_type": "eagle3"}, "key 'transformer_layer_config' is missing"),
    ],
)
def test_wrong_fields_name_path_and_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in refusal(tmp_path / "m", {**LLAMA, **changes})


def test_nested_keys_are_named_in_full(tmp_path: Path) -> None:
    broken = {**GEMMA3_4B, "text_config": {**GEMMA3_4B["text_config"], "hidden_size": "2560"}}
    assert "key 'text_config.hidden_size' must be a whole number" in refusal(tmp_path / "m", broken)
    head = {**SPECULATORS, "transformer_layer_config": {"model_type": "llama"}}
    assert "key 'transformer_layer_config." in refusal(tmp_path / "m", head)


@pytest.mark.parametrize("missing", ["num_experts_per_tok", "moe_intermediate_size"])
def test_missing_expert_keys(tmp_path: Path, missing: str) -> None:
    assert f"key '{missing}' is missing" in refusal(
        tmp_path / "m", {k: v for k, v in QWEN3_MOE.items() if k != missing}
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b'{"model_type": "llama"', "not valid JSON at line 1"),
        (b"model_type = llama", "not valid JSON"),
        (b"[1, 2]", "holds a JSON list"),
        (b'"llama"', "holds a JSON string"),
        (b"12", "holds a JSON number"),
        (b"null", "holds a JSON null"),
        (json.dumps(LLAMA).encode("utf-16"), "the file is UTF-16"),
        (b"\x00\x01\x02\x80\xff", "not UTF-8 text"),
        (b"GGUF\x03\x00\x00\x00\xfe\xfd", "not UTF-8 text"),
        (b'{"name": "left-pad", "version": "1.3.0"}', "no key 'model_type'"),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON beyond what a config.json holds"),
        (b'{"a":' * 100_000, "JSON beyond what a config.json holds"),
        (b" " * (5 * 2**20), "too large for a config.json"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    with pytest.raises(CatalogueError) as caught:
        read_config(path)
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert read_config(path).num_layers == 32


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_reads_a_file_with_all_keys(tmp_path: Path, model_type: str) -> None:
    shape = read(tmp_path / "m", {
        **DEEPSEEK_V3, "model_type": model_type, "head_dim": 128, "sliding_window": 4096,
        "n_routed_experts": 256 if FAMILIES[model_type].experts else None,
    })  # fmt: skip
    assert shape.num_layers == 61 and shape.total_parameters > 0


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=st.sampled_from(list(PUBLISHED)), data=st.data())
def test_any_damage_is_a_shape_or_one_clear_line(tmp_path: Path, base: str, data: st.DataObject) -> None:
    config = dict(PUBLISHED[base])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        config[key] = data.draw(VALUES)
    path = write(tmp_path / "m", config)
    try:
        shape = read_config(path)
    except CatalogueError as error:
        assert len(str(error).splitlines()) == 1 and re.match(re.escape(str(path)), str(error))
    else:
        assert shape.total_parameters > 0 and shape.active_parameters > 0
