"""A causal language model of transformers, run on flat batches over a `SlotCache`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from calibrate.models import attention
from calibrate.models.attention import AttentionPlan
from calibrate.models.flat_batch import FlatBatch
from calibrate.models.kv_cache import SlotCache
from specsim.errors import ScenarioError

__all__ = ["FlatModel"]


class FlatModel:
    """What measuring, serving and drafting ask of a model. Layers, norm and head are those of transformers.

    `forward` writes the keys and values of its tokens behind the committed ones and returns hidden states after the
    last norm; `logits` applies the output head to the rows that are sampled.
    """

    def __init__(self, causal_lm: Any, *, name: str, source: str = "", tp: int = 1) -> None:
        """
        Args:
            causal_lm: a transformers `...ForCausalLM`, or one with its interface; its attention is replaced.
            name: for messages and profiles.
            source: where the weights came from: a path, or `random, seed n`.
            tp: of how many GPUs this is one GPU's shard.
        """
        causal_lm.eval()
        causal_lm.set_attn_implementation(attention.NAME)
        if causal_lm.dtype is torch.float64 and causal_lm._can_set_experts_implementation():
            causal_lm.set_experts_implementation("eager")  # grouped products exist for 16 and 32 bits only
        self._body = causal_lm.model if hasattr(causal_lm, "model") else causal_lm.base_model
        self._head = causal_lm.get_output_embeddings()
        self.config = causal_lm.config.get_text_config()
        self.name = name
        self.source = source
        self.tp = tp

    @property
    def device(self) -> torch.device:
        weight: torch.Tensor = self._head.weight
        return weight.device

    @property
    def dtype(self) -> torch.dtype:
        weight: torch.Tensor = self._head.weight
        return weight.dtype

    @property
    def num_layers(self) -> int:
        return len(_layer_list(self._body)[1])

    @property
    def vocab_size(self) -> int:
        """Rows of the output head."""
        rows: int = self._head.weight.shape[0]
        return rows

    @property
    def attention_backend(self) -> str:
        return attention.backend_name(self.device, self.dtype)

    @property
    def parameters_bytes(self) -> int:
        """Memory of the weights, each counted once."""
        tensors = [*self._body.parameters(), *self._head.parameters()]
        return sum({t.data_ptr(): t.nbytes for t in tensors}.values())

    @torch.inference_mode()
    def forward(self, batch: FlatBatch, cache: SlotCache) -> torch.Tensor:
        """Hidden states [tokens, hidden size] of a batch; its keys and values are then written, not committed."""
        for part in batch.parts:
            cache.extend(part.slot, part.context_tokens, part.num_tokens)
        return self.run(*self.inputs(batch), AttentionPlan(batch, cache, self.device))

    def forward_keeping(self, batch: FlatBatch, cache: SlotCache, layers: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """`forward`, and what drafting heads read: (hidden states, those that leave each of `layers`).

        Args:
            layers: numbers of layers, from 0.
        """
        modules = _layer_list(self._body)[1]
        kept: dict[int, torch.Tensor] = {}

        def keep(number: int) -> Callable[..., None]:
            def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
                kept[number] = (output[0] if isinstance(output, tuple) else output)[0]

            return hook

        hooks = [modules[number].register_forward_hook(keep(number)) for number in layers]
        try:
            hidden = self.forward(batch, cache)
        finally:
            for hook in hooks:
                hook.remove()
        return hidden, *(kept[number] for number in layers)

    def inputs(self, batch: FlatBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and positions on the device, int64 [1, tokens] each."""
        ids = torch.tensor([list(batch.token_ids)], device=self.device)
        return ids, torch.tensor([batch.positions], device=self.device)

    @torch.inference_mode()
    def run(self, token_ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """`forward` on tensors that are there already: nothing but the pass itself, for timing and graph capture."""
        out = self._body(input_ids=token_ids, position_ids=positions, use_cache=False, flat_plan=plan)
        hidden: torch.Tensor = out.last_hidden_state[0]
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary] of hidden states [rows, hidden size], with the scalings that some families apply."""
        scores: torch.Tensor = self._head(hidden)
        if getattr(self.config, "logit_scale", None):  # Cohere
            scores = scores * self.config.logit_scale
        if getattr(self.config, "logits_scaling", None):  # Granite
            scores = scores / self.config.logits_scaling
        cap = getattr(self.config, "final_logit_softcapping", None)  # Gemma 2
        return scores if cap is None else torch.tanh(scores / cap) * cap

    @torch.inference_mode()
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden size] of the input embedding, int64 [tokens]; what drafting heads read."""
        embedded: torch.Tensor = self._body.get_input_embeddings()(token_ids)
        return embedded

    def synchronize(self) -> None:
        """Wait until the device has done what it was asked."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def first_layers(self, num_layers: int) -> FlatModel:
        """The model that stops after its first layers: same modules, norm, head, and the same places in a cache.

        Raises:
            ScenarioError: not 1..num_layers - 1 layers.
        """
        if not 1 <= num_layers < self.num_layers:
            raise ScenarioError(
                f"{self.name} has {self.num_layers} layers; its first layers are 1 to {self.num_layers - 1} of them, "
                f"got {num_layers}"
            )
        short = copy.copy(self)
        short._body = copy.copy(self._body)
        field, layers = _layer_list(self._body)
        short._body._modules = dict(self._body._modules) | {field: layers[:num_layers]}
        short._body.config = copy.copy(self._body.config)
        short._body.config.num_hidden_layers = num_layers
        short.name = f"first {num_layers} layers of {self.name}"
        return short


def _layer_list(body: torch.nn.Module) -> tuple[str, torch.nn.ModuleList]:
    """Name and list of a body's decoder layers."""
    for name, child in body.named_children():
        if isinstance(child, torch.nn.ModuleList) and len(child):
            return name, child
    raise ScenarioError(f"{type(body).__name__} keeps no list of layers; use a decoder-only architecture")
