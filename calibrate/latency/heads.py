"""Medusa heads, ready to be timed: the work behind points of heads that run at once on the target's last hidden state.

Models: residual blocks and output heads of so many heads for so many requests, on random hidden states; a point's
`drafts` is the number of heads. Leaves out: whose states they are; heads keep nothing from round to round.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from calibrate.drafters.medusa import MedusaHeads, load_medusa, random_medusa
from calibrate.latency.device import Device
from calibrate.latency.passes import Launches, Work, sampling_work
from calibrate.models import FlatModel
from calibrate.points import Point
from specsim.errors import InvariantError
from specsim.shapes import ModelShape

__all__ = ["HeadPasses", "heads_of"]


def heads_of(
    shape: ModelShape, target: FlatModel, folder: str | Path | None, *, dtype: torch.dtype, seed: int
) -> tuple[MedusaHeads, ModelShape]:
    """Heads to be timed, and their shape: those of a folder, else random ones at `shape`.

    Raises:
        ScenarioError: see `calibrate.drafters.medusa.load_medusa`.
    """
    if folder is None:
        return random_medusa(shape, device=target.device, dtype=dtype, seed=seed), shape
    heads = load_medusa(folder, target)
    rows = heads.head_rows
    return heads, replace(shape, num_layers=len(heads), draft_vocab_size=0 if rows >= shape.vocab_size else rows)


class HeadPasses(Launches):
    """See `calibrate.latency.session.Worker`."""

    def __init__(
        self, heads: MedusaHeads, device: Device, *, temperature: float = 0.0, seed: int = 0, graphs: bool = True
    ) -> None:
        """
        Args:
            graphs: capture rounds as graphs, where the device has them.
        """
        super().__init__(device, graphs=graphs)
        self._heads = heads
        self._temperature = temperature
        self._random = torch.Generator().manual_seed(seed)

    def work(self, point: Point) -> Work:
        """A call that does what the point describes, on random hidden states.

        Raises:
            RuntimeError: as torch raises it, when memory does not suffice (`calibrate.latency.device`).
        """
        heads, count = self._heads, point.drafts
        hidden = self._hidden(point.rows or len(point.parts))
        if point.kind == "body":
            return self._launched(point, lambda: heads.mixed(hidden, count))
        if point.kind == "head":
            return self._launched(point, lambda: heads.said(hidden, 0))
        if point.kind in ("whole", "reference"):
            return self._launched(point, lambda: heads.at_once(hidden, count))
        if point.kind == "draft_round":
            return self._launched(point, lambda: [said.argmax(-1) for said in heads.at_once(hidden, count)])
        if point.kind == "sample":
            return sampling_work(heads.logits(hidden, 0).float(), self._temperature)
        raise InvariantError(f"heads have no work behind a point of kind {point.kind}")

    def _hidden(self, rows: int) -> torch.Tensor:
        """[rows, hidden size]."""
        weights = self._heads.weights
        drawn = torch.randn((rows, weights.shape[1]), generator=self._random)
        return drawn.to(weights.device, weights.dtype)
