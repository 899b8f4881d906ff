"""Medusa and EAGLE-3 heads for the tiny target, fitted to its own text, in the forms that are published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from calibrate.drafters.eagle3_head import load_eagle3
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache

__all__ = ["save_eagle3", "save_medusa"]

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


def save_eagle3(folder: Path, target: FlatModel, texts: Texts, *, speculators_form: bool) -> Path:
    """A head with random weights whose output is fitted; in one form with a shortened vocabulary."""
    config = target.config
    size, dim, vocabulary = config.hidden_size, 8, target.vocab_size
    values: dict[str, Any] = {
        "hidden_size": size, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": dim, "vocab_size": vocabulary, "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
    }  # fmt: skip
    kept = torch.arange(0, vocabulary) if speculators_form else torch.arange(5, vocabulary)
    layer = "layers.0" if speculators_form else "midlayer"
    shapes = {
        "fc": (size, 3 * size), f"{layer}.self_attn.q_proj": (4 * dim, 2 * size),
        f"{layer}.self_attn.k_proj": (2 * dim, 2 * size), f"{layer}.self_attn.v_proj": (2 * dim, 2 * size),
        f"{layer}.self_attn.o_proj": (size, 4 * dim), f"{layer}.mlp.gate_proj": (48, size),
        f"{layer}.mlp.up_proj": (48, size), f"{layer}.mlp.down_proj": (size, 48),
    }  # fmt: skip
    draws = torch.Generator().manual_seed(9)
    tensors = {f"{n}.weight": torch.randn(s, generator=draws, dtype=torch.float64) * 0.15 for n, s in shapes.items()}
    for norm in (f"{layer}.input_layernorm", f"{layer}.hidden_norm", f"{layer}.post_attention_layernorm", "norm"):
        tensors[f"{norm}.weight"] = torch.rand(size, generator=draws, dtype=torch.float64) + 0.5
    tensors["d2t"] = kept - torch.arange(len(kept))
    tensors["lm_head.weight"] = torch.zeros(len(kept), size, dtype=torch.float64)
    whole: dict[str, Any] = {"draft_vocab_size": len(kept), "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    if speculators_form:
        tensors["embed_tokens.weight"] = torch.randn(vocabulary, size, generator=draws, dtype=torch.float64)
        whole |= {"transformer_layer_config": values, "norm_before_residual": True}
    else:
        whole |= values
    _write(folder.with_name(folder.name + "-blank"), whole, tensors)
    head = load_eagle3(folder.with_name(folder.name + "-blank"), target)
    states, tokens = [], []
    place = {token: n for n, token in enumerate(kept.tolist())}
    for text in texts:
        features = head.fc(torch.cat(_states(target, text, head.layers)[1:], dim=-1))[: len(text) - 2]
        positions = torch.arange(len(features))
        queries, residual, base = head.begin(features, head.embed(target, torch.tensor(text[1:-1])), positions)
        normed = head.norm(head.finish(queries, residual, base, positions + 1, []))
        rows = [n for n, token in enumerate(text[2:]) if token in place]
        states.append(normed[rows].detach())
        tokens += [place[text[2 + n]] for n in rows]
    tensors["lm_head.weight"] = _fitted(torch.cat(states), torch.tensor(tokens), len(kept))
    return _write(folder, whole, tensors)
