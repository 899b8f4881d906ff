"""KV cache blocks of one replica: how many are used, and which prefixes are still there.

Models: a pool of equal blocks; prefix blocks found by their hash, shared by reference count, kept after their last
user until the room is needed (least recently used first, the end of a prompt before its beginning).
Leaves out: which physical block is which. A hash of the trace stands for several blocks (512 tokens are 32 blocks of
16) and is kept or evicted whole, where an engine could keep a part of it. Where a hash does not cover whole blocks,
as many hashes as do are taken together.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

from specsim.errors import InvariantError

_Hashes = TypeVar("_Hashes", tuple[int, ...], list[int])

__all__ = ["BlockPool", "KVCache", "PrefixCache", "blocks_for"]


def blocks_for(tokens: int, block_size_tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // block_size_tokens)


class BlockPool:
    """Counts of blocks: `used` belong to requests, `cached` hold unreferenced prefixes and can be had by eviction."""

    __slots__ = ("cached", "capacity", "evict", "used")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.cached = 0
        self.evict: PrefixCache | None = None

    @property
    def available(self) -> int:
        """Blocks that a request can get now, by eviction if need be."""
        return self.capacity - self.used

    def take(self, blocks: int) -> None:
        """Give `blocks` to a request; the caller has checked `available`."""
        self.used += blocks
        if self.used > self.capacity:
            raise InvariantError(f"KV pool: {self.used} blocks used of {self.capacity}")
        if self.used + self.cached > self.capacity and self.evict is not None:
            self.evict.shrink(self.capacity - self.used)

    def give(self, blocks: int) -> None:
        """Take `blocks` back from a request."""
        self.used -= blocks
        if self.used < 0:
            raise InvariantError(f"KV pool: {-self.used} blocks given back twice")


class PrefixCache:
    """Prefix blocks by hash. An entry is referenced by requests, or waits unreferenced for reuse or eviction."""

    __slots__ = ("blocks_per_entry", "idle", "pool", "references", "tokens_per_entry")

    def __init__(self, pool: BlockPool, tokens_per_entry: int, block_size_tokens: int) -> None:
        self.pool = pool
        self.tokens_per_entry = tokens_per_entry
        self.blocks_per_entry = tokens_per_entry // block_size_tokens
        self.references: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        pool.evict = self

    def match(self, hashes: Sequence[int], max_tokens: int) -> int:
        """Number of leading entries that are cached, covering at most `max_tokens` tokens. Changes nothing."""
        limit = min(len(hashes), max_tokens // self.tokens_per_entry)
        hit = 0
        while hit < limit and (hashes[hit] in self.references or hashes[hit] in self.idle):
            hit += 1
        return hit

    def idle_among(self, hashes: Sequence[int]) -> int:
        """How many of these cached entries are unreferenced, so that using them takes blocks from the pool."""
        return sum(1 for key in hashes if key in self.idle)

    def acquire(self, hashes: Sequence[int]) -> None:
        """Reference cached entries; idle ones become used."""
        for key in hashes:
            if key in self.idle:
                del self.idle[key]
                self.pool.cached -= self.blocks_per_entry
                self.references[key] = 1
                self.pool.take(self.blocks_per_entry)
            else:
                self.references[key] += 1

    def insert(self, key: int) -> bool:
        """Turn blocks that a request has just been given into a shared entry held by it.

        False when the hash is there already (another request computes the same text): the blocks stay private.
        """
        if key in self.references or key in self.idle:
            return False
        self.references[key] = 1
        return True

    def release(self, hashes: Sequence[int]) -> None:
        """Drop one reference of each entry, last block first, so that the end of a prompt is evicted first."""
        for key in reversed(hashes):
            left = self.references[key] - 1
            if left:
                self.references[key] = left
            else:
                del self.references[key]
                self.idle[key] = None
                self.pool.used -= self.blocks_per_entry
                self.pool.cached += self.blocks_per_entry

    def shrink(self, blocks: int) -> None:
        """Evict least recently used entries until at most `blocks` blocks are cached."""
        while self.pool.cached > blocks:
            self.idle.popitem(last=False)
            self.pool.cached -= self.blocks_per_entry


class KVCache:
    """Blocks by request, for the plain scheduler: reserve n tokens or refuse, release, conservation."""

    def __init__(
        self,
        num_blocks: int,
        block_size_tokens: int,
        *,
        fixed_blocks_per_request: int = 0,
        hash_block_tokens: int | None = None,
    ) -> None:
        self.block_size_tokens = block_size_tokens
        self.fixed_blocks_per_request = fixed_blocks_per_request
        self.pool = BlockPool(num_blocks)
        self.prefix: PrefixCache | None = None
        self.hashes_per_entry = 1
        if hash_block_tokens is not None:
            entry_tokens = math.lcm(hash_block_tokens, block_size_tokens)
            self.hashes_per_entry = entry_tokens // hash_block_tokens
            self.prefix = PrefixCache(self.pool, entry_tokens, block_size_tokens)
        self.total: dict[int, int] = {}
        """Blocks that each request can write to or read, shared ones included."""
        self.shared: dict[int, list[int]] = {}
        """Prefix entries that each request references, in prompt order."""

    def entries(self, hashes: _Hashes) -> _Hashes:
        """The hashes that name whole entries: every `hashes_per_entry`-th, as each stands for all text before it."""
        n = self.hashes_per_entry
        return hashes if n == 1 else hashes[n - 1 :: n]

    def cached_tokens(self, hashes: Sequence[int], max_tokens: int) -> int:
        """Tokens at the head of a prompt that need no computing, at most `max_tokens`."""
        if self.prefix is None:
            return 0
        return self.prefix.match(hashes, max_tokens) * self.prefix.tokens_per_entry

    def admit(self, request_id: int, hashes: Sequence[int], cached_tokens: int, tokens: int) -> bool:
        """Start a request with `cached_tokens` found in the cache and room for `tokens`; False changes nothing."""
        need = private = blocks_for(tokens, self.block_size_tokens) + self.fixed_blocks_per_request
        pool, prefix = self.pool, self.prefix
        if prefix is not None:
            hit = list(hashes[: cached_tokens // prefix.tokens_per_entry])
            private -= len(hit) * prefix.blocks_per_entry
            if private + prefix.idle_among(hit) * prefix.blocks_per_entry > pool.available:
                return False
            prefix.acquire(hit)
            self.shared[request_id] = hit
        elif private > pool.capacity - pool.used:
            return False
        pool.take(private)
        self.total[request_id] = need
        return True

    def fits(self, hashes: Sequence[int], cached_tokens: int, tokens: int) -> bool:
        """Whether `admit` would succeed. Changes nothing."""
        private = blocks_for(tokens, self.block_size_tokens) + self.fixed_blocks_per_request
        prefix = self.prefix
        if prefix is not None:
            hit = hashes[: cached_tokens // prefix.tokens_per_entry]
            private -= (len(hit) - prefix.idle_among(hit)) * prefix.blocks_per_entry
        return private <= self.pool.available

    def free_tokens(self, hashes: Sequence[int], cached_tokens: int) -> int:
        """Room that is left when a request has taken its cached prefix."""
        free = self.pool.available
        if self.prefix is not None:
            hit = hashes[: cached_tokens // self.prefix.tokens_per_entry]
            free -= self.prefix.idle_among(hit) * self.prefix.blocks_per_entry
        return free * self.block_size_tokens

    def need(self, request_id: int, tokens: int) -> int:
        """Blocks that `reserve` would take."""
        want = blocks_for(tokens, self.block_size_tokens) + self.fixed_blocks_per_request
        return max(0, want - self.total[request_id])

    def reserve(self, request_id: int, tokens: int) -> bool:
        """Grow a request's room to `tokens` tokens; False changes nothing."""
        more = self.need(request_id, tokens)
        if more > self.pool.available:
            return False
        self.pool.take(more)
        self.total[request_id] += more
        return True

    def publish(self, request_id: int, hashes: Sequence[int], computed_tokens: int) -> None:
        """Make the full prompt blocks computed so far available to others."""
        if self.prefix is None:
            return
        shared = self.shared[request_id]
        for key in hashes[len(shared) : computed_tokens // self.prefix.tokens_per_entry]:
            if not self.prefix.insert(key):
                break  # a shared chain must stay a prefix: what follows a private block stays private
            shared.append(key)

    def drop_idle(self) -> None:
        """Evict every unreferenced prefix, as has happened by the time that a running request finds no block."""
        if self.prefix is not None:
            self.prefix.shrink(0)

    def release(self, request_id: int) -> None:
        """Take back everything that a request holds."""
        private = self.total.pop(request_id)
        if self.prefix is not None:
            shared = self.shared.pop(request_id)
            private -= len(shared) * self.prefix.blocks_per_entry
            self.prefix.release(shared)
        self.pool.give(private)
