"""Requests and their luck, independent of when they arrive and of the policy that serves them.

One workload is shared by every policy and load that is compared, so that all meet the same requests with the same luck.
Luck is drawn in chunks of requests when first asked for; a long trace never holds more than a few chunks.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from specsim.acceptance.base import MAX_SPEC_TOKENS
from specsim.errors import InvariantError
from specsim.traces.model import Trace

if TYPE_CHECKING:
    from specsim.acceptance import AcceptanceModel

__all__ = ["CHUNK", "LuckChunk", "Workload"]

CHUNK = 1024
"""Requests per chunk; only memory and speed depend on it, never a result."""
_KEPT_CHUNKS = 16


@dataclass(frozen=True, slots=True)
class LuckChunk:
    """Luck of `CHUNK` consecutive requests, one number per output position, all requests one after another."""

    span: np.ndarray
    """int16: tokens that a round starting at this position would emit with endless drafts; never past the output."""
    drafts: np.ndarray | None
    """int8: most drafts that are proposed for a round starting at this position, at least span - 1 of them; None: as
    many as asked, everywhere."""
    offsets: np.ndarray
    """int64 [requests + 1]: where each request's positions start."""


class Workload:
    """Prompt and output lengths of a trace, and one seed's luck under one acceptance model (None: no drafts match)."""

    def __init__(
        self, trace: Trace, acceptance: AcceptanceModel | None, *, seed: int, first_request_id: int = 0
    ) -> None:
        self.trace = trace
        self.acceptance = acceptance
        self.seed = seed
        self.first_request_id = first_request_id
        self.prompts, self.outputs = (
            np.ascontiguousarray(column).data for column in (trace.prompt_tokens, trace.output_tokens)
        )
        """Prompt and output tokens by request: the columns of the trace, one of whose items is quick to read."""
        self._chunks: OrderedDict[int, LuckChunk] = OrderedDict()

    def __len__(self) -> int:
        return len(self.trace)

    @cached_property
    def prompt_tokens(self) -> list[int]:
        """Of every request."""
        return self.trace.prompt_tokens.tolist()  # type: ignore[no-any-return]

    @cached_property
    def output_tokens(self) -> list[int]:
        """Of every request."""
        return self.trace.output_tokens.tolist()  # type: ignore[no-any-return]

    def luck(self, chunk: int) -> LuckChunk:
        """Luck of requests `chunk * CHUNK` onwards."""
        kept = self._chunks.get(chunk)
        if kept is None:
            kept = self._chunks[chunk] = self._draw(chunk)
            if len(self._chunks) > _KEPT_CHUNKS:
                self._chunks.popitem(last=False)
        else:
            self._chunks.move_to_end(chunk)
        return kept

    def stretch(self, request: int) -> tuple[int, LuckChunk]:
        """(first request, luck) of the chunk that a request lies in and of the one behind it, together."""
        chunk = request // CHUNK
        found = [self.luck(chunk)]
        if (chunk + 1) * CHUNK < len(self):
            found.append(self.luck(chunk + 1))
        drafts = None
        if any(one.drafts is not None for one in found):
            whole = [np.full(len(one.span), MAX_SPEC_TOKENS) if one.drafts is None else one.drafts for one in found]
            drafts = np.concatenate(whole).astype(np.int8)
        offsets = [found[0].offsets, *(found[0].offsets[-1] + one.offsets[1:] for one in found[1:])]
        return chunk * CHUNK, LuckChunk(np.concatenate([one.span for one in found]), drafts, np.concatenate(offsets))

    def _draw(self, chunk: int) -> LuckChunk:
        rows = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        outputs = self.trace.output_tokens[rows].astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum(outputs)))
        if self.acceptance is None:
            return LuckChunk(np.ones(int(offsets[-1]), dtype=np.int16), None, offsets)
        tasks = None if self.trace.task is None else self.trace.task[rows]
        luck = self.acceptance.luck(self.seed, self.first_request_id + chunk * CHUNK, outputs, tasks)
        if luck.drafts is not None and np.any(luck.run > luck.drafts):
            raise InvariantError(f"acceptance '{self.acceptance.name}' lets more drafts match than it proposes")
        left = np.repeat(offsets[1:], outputs) - np.arange(int(offsets[-1]))
        span = np.minimum(luck.run.astype(np.int32) + 1, left).astype(np.int16)
        return LuckChunk(span, luck.drafts, offsets)

    def span(self, request: int, position: int) -> int:
        """Tokens that a round of `request` starting at output position `position` would emit with endless drafts."""
        chunk = self.luck(request // CHUNK)
        return int(chunk.span[chunk.offsets[request % CHUNK] + position])

    def drafts(self, request: int, position: int) -> int:
        """Most drafts that are proposed for a round of `request` starting at output position `position`."""
        chunk = self.luck(request // CHUNK)
        if chunk.drafts is None:
            return MAX_SPEC_TOKENS
        return int(chunk.drafts[chunk.offsets[request % CHUNK] + position])
