"""Every round that a request will have under a constant k, derived from its luck: one row a round.

A chunk of requests is walked through its rounds together, one vector operation for all; a request that rejoins in
the middle after a preemption is walked alone.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from specsim.engine.decode_batch import DecodeSetup
from specsim.workload import CHUNK, LuckChunk

__all__ = ["BLOCKS", "COLUMNS", "DRAFTS", "DRAFT_ROUNDS", "GAIN", "WINDOWED", "RoundTable"]

GAIN, DRAFTS, DRAFT_ROUNDS, BLOCKS, WINDOWED = range(5)
COLUMNS = 5
"""Tokens emitted; drafts verified; 1 if any; blocks newly taken before the round; growth of the windowed context."""
_KEPT_CHUNKS = 16


class RoundTable:
    """Rounds by request for one `DecodeSetup` with a constant k. Shared by all loads that use the same workload."""

    def __init__(self, setup: DecodeSetup) -> None:
        self._setup = setup
        self._chunks: OrderedDict[int, tuple[np.ndarray, list[int], list[int]]] = OrderedDict()

    def rounds(self, request: int, emitted: int) -> tuple[np.ndarray, int]:
        """int32 [rounds, COLUMNS] of `request` from the round that starts with `emitted` tokens out
        (read only), and the blocks that they take in all."""
        chunk, row = divmod(request, CHUNK)
        if emitted != 1:
            luck = self._setup.workload.luck(chunk)
            one = LuckChunk(
                luck.span[luck.offsets[row] : luck.offsets[row + 1]],
                None if luck.drafts is None else luck.drafts[luck.offsets[row] : luck.offsets[row + 1]],
                luck.offsets[row : row + 2] - luck.offsets[row],
            )
            prompts = np.array([self._setup.workload.prompt_tokens[request]], dtype=np.int64)
            alone = self._walk(one, prompts, emitted)[0]
            return alone, int(alone[:, BLOCKS].sum())
        kept = self._chunks.get(chunk)
        if kept is None:
            workload = self._setup.workload
            prompts = np.array(workload.prompt_tokens[chunk * CHUNK : (chunk + 1) * CHUNK], dtype=np.int64)
            table, starts = self._walk(workload.luck(chunk), prompts, 1)
            blocks = np.concatenate(([0], np.cumsum(table[:, BLOCKS], dtype=np.int64)))[starts]
            kept = self._chunks[chunk] = (table, starts.tolist(), np.diff(blocks).tolist())
            if len(self._chunks) > _KEPT_CHUNKS:
                self._chunks.popitem(last=False)
        table, first, taken = kept
        return table[first[row] : first[row + 1]], taken[row]

    def _walk(self, luck: LuckChunk, prompts: np.ndarray, emitted: int) -> tuple[np.ndarray, np.ndarray]:
        setup = self._setup
        block, look = setup.block_size_tokens, setup.lookahead_tokens
        who = np.arange(len(prompts))
        at = luck.offsets[:-1] + emitted
        alive = at < luck.offsets[1:]
        who, at = who[alive], at[alive]
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        while len(who):
            context = prompts[who] + (at - luck.offsets[who]) - 1
            drafts = np.minimum(setup.num_spec_tokens, setup.limits.max_model_len - 2 - context)
            # A chunk holds requests too long for the model as well; they are refused, but walked with the others.
            drafts = np.maximum(drafts, 0)
            if luck.drafts is not None:
                drafts = np.minimum(drafts, luck.drafts[at])
            gain = np.minimum(luck.span[at], drafts + 1)
            parts.append((who, context, drafts, gain))
            at = at + gain
            alive = at < luck.offsets[who + 1]
            who, at = who[alive], at[alive]
        if not parts:
            return np.zeros((0, COLUMNS), dtype=np.int32), np.zeros(len(prompts) + 1, dtype=np.int64)
        all_who, context, drafts, gain = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(all_who, kind="stable")
        all_who, context, drafts, gain = all_who[order], context[order], drafts[order], gain[order]
        starts = np.searchsorted(all_who, np.arange(len(prompts) + 1))
        table = np.empty((len(all_who), COLUMNS), dtype=np.int32)
        table[:, GAIN] = gain
        table[:, DRAFTS] = drafts
        table[:, DRAFT_ROUNDS] = drafts > 0
        # Blocks never shrink: a running maximum within each request, done in one sweep by lifting each request
        # above its predecessors.
        held = -(-(prompts[all_who] + emitted - 1 + look) // block)
        need = np.maximum(-(-(context + 1 + drafts + look) // block), held)
        lift = all_who * (int(need.max()) + 1)
        need = np.maximum.accumulate(need + lift) - lift
        before = np.empty_like(need)
        before[1:] = need[:-1]
        first = starts[:-1][starts[:-1] < starts[1:]]
        before[first] = held[first]
        table[:, BLOCKS] = need - before
        window = setup.window_tokens
        table[:, WINDOWED] = np.minimum(context + gain, window) - np.minimum(context, window) if window else 0
        return table, starts
