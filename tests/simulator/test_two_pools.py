"""The laws of docs/laws.md that hold where prefill and decode replicas are apart, on both kinds of replica.

CROWDED_POOLS goes with every law, and `test_crowded_pools_reach_every_mechanism` shows that what they speak of really
happens there.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from builders import FixedLuck, make_limits, make_profile, make_trace
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import KINDS, TWO_POOL_RULES, Watch, World, pool_of, pools, queues_of, run, served, worlds
from test_fast_equals_plain import assert_same
from test_laws import blocks_counted_from_scratch
from test_queueing_theory import MEAN_SERVICE_S, TOKEN_S, queue
from trace_events import read_timeline

from specsim.admission import never_fits
from specsim.config import PolicySpec
from specsim.disaggregation import Disaggregation
from specsim.disciplines import LLAMACPP, SGLANG, STATIC, TRTLLM, VLLM
from specsim.engine.plain_replica import PlainReplica
from specsim.errors import ScenarioError
from specsim.explain.breakdown import BreakdownObserver
from specsim.explain.timeline import Timeline
from specsim.latency import StepCost, StepWork
from specsim.metrics import POOL_METRICS, summarise
from specsim.records import HandoverColumns, RunResult

NO_LINK = Disaggregation(1, 1, block_bytes=1.0, link_bytes_per_s=math.inf)

CROWDED_POOLS = World(
    trace=make_trace(
        arrival_s=[0.0] * 9 + [0.001, 0.02, 0.02, 100.0, 100.0],
        prompt_tokens=[64] * 11 + [300, 64, 64],
        output_tokens=[30] * 13 + [1],
        hashes=[[7, 8, 9, 10]] * 4
        + [[100 * n + part for part in range(4)] for n in range(6)]
        + [[1, 2, 3, 4], list(range(20, 39)), [7, 8, 9, 10], [1, 2, 3, 5]],
        hash_block_tokens=16,
    ),
    limits=make_limits(
        num_kv_blocks=44, block_size_tokens=4, max_num_seqs=8, max_num_batched_tokens=13, max_model_len=110
    ),
    policy=PolicySpec("schedule", 5, table=((1, 2, 5), (3, 9, 4))),
    disaggregation=Disaggregation(2, 1, block_bytes=1e6, link_bytes_per_s=1e9, link_latency_s=0.001),
    router="least_outstanding",
    seed=1,
)
"""Two replicas for prompts and one that decodes, short of blocks on both sides, with a slow link."""

WITH_TOKEN = replace(
    CROWDED_POOLS, limits=replace(CROWDED_POOLS.limits, discipline=replace(TRTLLM, chunked_prefill=True))
)
"""The same where the first token comes with the cache."""


@st.composite
def two_pool_worlds(draw: st.DrawFn) -> World:
    return replace(draw(worlds(replicas=(1,), rules=TWO_POOL_RULES)), disaggregation=draw(pools()))


def law(examples: int = 40) -> Callable[[Callable], Callable]:
    def wrap(test: Callable) -> Callable:
        held = given(world=two_pool_worlds())(example(world=CROWDED_POOLS)(example(world=WITH_TOKEN)(test)))
        return KINDS(settings(max_examples=examples, deadline=None)(held))

    return wrap


def handover(result: RunResult) -> HandoverColumns:
    assert result.prefill is not None
    return result.prefill.handover


def went(result: RunResult) -> np.ndarray:
    """Requests that were handed over."""
    return np.isfinite(handover(result).transfer_end_s)


def kept_by(replica: Any) -> list[int]:
    """Requests that a prefill replica has finished and whose blocks it holds."""
    if isinstance(replica, PlainReplica):
        running = {r.request_id for r in replica.scheduler.running}
        return sorted(set(replica.scheduler.kv.total) - running)
    return sorted(replica._kept)


def coming_to(replica: Any) -> list[int]:
    """Requests that a decode replica has been told of and whose cache is not there."""
    if isinstance(replica, PlainReplica):
        return sorted([*(r.request_id for r in replica.scheduler.remote), *replica.scheduler.pulling])
    return sorted([*replica._remote, *replica._pulling])


class Pools:
    """The replicas that a watch has seen, by kind."""

    def __init__(self, world: World, watch: Watch) -> None:
        assert world.disaggregation is not None
        first = world.disaggregation.prefill_replicas
        self.prefill = [r for i, r in watch.replicas.items() if i < first]
        self.decode = [r for i, r in watch.replicas.items() if i >= first]

    @property
    def at_prompts(self) -> list[int]:
        return [i for r in self.prefill for queue in queues_of(r) for i in queue]

    @property
    def at_decoding(self) -> list[int]:
        return [i for r in self.decode for queue in queues_of(r) for i in queue]

    @property
    def kept(self) -> list[int]:
        return [i for r in self.prefill for i in kept_by(r)]


@KINDS
def test_crowded_pools_reach_every_mechanism(plain: bool) -> None:
    watch = Watch()
    result = run(CROWDED_POOLS, plain=plain, watch=watch)
    rows, columns, gone = result.requests, handover(result), went(result)
    assert rows.rejected.sum() == 1
    assert rows.cached_tokens.sum() > 0, "prefixes are shared on the prefill side"
    assert set(rows.replica[gone].tolist()) == {0, 1}
    assert (columns.room_s - columns.prefill_end_s)[gone].max() > 0.02, "the decode side is full for a while"
    assert (columns.transfer_start_s - columns.room_s)[gone].max() > 0, "a link is busy"
    assert (columns.decode_start_s - columns.transfer_end_s)[gone].max() > 0, "a step is under way"
    steps = {step.replica: step for step in watch.steps}
    assert set(steps) == {0, 1, 2}
    assert result.totals.preemptions > 0, "blocks run out where requests decode"
    blocked = [now for replica, now, there in watch.idle if replica < 2 and there]
    assert blocked, "a prefill replica waits for its own blocks"
    assert any(step.draft_tokens for step in watch.steps if step.replica == 2)
    assert not any(step.draft_tokens for step in watch.steps if step.replica < 2), "nothing is drafted beside prompts"
    last = run(WITH_TOKEN, plain=plain)
    assert served(last)[-1] and not went(last)[-1], "an output of one token is complete with its prompt"
    assert went(last).sum() == 12


@law()
def test_requests_are_conserved_over_both_pools(world: World, plain: bool) -> None:
    finished: set[int] = set()

    def check(call: str, replica: Any, now_s: float) -> None:
        if call == "end" and replica.index >= first:
            finished.update(watch.steps[-1].finished)
        if call != "begin":
            return
        now = Pools(world, watch)
        coming = [i for r in now.decode for i in coming_to(r)]
        assert sorted(now.kept) == sorted(coming), "blocks are kept for exactly those whose cache is on its way"
        here = [*now.at_prompts, *coming, *now.at_decoding]
        assert len(set(here)) == len(here), "each request is in one place"
        assert not finished & set(here)
        one = token_comes & (outputs == 1)
        sent = {i for i, r, _, accepted in watch.submitted if accepted and r < first and not one[i]}
        assert {i for i in here if not one[i]} | {i for i in finished if not one[i]} == sent

    assert world.disaggregation is not None
    first = world.disaggregation.prefill_replicas
    token_comes, outputs = world.limits.discipline.hand_over == "token", world.trace.output_tokens
    watch = Watch(check)
    rows = run(world, plain=plain, watch=watch).requests
    assert np.array_equal(np.isnan(rows.finish_s), rows.rejected)
    decode = replace(world.limits, enable_prefix_caching=False)
    too_long = never_fits(rows.prompt_tokens, rows.output_tokens, decode, world.policy.num_spec_tokens)
    assert not (too_long & ~rows.rejected).any(), "what can never decode is refused before its prompt is computed"


@law()
def test_blocks_used_and_free_are_all_blocks_in_each_pool(world: World, plain: bool) -> None:
    def check(call: str, replica: Any, now_s: float) -> None:
        pool = pool_of(replica)
        assert pool.capacity == world.limits.num_kv_blocks
        assert min(pool.used, pool.cached, pool.capacity - pool.used - pool.cached) >= 0
        if isinstance(replica, PlainReplica):
            assert (pool.used, pool.cached) == blocks_counted_from_scratch(replica)

    watch, other = Watch(check), Watch()
    run(world, plain=plain, watch=watch)
    run(world, plain=not plain, watch=other)
    assert watch.steps == other.steps
    assert all(pool_of(r).used == 0 for r in watch.replicas.values()), "everything is given back"


@law()
def test_moments_of_a_hand_over_are_in_order(world: World, plain: bool) -> None:
    result = run(world, plain=plain)
    rows, columns, gone = result.requests, handover(result), went(result)
    assert world.disaggregation is not None
    names = ("prefill_end_s", "room_s", "transfer_start_s", "transfer_end_s", "decode_start_s")
    moments = [rows.arrival_s, rows.first_scheduled_s, *(getattr(columns, name) for name in names),
               rows.first_token_s, rows.finish_s]  # fmt: skip
    for before, after in pairwise(moments):
        assert (before[gone] <= after[gone]).all()
    assert (rows.first_scheduled_s[gone] < columns.prefill_end_s[gone]).all(), "a prompt takes a step"
    assert (rows.first_token_s[gone] >= columns.transfer_end_s[gone]).all(), "no token before the cache is there"
    sent_s = columns.transfer_end_s[gone] - columns.transfer_start_s[gone]
    np.testing.assert_allclose(sent_s, columns.link_s[gone] + world.disaggregation.link_latency_s, atol=1e-9)
    stayed = served(result) & ~gone
    assert (rows.output_tokens[stayed] == 1).all()
    assert (rows.first_token_s[stayed] == rows.finish_s[stayed]).all()
    assert stayed.any() <= (world.limits.discipline.hand_over == "token")


@law()
def test_tokens_sum_to_the_output_length(world: World, plain: bool) -> None:
    """Every token but the first has its gap to the one before, in a burst or not."""
    result = run(world, plain=plain)
    if not math.isfinite(result.measure_from_s) or world.concurrency is not None:
        return
    ok = served(result)
    delivered = sum(result.gaps.counts) + result.gaps.zeros + int(ok.sum())
    assert delivered == int(result.requests.output_tokens[ok].sum())


@law()
def test_a_link_sends_one_cache_at_a_time(world: World, plain: bool) -> None:
    result = run(world, plain=plain)
    rows, columns, gone = result.requests, handover(result), np.flatnonzero(went(result))
    for ends in (rows.replica, columns.decode_replica):
        for end in set(ends[gone].tolist()):
            mine = gone[ends[gone] == end]
            order = mine[np.lexsort((columns.transfer_start_s[mine] + columns.link_s[mine],
                                     columns.transfer_start_s[mine]))]  # fmt: skip
            for a, b in pairwise(order.tolist()):
                assert columns.transfer_start_s[a] + columns.link_s[a] <= columns.transfer_start_s[b] + 1e-9


@law()
def test_littles_law_over_both_pools(world: World, plain: bool) -> None:
    """The integral of the requests in all queues is the sum of their times."""
    seen: list[tuple[float, int]] = []

    def look(call: str, replica: Any, now_s: float) -> None:
        now = Pools(world, watch)
        seen.append((now_s, len(now.at_prompts) + len(now.kept) + len(now.at_decoding)))

    watch = Watch(look)
    result = run(world, plain=plain, watch=watch)
    rows, ok = result.requests, served(result)
    area = math.fsum(count * (later - now) for (now, count), (later, _) in pairwise(seen))
    assert area == pytest.approx(math.fsum((rows.finish_s - rows.arrival_s)[ok].tolist()), rel=1e-9, abs=1e-9)


@law(20)
def test_an_observed_run_is_the_same_run_and_its_timeline_the_record(world: World, plain: bool) -> None:
    assert world.disaggregation is not None
    out = io.StringIO()
    cost, first = StepCost(world.profile), world.disaggregation.prefill_replicas
    timeline = Timeline(
        out, cost, prompt_tokens=world.trace.prompt_tokens, output_tokens=world.trace.output_tokens, max_bytes=10**9,
        prefill_replicas=first,
    )  # fmt: skip
    sums = BreakdownObserver(cost, first)
    result = run(world, plain=plain, observers=[timeline, sums])
    timeline.close(result.end_s)
    assert_same(run(world, plain=plain), result)
    rows, columns, drawing = result.requests, handover(result), read_timeline(out.getvalue())
    assert set(drawing.requests) == set(np.flatnonzero(served(result)).tolist())
    for i, spans in drawing.requests.items():
        moments = [rows.arrival_s[i], rows.first_scheduled_s[i], columns.prefill_end_s[i]]
        names = ["queued", "prefill", "handover"]
        if went(result)[i]:
            moments += [columns.transfer_start_s[i], columns.transfer_end_s[i]]
            names += ["transfer", "joining"]
        moments += [rows.first_token_s[i], rows.finish_s[i]]
        assert [name for name, _, _ in spans.phases] == [*names, "decode"]
        for (_, begin, end), before, after in zip(spans.phases, moments[:-1], moments[1:], strict=True):
            assert (begin, end) == pytest.approx((before * 1e6, after * 1e6), abs=2e-3)
        assert spans.pid == rows.replica[i] + 1
    if world.concurrency is None:
        assert result.prefill is not None
        busy = result.totals.busy_s + result.prefill.totals.busy_s
        assert sums.breakdown.busy_s == pytest.approx(busy)
        assert sums.breakdown.steps == result.totals.steps


@law(20)
def test_a_request_that_drafts_nothing_or_matches_nothing(world: World, plain: bool) -> None:
    """k = 0 without costs of its own is off, bit for bit; without acceptance a round gives one token."""
    free = make_profile(at_zero_drafts="skipped")
    world = replace(world, profile=free)
    off, zero = (run(replace(world, policy=PolicySpec(kind)), plain=plain) for kind in ("off", "static"))
    for name in ("first_token_s", "finish_s"):
        np.testing.assert_array_equal(getattr(off.requests, name), getattr(zero.requests, name))
    unlucky = run(replace(world, policy=PolicySpec("static", 3), luck=FixedLuck(max_run=0)), plain=plain)
    assert unlucky.totals.accepted_tokens == 0
    assert unlucky.totals.decode_tokens == unlucky.totals.rounds


@pytest.mark.parametrize("policy", [PolicySpec("off"), PolicySpec("static", 1)])
@pytest.mark.parametrize("discipline", [VLLM, SGLANG, TRTLLM], ids=lambda d: d.name)
@KINDS
def test_without_link_and_company_the_first_token_comes_as_from_one_replica(
    plain: bool, discipline: Any, policy: PolicySpec
) -> None:
    """Exactly then where it comes with the cache, and a step of one token later where it is computed again."""
    rng = np.random.default_rng(11)
    prompts = rng.integers(1, 3000, 30)
    world = World(
        trace=make_trace(arrival_s=(100.0 * np.arange(30)).tolist(), prompt_tokens=prompts.tolist(), output_tokens=9),
        limits=make_limits(discipline=replace(discipline, chunked_prefill=True)),
        profile=make_profile(at_zero_drafts="synced"),
        policy=policy,
    )
    alone = run(world, plain=plain).requests
    apart = run(replace(world, disaggregation=NO_LINK), plain=plain)
    later = apart.requests.first_token_s - alone.first_token_s
    expected = np.zeros(30)
    if discipline.hand_over == "recompute":
        k, cost = policy.num_spec_tokens, StepCost(world.profile)
        for i, prompt in enumerate(prompts.tolist()):
            step = StepWork(decode_requests=1, draft_tokens=k, draft_requests=int(k > 0), kv_tokens=prompt - 1,
                            next_num_spec_tokens=k, machinery=k > 0)  # fmt: skip
            expected[i] = cost.step_s(step)
        np.testing.assert_allclose(later, expected, rtol=0, atol=1e-9)
        assert (later > 0).all()
    else:
        np.testing.assert_array_equal(later, expected)
    np.testing.assert_array_equal(handover(apart).prefill_end_s, alone.first_token_s)


@pytest.mark.parametrize("slower", ["prefill", "decode"])
def test_two_servers_in_a_row_are_one_with_the_longer_service(slower: str) -> None:
    """M/D/1 and a second constant server: the waits at both, together, are those of Lindley's law at the slower one,
    request by request (Friedman 1965); behind the slower one nobody waits."""
    world, single = queue(4, load=0.8, exponential=False, requests=800)
    again_s = MEAN_SERVICE_S * (0.25 if slower == "prefill" else 1.5)
    # The decode replica computes one prompt token again, so that its service is that of a step and of one token.
    profile = replace(world.profile, target=replace(world.profile.target, kv_token_s=again_s / 1e5))
    world = replace(world, profile=profile, disaggregation=replace(NO_LINK, block_bytes=1e-9))
    result = run(world, plain=False)
    rows, columns = result.requests, handover(result)
    first_s, second_s = MEAN_SERVICE_S, (world.trace.prompt_tokens[0] - 1) * again_s / 1e5 + TOKEN_S
    longest, waits = max(first_s, second_s), [0.0]
    for gap in np.diff(world.trace.arrival_s):
        waits.append(max(0.0, waits[-1] + longest - gap))
    at_first = rows.first_scheduled_s - rows.arrival_s
    at_second = columns.decode_start_s - columns.prefill_end_s
    np.testing.assert_allclose(at_first + at_second, waits, rtol=0, atol=1e-6)
    np.testing.assert_allclose(rows.finish_s, columns.decode_start_s + second_s, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(at_first, single.requests.first_scheduled_s - rows.arrival_s)
    if slower == "prefill":
        assert at_second.max() < 1e-9
    else:
        assert at_second.mean() > at_first.mean() > 0, "the guard: there is waiting at both"


def test_prompts_no_longer_disturb_decoding() -> None:
    """Long prompts and short outputs: ITL of a replica that does both has the chunks in it. Speculation gains more per
    token where decoding has a replica to itself."""
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(0.11, 600))
    world = World(
        trace=make_trace(arrival_s=arrivals.tolist(), prompt_tokens=4000, output_tokens=60),
        limits=make_limits(max_num_batched_tokens=8192),
        profile=make_profile(at_zero_drafts="synced"),
        replicas=2,
        router="least_outstanding",
        warmup_share=0.1,
    )
    apart = replace(world, replicas=1, disaggregation=Disaggregation(1, 1, 1e6, 3e10, 1e-3))
    off, on = PolicySpec("off"), PolicySpec("static", 3)
    found = {
        name: {policy: summarise(run(replace(w, policy=policy), plain=False)) for policy in (off, on)}
        for name, w in (("both", world), ("apart", apart))
    }
    assert found["apart"][off].itl_chunk_p99_s < 0.3 * found["both"][off].itl_chunk_p99_s
    gain = {name: both[off].tpot_mean_s / both[on].tpot_mean_s for name, both in found.items()}
    assert gain["apart"] > 1.1 * gain["both"] > 1.1


def test_a_full_decode_side_stops_the_prefill_side() -> None:
    """With room for two requests only the caches of others wait where they were computed, and prompts for them."""
    world = World(
        trace=make_trace(arrival_s=[0.0] * 10, prompt_tokens=64, output_tokens=50),
        limits=make_limits(num_kv_blocks=18, block_size_tokens=8, max_num_seqs=64),
        disaggregation=replace(NO_LINK, link_bytes_per_s=1e12),
    )
    tight = run(world, plain=False)
    wide = run(replace(world, limits=replace(world.limits, num_kv_blocks=1000)), plain=False)
    assert handover(tight).prefill_end_s.max() > 10 * handover(wide).prefill_end_s.max()
    assert summarise(tight).prefill_kv_peak == pytest.approx(16 / 18)
    assert summarise(tight).room_mean_s > 100 * summarise(wide).room_mean_s


def test_figures_of_the_pools() -> None:
    world = replace(CROWDED_POOLS, warmup_share=0.0)
    result = run(world, plain=False)
    found = summarise(result)
    columns, gone = handover(result), went(result)
    whole = columns.decode_start_s[gone] - columns.prefill_end_s[gone]
    assert found.handover_mean_s == pytest.approx(whole.mean())
    waits = columns.decode_start_s[gone] - columns.transfer_end_s[gone]
    parts = found.room_mean_s + found.link_mean_s + found.transfer_mean_s + waits.mean()
    assert parts == pytest.approx(found.handover_mean_s)
    assert result.prefill is not None
    assert found.prefill_utilisation == pytest.approx(result.prefill.totals.busy_s / (2 * result.end_s))
    assert found.decode_utilisation == pytest.approx(result.totals.busy_s / result.end_s)
    assert found.utilisation == pytest.approx((2 * found.prefill_utilisation + found.decode_utilisation) / 3)
    both = summarise(run(replace(world, disaggregation=None), plain=False))
    assert all(math.isnan(getattr(both, name)) for name in POOL_METRICS)


@pytest.mark.parametrize("discipline", [LLAMACPP, STATIC], ids=lambda d: d.name)
def test_engines_without_two_pools_are_refused(discipline: Any) -> None:
    world = replace(CROWDED_POOLS, limits=make_limits(discipline=discipline))
    with pytest.raises(ScenarioError, match="has no prefill and decode replicas"):
        run(world, plain=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [("prefill_replicas", 0), ("decode_replicas", 0), ("block_bytes", 0.0), ("link_bytes_per_s", 0.0),
     ("link_bytes_per_s", -1.0), ("link_latency_s", -0.1), ("link_latency_s", math.nan)],
)  # fmt: skip
def test_impossible_pools_are_refused(name: str, value: float) -> None:
    with pytest.raises(ScenarioError, match=f"disaggregation.{name} "):
        replace(NO_LINK, **{name: value})
