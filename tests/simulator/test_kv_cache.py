"""The KV cache against a naive one that keeps every block in lists, and its rules as small stories."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from specsim.errors import InvariantError
from specsim.kv_cache import BlockPool, KVCache, blocks_for

BLOCK = 4
ENTRY = 8
"""Tokens of one prefix hash: two blocks."""


class NaiveCache:
    """Every physical block has an owner: a request, a prefix entry, or nobody. Nothing is counted ahead."""

    def __init__(self, num_blocks: int, fixed: int) -> None:
        self.num_blocks = num_blocks
        self.fixed = fixed
        self.own: dict[int, int] = {}
        """Request -> blocks that only it uses."""
        self.uses: dict[int, list[str]] = {}
        """Request -> prefix entries that it uses."""
        self.entries: list[str] = []
        """Entries in the cache; the unused ones in order of last use, oldest first."""

    def used_entries(self) -> set[str]:
        return {key for keys in self.uses.values() for key in keys}

    def idle(self) -> list[str]:
        return [key for key in self.entries if key not in self.used_entries()]

    def used(self) -> int:
        return sum(self.own.values()) + 2 * len(self.used_entries())

    def free_up(self, blocks: int) -> None:
        while self.used() + 2 * len(self.idle()) > self.num_blocks - blocks:
            self.entries.remove(self.idle()[0])

    def hit(self, keys: list[str], max_tokens: int) -> int:
        n = 0
        while n < len(keys) and (n + 1) * ENTRY <= max_tokens and keys[n] in self.entries:
            n += 1
        return n

    def admit(self, request: int, keys: list[str], hit: int, tokens: int) -> bool:
        need = -(-tokens // BLOCK) + self.fixed - 2 * hit
        revived = 2 * len(set(keys[:hit]) - self.used_entries())
        if need + revived > self.num_blocks - self.used():
            return False
        self.uses[request] = keys[:hit]
        self.own[request] = 0
        self.free_up(need)
        self.own[request] = need
        return True

    def reserve(self, request: int, tokens: int) -> bool:
        have = self.own[request] + 2 * len(self.uses[request])
        more = max(0, -(-tokens // BLOCK) + self.fixed - have)
        if more > self.num_blocks - self.used():
            return False
        self.free_up(more)
        self.own[request] += more
        return True

    def publish(self, request: int, keys: list[str], tokens: int) -> None:
        while len(self.uses[request]) < min(len(keys), tokens // ENTRY):
            key = keys[len(self.uses[request])]
            if key in self.entries:
                return
            self.entries.append(key)
            self.uses[request].append(key)
            self.own[request] -= 2

    def release(self, request: int) -> None:
        del self.own[request]
        keys = self.uses.pop(request)
        for key in reversed(keys):
            if key not in self.used_entries():
                self.entries.remove(key)
                self.entries.append(key)

    def drop_idle(self) -> None:
        for key in self.idle():
            self.entries.remove(key)


class CacheMachine(RuleBasedStateMachine):
    """Requests of three conversations come, grow, publish their prompts and go, in any order."""

    refused = evicted = hits = private = 0

    @initialize(blocks=st.integers(6, 30), fixed=st.sampled_from([0, 0, 1]))
    def start(self, blocks: int, fixed: int) -> None:
        self.kv = KVCache(blocks, BLOCK, fixed_blocks_per_request=fixed, hash_block_tokens=ENTRY)
        self.naive = NaiveCache(blocks, fixed)
        self.keys: dict[int, list[str]] = {}
        self.computed: dict[int, int] = {}
        self.prompt: dict[int, int] = {}
        self.names: dict[str, int] = {}
        self.next_id = 0

    def hashes(self, keys: list[str]) -> list[int]:
        return [self.names.setdefault(key, 100 + len(self.names)) for key in keys]

    def state(self) -> tuple:
        kv = self.kv
        assert kv.prefix is not None
        return (dict(kv.total), {i: list(s) for i, s in kv.shared.items()}, kv.pool.used, kv.pool.cached,
                dict(kv.prefix.references), list(kv.prefix.idle))  # fmt: skip

    @rule(
        conversation=st.sampled_from("abc"), prompt=st.integers(1, 40), chunk=st.integers(1, 40), own=st.integers(0, 5)
    )
    def admit(self, conversation: str, prompt: int, chunk: int, own: int) -> None:
        """`own` entries from the beginning are the conversation's, what follows is this request's alone."""
        request = self.next_id
        self.next_id += 1
        keys = [f"{conversation}{n}" if n < own else f"{request}.{n}" for n in range(prompt // ENTRY)]
        hashes = self.hashes(keys)
        cached = self.kv.cached_tokens(hashes, prompt - 1)
        hit = self.naive.hit(keys, prompt - 1)
        assert cached == hit * ENTRY
        tokens = cached + min(chunk, prompt - cached)
        before, idle = self.state(), set(self.naive.idle())
        accepted = self.kv.admit(request, hashes, cached, tokens)
        assert accepted == self.naive.admit(request, keys, hit, tokens)
        if not accepted:
            assert self.state() == before, "a refusal changes nothing"
            CacheMachine.refused += 1
            return
        CacheMachine.hits += hit > 0
        CacheMachine.evicted += bool(idle - set(self.naive.entries))
        self.keys[request], self.prompt[request], self.computed[request] = keys, prompt, tokens
        self.publish(request)

    def publish(self, request: int) -> None:
        self.kv.publish(request, self.hashes(self.keys[request]), self.computed[request])
        self.naive.publish(request, self.keys[request], self.computed[request])
        full = min(len(self.keys[request]), self.computed[request] // ENTRY)
        CacheMachine.private += len(self.naive.uses[request]) < full

    @precondition(lambda self: self.computed)
    @rule(data=st.data(), more=st.integers(1, 20))
    def grow(self, data: st.DataObject, more: int) -> None:
        request = data.draw(st.sampled_from(sorted(self.computed)))
        tokens = self.computed[request] + more
        before = self.state()
        accepted = self.kv.reserve(request, tokens)
        assert accepted == self.naive.reserve(request, tokens)
        if not accepted:
            assert self.state() == before, "a refusal changes nothing"
            CacheMachine.refused += 1
            return
        self.computed[request] = tokens
        self.publish(request)

    @precondition(lambda self: self.computed)
    @rule(data=st.data(), preempt=st.booleans())
    def release(self, data: st.DataObject, preempt: bool) -> None:
        request = data.draw(st.sampled_from(sorted(self.computed)))
        if preempt:
            self.kv.drop_idle()
            self.naive.drop_idle()
        self.kv.release(request)
        self.naive.release(request)
        for known in (self.keys, self.prompt, self.computed):
            del known[request]

    @invariant()
    def same_as_naive(self) -> None:
        if not hasattr(self, "kv"):
            return
        kv, naive = self.kv, self.naive
        assert kv.prefix is not None
        assert kv.pool.used == naive.used()
        assert kv.pool.cached == 2 * len(naive.idle())
        assert list(kv.prefix.idle) == self.hashes(naive.idle()), "same order of eviction"
        assert set(kv.prefix.references) == set(self.hashes(sorted(naive.used_entries())))
        assert kv.pool.available == kv.pool.capacity - kv.pool.used
        assert 0 <= kv.pool.used <= kv.pool.used + kv.pool.cached <= kv.pool.capacity, "used + cached + free = all"


def test_cache_behaves_like_the_naive_one() -> None:
    CacheMachine.refused = CacheMachine.evicted = CacheMachine.hits = CacheMachine.private = 0
    run_state_machine_as_test(
        CacheMachine, settings=settings(max_examples=120, stateful_step_count=40, deadline=None, derandomize=True)
    )
    seen = (CacheMachine.refused, CacheMachine.evicted, CacheMachine.hits, CacheMachine.private)
    assert min(seen) > 0, f"the guard: refusals, evictions, hits, private twins occur, got {seen}"


def cache(**changes: int) -> KVCache:
    values = {"num_blocks": 12, "block_size_tokens": 4, "hash_block_tokens": 8, **changes}
    return KVCache(
        values["num_blocks"],
        values["block_size_tokens"],
        fixed_blocks_per_request=values.get("fixed", 0),
        hash_block_tokens=values["hash_block_tokens"],
    )


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_are_rounded_up(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 4) == blocks


def test_a_pool_notices_what_cannot_be() -> None:
    pool = BlockPool(3)
    pool.take(3)
    with pytest.raises(InvariantError, match="4 blocks used of 3"):
        pool.take(1)
    pool = BlockPool(3)
    with pytest.raises(InvariantError, match="given back twice"):
        pool.give(1)


def test_two_requests_share_a_prefix_and_pay_for_it_once() -> None:
    kv = cache()
    assert kv.admit(1, [10, 11], 0, 16)
    kv.publish(1, [10, 11], 16)
    cached = kv.cached_tokens([10, 12], 19)
    assert cached == 8
    assert kv.admit(2, [10, 12], cached, 20)
    assert kv.pool.used == 4 + 3
    kv.release(1)
    assert (kv.pool.used, kv.pool.cached) == (5, 2), "entry 10 is still used by request 2, entry 11 waits"


def test_the_end_of_a_prompt_is_evicted_before_its_beginning() -> None:
    kv = cache()
    assert kv.admit(1, [10, 11, 12], 0, 24)
    kv.publish(1, [10, 11, 12], 24)
    kv.release(1)
    assert (kv.pool.used, kv.pool.cached) == (0, 6)
    assert kv.admit(2, [], 0, 4 * 8)
    assert kv.pool.cached == 4
    assert kv.cached_tokens([10, 11, 12], 25) == 16


def test_least_recently_used_goes_first() -> None:
    kv = cache()
    for request, key in [(1, 10), (2, 20)]:
        assert kv.admit(request, [key], 0, 8)
        kv.publish(request, [key], 8)
        kv.release(request)
    assert kv.admit(3, [10], 8, 9)
    kv.release(3)
    assert kv.admit(4, [], 0, 4 * 10)
    assert kv.cached_tokens([20], 9) == 0
    assert kv.cached_tokens([10], 9) == 8


def test_only_what_is_computed_is_published() -> None:
    kv = cache()
    assert kv.admit(1, [10, 11], 0, 9)
    kv.publish(1, [10, 11], 9)
    assert kv.cached_tokens([10, 11], 100) == 8


def test_a_twin_computed_at_the_same_time_stays_private() -> None:
    kv = cache()
    for request in (1, 2):
        assert kv.admit(request, [10, 11], 0, 16)
        kv.publish(request, [10, 11], 16)
    assert kv.pool.used == 8
    kv.release(2)
    assert (kv.pool.used, kv.pool.cached) == (4, 0), "nothing of the twin is kept"


def test_what_follows_a_private_block_stays_private() -> None:
    """Only a prefix can be found again, so an entry behind a gap would hold blocks that nobody can use."""
    kv = cache()
    assert kv.admit(1, [10, 11], 0, 16)
    assert kv.admit(2, [10], 0, 8)
    kv.publish(2, [10], 8)
    kv.publish(1, [10, 11], 16)
    assert kv.cached_tokens([10, 11], 100) == 8
    kv.release(1)
    assert (kv.pool.used, kv.pool.cached) == (2, 0)


def test_without_hashes_nothing_is_kept() -> None:
    kv = KVCache(12, 4)
    assert kv.admit(1, [10], 0, 8)
    kv.publish(1, [10], 8)
    kv.release(1)
    assert kv.cached_tokens([10], 100) == 0
    assert (kv.pool.used, kv.pool.cached) == (0, 0)


def test_fixed_blocks_come_on_top() -> None:
    kv = cache(fixed=3)
    assert kv.admit(1, [], 0, 5)
    assert kv.pool.used == 2 + 3
    assert kv.need(1, 9) == 1


@pytest.mark.parametrize(
    ("block", "hash_block", "per_entry", "blocks"), [(16, 512, 1, 32), (16, 16, 1, 1), (32, 16, 2, 1), (16, 24, 2, 3)]
)
def test_hashes_that_do_not_cover_whole_blocks_are_taken_together(
    block: int, hash_block: int, per_entry: int, blocks: int
) -> None:
    """A cached prefix always takes as many blocks as its tokens need; otherwise it would be free and stay for ever."""
    kv = KVCache(100, block, hash_block_tokens=hash_block)
    assert kv.prefix is not None
    hashes = kv.entries(list(range(12)))
    assert hashes == list(range(12))[per_entry - 1 :: per_entry]
    tokens = 12 * hash_block
    kv = KVCache(1000, block, hash_block_tokens=hash_block)
    assert kv.admit(1, hashes, 0, tokens)
    kv.publish(1, hashes, tokens)
    kv.release(1)
    assert kv.prefix is not None
    assert kv.prefix.blocks_per_entry == blocks
    assert kv.pool.cached == tokens // block
    assert kv.cached_tokens(hashes, tokens) == tokens
