"""The EAGLE-3 head: one decoder layer over the target's features and the next token's embedding.

Li et al. 2025 (arXiv 2503.01840). Features of three layers of the target are joined by `fc`; the layer attends with
queries, keys and values of [normed embedding, normed feature]; its output is the feature of the next guess, and after
`norm` gives logits over a shortened vocabulary (`d2t`: draft token n is the target's n + d2t[n]). Read in the forms of
the EAGLE project (`midlayer.*`) and of speculators (`layers.0.*`, `transformer_layer_config`, `norm_before_residual`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from calibrate.drafters.head_files import head_config, head_tensors, take
from calibrate.models import FlatModel
from specsim.errors import ScenarioError

__all__ = ["Eagle3Head", "KeysValues", "load_eagle3"]


@dataclass(slots=True)
class KeysValues:
    """Keys and values of some tokens, [tokens, kv heads, head dim] each."""

    keys: torch.Tensor
    values: torch.Tensor

    def joined(self, more: KeysValues) -> KeysValues:
        """Those tokens, then more."""
        return KeysValues(torch.cat([self.keys, more.keys]), torch.cat([self.values, more.values]))


class Eagle3Head(torch.nn.Module):
    """Weights and the pass of one head."""

    def __init__(self, config: transformers.LlamaConfig, *, draft_vocab: int, features: int, norm_first: bool) -> None:
        """
        Args:
            features: layers of the target whose states are joined.
            norm_first: the residual path begins behind the norm of the feature (`norm_before_residual`).
        """
        super().__init__()
        size, dim = config.hidden_size, int(config.head_dim or config.hidden_size // config.num_attention_heads)
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, int(config.num_key_value_heads or 1), dim
        self.norm_first = norm_first
        self.fc = torch.nn.Linear(features * size, size, bias=False)
        self.q_proj = torch.nn.Linear(2 * size, self.heads * dim, bias=False)
        self.k_proj = torch.nn.Linear(2 * size, self.kv_heads * dim, bias=False)
        self.v_proj = torch.nn.Linear(2 * size, self.kv_heads * dim, bias=False)
        self.o_proj = torch.nn.Linear(self.heads * dim, size, bias=False)
        self.mlp = LlamaMLP(config)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm, self.norm = (
            LlamaRMSNorm(size, eps=config.rms_norm_eps) for _ in range(4)
        )
        self.lm_head = torch.nn.Linear(size, draft_vocab, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)
        self.embedding: torch.Tensor | None = None
        """[vocabulary, hidden size] of its own; None: the target's."""
        self.target_ids = torch.arange(draft_vocab)
        """int64 [draft vocabulary]: the target's number of each draft token."""
        self.layers: tuple[int, ...] = ()
        """Layers of the target, from 0, behind which features are taken."""

    @torch.inference_mode()
    def begin(
        self, features: torch.Tensor, embedded: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, KeysValues]:
        """(queries [rows, heads, dim], residual [rows, hidden size], keys and values) of rows.

        Args:
            features: [rows, hidden size].
            embedded: [rows, hidden size] of the token after each.
            positions: int64 [rows].
        """
        normed = self.hidden_norm(features)
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        queries = self.q_proj(both).unflatten(-1, (self.heads, self.dim))
        keys = self.k_proj(both).unflatten(-1, (self.kv_heads, self.dim))
        values = self.v_proj(both).unflatten(-1, (self.kv_heads, self.dim))
        cos, sin = self.rotary(features[None], positions[None])
        queries, keys = apply_rotary_pos_emb(queries[None], keys[None], cos, sin, unsqueeze_dim=2)
        return queries[0], normed if self.norm_first else features, KeysValues(keys[0], values)

    @torch.inference_mode()
    def finish(
        self,
        queries: torch.Tensor,
        residual: torch.Tensor,
        base: KeysValues,
        visible: torch.Tensor,
        own: list[KeysValues],
    ) -> torch.Tensor:
        """Features [rows, hidden size] that leave the layer.

        Args:
            base: keys and values of known tokens; row n sees the first `visible[n]`.
            own: of the guesses before each row and of itself, one entry a step, row n seeing row n of each.
        """
        groups = self.heads // self.kv_heads
        q = queries.unflatten(1, (self.kv_heads, groups)) * self.dim**-0.5
        scores = torch.einsum("nhgd,thd->nhgt", q, base.keys)
        hidden = torch.arange(len(base.keys), device=q.device)[None] >= visible[:, None]
        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        ours = [torch.einsum("nhgd,nhd->nhg", q, step.keys)[..., None] for step in own]
        weights = torch.softmax(torch.cat([scores, *ours], dim=-1).float(), dim=-1).to(q.dtype)
        mixed = torch.einsum("nhgt,thd->nhgd", weights[..., : len(base.keys)], base.values)
        for n, step in enumerate(own, start=len(base.keys)):
            mixed = mixed + weights[..., n, None] * step.values[:, :, None]
        out = residual + self.o_proj(mixed.flatten(1))
        left: torch.Tensor = out + self.mlp(self.post_attention_layernorm(out))
        return left

    @torch.inference_mode()
    def draft_logits(self, features: torch.Tensor) -> torch.Tensor:
        """[rows, draft vocabulary]."""
        scores: torch.Tensor = self.lm_head(self.norm(features))
        return scores

    def embed(self, target: FlatModel, tokens: torch.Tensor) -> torch.Tensor:
        """[rows, hidden size] of the target's tokens."""
        return target.embed(tokens) if self.embedding is None else self.embedding[tokens]


def load_eagle3(folder: str | Path, target: FlatModel) -> Eagle3Head:
    """A head from a directory, in the target's dtype and on its device.

    Raises:
        ScenarioError: files are missing, or do not fit the target.
    """
    place = Path(folder)
    whole = head_config(place)
    values: dict[str, Any] = whole.get("transformer_layer_config") or whole
    tensors = {name.removeprefix("model."): tensor for name, tensor in head_tensors(place).items()}
    tensors = {name.replace("layers.0.", "midlayer.", 1): tensor for name, tensor in tensors.items()}
    allowed = {k: v for k, v in values.items() if k not in ("architectures", "model_type", "dtype", "torch_dtype")}
    config = transformers.LlamaConfig(**allowed)
    size = config.hidden_size
    if size != target.config.hidden_size or config.vocab_size != target.vocab_size:
        raise ScenarioError(
            f"{place}: is for a target with {size} hidden and {config.vocab_size} tokens, and {target.name} has "
            f"{target.config.hidden_size} and {target.vocab_size}"
        )
    if config.attention_bias or config.mlp_bias:
        raise ScenarioError(f"{place}: has biases, which EAGLE-3 heads do not have here")
    number = target.num_layers
    ids = whole.get("eagle_aux_hidden_state_layer_ids") or (2, number // 2, number - 3)
    if any(not 1 <= n <= number for n in ids):
        raise ScenarioError(f"{place}: reads the target before layers {list(ids)}, which has layers 0 to {number - 1}")
    draft_vocab = int(whole.get("draft_vocab_size") or config.vocab_size)
    head = Eagle3Head(
        config, draft_vocab=draft_vocab, features=len(ids), norm_first=bool(whole.get("norm_before_residual"))
    )
    names = {
        **{f"{name}.weight": f"midlayer.self_attn.{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "o_proj")},
        **{f"mlp.{name}.weight": f"midlayer.mlp.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj")},
        **{
            f"{name}.weight": f"midlayer.{name}.weight"
            for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        },
    }
    state = {
        ours: take(tensors, names.get(ours, ours), tuple(there.shape), place)
        for ours, there in head.state_dict().items()
    }
    head.load_state_dict(state)
    head.to(target.device, target.dtype).eval()
    if "embed_tokens.weight" in tensors:
        embedding = take(tensors, "embed_tokens.weight", (config.vocab_size, size), place)
        head.embedding = embedding.to(target.device, target.dtype)
    if "d2t" in tensors:
        head.target_ids = head.target_ids + take(tensors, "d2t", (draft_vocab,), place).long()
    elif draft_vocab != config.vocab_size:
        raise ScenarioError(f"{place}: drafts {draft_vocab} of {config.vocab_size} tokens and does not say which (d2t)")
    if not 0 <= int(head.target_ids.min()) <= int(head.target_ids.max()) < target.vocab_size:
        raise ScenarioError(f"{place}: 'd2t' leads to tokens that the target does not have")
    head.target_ids = head.target_ids.to(target.device)
    head.layers = tuple(int(n) - 1 for n in ids)
    return head
