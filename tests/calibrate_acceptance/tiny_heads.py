"""Medusa, EAGLE, EAGLE-3 and MTP heads for a tiny target, fitted to its own text, in the forms that are published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from calibrate.drafters.eagle_files import load_eagle, load_eagle3
from calibrate.drafters.mtp_files import load_mtp
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache
from calibrate.models.feature_head import FeatureHead

__all__ = ["MTP_FORMS", "save_eagle", "save_eagle3", "save_medusa", "save_mtp"]

Texts = Sequence[Sequence[int]]


def _fitted(states: torch.Tensor, tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """[vocabulary, size] by ridge regression from states to the tokens that they shall guess."""
    wanted = torch.nn.functional.one_hot(tokens, vocabulary).double()
    x = states.double()
    return torch.linalg.solve(x.T @ x + 1e-3 * torch.eye(x.shape[1], dtype=torch.float64), x.T @ wanted).T.contiguous()


def _states(target: FlatModel, text: Sequence[int], layers: Sequence[int]) -> tuple[torch.Tensor, ...]:
    cache = SlotCache(1, len(text))
    return target.forward_keeping(FlatBatch(text, [Part(cache.acquire(), 0, len(text))]), cache, layers)


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], *, pickled: bool = False) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def save_medusa(folder: Path, target: FlatModel, texts: Texts, *, project_form: bool, count: int = 3) -> Path:
    """`count` heads with a residual block each."""
    size, draws = target.config.hidden_size, torch.Generator().manual_seed(4)
    tensors = {}
    for head in range(count):
        weight = 0.1 * torch.randn(size, size, generator=draws, dtype=torch.float64)
        bias = 0.1 * torch.randn(size, generator=draws, dtype=torch.float64)
        states, tokens = [], []
        for text in texts:
            hidden = _states(target, text, ())[0][: len(text) - 2 - head]
            states.append(hidden + torch.nn.functional.silu(hidden @ weight.T + bias))
            tokens += text[2 + head :]
        output = _fitted(torch.cat(states), torch.tensor(tokens), target.vocab_size)
        stem = f"{head}.0.linear" if project_form else f"blocks.{head}.layers.0"
        tensors |= {f"{stem}.weight": weight, f"{stem}.bias": bias}
        tensors[f"{head}.1.weight" if project_form else f"lm_heads.{head}.weight"] = output
    names = ("medusa_num_heads", "medusa_num_layers") if project_form else ("num_heads", "num_hidden_layers")
    return _write(folder, {names[0]: count, names[1]: 1}, tensors, pickled=project_form)


def _random(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    """Weights, and norms around 1."""
    draws = torch.Generator().manual_seed(seed)
    return {
        f"{name}.weight": torch.rand(shape, generator=draws, dtype=torch.float64) + 0.5
        if len(shape) == 1
        else torch.randn(shape, generator=draws, dtype=torch.float64) * 0.15
        for name, shape in shapes.items()
    }


def _layer(stem: str, size: int, wide: int, width: int) -> dict[str, tuple[int, ...]]:
    """A Llama layer of 4 heads, 2 of them with keys, of dimension 8."""
    return {
        f"{stem}self_attn.q_proj": (32, wide), f"{stem}self_attn.k_proj": (16, wide),
        f"{stem}self_attn.v_proj": (16, wide), f"{stem}self_attn.o_proj": (size, 32),
        f"{stem}mlp.gate_proj": (width, size), f"{stem}mlp.up_proj": (width, size),
        f"{stem}mlp.down_proj": (size, width), f"{stem}post_attention_layernorm": (size,),
    }  # fmt: skip


def _config(target: FlatModel, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": target.config.hidden_size, "intermediate_size": 48, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": target.vocab_size, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
    } | more  # fmt: skip


def _over(head: FeatureHead, target: FlatModel, text: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(what leaves the layers, what the output head reads) of all places of a text."""
    count = len(text) - 2
    states = tuple(state[:count] for state in _states(target, text, head.hidden_layers))
    out, read = head(head.features(states), FlatBatch(text[1:-1], [Part(0, 0, count)]), SlotCache(1, count), target)
    return out.detach(), read.detach()


def _with_head(
    tensors: dict[str, torch.Tensor], name: str, head: FeatureHead, target: FlatModel, texts: Texts, kept: Sequence[int]
) -> None:
    """Fit the output head, whose rows are the tokens `kept`."""
    states, tokens, place = [], list[int](), {token: n for n, token in enumerate(kept)}
    for text in texts:
        rows = [n for n, token in enumerate(text[2:]) if token in place]
        states.append(_over(head, target, text)[1][rows])
        tokens += [place[text[2 + n]] for n in rows]
    tensors[name] = _fitted(torch.cat(states), torch.tensor(tokens), len(kept))


def _with_mlp(
    tensors: dict[str, torch.Tensor], name: str, head: FeatureHead, target: FlatModel, texts: Texts, *, normed: bool
) -> None:
    """Fit the last matrix of a layer that feeds the target's own head, to the target's state at the next place."""
    seen: list[torch.Tensor] = []
    down: Any = head.layers[0].mlp.down_proj
    hook = down.register_forward_hook(lambda module, inputs, out: seen.append((inputs[0][0], out[0])))
    inputs, wanted = [], []
    for text in texts:
        plan = head.plan
        object.__setattr__(head, "plan", replace(plan, feature_normed=False))
        out, _ = _over(head, target, text)
        object.__setattr__(head, "plan", plan)
        states = _states(target, text, (target.num_layers - 1,))
        act, added = seen.pop()
        inputs.append(act)
        wanted.append((states[0] if normed else states[1])[1 : 1 + len(out)] - (out - added))
    hook.remove()
    x, y = torch.cat(inputs).double(), torch.cat(wanted).double()
    tensors[name] = torch.linalg.solve(x.T @ x + 1e-4 * torch.eye(x.shape[1], dtype=torch.float64), x.T @ y).T


def save_eagle3(folder: Path, target: FlatModel, texts: Texts, *, speculators_form: bool) -> Path:
    """A head with random weights whose output is fitted; in one form with a shortened vocabulary."""
    size, vocabulary = target.config.hidden_size, target.vocab_size
    kept = torch.arange(0, vocabulary) if speculators_form else torch.arange(5, vocabulary)
    layer = "layers.0." if speculators_form else "midlayer."
    shapes = {"fc": (size, 3 * size), "norm": (size,)} | _layer(layer, size, 2 * size, 48)
    tensors = _random(shapes | {f"{layer}input_layernorm": (size,), f"{layer}hidden_norm": (size,)}, 9)
    tensors["d2t"] = kept - torch.arange(len(kept))
    tensors["t2d"] = torch.isin(torch.arange(vocabulary), kept)
    tensors["lm_head.weight"] = torch.zeros(len(kept), size, dtype=torch.float64)
    whole: dict[str, Any] = {"draft_vocab_size": len(kept), "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    if speculators_form:
        tensors |= _random({"embed_tokens": (vocabulary, size)}, 10)
        whole |= {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "norm_before_residual": True,
            "transformer_layer_config": _config(target, model_type="llama"),
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "some/target"}},
        }  # fmt: skip
    else:
        whole |= _config(target, model_type="llama", architectures=["LlamaForCausalLM"], bias=False)
    blank = _write(folder.with_name(folder.name + "-blank"), whole, tensors)
    _with_head(tensors, "lm_head.weight", load_eagle3(blank, target), target, texts, kept.tolist())
    return _write(folder, whole, tensors)


def save_eagle(folder: Path, target: FlatModel, texts: Texts, *, speculators_form: bool) -> Path:
    """A head whose features are fitted to those of the target; with a bias in the project's form."""
    size, width = target.config.hidden_size, 256
    fusion, layer = ("fusion_fc", "transformer.") if speculators_form else ("fc", "layers.0.")
    tensors = _random({fusion: (size, 2 * size)} | _layer(layer, size, size, width), 3)
    whole: dict[str, Any] = _config(target, intermediate_size=width, model_type="llama")
    if speculators_form:
        whole = {
            "architectures": ["EagleSpeculator"], "speculators_model_type": "eagle", "transformer_layer_config": whole,
            "layernorms": False, "fusion_bias": False,
        }  # fmt: skip
    else:
        tensors["fc.bias"] = torch.full((size,), 0.1, dtype=torch.float64)
        tensors["embed_tokens.weight"] = target.embed(torch.arange(target.vocab_size)).clone()
    blank = _write(folder.with_name(folder.name + "-blank"), whole, tensors, pickled=not speculators_form)
    _with_mlp(tensors, f"{layer}mlp.down_proj.weight", load_eagle(blank, target), target, texts, normed=True)
    return _write(folder, whole, tensors, pickled=not speculators_form)


MTP_FORMS = ("deepseek", "qwen", "mimo", "speculators")


def save_mtp(folder: Path, target: FlatModel, texts: Texts, *, form: str) -> Path:
    """A module as it lies in checkpoints; of DeepSeek's form with an output head of its own, experts one by one."""
    size = target.config.hidden_size
    number = target.num_layers
    layer, names = {
        "deepseek": (f"model.layers.{number}.", ("enorm", "hnorm", "eh_proj", "shared_head.norm")),
        "qwen": ("mtp.layers.0.", ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")),
        "mimo": ("model.mtp_layers.0.", ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")),
        "speculators": ("mtp_layers.0.", ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")),
    }[form]
    enorm, hnorm, proj, norm = (name if name.startswith("mtp.") else f"{layer}{name}" for name in names)
    shapes: dict[str, tuple[int, ...]] = {enorm: (size,), hnorm: (size,), proj: (size, 2 * size), norm: (size,)}
    own = target._body.layers[-1].state_dict()
    tensors = _random(shapes, 6)
    luck = torch.Generator().manual_seed({"deepseek": 0, "qwen": 1, "mimo": 2, "speculators": 3}[form])

    def drawn(shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=luck) * 0.15

    for name, tensor in own.items():  # shapes of a layer of this target; random, but for what is no matrix
        if name.endswith("experts.gate_up_proj"):
            for n, joined in enumerate(drawn(tensor.shape)):
                stem = f"{layer}mlp.experts.{n}"
                tensors[f"{stem}.gate_proj.weight"], tensors[f"{stem}.up_proj.weight"] = joined.chunk(2)
        elif name.endswith("experts.down_proj"):
            for n, down in enumerate(drawn(tensor.shape)):
                tensors[f"{layer}mlp.experts.{n}.down_proj.weight"] = down
        else:
            tensors[layer + name] = drawn(tensor.shape) if tensor.ndim > 1 else tensor.clone()
    whole = target.config.to_dict()
    if form == "speculators":
        whole = {"speculators_model_type": "mtp", "architectures": ["MTPDraftModel"], "transformer_layer_config": whole}
    if form == "deepseek":
        tensors[f"{layer}shared_head.head.weight"] = torch.zeros(target.vocab_size, size, dtype=torch.float64)
        tensors[f"{layer}embed_tokens.weight"] = target.embed(torch.arange(target.vocab_size)).clone()
    else:
        tensors[f"{norm}.weight"] = target._body.norm.weight.detach().clone()
    tensors["model.layers.0.input_layernorm.weight"] = torch.ones(size)  # the rest of the checkpoint
    blank = _write(folder.with_name(folder.name + "-blank"), whole, tensors)
    head = load_mtp(blank, target)
    if form == "deepseek":
        _with_head(tensors, f"{layer}shared_head.head.weight", head, target, texts, range(target.vocab_size))
    else:
        _with_mlp(tensors, f"{layer}mlp.down_proj.weight", head, target, texts, normed=False)
    return _write(folder, whole, tensors)
