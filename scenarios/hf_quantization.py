"""Dtypes in which a checkpoint stores its weights, from `quantization_config` and `torch_dtype` of a config.json.

Models: one dtype for most weights and, where a checkpoint quantizes only the routed experts, another for those.
Leaves out: per-layer mixtures, dtypes of activations and of the cache. Checkpoints in fp32 count as bf16, since
serving engines load them in 16 bits.
"""

from __future__ import annotations

from scenarios.config_file import ConfigFile

__all__ = ["weight_dtypes"]

_TORCH_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "bf16",
    "float": "bf16",
    "auto": "bf16",
    "float8_e4m3fn": "fp8",
}
_MODELOPT = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_AWQ": "int4",
    "W4A8_AWQ": "int4",
    "INT4_AWQ": "int4",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "W8A16": "int8",
}
_METHODS = "fp8, fbgemm_fp8, awq, gptq, bitsandbytes, mxfp4, modelopt, quark, compressed-tensors"


def weight_dtypes(config: ConfigFile, *, moe: bool) -> tuple[str, str]:
    """`(native_weight_dtype, native_expert_dtype)`; the second is empty when the experts are like the rest.

    Raises:
        CatalogueError: when the quantization method or its width is not modelled.
    """
    plain = _plain(config)
    table = config.table("quantization_config") or config.table("quantization")
    if table is None or not table.data:
        return plain, ""
    dtype = _quantized(table)
    if moe and _experts_only(table):
        return plain, dtype
    return dtype, ""


def _plain(config: ConfigFile) -> str:
    for key in ("torch_dtype", "dtype"):
        if config.data.get(key) is not None:
            name = config.text(key).removeprefix("torch.")
            if name not in _TORCH_DTYPES:
                raise config.fail(f"key '{config.prefix}{key}' '{name}' is not one of {', '.join(_TORCH_DTYPES)}")
            return _TORCH_DTYPES[name]
    return "bf16"


def _quantized(table: ConfigFile) -> str:
    """Stored dtype of the quantized weights."""
    method = table.text("quant_method", "").lower().replace("_", "-")
    if method in ("fp8", "fbgemm-fp8", "ptpc-fp8", "w8a8-fp8", "finegrained-fp8"):
        return "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("awq", "gptq", "gptq-marlin", "awq-marlin", "auto-round", "intel/auto-round"):
        return _integer(table, table.count("w_bit", 0, low=0) or table.count("bits"))
    if method == "bitsandbytes":
        return "int4" if table.flag("load_in_4bit", table.flag("_load_in_4bit", False)) else "int8"
    if method in ("modelopt", "modelopt-fp4", "modelopt-fp8"):
        return _modelopt(table)
    if method == "quark":
        return _quark(table)
    if method in ("compressed-tensors", "compressed-tensor", "sparseml"):
        return _compressed_tensors(table)
    if not method and table.data.get("bits") is not None:  # MLX writes bits and group_size only
        return _integer(table, table.count("bits"))
    raise table.fail(
        f"quantization method '{method or 'unnamed'}' is not modelled (known: {_METHODS}); "
        f"remove '{table.prefix.rstrip('.')}' from a copy of the file and set the weight dtype yourself"
    )


def _integer(table: ConfigFile, bits: int) -> str:
    if bits not in (4, 8):
        raise table.fail(f"{bits}-bit integer weights ('{table.prefix}bits') are not modelled, only 4 and 8; "
                         f"take the nearer of the two in a copy of the file")  # fmt: skip
    return f"int{bits}"


def _modelopt(table: ConfigFile) -> str:
    inner = table.table("quantization") or table
    algorithm = inner.text("quant_algo").upper()
    if algorithm not in _MODELOPT:
        raise inner.fail(f"key '{inner.prefix}quant_algo' '{algorithm}' is not one of {', '.join(_MODELOPT)}")
    return _MODELOPT[algorithm]


def _quark(table: ConfigFile) -> str:
    layer = table.table("global_quant_config")
    weight = layer.table("weight") if layer else None
    name = weight.text("dtype") if weight else "unnamed"
    for prefix, dtype in (("fp8", "fp8"), ("fp4", "mxfp4"), ("mx", "mxfp4"), ("int8", "int8"), ("int4", "int4"),
                          ("uint4", "int4")):  # fmt: skip
        if name.startswith(prefix):
            return dtype
    raise table.fail(f"quark weight dtype '{name}' is not modelled, only fp8, fp4, int8 and int4")


def _compressed_tensors(table: ConfigFile) -> str:
    """Weights of the first group; groups that differ are refused."""
    groups = table.table("config_groups")
    found: set[str] = set()
    for name in groups.data if groups else ():
        group = groups.table(name) if groups else None
        weights = group.table("weights") if group else None
        if weights is not None:
            found.add(_group_dtype(weights))
    if len(found) != 1:
        raise table.fail(
            f"'{table.prefix}config_groups' holds {len(found)} weight dtypes"
            f"{' (' + ', '.join(sorted(found)) + ')' if found else ''}, where one is modelled; "
            f"keep the group that holds most weights in a copy of the file"
        )
    return found.pop()


def _group_dtype(weights: ConfigFile) -> str:
    bits = weights.count("num_bits")
    if weights.text("type", "int") != "float":
        return _integer(weights, bits)
    if bits == 8:
        return "fp8"
    if bits == 4:
        return "mxfp4" if weights.count("group_size", 16) == 32 else "nvfp4"
    raise weights.fail(f"{bits}-bit float weights ('{weights.prefix}num_bits') are not modelled, only 4 and 8")


def _experts_only(table: ConfigFile) -> bool:
    """Whether attention is kept out of the quantization, which then covers the experts alone."""
    kept = [*table.texts("modules_to_not_convert"), *table.texts("ignore"), *table.texts("exclude_modules"),
            *table.texts("ignored_layers")]  # fmt: skip
    return any("self_attn" in name or "attention" in name for name in kept)
