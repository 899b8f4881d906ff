"""Fast replicas of two pools: one that computes prompts and keeps them until they have been read, one that decodes."""

from __future__ import annotations

from collections import deque
from typing import Any

from specsim.engine.fast_replica import FastReplica
from specsim.engine.pools import Pull

__all__ = ["FastDecode", "FastPrefill"]


class FastPrefill(FastReplica):
    """See `specsim.engine.pools.PrefillReplica`. `refused`: requests that no decode replica can ever hold."""

    def __init__(self, *args: Any, refused: frozenset[int]) -> None:
        super().__init__(*args)
        self._refused |= refused
        self._kept: set[int] = set()

    def _release(self, request: int) -> None:
        self._kept.add(request)

    def sent(self, request: int) -> None:
        self._kept.remove(request)
        super()._release(request)


class FastDecode(FastReplica):
    """See `specsim.engine.pools.DecodeReplica`."""

    def __init__(self, *args: Any, pull: Pull) -> None:
        super().__init__(*args)
        self._pull = pull
        self._kept_tokens = self._limits.discipline.kept_for_decode_tokens
        self._remote: deque[int] = deque()
        """Prompts computed elsewhere, waiting for blocks here."""
        self._pulling: set[int] = set()
        """Those that hold blocks, while their cache is on its way."""

    def submit(self, request: int, now_s: float) -> bool:
        self._remote.append(request)
        self.outstanding_tokens += self._prompt[request]
        return True

    def receive(self, request: int) -> None:
        self._pulling.remove(request)
        self._waiting.insert(len(self._arrived), request)
        self._arrived.add(request)

    def begin_step(self, now_s: float, until_s: float = 0.0) -> float | None:
        if self._arrived and self._token_comes and self._partial is None:
            self._join(now_s)
        seconds = super().begin_step(now_s)
        if seconds is None and self._arrived:  # the last to run was thrown out, and nobody is let in at once then
            return self.begin_step(now_s)
        if self._remote and not self._waiting:
            self._make_room(now_s)
        return seconds

    def _make_room(self, now_s: float) -> None:
        kv, block = self._kv, self._limits.block_size_tokens
        while self._remote and self._running + len(self._leaving) < self._seats:
            request = self._remote[0]
            room = self._prompt[request] + self._lookahead if self._grows else self._room[request]
            others = self._running + len(self._leaving) + len(self._pulling)
            if others and room + self._kept_tokens * (others + 1) > kv.pool.available * block:
                break
            if not kv.admit(request, (), 0, room):
                break
            self._remote.popleft()
            self._pulling.add(request)
            self._pull(request, self.index, now_s)

    def _join(self, now_s: float) -> None:
        rows, k = self._recorder.rows, max(0, self._next_k)
        while self._arrived and self._running + len(self._leaving) < self._seats:
            request = self._waiting.popleft()
            self._arrived.remove(request)
            rows.first_scheduled_s[request] = rows.first_token_s[request] = now_s
            if self._expects:
                self._asked_running += self._asked[request]
                self._left_running += self._asked[request] - 1
            if self._counts_iterations:
                self._iterations[request] = 1 - self._decode_steps
            self._batch.add(request, 1, k, self._kv.total.pop(request), self._spoils and k == 0)
            if self._separate:
                self._joined_s[request] = now_s
