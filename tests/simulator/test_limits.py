"""The laws of docs/laws.md on limits and scales: no drafts, no or full acceptance, endless memory, halved times.

Like those of `test_laws.py` they are stated over random worlds and over CROWDED, on both kinds of replica.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from builders import FixedLuck, make_limits, make_pass, make_profile, make_trace
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import CROWDED, KINDS, ListedLuck, Watch, World, law, run, served, worlds

from specsim.config import PolicySpec
from specsim.latency import StepCost
from specsim.policies.static import Static
from specsim.profiles import LatencyProfile, PassCost
from specsim.records import RunResult


@settings(max_examples=60, deadline=None)
@given(world=worlds(closed=True))
@KINDS
def test_k_0_without_machinery_equals_off(world: World, plain: bool) -> None:
    world = replace(world, profile=make_profile(speculation_host_s=1e-3))
    off = run(replace(world, policy=PolicySpec("off")), plain=plain)
    idle = run(replace(world, policy=PolicySpec("static", 0)), plain=plain)
    assert_same_bytes(off, idle)
    loaded = replace(world, profile=make_profile(loaded_host_s=1e-3, speculation_host_s=1e-3))
    assert_same_bytes(off, run(replace(loaded, policy=PolicySpec("off")), plain=plain))
    costly = run(replace(loaded, policy=PolicySpec("static", 0)), plain=plain)
    if served(off).any():
        first = [np.nanmin(result.requests.first_token_s) for result in (off, costly)]
        assert first[1] > first[0], "the guard: costs are seen (a later finish need not be, as batches differ)"


def assert_same_bytes(first: RunResult, second: RunResult) -> None:
    """Bit for bit, names of policies apart."""
    for f in fields(first.requests):
        one, two = getattr(first.requests, f.name), getattr(second.requests, f.name)
        assert one.tobytes() == two.tobytes(), f.name
    assert asdict(first.totals) == asdict(second.totals)
    assert first.gaps.counts == second.gaps.counts
    assert (first.end_s, first.gaps.zeros) == (second.end_s, second.gaps.zeros)


@KINDS
@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("batch", [1, 5])
def test_no_acceptance_costs_the_drafting_and_the_wider_pass(plain: bool, k: int, batch: int) -> None:
    """a = 0, decoding only: step by step, on minus off is k passes of the drafter and k more tokens a request."""
    target, draft = make_pass(kv_pair_s=0.0), make_pass(weights_s=7e-4, token_s=3e-6, kv_token_s=2e-9, kv_pair_s=0.0)
    world = World(
        trace=make_trace(arrival_s=[0.0] * batch, prompt_tokens=[9 * (i + 1) for i in range(batch)], output_tokens=20),
        luck=FixedLuck(constant=0),
        profile=make_profile(target=target, draft=draft),
    )
    watch_off, watch_on = Watch(), Watch()
    run(replace(world, policy=PolicySpec("off")), plain=plain, watch=watch_off)
    on = run(replace(world, policy=PolicySpec("static", k)), plain=plain, watch=watch_on)
    assert on.totals.decode_tokens == on.totals.rounds == 19 * batch, "one token a round"
    assert on.totals.drafted_tokens == 19 * batch * k
    assert on.totals.accepted_tokens == 0
    assert len(watch_on.steps) == len(watch_off.steps) == 20
    for a, b in zip(watch_off.steps[1:], watch_on.steps[1:], strict=True):
        assert a.kv_tokens == b.kv_tokens
        wider_s = batch * k * (target.token_s + target.head_row_s)
        drafting_s = (
            k * (draft.weights_s + draft.head_weights_s + draft.fixed_s)
            + (batch * (1 + k) + (k - 1) * batch) * draft.token_s
            + k * batch * draft.head_row_s
            + k * b.kv_tokens * draft.kv_token_s
        )
        assert b.seconds - a.seconds == pytest.approx(wider_s + drafting_s, rel=1e-9)


@KINDS
@pytest.mark.parametrize("k", [1, 3, 5])
def test_full_acceptance_emits_k_plus_one(plain: bool, k: int) -> None:
    rounds = 6
    world = World(
        trace=make_trace(arrival_s=[0.0, 0.01, 0.5], prompt_tokens=[8, 80, 33], output_tokens=1 + rounds * (k + 1)),
        luck=FixedLuck(constant=k + 3),
        policy=PolicySpec("static", k),
    )
    totals = run(world, plain=plain).totals
    assert totals.rounds == 3 * rounds
    assert totals.decode_tokens == 3 * rounds * (k + 1)
    assert totals.accepted_tokens == totals.drafted_tokens == 3 * rounds * k
    assert run(replace(world, luck=FixedLuck(constant=k - 1)), plain=plain).totals.rounds > 3 * rounds, "the guard"


@pytest.mark.parametrize(("a", "k", "expected"), [(0.7, 4, 2.773), (0.5, 4, 1.938), (0.8, 3, 2.952), (0.8, 4, 3.362)])
def test_tokens_per_round_follow_the_closed_form(a: float, k: int, expected: float) -> None:
    """E = (1 - a^(k+1)) / (1 - a) for independent luck, over 200 000 positions.

    False alarm 1e-6: the mean over rounds may be 4.9 standard errors off. Rounds of one request are independent, since
    each starts where fresh draws begin; the cut last round of a request is diluted by 20 000-token outputs.
    """
    rng = np.random.default_rng(20_261_130)
    # Stop at the first rejection: the run at p is how many draws from p on succeed, so that positions share their luck.
    runs = []
    for _ in range(10):
        accepted = rng.random(20_000) < a
        run_at = np.zeros(20_000, dtype=np.int64)
        left = 0
        for p in range(19_999, -1, -1):
            left = left + 1 if accepted[p] else 0
            run_at[p] = min(left, 64)
        runs.append(run_at)
    world = World(
        trace=make_trace(arrival_s=[0.0] * 10, output_tokens=20_000),
        luck=ListedLuck(runs),
        policy=PolicySpec("static", k),
        limits=make_limits(max_num_seqs=10),
    )
    totals = run(world, plain=False).totals
    exact = (1 - a ** (k + 1)) / (1 - a)
    assert exact == pytest.approx(expected, abs=5e-4)
    chances = np.array([a**j * (1 - a) for j in range(k)] + [a**k])
    variance = float(chances @ (np.arange(1, k + 2) - exact) ** 2)
    assert totals.rounds > 40_000
    assert abs(totals.decode_tokens / totals.rounds - exact) < 4.9 * math.sqrt(variance / totals.rounds) + 1e-3


@law()
def test_memory_without_limit_never_preempts(world: World, plain: bool) -> None:
    ample = replace(world, limits=replace(world.limits, num_kv_blocks=10**9))
    result = run(ample, plain=plain)
    assert result.totals.preemptions == result.requests.preemptions.sum() == 0
    if world is CROWDED:
        assert run(world, plain=plain).totals.preemptions > 0


def halved(world: World) -> World:
    def half(cost: PassCost | None) -> PassCost | None:
        if cost is None:
            return None
        return replace(cost, **{f.name: getattr(cost, f.name) / 2 for f in fields(cost) if f.name.endswith("_s")})

    p = world.profile
    terms = {f.name: getattr(p, f.name) / 2 for f in fields(LatencyProfile) if f.name.endswith("_s")}
    return replace(
        world,
        trace=replace(world.trace, arrival_s=world.trace.arrival_s / 2),
        profile=replace(p, target=half(p.target), draft=half(p.draft), **terms),
    )


@law(examples=60)
def test_halving_all_times_halves_every_time_exactly(world: World, plain: bool) -> None:
    world = replace(world, profile=replace(world.profile, target=replace(world.profile.target, knee=3.0)))
    whole, half = run(world, plain=plain), run(halved(world), plain=plain)
    for name in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s"):
        np.testing.assert_array_equal(getattr(half.requests, name), getattr(whole.requests, name) / 2, err_msg=name)
    for name in ("cached_tokens", "preemptions", "rejected", "replica"):
        np.testing.assert_array_equal(getattr(half.requests, name), getattr(whole.requests, name), err_msg=name)
    times = ("busy_s", "batch_time", "kv_block_time")
    one, two = asdict(whole.totals), asdict(half.totals)
    assert two == {name: value / 2 if name in times else value for name, value in one.items()}
    assert half.end_s == whole.end_s / 2
    assert sum(half.gaps.counts) == sum(whole.gaps.counts)


@law()
def test_littles_law(world: World, plain: bool) -> None:
    """Time-average in system = rate x mean time, an identity over a whole run.

    The left side integrates the queues that replicas report, the right side comes from the moments in the rows.
    """
    watch = Watch()
    rows = run(world, plain=plain, watch=watch).requests
    ok = ~rows.rejected
    in_replicas = math.fsum((len(s.waiting) + len(s.running)) * s.seconds for s in watch.steps)
    # A request that comes in the middle of a step joins the queue with the next one.
    began = {i: at for i, r, at, accepted in watch.submitted if accepted}
    for s in watch.steps:
        in_replicas += sum(s.ended_s - at for i, at in began.items()
                           if rows.replica[i] == s.replica and s.began_s < at < s.ended_s)  # fmt: skip
    at_the_door = math.fsum(at - rows.arrival_s[i] for i, at in began.items())
    total = math.fsum((rows.finish_s - rows.arrival_s)[ok].tolist())
    assert in_replicas + at_the_door == pytest.approx(total, rel=1e-9)


@KINDS
def test_time_in_service_is_the_integral_of_the_batch(plain: bool) -> None:
    """Little's law for the running requests alone, where nothing is preempted and every request is in every step."""
    rng = np.random.default_rng(4)
    world = World(
        trace=make_trace(
            arrival_s=np.cumsum(rng.exponential(0.05, 60)).tolist(),
            prompt_tokens=rng.integers(1, 90, 60).tolist(),
            output_tokens=rng.integers(1, 60, 60).tolist(),
        ),
        policy=PolicySpec("static", 3),
        limits=make_limits(max_num_seqs=6),
    )
    result = run(world, plain=plain)
    rows = result.requests
    assert result.totals.peak_batch == 6
    assert (rows.first_scheduled_s > rows.arrival_s).sum() > 20
    served_s = math.fsum((rows.finish_s - rows.first_scheduled_s).tolist())
    assert result.totals.batch_time == pytest.approx(served_s, rel=1e-9)


@law(replicas=(1,), closed=False)
def test_what_comes_later_changes_nothing_that_has_finished(world: World, plain: bool) -> None:
    """One more request at the end leaves the luck of all others, and every step up to its arrival, as they were."""
    trace, n = world.trace, len(world.trace)
    middle_s = float(np.median(trace.arrival_s)) + 0.01
    last_s = max(float(trace.arrival_s[-1]), middle_s)
    more = replace(
        trace,
        arrival_s=np.append(trace.arrival_s, last_s),
        prompt_tokens=np.append(trace.prompt_tokens, 17).astype(np.int32),
        output_tokens=np.append(trace.output_tokens, 9).astype(np.int32),
        hash_ids=trace.hash_ids,
        hash_offsets=None if trace.hash_offsets is None else np.append(trace.hash_offsets, trace.hash_offsets[-1]),
    )
    before, after = Watch(), Watch()
    run(replace(world, replicas=1), plain=plain, watch=before)
    result = run(replace(world, replicas=1, trace=more), plain=plain, watch=after)
    assert len(result.requests.finish_s) == n + 1
    past = [s for s in before.steps if s.ended_s < last_s]
    assert after.steps[: len(past)] == past


@KINDS
@settings(max_examples=30, deadline=None)
@given(world=worlds(closed=False), concurrency=st.integers(1, 6))
@example(world=replace(CROWDED, replicas=2), concurrency=5)
def test_closed_loop_keeps_exactly_its_concurrency(world: World, plain: bool, concurrency: int) -> None:
    world = replace(world, concurrency=concurrency)
    result = run(world, plain=plain)
    rows = result.requests
    ok = ~rows.rejected
    arrival_s, finish_s = rows.arrival_s[ok], rows.finish_s[ok]
    n = len(arrival_s)
    if n == 0:
        return
    wanted = min(concurrency, n)
    assert (arrival_s[:wanted] == 0.0).all()
    # Right after any event and before requests run out, `concurrency` of them are in flight.
    last_s = float(arrival_s.max())
    for at in sorted({0.0, *finish_s[finish_s < last_s].tolist()}):
        assert ((arrival_s <= at) & (finish_s > at)).sum() == wanted
    if n >= concurrency:
        assert result.measure_until_s == pytest.approx(np.sort(finish_s)[n - concurrency])
        later = np.sort(arrival_s)[concurrency:]
        assert set(later.tolist()) <= set(finish_s.tolist()), "a request comes when another has gone"
    else:
        assert result.measure_until_s == result.end_s
        assert result.totals.steps > 0, "a loop that was never full is measured as a whole"


def test_static_0_is_the_rule_of_off() -> None:
    assert Static(0).next_k(5, 100, 5) == 0
    assert StepCost(make_profile()).profile.loaded_host_s == 0.0
