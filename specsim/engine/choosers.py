"""Which replica a router picks, from what a router can see: what it sent where, and what came back.

Models: turns; fewest prompt tokens outstanding; prefix affinity, after the cache-aware routers of SGLang and Dynamo.
Leaves out: what replicas really hold in their caches, health checks, weights. Numbers: thresholds of SGLang's
router (`cache_threshold` 0.3, `balance_abs_threshold` 64, `balance_rel_threshold` 1.5).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from specsim.config import ReplicaLimits, RouterName
from specsim.engine.replica import Replica
from specsim.errors import ScenarioError
from specsim.traces.model import Trace

__all__ = ["Chooser", "LeastOutstanding", "PrefixAffinity", "PrefixMap", "RoundRobin", "make_chooser"]


class Chooser(Protocol):
    """Picks replicas by number."""

    watches: bool
    """Whether it wants to be told of completions."""

    def choose(self, request: int) -> int:
        """The replica of a request that is sent now."""
        ...

    def finished(self, request: int) -> None:
        """The request has come back, or was refused."""
        ...


class RoundRobin:
    """In turn, whoever is refused too."""

    watches = False

    def __init__(self, count: int) -> None:
        self._count = count
        self._turn = 0

    def choose(self, request: int) -> int:
        index = self._turn
        self._turn = (index + 1) % self._count
        return index

    def finished(self, request: int) -> None: ...


class LeastOutstanding:
    """Fewest prompt tokens of requests that have not finished; of equals the first."""

    watches = False

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas

    def choose(self, request: int) -> int:
        return min(range(len(self._replicas)), key=lambda r: (self._replicas[r].outstanding_tokens, r))

    def finished(self, request: int) -> None: ...


class PrefixMap:
    """Where a router believes prefixes to be: hashes by replica, the least recently sent forgotten first."""

    def __init__(self, replicas: int, hashes_each: int) -> None:
        self._sent: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]
        self._most = max(1, hashes_each)

    def match(self, hashes: Sequence[int], replica: int) -> int:
        """Leading hashes of a prompt that were sent there before."""
        sent = self._sent[replica]
        return next((n for n, key in enumerate(hashes) if key not in sent), len(hashes))

    def note(self, hashes: Sequence[int], replica: int) -> None:
        """A prompt goes there. Its end is forgotten before its beginning."""
        sent = self._sent[replica]
        for key in reversed(hashes):
            sent[key] = None
            sent.move_to_end(key)
        while len(sent) > self._most:
            sent.popitem(last=False)


class PrefixAffinity:
    """The replica to which most of a prompt's prefix was sent, unless it has far more to do than another.

    In this order: where the busiest replica has more than `MORE_REQUESTS` requests and `TIMES_REQUESTS` times as many
    in flight as the idlest, the one with least to do; where a replica was sent more than `SHARE` of the prompt's
    hashes, the one that was sent most of them, of equals the one with least to do; else the one with least to do.
    To do: prompt tokens outstanding.
    """

    watches = True
    SHARE = 0.3
    MORE_REQUESTS = 64
    TIMES_REQUESTS = 1.5

    def __init__(self, replicas: Sequence[Replica], trace: Trace, cache_tokens: int) -> None:
        if trace.hash_block_tokens is None:
            raise ScenarioError(
                f"{trace.meta.source}: router prefix_affinity needs prefix hashes (hash_ids), and this trace has none; "
                f"use least_outstanding"
            )
        self._replicas = replicas
        self._trace = trace
        self._map = PrefixMap(len(replicas), cache_tokens // trace.hash_block_tokens)
        self._in_flight = [0] * len(replicas)
        self._home: dict[int, int] = {}

    def choose(self, request: int) -> int:
        hashes = self._trace.hashes(request).tolist()
        candidates = range(len(self._replicas))
        least, most = min(self._in_flight), max(self._in_flight)
        if most - least <= self.MORE_REQUESTS or most <= self.TIMES_REQUESTS * least:
            matches = [self._map.match(hashes, r) for r in candidates]
            best = max(matches)
            if best > self.SHARE * len(hashes):
                candidates = [r for r in candidates if matches[r] == best]  # type: ignore[assignment]
        index = min(candidates, key=lambda r: (self._replicas[r].outstanding_tokens, r))
        self._map.note(hashes, index)
        self._home[request] = index
        self._in_flight[index] += 1
        return index

    def finished(self, request: int) -> None:
        self._in_flight[self._home.pop(request)] -= 1


def make_chooser(name: RouterName, replicas: Sequence[Replica], trace: Trace, limits: ReplicaLimits) -> Chooser:
    """The chooser of a router over these replicas.

    Raises:
        ScenarioError: for prefix affinity on a trace without prefix hashes.
    """
    if name == "round_robin":
        return RoundRobin(len(replicas))
    if name == "prefix_affinity":
        return PrefixAffinity(replicas, trace, limits.num_kv_blocks * limits.block_size_tokens)
    return LeastOutstanding(replicas)
