"""Medusa heads: each guesses one token further ahead from the target's last hidden state, all at once.

Cai et al. 2024 (arXiv 2401.10774): residual blocks x + SiLU(W x + b), then a head over the vocabulary. Read in the two
forms that are published: that of the Medusa project (`medusa_num_heads`, `medusa_num_layers`; tensors
`0.0.linear.weight`, `0.1.weight`) and that of vLLM (`num_heads`, `num_hidden_layers`; tensors
`blocks.0.layers.0.weight`, `lm_heads.0.weight`, or one head for all where `original_lm_head`; with `token_map` output
row n is the target's token token_map[n]). The likeliest token of each head makes a chain; several of each make a static
tree. Leaves out: typical acceptance, which changes the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from calibrate.drafters.base import NOTHING, Draftee, Law, Proposal
from calibrate.drafters.head_config import head_config, not_buildable
from calibrate.drafters.head_files import head_tensors, in_one_line, refuse_form, take
from calibrate.drafters.planting import CHAIN, Node, Planting, grow
from calibrate.models import FlatModel, SlotCache
from specsim.drafters.medusa import medusa_heads
from specsim.errors import ScenarioError
from specsim.shapes import ModelShape
from specsim.trees import Tree

__all__ = ["MedusaDrafter", "MedusaHeads", "load_medusa", "medusa_shape", "random_medusa"]

_COUNTED = "'medusa_num_heads' or 'num_heads'"
"""Keys that say how many heads there are."""
_Block = tuple[torch.Tensor, torch.Tensor | None]


class MedusaHeads:
    """Heads 0, 1, ...: of a hidden state at token i, head j guesses token i + 2 + j."""

    def __init__(
        self,
        heads: Sequence[tuple[Sequence[_Block], torch.Tensor]],
        token_map: torch.Tensor | None = None,
        vocab_size: int = 0,
    ) -> None:
        """
        Args:
            heads: residual blocks (weight, bias) and output weights [rows, hidden size] of each.
            token_map: int64 [rows], the token of each output row, of a vocabulary of `vocab_size`; None: the same.
        """
        self._heads = list(heads)
        self._token_map, self._vocab_size = token_map, vocab_size

    def __len__(self) -> int:
        return len(self._heads)

    @property
    def head_rows(self) -> int:
        """Rows of each output head, where they are a part of the vocabulary; 0: they are all of it."""
        return 0 if self._token_map is None else len(self._token_map)

    @property
    def weights(self) -> torch.Tensor:
        """[rows, hidden size]: one of its matrices, which has dtype, device and width of all."""
        return self._heads[0][1]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, head: int) -> torch.Tensor:
        """[rows, vocabulary] of one head for hidden states [rows, hidden size]."""
        return self._said(self._mixed(hidden, head), head)

    @torch.inference_mode()
    def at_once(self, hidden: torch.Tensor, count: int) -> list[torch.Tensor]:
        """[rows, vocabulary] of each of the first `count` heads for hidden states [rows, hidden size]."""
        return [self._said(self._mixed(hidden, head), head) for head in range(count)]

    @torch.inference_mode()
    def mixed(self, hidden: torch.Tensor, count: int) -> list[torch.Tensor]:
        """[rows, hidden size] behind the residual blocks of each of the first `count` heads."""
        return [self._mixed(hidden, head) for head in range(count)]

    @torch.inference_mode()
    def said(self, mixed: torch.Tensor, head: int) -> torch.Tensor:
        """[rows, vocabulary] that the output head says to what left the blocks, [rows, hidden size]."""
        return self._said(mixed, head)

    def _mixed(self, hidden: torch.Tensor, head: int) -> torch.Tensor:
        for weight, bias in self._heads[head][0]:
            hidden = hidden + F.silu(F.linear(hidden, weight, bias))
        return hidden

    def _said(self, mixed: torch.Tensor, head: int) -> torch.Tensor:
        scores = F.linear(mixed, self._heads[head][1])
        if self._token_map is None:
            return scores
        whole = scores.new_full((len(scores), self._vocab_size), float("-inf"))
        return whole.index_copy_(1, self._token_map, scores)


def random_medusa(
    shape: ModelShape, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> MedusaHeads:
    """Heads with random weights at a shape of kind medusa, biases included, to be timed."""
    size, rows = shape.hidden_size, shape.draft_vocab_size
    draws = torch.Generator(device).manual_seed(seed)

    def drawn(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=draws, device=device, dtype=dtype).div_(math.sqrt(size))

    heads = [
        (
            [(drawn(size, size), drawn(size)) for _ in range(shape.intermediate_size // size)],
            drawn(rows or shape.vocab_size, size),
        )
        for _ in range(shape.num_layers)
    ]
    return MedusaHeads(heads, torch.arange(rows, device=device) if rows else None, shape.vocab_size)


def medusa_shape(folder: str | Path, target: ModelShape) -> ModelShape:
    """The shape that config.json of a folder of Medusa heads gives to heads of a target.

    Raises:
        ScenarioError: it cannot be read, is of other heads, or of a target of another width or vocabulary.
    """
    place = Path(folder)
    config = head_config(place)
    counts = _counts(config)
    if counts is None:
        raise ScenarioError(f"{place}: its config.json has no {_COUNTED}, so that it is not one of Medusa heads")
    count, layers = counts
    for name, ours in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        if config.get(name, ours) != ours:
            raise ScenarioError(
                f"{place}: is of heads for a target of {name} {config[name]}, and {target.name} has {ours}; give the "
                f"heads of this target"
            )
    if layers < 1:
        raise not_buildable(place, _names(config)[1], layers, "at least 1, so that there is a residual block to time")
    rows = config.get("truncated_vocab_size") or 0
    return medusa_heads(target, {"heads": count}, blocks=layers, rows=0 if rows >= target.vocab_size else rows)


def _names(config: Mapping[str, Any]) -> tuple[str, str]:
    """Keys of (number of heads, residual blocks of each)."""
    of_project = "medusa_num_heads" in config
    return ("medusa_num_heads", "medusa_num_layers") if of_project else ("num_heads", "num_hidden_layers")


def _counts(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """(number of heads, residual blocks of each); None where it does not say them."""
    names = _names(config)
    count, layers = config.get(names[0]), config.get(names[1], 1)
    if not isinstance(count, int) or not isinstance(layers, int) or count < 1 or layers < 0:
        return None
    return count, layers


@in_one_line
def load_medusa(folder: str | Path, target: FlatModel) -> MedusaHeads:
    """Heads from a directory, in the target's dtype and on its device.

    Raises:
        ScenarioError: files are missing or of another kind, or do not fit the target.
    """
    place = Path(folder)
    config = head_config(place)
    tensors = {re.sub(r"^medusa_heads?\.", "", name): tensor for name, tensor in head_tensors(place).items()}
    size, vocabulary = int(target.config.hidden_size), target.vocab_size
    counts = _counts(config)
    if counts is None:
        raise refuse_form(place, tensors, "folder of Medusa heads", f"{_COUNTED} in config.json")
    count, layers = counts
    of_project = "medusa_num_heads" in config
    if config.get("vocab_size", vocabulary) not in (vocabulary, int(target.config.vocab_size)):
        raise ScenarioError(
            f"{place}: is for a target with {config['vocab_size']} tokens, and {target.name} has {vocabulary}"
        )

    def there(name: str, *shape: int) -> torch.Tensor:
        return take(tensors, name, shape, place).to(target.device, target.dtype)

    token_map = (
        None
        if "token_map" not in tensors
        else take(tensors, "token_map", tuple(tensors["token_map"].shape), place, whole=True)
    )
    rows = vocabulary if token_map is None else int(config.get("truncated_vocab_size") or len(token_map))
    if token_map is not None and (
        tuple(token_map.shape) != (rows,) or not 0 <= int(token_map.min()) <= int(token_map.max()) < vocabulary
    ):
        raise ScenarioError(f"{place}: 'token_map' is not a list of {rows} of the target's tokens")
    mark = re.compile(r"(\d+)\.(\d+)\.linear\.(?:weight|bias)" if of_project else r"blocks\.(\d+)\.layers\.(\d+)\..+")
    # published folders hold more heads than they name, and no more blocks of one
    blocks_of = [(name, match) for name, match in ((n, mark.fullmatch(n)) for n in tensors) if match is not None]
    beyond = next((name for name, match in blocks_of if int(match[1]) < count and int(match[2]) >= layers), None)
    if beyond is not None:
        raise not_buildable(place, _names(config)[1], layers, f"more: the files hold the block '{beyond}'")
    biased = any(name.endswith(".bias") for name, _ in blocks_of)
    heads = []
    for head in range(count):
        blocks: list[_Block] = []
        for layer in range(layers):
            stem = f"{head}.{layer}.linear" if of_project else f"blocks.{head}.layers.{layer}"
            if biased and f"{stem}.bias" not in tensors:
                raise ScenarioError(f"{place}: has no tensor '{stem}.bias', and other blocks have theirs")
            bias = there(f"{stem}.bias", size) if f"{stem}.bias" in tensors else None
            blocks.append((there(f"{stem}.weight", size, size), bias))
        output = f"{head}.{layers}.weight" if of_project else f"lm_heads.{head}.weight"
        if config.get("original_lm_head"):
            output = "lm_head.weight" if "lm_head.weight" in tensors else "lm_heads.0.weight"
        heads.append((blocks, there(output, rows, size)))
    return MedusaHeads(heads, None if token_map is None else token_map.long().to(target.device), vocabulary)


class MedusaDrafter:
    """See `calibrate.drafters.base.Drafter`."""

    name = "medusa"
    hidden_layers = ()

    def __init__(self, heads: MedusaHeads, planting: Planting = CHAIN) -> None:
        self._heads, self._planting = heads, planting

    def room(self, k: int) -> int:
        """Its drafts."""
        return self._planting.most_nodes(k)

    def trees(self, k: int) -> tuple[Tree, ...]:
        """See `calibrate.drafters.base.Planted`; a head is a level."""
        return self._planting.trees(min(k, len(self._heads)))

    def start(self, target: FlatModel, cache: SlotCache) -> None:
        """Nothing is needed but hidden states."""

    def propose(self, draftees: Sequence[Draftee], k: int, law: Law | None) -> list[Proposal]:
        live = [n for n, d in enumerate(draftees) if d.drafts and d.hidden and len(d.hidden[0])]
        found = [NOTHING] * len(draftees)
        most = min(k, len(self._heads))
        if not live or not most:
            return found
        last = torch.stack([draftees[n].hidden[0][-1] for n in live])
        if self._planting is CHAIN and law is None:  # no draft depends on another, so that the host waits once
            best = torch.stack([logits.argmax(-1) for logits in self._heads.at_once(last, most)], dim=1)
            for n, tokens in zip(live, best.tolist(), strict=True):
                found[n] = Proposal(tuple(tokens))
            return found

        def look(level: int, rows: Sequence[tuple[int, int]], trees: Sequence[Sequence[Node]]) -> torch.Tensor:
            return self._heads.logits(last, level)[[tree for tree, _ in rows]]

        made = grow([draftees[n].generator for n in live], most, self._planting, law, look)
        for n, proposal in zip(live, made, strict=True):
            found[n] = proposal
        return found

    def release(self, request: int, finished: Sequence[int] | None) -> None:
        """Nothing is kept."""
