"""Plain replicas of two pools: slow and obvious, the oracle of `fast_pools`."""

from __future__ import annotations

from typing import Any

from specsim.engine.plain_replica import PlainReplica
from specsim.engine.pools import Pull
from specsim.request import Request

__all__ = ["PlainDecode", "PlainPrefill"]


class PlainPrefill(PlainReplica):
    """See `specsim.engine.pools.PrefillReplica`. `refused`: requests that no decode replica can ever hold."""

    def __init__(self, *args: Any, refused: frozenset[int]) -> None:
        super().__init__(*args)
        self._refused |= refused
        self.scheduler.keeps_finished = True

    def sent(self, request: int) -> None:
        self.scheduler.give_back(request)


class PlainDecode(PlainReplica):
    """See `specsim.engine.pools.DecodeReplica`."""

    def __init__(self, *args: Any, pull: Pull) -> None:
        super().__init__(*args)
        self._pull = pull

    def submit(self, request: int, now_s: float) -> bool:
        prompt = self.workload.prompt_tokens[request]
        self.scheduler.remote.append(Request(request, prompt, (), self.asked[request]))
        self.outstanding_tokens += prompt
        return True

    def receive(self, request: int) -> None:
        self.scheduler.receive(request)

    def begin_step(self, now_s: float, until_s: float = 0.0) -> float | None:
        if self.limits.discipline.hand_over == "token":
            for request in self.scheduler.join():
                self._join(request, now_s)
        seconds = super().begin_step(now_s)
        if seconds is None:
            self._luck.forget(self.plan)
            if any(request.has_cache for request in self.scheduler.waiting):
                return self.begin_step(now_s)  # the last to run was thrown out, and nobody is let in at once then
        for request in self.scheduler.pull():
            self._pull(request.request_id, self.index, now_s)
        return seconds

    def _join(self, request: Request, now_s: float) -> None:
        i, rows = request.request_id, self.recorder.rows
        rows.first_scheduled_s[i] = rows.first_token_s[i] = self._last_emit_s[i] = now_s
        self._iterations[i] += 1
        k = self.policy.num_spec_tokens if self.policy.constant else max(0, self.next_k)
        request.num_draft_tokens = self._luck.joined(request, k)
