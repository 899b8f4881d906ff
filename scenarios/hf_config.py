"""A Hugging Face config.json, as it is, to a model shape.

Models: decoder-only transformers of the families in `hf_families`, the text part of vision-language models, and
drafters (EAGLE, EAGLE-3, `speculators` files, MTP, DFlash). Leaves out: state-space, linear-attention and
chunked-attention layers, encoders, and every key that does not change bytes or operations. What an absent key means is
taken from the configuration classes of the transformers library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenarios.config_file import ConfigFile, load_config_file
from scenarios.hf_families import FAMILIES, HYBRIDS, NESTED_DEFAULTS, Family
from scenarios.hf_quantization import weight_dtypes
from specsim.drafters.mtp import mtp_head
from specsim.errors import CatalogueError, nearest
from specsim.shapes import ModelKind, ModelShape

__all__ = ["read_config"]

_NESTED_KEYS = ("text_config", "llm_config", "language_config")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_WINDOWED = ("sliding_attention", "local_attention")


def read_config(path: Path, *, kind: ModelKind | None = None) -> ModelShape:
    """The shape described by the config.json at `path`, or in the directory `path`.

    Args:
        path: file or directory.
        kind: what the file is used as; None reads it from the file. EAGLE heads are often published with the config
            of a plain one-layer model, and the MTP layer of a target has none of its own: `kind` settles both.

    Raises:
        CatalogueError: one line with path and key, when the file cannot be read or its model is not modelled.
    """
    config = load_config_file(path)
    name = _model_name(config.path)
    speculator = _speculator(config)
    if speculator is not None:
        found, text = speculator
    else:
        text = _text_part(config)
        found = _drafter_kind(config, name)
    kind = kind or found
    model_type, family = _family(config, text)
    values = _sizes(text, family, model_type)
    values.update(_attention(text, family, values))
    values.update(_experts(text, family, values))
    dtype, expert_dtype = weight_dtypes(text, moe=bool(values["moe_layers"]))
    values.update(native_weight_dtype=dtype, native_expert_dtype=expert_dtype)
    if found == "mtp":
        values["num_mtp_layers"] = max(1, values["num_mtp_layers"])
    if kind in ("eagle", "eagle3", "dflash"):
        values.update(_head(config, text, kind, values["vocab_size"]))
    if config.data.get("vision_config") is not None:
        values["notes"] = "Text part only; the vision encoder is not counted."
    try:
        shape = ModelShape(name=name, source=str(config.path), **values)
        return mtp_head(shape) if kind == "mtp" else shape
    except CatalogueError as error:
        raise CatalogueError(f"{config.path}: {error}") from None


def _model_name(path: Path) -> str:
    """Folder and file, e.g. `work/config.json`; in the download cache of the hub, the repository's name."""
    path = path.absolute()
    for part in reversed(path.parts):
        if part.startswith("models--"):
            return "/".join(part.split("--")[1:])
    return f"{path.parent.name}/{path.name}" if path.parent.name else path.name


def _speculator(config: ConfigFile) -> tuple[ModelKind, ConfigFile] | None:
    """Kind and layer of a file in the `speculators` format, or None when it is not in that format."""
    if config.data.get("speculators_model_type") is None:
        return None
    kind = config.text("speculators_model_type")
    layer = config.nested("transformer_layer_config")
    if kind not in ("eagle", "eagle3"):
        raise config.fail(f"speculators_model_type '{kind}' is not modelled, only eagle and eagle3; "
                          f"name a drafter from `specsim model list`")  # fmt: skip
    if layer is None:
        raise config.fail("key 'transformer_layer_config' is missing; it must be an object")
    return ("eagle3" if kind == "eagle3" else "eagle"), layer


def _text_part(config: ConfigFile) -> ConfigFile:
    """The part that describes the language model."""
    for key in _NESTED_KEYS:
        inner = config.nested(key)
        if inner is not None:
            return inner
    return config


def _drafter_kind(config: ConfigFile, name: str) -> ModelKind:
    """What the file itself says to be: an EAGLE-type head, an MTP layer or a plain model."""
    marks = " ".join(config.texts("architectures")).lower() + " " + config.text("model_type", "").lower()
    if "dflash" in marks:
        return "dflash"
    if "eagle3" in marks:
        return "eagle3"
    if "eagle" in marks:
        return "eagle"
    if "nextn" in marks or "mtp" in marks:
        return "mtp"
    if config.data.get("num_hidden_layers") == 1:
        if config.data.get("draft_vocab_size") is not None or "eagle3" in name.lower():
            return "eagle3"
        if "bias" in config.data or "eagle" in name.lower():  # `bias`: of the projection that only EAGLE heads have
            return "eagle"
    return "model"


def _family(config: ConfigFile, text: ConfigFile) -> tuple[str, Family]:
    outer = config.text("model_type", "")
    model_type = text.text("model_type", NESTED_DEFAULTS.get(outer, outer))
    if not model_type:
        raise config.fail("no key 'model_type': this is not the config.json of a Hugging Face language model")
    if model_type not in NESTED_DEFAULTS:
        model_type = model_type.removesuffix("_mtp")
    model_type = NESTED_DEFAULTS.get(model_type, model_type)
    if model_type in FAMILIES:
        return model_type, FAMILIES[model_type]
    if model_type in HYBRIDS:
        raise config.fail(f"model_type '{model_type}' has {HYBRIDS[model_type]} layers, which specsim does not model; "
                          f"choose a model with attention only (`specsim model list`)")  # fmt: skip
    raise config.fail(
        f"model_type '{model_type}' is not modelled{nearest(model_type, FAMILIES)}; if it is built like one of "
        f"llama, mixtral, qwen3_moe or deepseek_v3, say so as model_type in a copy of the file"
    )


def _sizes(text: ConfigFile, family: Family, model_type: str) -> dict[str, Any]:
    """Widths and counts that every model has."""
    default = family.defaults

    def count(key: str) -> int:
        return text.count(key, default[key]) if key in default else text.count(key)

    hidden, heads = count("hidden_size"), count("num_attention_heads")
    if family.latent_attention:
        head_dim = text.count("v_head_dim")
    else:
        head_dim = text.count("head_dim", default.get("head_dim", 0))
    if not head_dim:
        if hidden % heads:
            raise text.fail(f"key '{text.prefix}head_dim' is missing and hidden_size {hidden} is not a multiple of "
                            f"num_attention_heads {heads}")  # fmt: skip
        head_dim = hidden // heads
    return {
        "num_layers": count("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": text.count("num_key_value_heads", default.get("num_key_value_heads", heads)),
        "head_dim": head_dim,
        "intermediate_size": count("intermediate_size"),
        "vocab_size": count("vocab_size"),
        "max_position_tokens": count("max_position_embeddings"),
        "tie_embeddings": text.flag("tie_word_embeddings", family.tie_embeddings),
        "gated_mlp": family.gated_mlp,
        "num_mtp_layers": text.count("num_nextn_predict_layers", 0, low=0) if family.mtp else 0,
    }


def _attention(text: ConfigFile, family: Family, sizes: dict[str, Any]) -> dict[str, int]:
    """Windows, and the low-rank sizes of latent attention."""
    values = {"windowed_layers": _windowed_layers(text, family, sizes), "window_tokens": 0}
    if values["windowed_layers"]:
        values["window_tokens"] = text.count("sliding_window", family.defaults.get("sliding_window", 0), low=0)
        if not values["window_tokens"]:
            raise text.fail(f"key '{text.prefix}sliding_window' is missing though {values['windowed_layers']} layers "
                            f"are sliding_attention")  # fmt: skip
        if values["window_tokens"] >= sizes["max_position_tokens"]:  # never reached: full attention
            values = {"windowed_layers": 0, "window_tokens": 0}
    if family.latent_attention:
        values["q_lora_rank"] = text.count("q_lora_rank", 0, low=0)
        for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"):
            values[key] = text.count(key)
        sizes["num_kv_heads"] = sizes["num_heads"]  # every head has its own key and value, out of one latent
    return values


def _windowed_layers(text: ConfigFile, family: Family, sizes: dict[str, Any]) -> int:
    """Number of layers that attend to a window only."""
    layers = sizes["num_layers"]
    if text.data.get("use_sliding_window") is not None and not text.flag("use_sliding_window", False):
        return 0
    kinds = text.texts("layer_types")
    if kinds:
        if len(kinds) != layers:
            raise text.fail(f"key '{text.prefix}layer_types' has {len(kinds)} entries for {layers} layers")
        for kind in kinds:
            if kind not in (*_WINDOWED, "full_attention"):
                raise text.fail(f"key '{text.prefix}layer_types' has '{kind}', which specsim does not model; only "
                                f"full_attention and sliding_attention are (`specsim model list`)")  # fmt: skip
        return sum(kind in _WINDOWED for kind in kinds)
    has_window = text.count("sliding_window", family.defaults.get("sliding_window", 0), low=0) > 0
    if not has_window or family.window == "none":
        return 0
    if family.window == "all":
        return layers
    if family.window == "upper":  # Qwen: opt-in, from layer max_window_layers on
        if not text.flag("use_sliding_window", False):
            return 0
        return max(0, layers - text.count("max_window_layers", 28, low=0))
    period = family.full_every
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        period = text.count(key, period)
    return layers - layers // period


def _experts(text: ConfigFile, family: Family, sizes: dict[str, Any]) -> dict[str, int]:
    """Mixture-of-experts sizes; clears `intermediate_size` when no layer is dense."""
    layers = sizes["num_layers"]
    none = {"moe_layers": 0}
    if not family.experts:
        for key in _EXPERT_COUNTS:
            if text.count(key, 0, low=0) > 1:
                raise text.fail(f"key '{text.prefix}{key}' is {text.count(key)}, but models of this model_type have no "
                                f"experts; give the model_type of a family that has, such as mixtral or qwen3_moe, or "
                                f"take the key out")  # fmt: skip
        return none
    experts = max(text.count(key, 0, low=0) for key in _EXPERT_COUNTS)
    if not experts:
        return none
    per_token = text.count("num_experts_per_tok", 0, low=0) or text.count("experts_per_token", 0, low=0)
    if not per_token:
        raise text.fail(f"key '{text.prefix}num_experts_per_tok' is missing; it must be a whole number >= 1")
    shared = 0
    if family.experts == "every_layer":
        moe_layers, width = layers, sizes["intermediate_size"]
    elif family.experts == "sparse_step":
        step, dense = text.count("decoder_sparse_step", 1), set(text.counts("mlp_only_layers"))
        moe_layers = sum(i not in dense and (i + 1) % step == 0 for i in range(layers))
        width = text.count("moe_intermediate_size")
        shared = text.count("shared_expert_intermediate_size", 0, low=0)
    else:
        step, first = text.count("moe_layer_freq", 1), text.count("first_k_dense_replace", 0, low=0)
        moe_layers = sum(i >= first and i % step == 0 for i in range(layers))
        width = text.count("moe_intermediate_size")
        shared = text.count("n_shared_experts", 0, low=0) * width
    if moe_layers == layers:
        sizes["intermediate_size"] = 0
    return {"num_experts": experts, "experts_per_token": per_token, "moe_intermediate_size": width,
            "moe_layers": moe_layers, "shared_expert_intermediate_size": shared}  # fmt: skip


def _head(config: ConfigFile, text: ConfigFile, kind: ModelKind, vocab_size: int) -> dict[str, Any]:
    """What makes layers an EAGLE-type head or a block drafter."""
    values: dict[str, Any] = {"kind": kind, "shares_target_head": True, "fused_hidden_states": 2, "num_mtp_layers": 0,
                              "target_hidden_size": config.count("target_hidden_size", 0, low=0)}  # fmt: skip
    if kind == "eagle3":
        settings = config.table("eagle_config") or config
        fused = len(settings.counts("eagle_aux_hidden_state_layer_ids")) or 3
        values["fused_hidden_states"] = fused if settings.flag("use_aux_hidden_state", True) else 0
        rows = config.count("draft_vocab_size", 0, low=0) or text.count("draft_vocab_size", 0, low=0)
        values["draft_vocab_size"] = rows or vocab_size
    if kind == "dflash":
        settings = config.table("dflash_config") or config
        values["fused_hidden_states"] = len(settings.counts("target_layer_ids")) or 5
    return values
