"""Drafting heads at every output position of a known greedy text: a pass of the target, then all positions at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from calibrate.acceptance.positions import Runs
from calibrate.drafters.eagle3_head import Eagle3Head, KeysValues
from calibrate.drafters.medusa import MedusaHeads
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache

__all__ = ["Eagle3Positions", "MedusaPositions"]


def _runs(drafts: torch.Tensor, output: Sequence[int], first: int) -> np.ndarray:
    """int8 [output tokens]: leading matches of drafts [positions, depth], which begin at output position `first`."""
    text = torch.tensor(output)
    run = torch.zeros(len(output), dtype=torch.int8)
    alive = torch.ones(len(drafts), dtype=torch.bool)
    places = torch.arange(first, len(output))
    for depth in range(drafts.shape[1]):
        there = places + depth
        alive &= (there < len(output)) & (drafts[:, depth] == text[there.clamp(max=len(output) - 1)])
        run[first:] += alive
    return run.numpy()


class _Target:
    """The target's states over a whole text."""

    def __init__(self, target: FlatModel, longest: int, layers: tuple[int, ...]) -> None:
        self.model, self._layers = target, layers
        self._cache = SlotCache(1, longest)

    def states(self, text: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Of every token but the last two, [tokens, hidden size]: behind the last norm, then behind each layer."""
        slot = self._cache.acquire()
        batch = FlatBatch(text[:-2], [Part(slot, 0, len(text) - 2)])
        found = self.model.forward_keeping(batch, self._cache, self._layers)
        self._cache.release(slot)
        return found


def _first(prompt: Sequence[int]) -> int:
    """First output position that can be drafted: behind two tokens, the first of them computed."""
    return max(0, 2 - len(prompt))


class MedusaPositions:
    """All heads from the state two tokens before each position."""

    def __init__(self, target: FlatModel, heads: MedusaHeads, *, longest: int) -> None:
        self._target, self._heads = _Target(target, longest, ()), heads

    def runs(self, prompt: Sequence[int], output: Sequence[int], most: int) -> Runs:
        """What rounds with at most `most` drafts would match; a head is a draft."""
        first, run = _first(prompt), np.zeros(len(output), dtype=np.int8)
        if first < len(output):
            hidden = self._target.states([*prompt, *output])[0][len(prompt) + first - 2 :]
            depth = min(most, len(self._heads))
            drafts = [self._heads.logits(hidden, head).argmax(-1).cpu() for head in range(depth)]
            run = _runs(torch.stack(drafts, dim=1), output, first)
        count = np.full(len(output), min(most, len(self._heads)), dtype=np.int8)
        count[:first] = 0
        return Runs(run, count)


class Eagle3Positions:
    """A chain of the head from every position, each over the features of the tokens before it."""

    def __init__(self, target: FlatModel, head: Eagle3Head, *, longest: int) -> None:
        self._target, self._head = _Target(target, longest, head.layers), head

    @torch.inference_mode()
    def runs(self, prompt: Sequence[int], output: Sequence[int], most: int) -> Runs:
        """What rounds with at most `most` drafts would match."""
        first = _first(prompt)
        if first >= len(output):
            return Runs(np.zeros(len(output), dtype=np.int8))
        head, model = self._head, self._target.model
        text = [*prompt, *output]
        features = head.fc(torch.cat(self._target.states(text)[1:], dim=-1))
        positions = torch.arange(len(features), device=model.device)
        embedded = head.embed(model, torch.tensor(text[1:-1], device=model.device))
        queries, residual, base = head.begin(features, embedded, positions)
        begin = len(prompt) + first - 2
        visible = positions[begin:] + 1
        feature = head.finish(queries[begin:], residual[begin:], base, visible, [])
        steps: list[KeysValues] = []
        drafts: list[torch.Tensor] = []
        for level in range(most):
            if level:
                embedded = head.embed(model, drafts[-1])
                queries, residual, own = head.begin(feature, embedded, visible + level - 1)
                steps.append(own)
                feature = head.finish(queries, residual, base, visible, steps)
            drafts.append(head.target_ids[head.draft_logits(feature).argmax(-1)])
        return Runs(_runs(torch.stack(drafts, dim=1).cpu(), output, first))
