"""Requests past their prompt in a fast replica: the arrays that `specsim.engine.decode_kernels` walks.

Every row points into one flat array of luck, so that a round is one read. A row's `room` is the position up to which
its blocks reach, so that growth is one comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.config import ReplicaLimits
from specsim.engine import decode_kernels as kernels
from specsim.engine.recorder import Recorder
from specsim.workload import CHUNK, Workload

__all__ = ["DecodeBatch", "Peek"]

ROWS = 64
"""Requests for which room is made at first."""
PLACES = 1 << 16
"""Output positions for which room is made at first; both grow as needed."""
_ALWAYS = np.zeros(0, dtype=np.int8)


@dataclass(slots=True)
class Peek:
    """What the coming step would take. A batch hands out one object again and again."""

    served: int = 0
    """Requests that get tokens."""
    draft_tokens: int = 0
    draft_rounds: int = 0
    """Served requests that have at least one draft."""
    new_blocks: int = 0
    kv_tokens: int = 0
    windowed_kv_tokens: int = 0
    is_cut: bool = False
    """Whether the budget leaves less than all."""


class DecodeBatch:
    """Decoding requests in order of admission."""

    def __init__(self, workload: Workload, limits: ReplicaLimits, num_spec_tokens: int, window_tokens: int) -> None:
        """`num_spec_tokens`: largest k of the policy."""
        self._workload = workload
        self.slots = limits.draft_slots
        self._lookahead = limits.lookahead_tokens(num_spec_tokens)
        self.sums = np.zeros(kernels.SUMS, dtype=np.int64)
        # Where a request holds all that it needs from the start, its first block is as long as it can ever be.
        grows = limits.discipline.reserve == "step"
        self.sums[kernels.BLOCK_SIZE] = limits.block_size_tokens if grows else 1 << 40
        self.sums[kernels.LENGTH] = (
            limits.max_model_len - 2
        )  # the last token that is emitted is not cached, see Scheduler
        trace = workload.trace
        longest = int((trace.prompt_tokens.astype(np.int64) + trace.output_tokens).max(initial=0))
        self.sums[kernels.TIGHT] = longest + num_spec_tokens > limits.max_model_len
        self.sums[kernels.WINDOW] = window_tokens
        self.rows = np.zeros((ROWS, kernels.FIELDS), dtype=np.int64)
        self.notes = np.zeros((kernels.NOTES, ROWS), dtype=np.int64)
        self.luck = np.zeros((PLACES, 2), dtype=np.int8)
        self.place = 0
        """In the luck: where the next one's goes."""
        self._peek = Peek()
        self.trims = False
        """Whether the coming step verifies fewer drafts than are scheduled."""
        self.count = 0
        """Requests in the batch."""

    def spoils(self) -> None:
        """From now on, who is served in a step after which nothing is drafted goes stale."""
        self.sums[kernels.SPOILS] = 1

    def add(
        self, request: int, emitted: int, next_k: int, held: int, is_stale: bool = False, is_pending: bool = False
    ) -> None:
        """A request joins with `emitted` tokens out and `held` blocks; it is served from the next step on. Stale: its
        drafts never match. Pending: the coming step is not carried out yet; `run_steps` must be next."""
        workload = self._workload
        chunk = workload.luck(request // CHUNK)
        length = workload.outputs[request] - emitted
        self.make_room(1, length)
        kernels.join(
            self.sums, self.rows, self.luck, self.place, chunk.span, _ALWAYS if chunk.drafts is None else chunk.drafts,
            chunk.offsets.item(request % CHUNK) + emitted, length, request,
            workload.prompts[request] + emitted - 1, self._lookahead, held, next_k, is_stale, is_pending,
        )  # fmt: skip
        self.place += length
        self.count += 1

    def peek(self, budget_tokens: int) -> Peek:
        """The coming step under a token budget. Changes nothing."""
        peek, n = self._peek, self.count
        _, peek.kv_tokens, peek.windowed_kv_tokens, peek.draft_tokens, peek.draft_rounds, peek.new_blocks = self.sums[
            : kernels.NEW_BLOCKS + 1
        ].tolist()
        peek.served = n
        self.trims = False
        peek.is_cut = n * (1 + self.slots) + peek.draft_tokens > budget_tokens
        if peek.is_cut:
            (
                peek.served, peek.draft_tokens, peek.draft_rounds, peek.new_blocks, peek.kv_tokens,
                peek.windowed_kv_tokens,
            ) = kernels.cut(self.sums, self.rows, self.notes, budget_tokens, self.slots)  # fmt: skip
        return peek

    def scheduled(self) -> tuple[np.ndarray, np.ndarray]:
        """(requests, drafts of each) of the step last peeked, int64; views that change with the next step."""
        served, notes = self._peek.served, self.notes
        kernels.schedule(self.rows, notes, served, self._peek.is_cut)
        return notes[kernels.WHO, :served], notes[kernels.SCHEDULED, :served]

    def verify(self, drafts: np.ndarray) -> tuple[int, int]:
        """Verify only so many of the drafts scheduled, blocks for all of them staying taken: (drafts, rounds with
        any)."""
        self.trims = True
        drafts = np.asarray(drafts, dtype=np.int64)
        found: tuple[int, int] = kernels.verify(self.notes, drafts)
        return found

    @property
    def emitted(self) -> np.ndarray:
        """Tokens that each request of the last step emitted, int64; a view that changes with the next step."""
        return self.notes[kernels.EMITTED]

    def turns(self, late: set[int]) -> tuple[list[int], list[int]]:
        """Of the step last peeked: (who of the `late` is served, who is left out since the budget ran out)."""
        served = self._peek.served
        ids = self.rows[: self.count, kernels.REQUEST].tolist()
        return [request for request in ids[:served] if request in late], ids[served:]

    def advance(
        self, recorder: Recorder, served: int, next_k: int, measured: bool, seconds: float, batch: int,
        used_blocks: int, draft_rounds: int, drafts: int, prefilled: int, gap_s: float, gaps: int,
    ) -> tuple[int, list[tuple[int, int]]]:  # fmt: skip
        """Carry out the step last peeked for its first `served` requests; `next_k` drafts are proposed for the one
        after. The rest is what `Recorder` writes down where the step is measured.

        Returns:
            (tokens emitted, [(request, its blocks)] of those that finished, in order of admission).
        """
        gained, finished = kernels.end_step(
            self.sums, self.rows, self.notes, self.luck, recorder.record, served, next_k, self._peek.is_cut,
            self.trims, measured, seconds, batch, used_blocks, draft_rounds, drafts, prefilled, gap_s, gaps,
        )  # fmt: skip
        return gained, self.finished(finished) if finished else []

    @property
    def kv_tokens(self) -> int:
        """Context of all, summed."""
        return self.sums.item(kernels.KV)

    def finished(self, count: int) -> list[tuple[int, int]]:
        """(request, its blocks) of those that finished with the last steps."""
        self.count -= count
        notes = self.notes
        requests, taken = notes[kernels.FINISHED, :count].tolist(), notes[kernels.HELD, :count].tolist()
        return list(zip(requests, taken, strict=True))

    @property
    def last(self) -> int:
        """The request that joined last."""
        return self.rows.item(self.count - 1, kernels.REQUEST)

    def pop(self, request: int) -> tuple[int, int]:
        """Drop a request; its (emitted tokens, blocks)."""
        self.count -= 1
        left, blocks = kernels.leave(self.sums, self.rows, request)
        return self._workload.outputs[request] - left, blocks

    def progress(self) -> list[tuple[int, int]]:
        """(request, emitted tokens) of all."""
        rows, outputs = self.rows[: self.count], self._workload.outputs
        ids, left = rows[:, kernels.REQUEST].tolist(), (rows[:, kernels.END] - rows[:, kernels.AT]).tolist()
        return [(request, outputs[request] - more) for request, more in zip(ids, left, strict=True)]

    def make_room(self, requests: int, length: int) -> None:
        """Room for so many more requests and output positions, as far as there is none."""
        while self.count + requests > len(self.rows):
            self.rows = np.concatenate((self.rows, np.zeros_like(self.rows)))
            self.notes = np.concatenate((self.notes, np.zeros_like(self.notes)), axis=1)
        if self.place + length > len(self.luck):
            held = self.rows[: self.count]
            total = int((held[:, kernels.END] - held[:, kernels.AT]).sum()) + length
            size = len(self.luck)
            while total > size // 2:
                size *= 2
            fresh = self.luck if size == len(self.luck) else np.zeros((size, 2), dtype=np.int8)
            self.place = kernels.tidy(self.sums, self.rows, self.luck, fresh)
            self.luck = fresh
