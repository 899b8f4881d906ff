"""EAGLE and EAGLE-3 heads from the files that are published.

EAGLE: of the EAGLE project (`fc.weight`, with `fc.bias` or not, `layers.N.*`, the first layer without a norm on its
input) and of speculators (`fusion_fc.weight`, `transformer.*`, `transformer_layer_config`). EAGLE-3: of the EAGLE
project and SpecForge (`midlayer.*`) and of speculators (`layers.N.*`, `transformer_layer_config`,
`norm_before_residual`, `input_norm` where `norm_before_fc`). `d2t`: draft token n is the target's n + d2t[n]; `t2d`:
whether a target's token is drafted. Layers whose states EAGLE-3 reads are numbered from 0 and named by what enters them
in `eagle_aux_hidden_state_layer_ids` (speculators, vLLM), by what leaves them where the same key stands in
`eagle_config` (SpecForge, SGLang); without it 2, n // 2 and n - 3 by what enters, as in the EAGLE project.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from calibrate.drafters.head_config import head_config, not_buildable
from calibrate.drafters.head_files import fill, head_tensors, in_one_line, refuse_form, take
from calibrate.models import FlatModel
from calibrate.models.feature_head import FeatureHead, HeadPlan
from specsim.errors import ScenarioError

__all__ = ["load_eagle", "load_eagle3"]

_NOT_OF_LAYERS = ("architectures", "model_type", "dtype", "torch_dtype", "attention_bias", "mlp_bias", "auto_map")
_UNUSED = ("embed_tokens.weight", "d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight")


@in_one_line
def load_eagle(folder: str | Path, target: FlatModel) -> FeatureHead:
    """An EAGLE head (1 or 2, which differ in how they draft) from a directory.

    Raises:
        ScenarioError: files are missing or of another kind, or do not fit the target.
    """
    place = Path(folder)
    whole, tensors = head_config(place), _tensors(place)
    project = "fc.weight" in tensors and "layers.0.self_attn.q_proj.weight" in tensors
    if not (project or "fusion_fc.weight" in tensors) or "layers.0.hidden_norm.weight" in tensors:
        raise refuse_form(
            place, tensors, "EAGLE head", "tensors fc.weight and layers.0.*, or fusion_fc.weight and transformer.*"
        )
    if whole.get("layernorms") or whole.get("add_para_norm") or "embedding_layernorm.weight" in tensors:
        raise ScenarioError(f"{place}: an EAGLE head with further norms ('layernorms'), which is not read here")
    fusion, first = ("fc", "layers.") if project else ("fusion_fc", "transformer.")
    config = _layer_config(place, whole, tensors)
    _fits(place, whole, config, target, config.hidden_size)
    own_rows = len(tensors["lm_head.weight"]) if "lm_head.weight" in tensors else 0
    if own_rows not in (0, target.vocab_size):
        raise ScenarioError(f"{place}: its output head has {own_rows} tokens, and {target.name} {target.vocab_size}")
    plan = HeadPlan(
        combines=True, combine_bias=f"{fusion}.bias" in tensors, bare_input=True, head_rows=own_rows,
        qkv_bias=any(name.endswith("q_proj.bias") for name in tensors),
    )  # fmt: skip
    head = FeatureHead(config, plan, name=str(place))

    def theirs(ours: str) -> str:
        if ours.startswith("combine."):
            return ours.replace("combine", fusion, 1)
        return ours if project else ours.replace("layers.0.", first, 1)

    fill(head, tensors, theirs, place, unused=_UNUSED)
    _own_embedding(head, tensors, place)
    return head.ready(target)


@in_one_line
def load_eagle3(folder: str | Path, target: FlatModel) -> FeatureHead:
    """An EAGLE-3 head from a directory.

    Raises:
        ScenarioError: files are missing or of another kind, or do not fit the target.
    """
    place = Path(folder)
    whole = head_config(place)
    tensors = {name.replace("midlayer.", "layers.0.", 1): tensor for name, tensor in _tensors(place).items()}
    if "layers.0.hidden_norm.weight" not in tensors:
        raise refuse_form(place, tensors, "EAGLE-3 head", "midlayer.hidden_norm.weight or layers.0.hidden_norm.weight")
    config = _layer_config(place, whole, tensors)
    state_size = int(whole.get("target_hidden_size") or config.hidden_size)
    _fits(place, whole, config, target, state_size)
    nested = whole.get("eagle_config") or {}
    layers = _read_layers(place, whole, nested, target)
    if nested.get("use_aux_hidden_state") is False:
        layers = ()
    draft_vocab = int(whole.get("draft_vocab_size") or config.vocab_size)
    if draft_vocab > config.vocab_size:
        raise not_buildable(place, "draft_vocab_size", draft_vocab, f"at most its 'vocab_size', {config.vocab_size}")
    shared = "lm_head.weight" not in tensors and draft_vocab == config.vocab_size
    plan = HeadPlan(
        fused_states=len(layers), state_size=state_size, fuse_norm="input_norm.weight" in tensors,
        fuse_bias="fc.bias" in tensors, residual_normed=bool(whole.get("norm_before_residual")), last_norm=True,
        qkv_bias=any(name.endswith("q_proj.bias") for name in tensors), head_rows=0 if shared else draft_vocab,
    )  # fmt: skip
    head = FeatureHead(config, plan, name=str(place))
    if config.hidden_size != target.config.hidden_size and (shared or "embed_tokens.weight" not in tensors):
        raise ScenarioError(
            f"{place}: is {config.hidden_size} wide, the target {target.config.hidden_size}, and has no embedding and "
            f"output head of its own (embed_tokens.weight, lm_head.weight)"
        )
    renamed = {"fuse_norm": "input_norm", "fuse": "fc"}

    def theirs(ours: str) -> str:
        first, _, rest = ours.partition(".")
        return f"{renamed.get(first, first)}.{rest}"

    fill(head, tensors, theirs, place, unused=_UNUSED)
    _own_embedding(head, tensors, place)
    head.target_ids = _target_ids(place, tensors, draft_vocab, config.vocab_size, target)
    head.hidden_layers = layers
    return head.ready(target)


def _tensors(place: Path) -> dict[str, torch.Tensor]:
    return {name.removeprefix("model."): tensor for name, tensor in head_tensors(place).items()}


def _layer_config(
    place: Path, whole: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> transformers.PretrainedConfig:
    """The head's layers as an architecture of transformers: Llama's, or Qwen3's where queries are normed."""
    given = whole.get("transformer_layer_config") or whole
    normed = any(name.endswith("self_attn.q_norm.weight") for name in tensors)
    kind = transformers.Qwen3Config if normed else transformers.LlamaConfig
    values = {key: value for key, value in given.items() if key not in _NOT_OF_LAYERS}
    layers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    values |= {"num_hidden_layers": max(1, len(layers)), "layer_types": ["full_attention"] * max(1, len(layers))}
    if any(name.endswith("o_proj.bias") for name in tensors):
        values["attention_bias"] = True
    config = kind(**values)
    # held against the files before anything of these sizes is made
    head_dim = int(config.head_dim or 0)
    wanted = {
        "mlp.gate_proj.weight": ("intermediate_size", int(config.intermediate_size)),
        "self_attn.q_proj.weight": ("num_attention_heads * head_dim", int(config.num_attention_heads) * head_dim),
        "self_attn.k_proj.weight": ("num_key_value_heads * head_dim", int(config.num_key_value_heads or 0) * head_dim),
    }
    for ending, (key, rows) in wanted.items():
        name = next((name for name in tensors if name.endswith(ending)), None)
        if name is not None and len(tensors[name].shape) == 2 and len(tensors[name]) != rows:
            raise not_buildable(place, key, rows, f"{len(tensors[name])}, the rows of its tensor '{name}'")
    return config


def _fits(
    place: Path, whole: dict[str, Any], config: transformers.PretrainedConfig, target: FlatModel, state_size: int
) -> None:
    verifier = ((whole.get("speculators_config") or {}).get("verifier") or {}).get("name_or_path")
    vocabularies = {target.vocab_size, int(target.config.vocab_size)}
    if state_size != target.config.hidden_size or config.vocab_size not in vocabularies:
        named = f" (it names {verifier})" if verifier else ""
        raise ScenarioError(
            f"{place}: is for a target with {state_size} hidden and {config.vocab_size} tokens{named}, and "
            f"{target.name} has {target.config.hidden_size} and {target.vocab_size}"
        )


def _read_layers(place: Path, whole: dict[str, Any], nested: dict[str, Any], target: FlatModel) -> tuple[int, ...]:
    """Layers behind which states are read, from 0."""
    number, key = target.num_layers, "eagle_aux_hidden_state_layer_ids"
    entered, left = whole.get(key), nested.get(key)
    for name, given in ((key, entered), (f"eagle_config.{key}", left)):
        if given is not None and (not isinstance(given, list) or not given or any(type(n) is not int for n in given)):
            raise not_buildable(place, name, given, "a list of whole numbers, e.g. [2, 16, 29]")
    if entered is None and left is not None:
        ids = list(left)
    else:
        ids = [n - 1 for n in entered or (2, number // 2, number - 3)]
    if any(not 0 <= n < number for n in ids):
        raise ScenarioError(
            f"{place}: reads the target behind layers {ids}, counted from 0, and {target.name} has {number} layers"
        )
    return tuple(ids)


def _own_embedding(head: FeatureHead, tensors: dict[str, torch.Tensor], place: Path) -> None:
    if "embed_tokens.weight" in tensors:
        head.embedding = take(tensors, "embed_tokens.weight", (head.vocab_size, head.size), place)


def _target_ids(
    place: Path, tensors: dict[str, torch.Tensor], draft_vocab: int, vocabulary: int, target: FlatModel
) -> torch.Tensor | None:
    if "d2t" not in tensors:
        if draft_vocab != vocabulary:
            raise ScenarioError(f"{place}: drafts {draft_vocab} of {vocabulary} tokens and does not say which (d2t)")
        return None
    ids = torch.arange(draft_vocab) + take(tensors, "d2t", (draft_vocab,), place, whole=True).long()
    if not 0 <= int(ids.min()) <= int(ids.max()) < target.vocab_size or len(ids.unique()) < len(ids):
        raise ScenarioError(f"{place}: 'd2t' leads to tokens that the target does not have, or twice to the same")
    if "t2d" in tensors:
        drafted = take(tensors, "t2d", (vocabulary,), place, whole=True).bool().nonzero()[:, 0]
        if drafted.tolist() != ids.sort().values.tolist():
            raise ScenarioError(f"{place}: 't2d' and 'd2t' name different tokens; the head was put together wrongly")
    return ids
