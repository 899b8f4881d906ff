"""The laws of docs/laws.md that hold in every run, on both kinds of replica.

Each law is stated over random worlds and over CROWDED, and `test_crowded_reaches_every_mechanism` is their common
guard: it shows that what the laws speak of really happens there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
from builders import make_limits, make_trace
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import CROWDED, KINDS, POLICIES, ListedLuck, Watch, World, law, pool_of, queues_of, run, served, worlds

from specsim.admission import never_fits
from specsim.config import PolicySpec
from specsim.engine.fast_replica import FastReplica
from specsim.engine.plain_replica import PlainReplica
from specsim.request import State
from specsim.scheduler import Scheduler


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
    emitted = result.totals.decode_tokens + sum(s.prefill_rows for s in watch.steps)
    if world.limits.discipline.first_round_placeholders:
        assert emitted <= wanted, "a row with placeholders gives a token too"
    else:
        assert emitted == wanted
    assert result.totals.decode_tokens == result.totals.rounds + result.totals.accepted_tokens


@settings(max_examples=60, deadline=None)
@example(world=CROWDED)
@given(world=worlds())
def test_a_round_emits_one_to_drafted_plus_one(world: World) -> None:
    rounds: list[tuple[int, int]] = []
    emitted_by: Counter[int] = Counter()
    update = Scheduler.update

    def seen(self: Scheduler, plan: Any, emitted: Any, *others: Any) -> None:
        for item in plan.scheduled:
            if item.request.is_decoding:
                rounds.append((emitted[item.request.request_id], item.num_draft_tokens))
        emitted_by.update(emitted)
        update(self, plan, emitted, *others)

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


@settings(max_examples=120, deadline=None)
@example(world=FULL_MEMORY)
@given(world=worlds())
def test_whoever_waits_could_not_be_admitted(world: World) -> None:
    """Nobody waits but for a seat, the budget, an unfinished prompt, a batch that has closed, or memory."""
    limits, rules = world.limits, world.limits.discipline
    room_of_prompt = {"chunk": False, "prompt": True, "estimate": True}[rules.admission]

    def check(call: str, replica: Any, now_s: float) -> None:
        scheduler, plan = replica.scheduler, replica.plan
        if call != "begin" or plan.preempted or not scheduler.waiting or rules.order == "batch":
            return
        if world.policy.kind == "budget":
            return  # what it trims off a step is given to nobody
        budget = limits.max_num_batched_tokens
        if rules.order == "mixed" or plan.prompts_only:
            budget -= sum(item.num_tokens + item.num_placeholder_tokens for item in plan.scheduled)
            budget -= sum(1 + request.num_draft_tokens for request in plan.leaving)
            budget -= limits.draft_slots * (len(plan.scheduled) + len(plan.leaving) + 1)
        seats = limits.max_num_seqs
        if rules.decode_budget == "seats":
            seats = min(seats, max(1, limits.max_num_batched_tokens // (1 + world.policy.num_spec_tokens)))
        unfinished = any(
            item.context_tokens + item.num_tokens < item.request.num_tokens
            for item in plan.scheduled
            if not item.request.is_decoding
        ) or any(r.num_computed_tokens < r.num_tokens - 1 for r in scheduler.running if r not in scheduled(plan))
        if budget <= 0 or len(scheduler.running) + len(scheduler.leaving) >= seats or unfinished:
            return
        head, kv = scheduler.waiting[0], scheduler.kv
        cached = kv.cached_tokens(head.hashes, head.num_tokens - 1)
        left = head.num_tokens - cached
        if left > budget and not rules.chunked_prefill and not head.num_emitted_tokens:
            return
        if (
            left > budget
            and rules.chunk_by_block
            and budget < limits.block_size_tokens <= limits.max_num_batched_tokens
        ):
            return
        if scheduler.placeholders and left == 1 and budget < 1 + scheduler.placeholders:
            return
        if scheduler.is_blocked and rules.admission == "estimate" and rules.reserve == "step":
            turned_away.append(head.request_id)
            return
        tokens = left if room_of_prompt else min(left, budget)
        if rules.reserve == "slot":
            room = limits.max_model_len
        elif rules.reserve == "whole":
            room = head.prompt_tokens + max(head.asked_output_tokens, 1) + world.policy.num_spec_tokens
            room = min(room, limits.max_model_len) + scheduler.lookahead_tokens
        else:
            room = cached + tokens + scheduler.lookahead_tokens
        in_use = 0 if kv.prefix is None else sum(
            kv.prefix.blocks_per_entry for key in head.hashes[: cached // kv.prefix.tokens_per_entry]
            if key in kv.prefix.references
        )  # fmt: skip
        free = kv.pool.capacity - kv.pool.used
        assert -(-room // limits.block_size_tokens) + limits.fixed_blocks_per_request - in_use > free
        blocked.append(head.request_id)

    blocked: list[int] = []
    turned_away: list[int] = []
    run(world, plain=True, watch=Watch(check))
    assert world is not FULL_MEMORY or blocked, "the guard: memory does block admissions"


def scheduled(plan: Any) -> list[Any]:
    return [item.request for item in plan.scheduled]


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

        def begin_step(self: Any, now_s: float, until_s: float = 0.0) -> float | None:
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
