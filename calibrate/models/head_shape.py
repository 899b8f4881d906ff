"""An EAGLE-type head with random weights at its true shape: what drafting with it costs, not what it says.

Models: one decoder layer or few over the fusion of token embeddings and hidden states, a cache of its own, and the
output head; EAGLE fuses embedding and state, EAGLE-3 fuses three states and attends over embedding beside them. The
target's states are random, and fused in every pass, as in `specsim.analytic`; engines fuse them in the first only.
Leaves out: trained weights, Medusa, MTP and block drafters.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from calibrate.models.flat_model import FlatModel
from specsim.errors import ScenarioError
from specsim.shapes import ModelShape

__all__ = ["HEAD_KINDS", "random_head"]

HEAD_KINDS = ("eagle", "eagle3")
"""Kinds of `ModelShape` that are built here."""


class _Layer(nn.Module):
    """A Llama layer whose attention may see embedding and state side by side."""

    def __init__(self, config: LlamaConfig, index: int, *, is_wide: bool) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, index)
        self.mlp = LlamaMLP(config)
        hidden = config.hidden_size
        self.norms = nn.ModuleList(LlamaRMSNorm(hidden) for _ in range(3 if is_wide else 2))
        if is_wide:
            for name in ("q_proj", "k_proj", "v_proj"):
                rows = getattr(self.self_attn, name).out_features
                setattr(self.self_attn, name, nn.Linear(2 * hidden, rows, bias=False))
        self.is_wide = is_wide

    def forward(self, embedded: torch.Tensor, state: torch.Tensor, rotary: Any, plan: Any) -> torch.Tensor:
        """[1, tokens, hidden size] after the layer."""
        seen = self.norms[0](state)
        if self.is_wide:
            seen = torch.cat((self.norms[2](embedded), seen), -1)
        mixed, _ = self.self_attn(hidden_states=seen, position_embeddings=rotary, attention_mask=None, flat_plan=plan)
        state = state + mixed
        out: torch.Tensor = state + self.mlp(self.norms[1](state))
        return out


class _Body(nn.Module):
    """Embedding, fusion, layers and last norm."""

    def __init__(self, config: LlamaConfig, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self._is_eagle3 = shape.kind == "eagle3"
        self._state_size = shape.target_hidden_size or shape.hidden_size
        if self._is_eagle3:
            self._state_size *= shape.fused_hidden_states
        self.fuse = nn.Linear(
            self._state_size + (0 if self._is_eagle3 else shape.hidden_size), shape.hidden_size, bias=False
        )
        self.layers = nn.ModuleList(
            _Layer(config, n, is_wide=self._is_eagle3 and n == 0) for n in range(shape.num_layers)
        )
        self.norm = LlamaRMSNorm(shape.hidden_size)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self._states = torch.empty(0)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, *, flat_plan: Any, **_: Any) -> Any:
        """As the body of a transformers model: `last_hidden_state` [1, tokens, hidden size]."""
        embedded = self.embed_tokens(input_ids)
        states = self._target_states(input_ids.shape[1])
        fused = self.fuse(states if self._is_eagle3 else torch.cat((embedded, states), -1))
        rotary = self.rotary_emb(fused, position_ids)
        for layer in self.layers:
            fused = layer(embedded, fused, rotary, flat_plan)
        return SimpleNamespace(last_hidden_state=self.norm(fused))

    def _target_states(self, tokens: int) -> torch.Tensor:
        """[1, tokens, states], made once for the longest batch so far."""
        weight = self.fuse.weight
        if self._states.numel() < tokens * self._state_size:
            self._states = torch.randn((1, tokens, self._state_size), device=weight.device).to(weight.dtype)
        return self._states[:, :tokens]


class _Head(nn.Module):
    """What `FlatModel` asks of a transformers model."""

    def __init__(self, config: LlamaConfig, shape: ModelShape) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(config, shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size or shape.vocab_size, bias=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.weight.dtype

    def set_attn_implementation(self, name: str) -> None:
        """Attention of every layer, by the name that transformers knows it under."""
        self.config._attn_implementation = name

    def get_output_embeddings(self) -> nn.Module:
        """The output head."""
        return self.lm_head

    def _can_set_experts_implementation(self) -> bool:
        return False


def random_head(
    shape: ModelShape, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> FlatModel:
    """A head of a shape of kind eagle or eagle3, to be timed.

    Raises:
        ScenarioError: another kind.
    """
    if shape.kind not in HEAD_KINDS:
        raise ScenarioError(
            f"{shape.name} is a drafter of kind {shape.kind}; heads of kind {', '.join(HEAD_KINDS)} are measured here"
        )
    config = LlamaConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.max_position_tokens,
    )
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        made = _Head(config, shape).to(dtype)
    return FlatModel(made, name=shape.name, source=f"random, seed {seed}")
