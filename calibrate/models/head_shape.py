"""A drafting head with random weights at its true shape: what drafting with it costs, not what it says.

Models: the heads of `feature_head` at the sizes of a catalogue shape, with a cache of their own. The target's states
are random, and fused in every pass, as in `specsim.analytic`; engines fuse them in the first only. An MTP module is a
layer of the target's shape, experts and latent attention included.
Leaves out: trained weights, Medusa, block drafters.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, LlamaConfig, PretrainedConfig

from calibrate.models.feature_head import FeatureHead, HeadPlan
from calibrate.models.flat_model import FlatModel
from calibrate.models.shapes import config_values
from specsim.errors import ScenarioError
from specsim.shapes import ModelShape

__all__ = ["HEAD_KINDS", "random_head"]

HEAD_KINDS = ("eagle", "eagle3", "mtp")
"""Kinds of `ModelShape` that are built here."""


class _Body(nn.Module):
    """A head as the body of a transformers model: from token ids alone, beside states that are made up."""

    def __init__(self, head: FeatureHead, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.head = head
        self.layers = head.layers
        self._state_size = head.plan.fused_states * (head.plan.state_size or head.size) or head.size
        self._states = torch.empty(0)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, *, flat_plan: Any, **_: Any) -> Any:
        """`last_hidden_state` [1, tokens, hidden size]."""
        states = self._target_states(input_ids.shape[1])
        features = self.head.features((states, states))
        mixed = self.head.mixed(features, self.embed_tokens(input_ids)[0], position_ids[0], flat_plan)
        return SimpleNamespace(last_hidden_state=self.head.norm(mixed)[None])

    def _target_states(self, tokens: int) -> torch.Tensor:
        """[tokens, states], made once for the longest batch so far."""
        weight = self.embed_tokens.weight
        if self._states.numel() < tokens * self._state_size:
            self._states = torch.randn((tokens, self._state_size), device=weight.device).to(weight.dtype)
        return self._states[:tokens]


class _Head(nn.Module):
    """What `FlatModel` asks of a transformers model."""

    def __init__(self, config: PretrainedConfig, shape: ModelShape) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(FeatureHead(config, _plan(shape), name=shape.name), shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size or shape.vocab_size, bias=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.weight.dtype

    def set_attn_implementation(self, name: str) -> None:
        """It has the attention of flat batches from the start."""

    def get_output_embeddings(self) -> nn.Module:
        """The output head."""
        return self.lm_head

    def _can_set_experts_implementation(self) -> bool:
        return True

    def set_experts_implementation(self, name: str) -> None:
        """As the head."""
        self.model.head.set_experts_implementation(name)


def _plan(shape: ModelShape) -> HeadPlan:
    if shape.kind == "eagle3":
        return HeadPlan(fused_states=shape.fused_hidden_states, state_size=shape.target_hidden_size, last_norm=True)
    if shape.kind == "mtp":
        return HeadPlan(combines=True, combine_norms=True, last_norm=True, feature_normed=True)
    return HeadPlan(combines=True, bare_input=True)


def _config(shape: ModelShape) -> PretrainedConfig:
    if shape.kind == "mtp":
        values = config_values(replace(shape, kind="model"))
        return AutoConfig.for_model(values.pop("model_type"), **values)
    return LlamaConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.max_position_tokens,
    )


def random_head(
    shape: ModelShape, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> FlatModel:
    """A head of a shape of kind eagle, eagle3 or mtp, to be timed.

    Raises:
        ScenarioError: another kind.
    """
    if shape.kind not in HEAD_KINDS:
        raise ScenarioError(
            f"{shape.name} is a drafter of kind {shape.kind}; heads of kind {', '.join(HEAD_KINDS)} are measured here"
        )
    config = _config(shape)
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        made = _Head(config, shape).to(dtype)
    return FlatModel(made, name=shape.name, source=f"random, seed {seed}")
