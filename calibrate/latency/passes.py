"""The work behind a point, ready to be timed: passes of a model on flat batches, output head, sampling, acceptance,
lookup, and whole rounds of a drafter.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from calibrate.latency.device import Device
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache
from calibrate.models.attention import AttentionPlan
from calibrate.points import Point
from calibrate.rejection import accept, sampling_law
from specsim.errors import InvariantError

__all__ = ["Launches", "Passes", "Work", "sampling_work"]

Work = Callable[[], object]


class Launches:
    """Captures work as graphs where that is wanted and possible, and keeps how each point was launched."""

    def __init__(self, device: Device, *, graphs: bool) -> None:
        self._device = device
        self._graphs = graphs
        self._launches: dict[str, str] = {}

    def launch_of(self, point: Point) -> str:
        """How the work of a point is launched: graph, eager, or nothing for what is no pass."""
        return self._launches.get(point.key, "")

    def _launched(self, point: Point, work: Work, *, capture: bool = True) -> Work:
        graph = self._device.captured(work) if capture and self._graphs else None
        self._launches[point.key] = "eager" if graph is None else "graph"
        return work if graph is None else graph


def sampling_work(logits: torch.Tensor, temperature: float) -> Work:
    """A call that draws one token from each row of logits."""
    if temperature == 0:
        return lambda: logits.argmax(-1).tolist()
    return lambda: torch.multinomial(sampling_law(logits, temperature=temperature), 1).tolist()


class Passes(Launches):
    """Turns points into calls. One instance for one model on one device."""

    def __init__(
        self,
        model: FlatModel,
        device: Device,
        *,
        slots: int,
        slot_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        graphs: bool = True,
    ) -> None:
        """
        Args:
            slots, slot_tokens: room in the cache.
            graphs: capture what decodes as graphs, where the device has them.
        """
        super().__init__(device, graphs=graphs)
        self._model = model
        self._cache = SlotCache(slots, slot_tokens)
        self._temperature = temperature
        self._random = torch.Generator().manual_seed(seed)

    def work(self, point: Point) -> Work:
        """A call that does what the point describes, on random tokens.

        Raises:
            RuntimeError: as torch raises it, when memory does not suffice (`calibrate.latency.device`).
        """
        makers = {"body": self._body, "reference": self._body, "eager": self._eager, "head": self._head,
                  "sample": self._sample, "accept": self._accept, "whole": self._whole,
                  "draft_round": self._draft_round}  # fmt: skip
        maker = makers.get(point.kind)
        if maker is None:
            raise InvariantError(f"no pass is behind a point of kind {point.kind}")
        return maker(point)

    def _tokens(self, count: int) -> list[int]:
        return torch.randint(self._model.vocab_size, (count,), generator=self._random).tolist()

    def _hidden(self, rows: int) -> torch.Tensor:
        width = self._model.config.hidden_size
        hidden = torch.randn((rows, width), generator=self._random)
        return hidden.to(self._device.torch_device, self._model.dtype)

    def _logits(self, rows: int) -> torch.Tensor:
        return self._model.logits(self._hidden(rows)).float()

    def _pass(self, parts: tuple[tuple[int, int], ...], layers: int = 0) -> Work:
        placed = [Part(slot, context, tokens) for slot, (tokens, context) in enumerate(parts)]
        batch = FlatBatch(self._tokens(sum(part.num_tokens for part in placed)), placed)
        ids, positions = self._model.inputs(batch)
        plan = AttentionPlan(batch, self._cache, self._device.torch_device)
        model = self._model.first_layers(layers) if 0 < layers < self._model.num_layers else self._model

        def run() -> torch.Tensor:
            return model.run(ids, positions, plan)

        return run

    def _body(self, point: Point) -> Work:
        run = self._pass(point.parts, point.layers)
        run()  # the cache and the masks are there before anything is captured
        return self._launched(point, run, capture=not point.is_prefill)

    def _eager(self, point: Point) -> Work:
        run = self._pass(point.parts, point.layers)
        run()
        return self._launched(point, run, capture=False)

    def _head(self, point: Point) -> Work:
        hidden = self._hidden(point.rows)
        return self._launched(point, lambda: self._model.logits(hidden))

    def _whole(self, point: Point) -> Work:
        run, rows = self._pass(point.parts), point.rows

        def both() -> torch.Tensor:
            hidden: torch.Tensor = run()  # type: ignore[assignment]
            return self._model.logits(hidden[-rows:])

        both()
        return self._launched(point, both)

    def _sample(self, point: Point) -> Work:
        return sampling_work(self._logits(point.rows), self._temperature)

    def _accept(self, point: Point) -> Work:
        requests, drafts = len(point.parts), max(n for n, _ in point.parts)
        logits = self._logits(requests * (1 + drafts)).unflatten(0, (requests, 1 + drafts))
        tokens = torch.tensor(self._tokens(requests * drafts)).view(requests, drafts)
        if self._temperature == 0:
            best = logits.argmax(-1)

            def greedy() -> list[int]:
                agree = (best[:, :-1].cpu() == tokens).int().cumprod(1)
                counts: list[int] = agree.sum(1).tolist()
                return counts

            return greedy
        target = sampling_law(logits, temperature=self._temperature).cpu()
        draft = target[:, :-1]
        random = torch.Generator().manual_seed(0)

        def sampled() -> list[object]:
            return [accept(target[n], draft[n], tokens[n], generator=random) for n in range(requests)]

        return sampled

    def _draft_round(self, point: Point) -> Work:
        """`drafts` passes one after another: the first over the parts, each later one over the newest token."""
        contexts = [context + n for n, context in point.parts]
        first = self._pass(point.parts)
        later = [self._pass(tuple((1, context + n) for context in contexts)) for n in range(point.drafts - 1)]
        last_rows = torch.tensor([n for n, _ in point.parts]).cumsum(0) - 1

        def one_round() -> torch.Tensor:
            hidden: torch.Tensor = first()  # type: ignore[assignment]
            tokens = self._model.logits(hidden[last_rows]).argmax(-1)
            for run in later:
                hidden = run()  # type: ignore[assignment]
                tokens = self._model.logits(hidden).argmax(-1)
            return tokens

        return one_round
