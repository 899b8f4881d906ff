"""Keys and values of running sequences in slots, with commit and rollback.

A slot is one sequence's room for `max_tokens` tokens in every layer, so that its keys are read where they lie, without
gathering. What a pass writes lies behind the committed length until `commit` moves that; rejected drafts are simply
not committed, and the next pass writes over them. Of a tree of drafts one branch is kept, moved together. How many
blocks of memory the scheduler counts is its own affair.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specsim.errors import InvariantError, ScenarioError

__all__ = ["PAGE_TOKENS", "SlotCache"]

PAGE_TOKENS = 256
"""Slots are whole pages, so that kernels for paged caches can read them; the smallest page that all of them take."""


class SlotCache:
    """Keys and values by layer and slot: tensors [slots, stride, kv heads, head dim], made at the first write."""

    def __init__(self, num_slots: int, max_tokens: int) -> None:
        if num_slots < 1 or max_tokens < 1:
            raise ScenarioError(f"a KV cache needs slots and tokens >= 1, got {num_slots} and {max_tokens}")
        self.num_slots = num_slots
        self.max_tokens = max_tokens
        self.stride = -(-max_tokens // PAGE_TOKENS) * PAGE_TOKENS
        """Tokens from one slot to the next."""
        self.committed = [0] * num_slots
        """Tokens of each slot that are settled."""
        self.written = [0] * num_slots
        """Tokens of each slot that have keys and values, settled or not."""
        self._free = list(range(num_slots - 1, -1, -1))
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def acquire(self) -> int:
        """An empty slot, the lowest that is free.

        Raises:
            InvariantError: all are taken.
        """
        if not self._free:
            raise InvariantError(f"all {self.num_slots} slots of the KV cache are taken")
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Give a slot back; its content is void."""
        if slot in self._free:
            raise InvariantError(f"slot {slot} of the KV cache is given back twice")
        self.committed[slot] = self.written[slot] = 0
        self._free.append(slot)
        self._free.sort(reverse=True)

    def commit(self, slot: int, tokens: int) -> None:
        """Settle the first `tokens` tokens of a slot and forget what lies behind them.

        Raises:
            InvariantError: fewer than are settled already, or more than were written.
        """
        if not self.committed[slot] <= tokens <= self.written[slot]:
            raise InvariantError(
                f"slot {slot}: cannot commit {tokens} tokens, {self.committed[slot]} are committed and "
                f"{self.written[slot]} written"
            )
        self.committed[slot] = self.written[slot] = tokens

    def rollback(self, slot: int) -> None:
        """Forget everything that is not committed."""
        self.written[slot] = self.committed[slot]

    def extend(self, slot: int, context_tokens: int, num_tokens: int) -> None:
        """A pass is going to write `num_tokens` tokens behind `context_tokens`; later ones are forgotten.

        Raises:
            InvariantError: the context was never written, or is cut into what is settled.
            ScenarioError: the slot is too short.
        """
        if not self.committed[slot] <= context_tokens <= self.written[slot]:
            raise InvariantError(
                f"slot {slot}: a pass behind {context_tokens} tokens, but {self.committed[slot]} are committed and "
                f"{self.written[slot]} written"
            )
        if context_tokens + num_tokens > self.max_tokens:
            raise ScenarioError(
                f"a sequence of {context_tokens + num_tokens} tokens does not fit a KV cache of {self.max_tokens} "
                f"tokens a slot; make the slots longer or the requests shorter"
            )
        self.written[slot] = context_tokens + num_tokens

    @torch.inference_mode()
    def keep(self, slot: int, context_tokens: int, rows: Sequence[int]) -> None:
        """Of what was written behind `context_tokens`, keep these rows, one after another, and settle them.

        Raises:
            InvariantError: as `commit`, or a row that was not written.
        """
        if any(not 0 <= row < self.written[slot] - context_tokens for row in rows):
            raise InvariantError(f"slot {slot}: rows {list(rows)} behind {context_tokens} tokens were not all written")
        if list(rows) != list(range(len(rows))):
            for keys, values in self._layers.values():
                for held in (keys, values):
                    own = held[slot, context_tokens:]
                    own[: len(rows)] = own[torch.tensor(rows, device=held.device)]
        self.commit(slot, context_tokens + len(rows))

    def layer(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, [slots, stride, kv heads, head dim] each.

        Args:
            keys, values: [tokens, kv heads, head dim] of the pass; they say what the layer's tensors look like.
        """
        found = self._layers.get(index)
        if found is None:
            # zeros, so that memory is there before anything is timed
            found = self._layers[index] = (
                keys.new_zeros((self.num_slots, self.stride, *keys.shape[1:])),
                values.new_zeros((self.num_slots, self.stride, *values.shape[1:])),
            )
        return found

    @property
    def bytes(self) -> int:
        """Memory of all layers written so far."""
        return sum(k.nbytes + v.nbytes for k, v in self._layers.values())
