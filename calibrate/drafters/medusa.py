"""Medusa heads: each guesses one token further ahead from the target's last hidden state, all at once.

Cai et al. 2024 (arXiv 2401.10774): residual blocks x + SiLU(W x + b), then a head over the vocabulary. Read in the two
forms that are published: that of the Medusa project (`medusa_num_heads`, tensors `0.0.linear.weight`, `0.1.weight`) and
that of vLLM (`num_heads`, tensors `blocks.0.layers.0.weight`, `lm_heads.0.weight`). The likeliest token of each head
makes a chain; trees of candidates are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from calibrate.drafters.base import NOTHING, Draftee, Law, Proposal, chosen
from calibrate.drafters.head_files import head_config, head_tensors, take
from calibrate.models import FlatModel, SlotCache
from specsim.errors import ScenarioError

__all__ = ["MedusaDrafter", "MedusaHeads", "load_medusa"]

_Block = tuple[torch.Tensor, torch.Tensor | None]


class MedusaHeads:
    """Heads 0, 1, ...: of a hidden state at token i, head j guesses token i + 2 + j."""

    def __init__(self, heads: Sequence[tuple[Sequence[_Block], torch.Tensor]]) -> None:
        """`heads`: residual blocks (weight, bias) and output weights [vocabulary, hidden size] of each."""
        self._heads = list(heads)

    def __len__(self) -> int:
        return len(self._heads)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, head: int) -> torch.Tensor:
        """[rows, vocabulary] of one head for hidden states [rows, hidden size]."""
        blocks, output = self._heads[head]
        for weight, bias in blocks:
            hidden = hidden + F.silu(F.linear(hidden, weight, bias))
        return F.linear(hidden, output)


def load_medusa(folder: str | Path, target: FlatModel) -> MedusaHeads:
    """Heads from a directory, in the target's dtype and on its device.

    Raises:
        ScenarioError: files are missing, or do not fit the target.
    """
    place = Path(folder)
    config = head_config(place)
    tensors = {name.removeprefix("medusa_heads."): tensor for name, tensor in head_tensors(place).items()}
    size, vocabulary = int(target.config.hidden_size), target.vocab_size
    of_project = "medusa_num_heads" in config
    names = ("medusa_num_heads", "medusa_num_layers") if of_project else ("num_heads", "num_hidden_layers")
    count, layers = config.get(names[0]), config.get(names[1], 1)
    if not isinstance(count, int) or not isinstance(layers, int) or count < 1 or layers < 0:
        raise ScenarioError(f"{place}: config.json must say 'medusa_num_heads' or 'num_heads', as Medusa heads do")

    def there(name: str, *shape: int) -> torch.Tensor:
        return take(tensors, name, shape, place).to(target.device, target.dtype)

    heads = []
    for head in range(count):
        blocks: list[_Block] = []
        for layer in range(layers):
            stem = f"{head}.{layer}.linear" if of_project else f"blocks.{head}.layers.{layer}"
            bias = there(f"{stem}.bias", size) if f"{stem}.bias" in tensors else None
            blocks.append((there(f"{stem}.weight", size, size), bias))
        shared = 0 if config.get("original_lm_head") else head
        output = f"{head}.{layers}.weight" if of_project else f"lm_heads.{shared}.weight"
        heads.append((blocks, there(output, vocabulary, size)))
    return MedusaHeads(heads)


class MedusaDrafter:
    """See `calibrate.drafters.base.Drafter`."""

    name = "medusa"
    hidden_layers = ()

    def __init__(self, heads: MedusaHeads) -> None:
        self._heads = heads

    def start(self, target: FlatModel, cache: SlotCache) -> None:
        """Nothing is needed but hidden states."""

    def propose(self, draftees: Sequence[Draftee], k: int, law: Law | None) -> list[Proposal]:
        live = [n for n, d in enumerate(draftees) if d.drafts and d.hidden and len(d.hidden[0])]
        found = [NOTHING] * len(draftees)
        most = min(k, len(self._heads))
        if not live or not most:
            return found
        last = torch.stack([draftees[n].hidden[0][-1] for n in live])
        levels = [chosen(self._heads.logits(last, head), [draftees[n] for n in live], law) for head in range(most)]
        for row, n in enumerate(live):
            laws = [probs[row] for _, probs in levels if probs is not None]
            found[n] = Proposal(tuple(tokens[row] for tokens, _ in levels), torch.stack(laws) if laws else None)
        return found

    def release(self, request: int, finished: Sequence[int] | None) -> None:
        """Nothing is kept."""
