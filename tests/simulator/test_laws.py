"""The laws of docs/laws.md that hold in every run, on both kinds of replica.

Each law is stated over random worlds and over CROWDED, and `test_crowded_reaches_every_mechanism` is their common
guard: it shows that what the laws speak of really happens there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
from builders import FixedLuck, make_limits, make_pass, make_profile, make_trace
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import CROWDED, POLICIES, ListedLuck, Watch, World, pool_of, queues_of, run, worlds

from specsim.config import PolicySpec
from specsim.engine.fast_replica import FastReplica
from specsim.engine.plain_replica import PlainReplica
from specsim.latency import StepCost
from specsim.policies import Static
from specsim.profiles import LatencyProfile, PassCost
from specsim.records import RunResult
from specsim.request import State
from specsim.scheduler import Scheduler, never_fits

KINDS = pytest.mark.parametrize("plain", [True, False], ids=["plain", "fast"])


def law(examples: int = 40, **limits: Any) -> Callable[[Callable], Callable]:
    """Hold a test of `world` over random worlds and CROWDED, on both kinds of replica."""

    def wrap(test: Callable) -> Callable:
        held = given(world=worlds(**limits))(example(world=CROWDED)(test))
        return KINDS(settings(max_examples=examples, deadline=None)(held))

    return wrap


def served(result: RunResult) -> np.ndarray:
    return ~result.requests.rejected


@KINDS
def test_crowded_reaches_every_mechanism(plain: bool) -> None:
    watch = Watch()
    result = run(CROWDED, plain=plain, watch=watch)
    rows = result.requests
    assert rows.preemptions.sum() > 0
    assert rows.cached_tokens.sum() > 0
    assert rows.rejected.sum() == 1
    assert set(rows.replica.tolist()) == {0, 1}
    assert len([k for k in result.totals.k_steps if k]) == 2, "k changes"
    decoding = [s for s in watch.steps if s.decode_requests > 1]
    assert any(s.draft_tokens % s.decode_requests for s in decoding), "the budget cuts drafts"
    assert any(s.prefill_tokens and s.decode_requests for s in watch.steps), "chunks share steps with decoding"
    assert {replica for replica, now_s, _ in watch.idle if 0.1 < now_s < 100} == {0, 1}, "both replicas idle"
    assert result.totals.accepted_tokens > 0
    assert np.nanmax(rows.first_scheduled_s - rows.arrival_s) > 0, "requests wait"


@law()
def test_requests_are_conserved(world: World, plain: bool) -> None:
    submitted: dict[int, set[int]] = {}
    finished: dict[int, set[int]] = {}

    def check(call: str, replica: Any, now_s: float) -> None:
        sent = {i for i, r, _, accepted in watch.submitted if accepted and r == replica.index}
        if call == "end":
            finished.setdefault(replica.index, set()).update(watch.steps[-1].finished)
        submitted[replica.index] = sent
        waiting, running = queues_of(replica)
        done = sorted(finished.get(replica.index, set()))
        assert sorted([*waiting, *running, *done]) == sorted(sent), "each request is in exactly one place"
        if isinstance(replica, PlainReplica):
            assert {r.state for r in replica.scheduler.waiting} <= {State.WAITING, State.PREEMPTED}
            assert {r.state for r in replica.scheduler.running} <= {State.RUNNING}

    watch = Watch(check)
    result = run(world, plain=plain, watch=watch)
    rows, n = result.requests, len(world.trace)
    assert sorted(i for i, *_ in watch.submitted) == list(range(n)), "each request reaches one replica, once"
    assert sum(len(done) for done in finished.values()) + int(rows.rejected.sum()) == n
    assert np.array_equal(np.isnan(rows.finish_s), rows.rejected)
    refused = {i for i, _, _, accepted in watch.submitted if not accepted}
    k = world.policy.num_spec_tokens
    too_long = {
        i for i in range(n)
        if never_fits(int(rows.prompt_tokens[i]), int(rows.output_tokens[i]), world.limits, k)
    }  # fmt: skip
    assert refused == too_long == set(np.flatnonzero(rows.rejected).tolist())


def blocks_counted_from_scratch(replica: PlainReplica) -> tuple[int, int]:
    """(used, cached) of a replica, from what each request holds, shared entries counted once."""
    kv = replica.scheduler.kv
    if kv.prefix is None:
        return sum(kv.total.values()), 0
    each = kv.prefix.blocks_per_entry
    counts = Counter(key for shared in kv.shared.values() for key in shared)
    assert counts == kv.prefix.references
    return sum(kv.total.values()) - each * (counts.total() - len(counts)), each * len(kv.prefix.idle)


@law()
def test_blocks_used_and_free_are_all_blocks(world: World, plain: bool) -> None:
    """Plain: recounted after every call. Fast: the same counts as plain, step by step."""

    def check(call: str, replica: Any, now_s: float) -> None:
        pool = pool_of(replica)
        free = pool.capacity - pool.used - pool.cached
        assert pool.capacity == world.limits.num_kv_blocks
        assert min(pool.used, pool.cached, free) >= 0
        if isinstance(replica, PlainReplica):
            assert (pool.used, pool.cached) == blocks_counted_from_scratch(replica)

    watch, other = Watch(check), Watch()
    result = run(world, plain=plain, watch=watch)
    run(world, plain=not plain, watch=other)
    assert watch.steps == other.steps
    assert all(pool_of(r).used == 0 for r in watch.replicas.values()), "everything is given back"
    assert result.totals.peak_kv_blocks <= world.limits.num_kv_blocks


@law()
def test_time_never_goes_back(world: World, plain: bool) -> None:
    times: list[float] = []
    watch = Watch(lambda call, replica, now_s: times.append(now_s))
    result = run(world, plain=plain, watch=watch)
    assert times == sorted(times)
    assert result.end_s >= times[-1]
    assert all(s.seconds > 0 and s.ended_s == s.began_s + s.seconds for s in watch.steps)
    for replica in watch.replicas:
        steps = [s for s in watch.steps if s.replica == replica]
        assert all(a.ended_s <= b.began_s for a, b in pairwise(steps)), "one step at a time"


@law()
def test_moments_of_a_request_are_in_order(world: World, plain: bool) -> None:
    rows = run(world, plain=plain).requests
    ok = ~rows.rejected
    moments = [rows.arrival_s[ok], rows.first_scheduled_s[ok], rows.first_token_s[ok], rows.finish_s[ok]]
    assert np.isfinite(moments).all()
    assert (moments[0] <= moments[1]).all()
    assert (moments[1] < moments[2]).all(), "a first token takes a step"
    one = rows.output_tokens[ok] == 1
    assert (moments[2][one] == moments[3][one]).all()
    assert (moments[2][~one] < moments[3][~one]).all(), "more tokens take more steps"
    refused = [rows.first_scheduled_s, rows.first_token_s, rows.finish_s]
    assert np.isnan([column[rows.rejected] for column in refused]).all()


@law()
def test_tokens_sum_to_the_output_length(world: World, plain: bool) -> None:
    watch = Watch()
    result = run(world, plain=plain, watch=watch)
    if world.concurrency is not None:
        return  # totals end with the measured window
    wanted = int(result.requests.output_tokens[served(result)].sum())
    assert result.totals.decode_tokens + sum(s.prefill_rows for s in watch.steps) == wanted
    assert result.totals.decode_tokens == result.totals.rounds + result.totals.accepted_tokens


@settings(max_examples=60, deadline=None)
@example(world=CROWDED)
@given(world=worlds())
def test_a_round_emits_one_to_drafted_plus_one(world: World) -> None:
    rounds: list[tuple[int, int]] = []
    emitted_by: Counter[int] = Counter()
    update = Scheduler.update

    def seen(self: Scheduler, plan: Any, emitted: Any, finished: Any, drafts: Any) -> None:
        for item in plan.scheduled:
            if item.request.is_decoding:
                rounds.append((emitted[item.request.request_id], item.num_draft_tokens))
        emitted_by.update(emitted)
        update(self, plan, emitted, finished, drafts)

    with mock.patch.object(Scheduler, "update", seen):
        rows = run(world, plain=True).requests
    assert all(1 <= count <= 1 + drafts for count, drafts in rounds)
    assert all(drafts <= world.policy.num_spec_tokens for _, drafts in rounds)
    assert emitted_by == {i: int(rows.output_tokens[i]) for i in np.flatnonzero(~rows.rejected).tolist()}
    if world is CROWDED:
        assert {count - drafts for count, drafts in rounds} >= {1, 0, -4}, "full and no acceptance both occur"


@law()
def test_never_idle_while_something_waits(world: World, plain: bool) -> None:
    watch = Watch()
    rows = run(world, plain=plain, watch=watch).requests
    assert all(count == 0 for _, _, count in watch.idle)
    for replica in watch.replicas:
        mine = np.flatnonzero((rows.replica == replica) & ~rows.rejected)
        steps = [s for s in watch.steps if s.replica == replica]
        for before, after in pairwise(steps):
            if before.ended_s < after.began_s:
                present = (rows.arrival_s[mine] < after.began_s) & (rows.finish_s[mine] > before.ended_s)
                assert not present.any(), "idle although a request was there"
        if steps:
            assert steps[0].began_s == rows.arrival_s[mine].min()


FULL_MEMORY = replace(CROWDED, limits=replace(CROWDED.limits, max_num_batched_tokens=256))


@settings(max_examples=60, deadline=None)
@example(world=FULL_MEMORY)
@given(world=worlds())
def test_whoever_waits_could_not_be_admitted(world: World) -> None:
    def check(call: str, replica: Any, now_s: float) -> None:
        scheduler, plan = replica.scheduler, replica._plan
        if call != "begin" or plan.preempted or not scheduler.waiting:
            return
        budget = world.limits.max_num_batched_tokens - sum(item.num_tokens for item in plan.scheduled)
        if budget == 0 or len(scheduler.running) == world.limits.max_num_seqs:
            return
        head, kv = scheduler.waiting[0], scheduler.kv
        cached = kv.cached_tokens(head.hashes, head.num_tokens - 1)
        tokens = min(head.num_tokens - cached, budget)
        room = -(-(cached + tokens + scheduler.lookahead_tokens) // world.limits.block_size_tokens)
        in_use = 0 if kv.prefix is None else sum(
            kv.prefix.blocks_per_entry for key in head.hashes[: cached // kv.prefix.tokens_per_entry]
            if key in kv.prefix.references
        )  # fmt: skip
        free = kv.pool.capacity - kv.pool.used
        assert room + world.limits.fixed_blocks_per_request - in_use > free
        blocked.append(head.request_id)

    blocked: list[int] = []
    run(world, plain=True, watch=Watch(check))
    assert world is not FULL_MEMORY or blocked, "the guard: memory does block admissions"


class Unreadable:
    """Raises when anything is read from it."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the future was looked at: {name}")

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("the future was looked at")


@KINDS
def test_a_step_is_decided_without_the_future(plain: bool) -> None:
    """Output lengths and luck cannot be read from a replica, its scheduler or its policy while a step is decided."""
    decided = 0

    def blind(kind: Any) -> Any:
        begin = kind.begin_step

        def begin_step(self: Any, now_s: float) -> float | None:
            nonlocal decided
            names = [name for name in ("workload", "_workload", "_output") if hasattr(self, name)]
            hidden = {name: getattr(self, name) for name in names}
            for name in names:
                setattr(self, name, Unreadable())
            try:
                return begin(self, now_s)
            finally:
                decided += 1
                for name, value in hidden.items():
                    setattr(self, name, value)

        return mock.patch.object(kind, "begin_step", begin_step)

    expected = run(CROWDED, plain=plain)
    with blind(PlainReplica if plain else FastReplica):
        result = run(CROWDED, plain=plain)
    assert decided > 50
    np.testing.assert_array_equal(result.requests.finish_s, expected.requests.finish_s)
    with pytest.raises(AssertionError, match="future"):
        _ = Unreadable().output_tokens


@KINDS
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), policy=POLICIES, tight=st.booleans(), who=st.integers(0, 7), longer=st.integers(6, 60)
)
def test_the_past_does_not_depend_on_the_future(
    plain: bool, seed: int, policy: PolicySpec, tight: bool, who: int, longer: int
) -> None:
    """A request that turns out longer, with other luck from there on, changes no step that began before its end."""
    rng = np.random.default_rng(seed)
    outputs = rng.integers(1, 30, size=8)
    runs = [rng.integers(0, 6, size=100) for _ in range(8)]
    limits = make_limits(
        num_kv_blocks=60 if tight else 10_000, block_size_tokens=4, max_num_seqs=6, max_num_batched_tokens=48
    )
    world = World(
        trace=make_trace(
            arrival_s=np.sort(rng.integers(0, 64, size=8) / 64.0).tolist(),
            prompt_tokens=rng.integers(1, 60, size=8).tolist(),
            output_tokens=outputs.tolist(),
        ),
        luck=ListedLuck(runs),
        limits=limits,
        policy=policy,
    )
    changed = [row.copy() for row in runs]
    changed[who][outputs[who] :] = 5
    other_trace = replace(
        world.trace, output_tokens=np.where(np.arange(8) == who, outputs + longer, outputs).astype(np.int32)
    )
    first, second = Watch(), Watch()
    finish_s = float(run(world, plain=plain, watch=first).requests.finish_s[who])
    run(replace(world, trace=other_trace, luck=ListedLuck(changed)), plain=plain, watch=second)
    past = [s for s in first.steps if s.ended_s < finish_s]
    assert second.steps[: len(past)] == past
    last, twin = first.steps[len(past)], second.steps[len(past)]
    assert who in last.finished
    assert who not in twin.finished
    assert replace(last, finished=()) == replace(twin, finished=()), "even the last step was decided alike"


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
        assert np.nansum(costly.requests.finish_s) > np.nansum(off.requests.finish_s), "the guard: costs are seen"


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
