"""Drafting heads that read a state of the target and the next token at every place: EAGLE, EAGLE-3, MTP.

One module for all of them. A head is a layer or few of some transformers architecture over its own cache, with what
goes before and behind them: how the target's states become features, how a feature and an embedding become the layer's
input, and how its output becomes the next feature and logits.

- EAGLE (Li et al. 2024, arXiv 2401.15077): `combine` projects [embedding, feature]; the first layer has no norm on its
  input; the output is a feature like the target's own, and goes through the target's head.
- EAGLE-3 (Li et al. 2025, arXiv 2503.01840): `fuse` joins three states; the first layer attends with [normed embedding,
  normed feature]; `norm` comes before the head, the feature is taken before it.
- MTP (DeepSeek-V3, arXiv 2412.19437): `combine` projects a normed embedding and a normed state into one of the target's
  own layers; `norm` comes before the head, the next feature is taken behind it, as the first one was from the target.

Random weights serve to be timed (`head_shape`), those of files to draft (`calibrate.drafters`).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from calibrate.models import attention
from calibrate.models.attention import AttentionPlan
from calibrate.models.flat_batch import FlatBatch
from calibrate.models.flat_model import FlatModel
from calibrate.models.kv_cache import SlotCache
from specsim.errors import ScenarioError

__all__ = ["FeatureHead", "HeadPlan"]


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """What a head is made of."""

    fused_states: int = 0
    """States of the target that `fuse` joins; 0: its last state is the feature."""
    state_size: int = 0
    """Width of each; 0: that of the head."""
    fuse_norm: bool = False
    """The joined states are normed first."""
    fuse_bias: bool = False
    combines: bool = False
    """[embedding, feature] are projected to the layers' input; else the first layer attends over both side by side."""
    combine_norms: bool = False
    """Both are normed first."""
    combine_bias: bool = False
    feature_first: bool = False
    """[feature, embedding] instead."""
    bare_input: bool = False
    """The first layer does not norm its input."""
    residual_normed: bool = False
    """The first layer's residual path begins behind the norm of the feature."""
    qkv_bias: bool = False
    """Queries, keys and values have biases, whatever the configuration says."""
    last_norm: bool = False
    """A norm before the output head."""
    feature_normed: bool = False
    """The next feature is taken behind that norm."""
    head_rows: int = 0
    """Rows of an output head of its own; 0: the target's."""


class _WideLayer(nn.Module):
    """A layer whose attention sees embedding and feature side by side, each normed."""

    def __init__(self, layer: Any, norm: type[nn.Module], size: int, eps: float, *, residual_normed: bool) -> None:
        super().__init__()
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.hidden_norm = norm(size, eps=eps)
        self._residual_normed = residual_normed
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            setattr(self.self_attn, name, nn.Linear(2 * size, narrow.out_features, bias=narrow.bias is not None))

    def forward(self, embedded: torch.Tensor, feature: torch.Tensor, rotary: Any, plan: AttentionPlan) -> torch.Tensor:
        """[1, tokens, hidden size] after the layer."""
        normed = self.hidden_norm(feature)
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        mixed, _ = self.self_attn(hidden_states=both, position_embeddings=rotary, attention_mask=None, flat_plan=plan)
        out = (normed if self._residual_normed else feature) + mixed
        left: torch.Tensor = out + self.mlp(self.post_attention_layernorm(out))
        return left


class FeatureHead(nn.Module):
    """A head; names of its parameters within `layers.N` are those of the architecture."""

    def __init__(self, config: transformers.PretrainedConfig, plan: HeadPlan, *, name: str) -> None:
        """
        Args:
            config: of the layers: an architecture of transformers with as many layers as the head has.
            name: for messages.

        Raises:
            ScenarioError: an architecture whose layers cannot be taken out of their model.
        """
        super().__init__()
        values = config.to_dict() | {"vocab_size": 1}  # the body's own embedding is thrown away
        values |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        body: Any = transformers.AutoModel.from_config(type(config).from_dict(values))
        if not all(hasattr(body, part) for part in ("layers", "norm", "rotary_emb")) or (
            "layer_type" in inspect.signature(body.rotary_emb.forward).parameters
        ):
            raise ScenarioError(f"{name}: layers of model_type '{config.model_type}' cannot be run as a drafting head")
        if any(getattr(layer.self_attn, "sliding_window", None) for layer in body.layers):
            raise ScenarioError(f"{name}: its layer sees a window of the text, which drafting heads do not do here")
        body.set_attn_implementation(attention.NAME)
        self._body_config = body.config
        norm, size, eps = type(body.norm), config.hidden_size, config.rms_norm_eps
        self.name, self.plan, self.size = name, plan, size
        self.vocab_size = config.vocab_size
        wide = plan.state_size or size
        if plan.fused_states:
            self.fuse = nn.Linear(plan.fused_states * wide, size, bias=plan.fuse_bias)
            self.fuse_norm = norm(plan.fused_states * wide, eps=eps) if plan.fuse_norm else nn.Identity()
        if plan.combines:
            self.combine = nn.Linear(size + wide, size, bias=plan.combine_bias)
            self.embedding_norm, self.feature_norm = (
                norm(size, eps=eps) if plan.combine_norms else nn.Identity() for _ in range(2)
            )
        layers = list(body.layers)
        if plan.qkv_bias:
            for layer in layers:
                for part in ("q_proj", "k_proj", "v_proj"):
                    old = getattr(layer.self_attn, part)
                    setattr(layer.self_attn, part, nn.Linear(old.in_features, old.out_features, bias=True))
        if plan.bare_input:
            layers[0].input_layernorm = nn.Identity()
        if not plan.combines:
            layers[0] = _WideLayer(layers[0], norm, size, eps, residual_normed=plan.residual_normed)
        self.layers = nn.ModuleList(layers)
        self.norm = norm(size, eps=eps) if plan.last_norm else nn.Identity()
        self.rotary = body.rotary_emb
        self.lm_head = nn.Linear(size, plan.head_rows, bias=False) if plan.head_rows else None
        self.embedding: torch.Tensor | None = None
        """[vocabulary, hidden size] of its own; None: the target's."""
        self.target_ids: torch.Tensor | None = None
        """int64 [rows of its output head]: the target's number of each draft token; None: the same."""
        self.hidden_layers: tuple[int, ...] = ()
        """Layers of the target, from 0, behind which states are read; none: behind its last norm."""

    def ready(self, target: FlatModel) -> FeatureHead:
        """On the target's device, in its dtype, and done with training."""
        self.to(target.device, target.dtype).eval()
        if target.dtype is torch.float64:  # grouped products exist for 16 and 32 bits only
            self.set_experts_implementation("eager")
        if self.embedding is not None:
            self.embedding = self.embedding.to(target.device, target.dtype)
        if self.target_ids is not None:
            self.target_ids = self.target_ids.to(target.device)
        return self

    def set_experts_implementation(self, name: str) -> None:
        """How products of experts are computed, by the name that transformers knows it under."""
        self._body_config._experts_implementation = name

    @torch.inference_mode()
    def features(self, states: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """[tokens, size] of what the target says: states behind its last norm, then behind each of `hidden_layers`."""
        if not self.plan.fused_states:
            return states[0]
        joined: torch.Tensor = self.fuse(self.fuse_norm(torch.cat(states[1:], dim=-1)))
        return joined

    def mixed(
        self, features: torch.Tensor, embedded: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan
    ) -> torch.Tensor:
        """[tokens, size] that leave the layers.

        Args:
            features: [tokens, size] of known or drafted tokens.
            embedded: [tokens, size] of the token after each.
            positions: int64 [tokens].
        """
        out = features[None]
        embedded = embedded[None]
        if self.plan.combines:
            pair = self.embedding_norm(embedded), self.feature_norm(out)
            out = self.combine(torch.cat(pair[::-1] if self.plan.feature_first else pair, dim=-1))
        rotary = self.rotary(out, positions[None])
        for layer in self.layers:
            if isinstance(layer, _WideLayer):
                out = layer(embedded, out, rotary, plan)
                continue
            found = layer(
                hidden_states=out, attention_mask=None, position_ids=positions[None], position_embeddings=rotary,
                flat_plan=plan,
            )  # fmt: skip
            out = found[0] if isinstance(found, tuple) else found
        return out[0]

    @torch.inference_mode()
    def forward(
        self, features: torch.Tensor, batch: FlatBatch, cache: SlotCache, target: FlatModel
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(next features, what the output head reads), [tokens, size] each; keys and values are written, not committed.

        Args:
            features: [tokens, size]; token n of the batch is the one after feature n, and stands where that does.
            cache: of the head alone.
        """
        for part in batch.parts:
            cache.extend(part.slot, part.context_tokens, part.num_tokens)
        device = features.device
        tokens = torch.tensor(list(batch.token_ids), device=device)
        embedded = target.embed(tokens) if self.embedding is None else self.embedding[tokens]
        positions = torch.tensor(batch.positions, device=device)
        out = self.mixed(features, embedded, positions, AttentionPlan(batch, cache, device))
        normed = self.norm(out)
        return normed if self.plan.feature_normed else out, normed

    @torch.inference_mode()
    def logits(self, read: torch.Tensor, target: FlatModel) -> torch.Tensor:
        """[rows, the target's vocabulary]; tokens that the head does not draft are at minus infinity."""
        if self.lm_head is None:
            return target.logits(read)
        scores: torch.Tensor = self.lm_head(read)
        if self.target_ids is None:
            return scores
        whole = scores.new_full((len(scores), target.vocab_size), float("-inf"))
        return whole.index_copy_(1, self.target_ids, scores)
