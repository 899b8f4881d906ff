"""Routers: who gets a request, against a tally kept here; refused requests; a closed loop over several replicas."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from builders import FixedLuck, make_limits, make_trace
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import CROWDED, ListedLuck, Watch, World, run, worlds

from specsim.config import PolicySpec
from specsim.engine.choosers import PrefixAffinity, PrefixMap
from specsim.errors import ScenarioError

KINDS = pytest.mark.parametrize("plain", [True, False], ids=["plain", "fast"])


@KINDS
@settings(max_examples=40, deadline=None)
@given(world=worlds(replicas=(2, 3)))
@example(world=CROWDED)
def test_round_robin_takes_turns(world: World, plain: bool) -> None:
    rows = run(replace(world, router="round_robin"), plain=plain).requests
    n = len(rows.replica)
    # Refused requests take their turn too.
    np.testing.assert_array_equal(rows.replica, np.arange(n) % world.replicas)


@KINDS
@settings(max_examples=40, deadline=None)
@given(world=worlds(replicas=(2, 3)))
@example(world=replace(CROWDED, replicas=3))
def test_least_outstanding_takes_the_least(world: World, plain: bool) -> None:
    """Outstanding prompt tokens as counted here, ties to the lower number."""
    prompts = world.trace.prompt_tokens.tolist()
    outstanding: Counter[int] = Counter()
    seen = {"submit": 0, "end": 0, "not the first": 0}

    def check(call: str, replica: Any, now_s: float) -> None:
        if call == "end":
            for request in watch.steps[-1].finished:
                outstanding[replica.index] -= prompts[request]
                seen["end"] += 1
        elif call == "submit":
            request, index, _, accepted = watch.submitted[-1]
            best = min(range(world.replicas), key=lambda r: (outstanding[r], r))
            assert index == best
            seen["not the first"] += index > 0
            outstanding[index] += prompts[request] if accepted else 0
            seen["submit"] += 1
        assert replica.outstanding_tokens == outstanding[replica.index]

    watch = Watch(check)
    rows = run(replace(world, router="least_outstanding"), plain=plain, watch=watch).requests
    assert seen["submit"] == len(prompts)
    assert seen["end"] == int((~rows.rejected).sum())
    assert all(count == 0 for count in outstanding.values())
    if world.replicas == 3 and world.trace is CROWDED.trace:
        assert seen["not the first"] > 3


def test_least_outstanding_evens_out_what_turns_do_not() -> None:
    """Every second prompt is long: by turns one replica gets them all."""
    world = World(
        trace=make_trace(arrival_s=[0.001 * n for n in range(20)], prompt_tokens=[1000, 10] * 10, output_tokens=50),
        replicas=2,
    )
    by_turns = run(world, plain=False).requests
    evened = run(replace(world, router="least_outstanding"), plain=False).requests
    tokens = [sorted(int(rows.prompt_tokens[rows.replica == r].sum()) for r in (0, 1)) for rows in (by_turns, evened)]
    assert tokens[0] == [100, 10_000]
    assert tokens[1][1] - tokens[1][0] < 1500


@KINDS
@settings(max_examples=30, deadline=None)
@given(world=worlds(replicas=(2,), closed=False), seed=st.integers(0, 1000))
@example(world=CROWDED, seed=1)
def test_replicas_do_not_touch_one_another(world: World, plain: bool, seed: int) -> None:
    """Behind round robin each replica does exactly what it would do alone with its share of the trace."""
    rng = np.random.default_rng(seed)
    runs = [rng.integers(0, 6, size=int(length)) for length in world.trace.output_tokens]
    world = replace(world, router="round_robin", luck=ListedLuck(runs))
    together = run(world, plain=plain).requests
    for index in (0, 1):
        mine = slice(index, None, 2)
        trace = world.trace
        share = make_trace(
            arrival_s=trace.arrival_s[mine].tolist(),
            prompt_tokens=trace.prompt_tokens[mine].tolist(),
            output_tokens=trace.output_tokens[mine].tolist(),
            hashes=None if trace.hash_ids is None else [trace.hashes(i).tolist() for i in range(len(trace))][mine],
            hash_block_tokens=trace.hash_block_tokens,
        )
        if not len(share):
            continue
        alone = run(replace(world, trace=share, luck=ListedLuck(runs[mine]), replicas=1), plain=plain).requests
        for name in ("first_scheduled_s", "first_token_s", "finish_s"):
            np.testing.assert_allclose(getattr(together, name)[mine], getattr(alone, name), rtol=1e-12, err_msg=name)
        for name in ("cached_tokens", "preemptions", "rejected"):
            np.testing.assert_array_equal(getattr(together, name)[mine], getattr(alone, name), err_msg=name)


def test_one_replica_needs_no_router() -> None:
    alone = replace(CROWDED, replicas=1)
    one, two = (run(replace(alone, router=name), plain=False).requests for name in ("round_robin", "least_outstanding"))
    np.testing.assert_array_equal(one.finish_s, two.finish_s)
    assert set(one.replica.tolist()) == {0}


@KINDS
def test_an_idle_replica_starts_when_its_request_comes(plain: bool) -> None:
    world = World(trace=make_trace(arrival_s=[0.0, 3.0, 3.0, 50.0], output_tokens=2), replicas=2)
    rows = run(world, plain=plain).requests
    np.testing.assert_array_equal(rows.first_scheduled_s, rows.arrival_s)
    assert rows.replica.tolist() == [0, 1, 0, 1]


@KINDS
def test_a_refused_request_keeps_nobody_waiting(plain: bool) -> None:
    world = World(
        trace=make_trace(arrival_s=[0.0, 1.0, 2.0], prompt_tokens=[10, 500, 10], output_tokens=3),
        limits=make_limits(max_model_len=100),
        policy=PolicySpec("static", 2),
    )
    rows = run(world, plain=plain).requests
    assert rows.rejected.tolist() == [False, True, False]
    assert np.isnan(rows.finish_s).tolist() == [False, True, False]
    assert rows.replica.tolist() == [0, 0, 0]


@KINDS
def test_a_refused_request_takes_no_place_in_a_closed_loop(plain: bool) -> None:
    world = World(
        trace=make_trace(arrival_s=[0.0] * 6, prompt_tokens=[10, 500, 10, 500, 10, 10], output_tokens=3),
        limits=make_limits(max_model_len=100),
        concurrency=2,
    )
    rows = run(world, plain=plain).requests
    assert rows.arrival_s.tolist()[:3] == [0.0, 0.0, 0.0]
    assert rows.arrival_s[3] == rows.arrival_s[4] == rows.finish_s[0] > 0
    assert (~rows.rejected).sum() == 4


@KINDS
def test_a_closed_loop_of_one_serves_one_after_another(plain: bool) -> None:
    world = World(trace=make_trace(arrival_s=[0.0] * 5, output_tokens=[3, 1, 4, 1, 5]), luck=FixedLuck(), concurrency=1)
    result = run(world, plain=plain)
    rows = result.requests
    assert rows.arrival_s[0] == 0.0
    assert all(after == before for before, after in pairwise_times(rows.finish_s, rows.arrival_s))
    assert result.totals.peak_batch == 1


def pairwise_times(finish_s: np.ndarray, arrival_s: np.ndarray) -> list[tuple[float, float]]:
    return [(float(finish_s[a]), float(arrival_s[b])) for a, b in pairwise(range(len(finish_s)))]


@pytest.mark.parametrize(
    "changes", [{"replicas": 0}, {"concurrency": 0}, {"warmup_share": 1.0}, {"warmup_share": -0.1}]
)
def test_counts_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match=r"must be >= 1|must lie in 0\.\.1"):
        run(replace(World(trace=make_trace()), **changes), plain=False)


def hashed(world: World) -> bool:
    return world.trace.hash_ids is not None


@KINDS
@settings(max_examples=40, deadline=None)
@given(world=worlds(replicas=(2, 3)).filter(hashed))
@example(world=CROWDED)
def test_affinity_goes_where_most_of_the_prefix_was_sent(world: World, plain: bool) -> None:
    """Against a tally kept here: of those that were sent most leading hashes, the one with least outstanding."""
    world = replace(world, limits=replace(world.limits, num_kv_blocks=10**6))  # the router forgets nothing
    prompts = world.trace.prompt_tokens.tolist()
    outstanding: Counter[int] = Counter()
    sent: list[set[int]] = [set() for _ in range(world.replicas)]
    seen = {"matched": 0}

    def check(call: str, replica: Any, now_s: float) -> None:
        if call == "end":
            for request in watch.steps[-1].finished:
                outstanding[replica.index] -= prompts[request]
        elif call == "submit":
            request, index, _, accepted = watch.submitted[-1]
            hashes = world.trace.hashes(request).tolist()
            matches = []
            for known in sent:
                matched = 0
                while matched < len(hashes) and hashes[matched] in known:
                    matched += 1
                matches.append(matched)
            best = [r for r, m in enumerate(matches) if m == max(matches)]
            if max(matches) <= 0.3 * len(hashes):
                best = list(range(world.replicas))
            assert index == min(best, key=lambda r: (outstanding[r], r))
            seen["matched"] += len(best) < world.replicas
            sent[index].update(hashes)
            outstanding[index] += prompts[request] if accepted else 0

    watch = Watch(check)
    run(replace(world, router="prefix_affinity"), plain=plain, watch=watch)
    assert world.trace is not CROWDED.trace or seen["matched"] > 3, "the guard: prefixes do decide"


def test_affinity_finds_more_in_the_caches_than_turns_do() -> None:
    """Nine conversations of six turns each on three replicas, in an order that turns do not respect."""
    rng = np.random.default_rng(3)
    turns = [(c, t) for t in range(6) for c in rng.permutation(9).tolist()]
    world = World(
        trace=make_trace(
            arrival_s=[0.25 * n for n in range(len(turns))],
            prompt_tokens=[16 * (2 + 2 * t) + 1 for _, t in turns],
            output_tokens=4,
            hashes=[[100 * c + b for b in range(2 + 2 * t)] for c, t in turns],
            hash_block_tokens=16,
        ),
        replicas=3,
    )
    found = {name: run(replace(world, router=name), plain=False).requests.cached_tokens.sum()
             for name in ("round_robin", "least_outstanding", "prefix_affinity")}  # fmt: skip
    everything = sum(16 * 2 * t for _, t in turns)
    assert found["prefix_affinity"] == everything
    assert found["round_robin"] < 0.7 * everything


class Load:
    """A replica with so many prompt tokens outstanding."""

    def __init__(self, tokens: int) -> None:
        self.outstanding_tokens = tokens


def affinity(*tokens: int, cache_tokens: int = 10_000) -> PrefixAffinity:
    trace = make_trace(
        arrival_s=[0.0] * 300,
        prompt_tokens=64,
        hashes=[[1, 2, 3, 4]] * 290 + [[1, 9, 9, 9], [1, 2, 9, 9], [7, 8, 9, 10]] + [[5, 6, 7, 8]] * 7,
        hash_block_tokens=16,
    )
    return PrefixAffinity([Load(n) for n in tokens], trace, cache_tokens)  # type: ignore[list-item]


def test_affinity_ends_where_one_replica_has_far_more_to_do() -> None:
    chooser = affinity(0, 10**6)
    chosen = [chooser.choose(n) for n in range(65)]
    assert chosen == [0] * 65, "65 more than nobody, and still the prefix decides"
    chooser._replicas = [Load(10**6), Load(0)]  # type: ignore[list-item]
    assert chooser.choose(65) == 1, "now it does not: one has 65 in flight, the other none"
    assert chooser.choose(66) == 1, "64 more: both have the prefix, the second has less to do"
    for request in range(65):
        chooser.finished(request)
    assert chooser.choose(67) == 1


def test_a_short_match_does_not_decide() -> None:
    chooser = affinity(10, 5)
    assert chooser.choose(0) == 1
    chooser._replicas = [Load(5), Load(10)]  # type: ignore[list-item]
    assert chooser.choose(290) == 0, "one hash of four"
    assert chooser.choose(291) == 1, "two of four"
    assert chooser.choose(292) == 0, "none"


def test_a_router_forgets_what_was_sent_long_ago() -> None:
    known = PrefixMap(2, hashes_each=5)
    known.note([1, 2, 3], 0)
    assert (known.match([1, 2, 3, 4], 0), known.match([1, 2], 1)) == (3, 0)
    known.note([7, 8, 9], 0)
    assert known.match([7, 8, 9], 0) == 3
    assert known.match([1, 2, 3], 0) == 2, "the end of a prompt goes first"
    known.note([1, 2], 0)
    known.note([5, 6], 0)
    assert known.match([1, 2], 0) == 2, "what was sent again stays"
    assert known.match([7, 8, 9], 0) == 1


def test_affinity_needs_hashes() -> None:
    world = World(trace=make_trace(arrival_s=[0.0, 1.0]), replicas=2, router="prefix_affinity")
    with pytest.raises(ScenarioError, match="needs prefix hashes"):
        run(world, plain=False)
    assert run(replace(world, replicas=1), plain=False).requests.replica.tolist() == [0, 0], "alone there is no choice"
