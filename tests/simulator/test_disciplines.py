"""What sets the disciplines apart: as laws over random worlds, and as small stories with numbers checked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import FixedLuck, make_limits, make_pass, make_profile, make_trace
from hypothesis import given, settings
from strategies import KINDS, RULES, Watch, World, pool_of, queues_of, run, worlds
from test_queueing_theory import TOKEN_S, queue

from specsim.admission import NewTokenRatio, batch_of, chunk_of, seats
from specsim.config import PolicySpec
from specsim.disciplines import (
    DISCIPLINES,
    LLAMACPP,
    SGLANG,
    STATIC,
    TRTLLM,
    TRTLLM_MAX_UTILIZATION,
    VLLM,
    Discipline,
)

ALL = pytest.mark.parametrize("rules", DISCIPLINES.values(), ids=DISCIPLINES)
HOLDS_ALL = [rules for rules in RULES if rules.reserve != "step"]


def crowd(rules: Discipline, *, k: int = 0, **limits: Any) -> World:
    """Twelve requests of 40 and 30 tokens at once, in blocks of 4."""
    values = {"num_kv_blocks": 60, "block_size_tokens": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64,
              "max_model_len": 110}  # fmt: skip
    return World(
        trace=make_trace(arrival_s=[0.0] * 12, prompt_tokens=40, output_tokens=30),
        limits=make_limits(discipline=rules, **{**values, **limits}),
        policy=PolicySpec("static", k) if k else PolicySpec("off"),
    )


@KINDS
@settings(max_examples=80, deadline=None)
@given(world=worlds(rules=HOLDS_ALL))
def test_who_reserved_everything_is_never_thrown_out(world: World, plain: bool) -> None:
    result = run(world, plain=plain)
    assert result.requests.preemptions.sum() == result.totals.preemptions == 0


@pytest.mark.parametrize("rules", [TRTLLM_MAX_UTILIZATION, VLLM, replace(SGLANG, admission="prompt")])
def test_others_do_throw_out(rules: Discipline) -> None:
    """Guard: the same crowd preempts where blocks are taken step by step."""
    assert run(crowd(rules, k=2), plain=False).requests.preemptions.sum() > 0
    assert run(crowd(TRTLLM, k=2), plain=False).requests.preemptions.sum() == 0


@KINDS
@settings(max_examples=60, deadline=None)
@given(world=worlds())
def test_seats_and_slots_are_never_exceeded(world: World, plain: bool) -> None:
    most = seats(world.limits, world.policy.num_spec_tokens)
    each = -(-world.limits.max_model_len // world.limits.block_size_tokens) + world.limits.fixed_blocks_per_request

    def check(call: str, replica: Any, now_s: float) -> None:
        running = queues_of(replica)[1]
        assert len(running) <= most <= world.limits.max_num_seqs
        if world.limits.discipline.reserve == "slot":
            assert pool_of(replica).used == each * len(running)

    run(world, plain=plain, watch=Watch(check))


@KINDS
@settings(max_examples=80, deadline=None)
@given(world=worlds(rules=[STATIC]))
def test_nobody_joins_a_static_batch(world: World, plain: bool) -> None:
    watch = Watch()
    run(world, plain=plain, watch=watch)
    for replica in watch.replicas:
        inside: set[int] = set()
        for step in (s for s in watch.steps if s.replica == replica):
            if step.prefill_tokens:
                assert not inside, "a batch is formed only when the one before has ended"
                inside = set(step.running)
                assert step.prefill_rows == len(inside) <= world.limits.max_num_seqs
                assert step.prefill_tokens % step.prefill_rows == 0, "padded to the longest"
                assert step.decode_requests == 0
                width = len(inside)
            else:
                assert set(step.running) == inside
                assert step.decode_requests == width, "who has finished stays in it as padding"
            inside -= set(step.finished)


def test_a_static_batch_pads_prompts_and_keeps_rows_to_the_end() -> None:
    world = World(
        trace=make_trace(arrival_s=[0.0, 0.0, 0.0], prompt_tokens=[10, 30, 5], output_tokens=[2, 5, 3]),
        limits=make_limits(discipline=STATIC, max_num_seqs=2),
    )
    watch = Watch()
    rows = run(world, plain=True, watch=watch).requests
    first = watch.steps[:5]
    assert [s.prefill_tokens for s in first] == [60, 0, 0, 0, 0]
    assert [s.decode_requests for s in first] == [0, 2, 2, 2, 2]
    assert [s.kv_tokens for s in first[1:]] == [60, 62, 63, 64], "padded contexts; the short one stops growing"
    assert rows.finish_s[0] == first[1].ended_s
    assert rows.first_scheduled_s[2] == rows.finish_s[1] == first[4].ended_s


@ALL
@pytest.mark.parametrize("exponential", [True, False], ids=["M/M/1", "M/D/1"])
def test_all_are_the_same_single_server(rules: Discipline, exponential: bool) -> None:
    """One place and one token a request: waits follow Lindley's law whatever the discipline.

    A step too many costs one token, so such an engine is the server whose service is longer by that.
    """
    world, _ = queue(7, load=0.8, exponential=exponential, requests=300)
    arrival_s, service_s = world.trace.arrival_s, world.trace.prompt_tokens * TOKEN_S
    after_s = TOKEN_S if rules.extra_step else 0.0
    wait_s = np.zeros(len(arrival_s))
    for n in range(len(arrival_s) - 1):
        wait_s[n + 1] = max(0.0, wait_s[n] + service_s[n] + after_s - (arrival_s[n + 1] - arrival_s[n]))
    limits = replace(world.limits, discipline=rules, num_kv_blocks=4 * 10**7, max_num_batched_tokens=10**8)
    for plain in (True, False):
        rows = run(replace(world, limits=limits), plain=plain).requests
        np.testing.assert_allclose(rows.first_scheduled_s - arrival_s, wait_s, rtol=0, atol=1e-9)
        np.testing.assert_allclose(rows.finish_s - arrival_s, wait_s + service_s, rtol=0, atol=1e-9)
    assert 0.05 < (wait_s == 0).mean() < 0.6, "the guard: some wait, some do not"


def long_prompt(rules: Discipline) -> tuple[np.ndarray, float]:
    """(gaps between tokens of a chat request, seconds of one decode step) while a prompt of ten chunks comes by."""
    world = World(
        trace=make_trace(arrival_s=[0.0, 0.05], prompt_tokens=[20, 5120], output_tokens=[80, 2]),
        limits=make_limits(discipline=rules, max_num_batched_tokens=512),
        profile=make_profile(target=make_pass(weights_s=5e-3, token_s=2e-5)),
    )
    watch = Watch()
    run(world, plain=False, watch=watch)
    served = [s.ended_s for s in watch.steps if s.decode_requests]
    return np.diff(served), watch.steps[1].seconds


def test_a_long_prompt_stalls_decoding_in_sglang_but_not_in_vllm() -> None:
    (vllm_s, step_s), (sglang_s, _) = long_prompt(VLLM), long_prompt(SGLANG)
    chunk_s = vllm_s.max()
    assert chunk_s < 4 * step_s, "vLLM: no gap is longer than one step with a chunk in it"
    assert (vllm_s > 1.5 * step_s).sum() >= 10, "all chunks share a step with the chat request"
    assert (sglang_s > 1.5 * step_s).sum() == 1, "SGLang: one stall ..."
    assert sglang_s.max() > 9 * 512 * 2e-5, "... for all chunks of the prompt"


@pytest.mark.parametrize(
    ("asked", "running"), [(0, 3), (60, 2), (1000, 2)], ids=["just what they get", "double", "without max_tokens"]
)
def test_over_asking_clients_cut_the_concurrency_of_no_evict(asked: int, running: int) -> None:
    """60 blocks of 4: 40 + 30 tokens are 18 blocks, 40 + 60 are 25, and all of a model of 110 tokens are 28."""
    world = crowd(TRTLLM, asked_output_tokens=asked)
    assert run(world, plain=False).totals.peak_batch == running
    for rules, most in ((VLLM, 6), (LLAMACPP, 2)):
        other = crowd(rules, asked_output_tokens=asked, max_num_batched_tokens=1000)
        assert run(other, plain=False).totals.peak_batch == most, "vLLM and slots do not look at it"


def test_a_prompt_waits_for_a_step_of_its_own_size_where_it_cannot_be_cut() -> None:
    world = World(
        trace=make_trace(arrival_s=[0.0, 0.001, 0.001], prompt_tokens=[10, 64, 65], output_tokens=[4, 2, 2]),
        limits=make_limits(discipline=replace(TRTLLM, extra_step=False), max_num_batched_tokens=64, max_num_seqs=4),
    )
    watch = Watch()
    rows = run(world, plain=True, watch=watch).requests
    assert rows.rejected.tolist() == [False, False, True], "longer than a step can ever be"
    assert rows.first_scheduled_s[1] == rows.finish_s[0], "beside one decoding request 64 tokens do not fit"
    chunked = replace(world, limits=replace(world.limits, discipline=replace(TRTLLM, chunked_prefill=True)))
    steps = Watch()
    assert not run(chunked, plain=True, watch=steps).requests.rejected.any()
    assert steps.steps[1].prefill_tokens == 48, "63 tokens are left, which is three blocks of 16"


@pytest.mark.parametrize(
    ("left", "budget", "rules", "whole", "tokens"),
    [
        (100, 100, TRTLLM, True, 100),
        (101, 100, TRTLLM, True, 0),
        (101, 100, TRTLLM, False, 96),
        (101, 15, TRTLLM, False, 0),
        (101, 100, VLLM, False, 100),
        (101, -3, VLLM, False, 0),
        (7, 9, SGLANG, False, 7),
    ],
)
def test_chunks(left: int, budget: int, rules: Discipline, whole: bool, tokens: int) -> None:
    assert chunk_of(left, budget, make_limits(discipline=rules), whole=whole) == tokens


def test_seats_of_trtllm_are_those_whose_drafts_fit_its_tokens() -> None:
    limits = make_limits(discipline=TRTLLM, max_num_seqs=2048, max_num_batched_tokens=8192)
    assert [seats(limits, k) for k in (0, 3, 7)] == [2048, 2048, 1024]
    assert seats(replace(limits, max_num_batched_tokens=3), 7) == 1
    assert seats(replace(limits, discipline=VLLM), 7) == 2048


class Retraction:
    """Three requests on a cache that holds two and a half; who is thrown out first, and where it queues."""

    def __init__(self, rules: Discipline, *, k: int, prompts: list[int]) -> None:
        self.world = World(
            trace=make_trace(
                arrival_s=[0.0, 0.05, 0.1, 2.0], prompt_tokens=[*prompts, 3], output_tokens=[60, 60, 60, 2]
            ),
            luck=FixedLuck(constant=0),
            limits=make_limits(discipline=rules, num_kv_blocks=110, block_size_tokens=1, max_num_seqs=3),
            policy=PolicySpec("static", k),
        )

    def order(self, plain: bool) -> list[int]:
        out: list[int] = []

        def check(call: str, replica: Any, now_s: float) -> None:
            counts = replica.recorder.rows.preemptions if plain else replica._recorder.rows.preemptions
            out.extend(i for i in np.flatnonzero(counts).tolist() if i not in out)

        run(self.world, plain=plain, watch=Watch(check))
        return out


@KINDS
def test_sglang_retracts_who_has_written_least_and_of_those_the_longest_prompt(plain: bool) -> None:
    rules = replace(SGLANG, admission="prompt")  # its estimate would not let three of them in
    assert Retraction(rules, k=0, prompts=[10, 20, 5]).order(plain)[0] == 2, "the youngest has written least"
    world = Retraction(rules, k=0, prompts=[10, 20, 5]).world
    together = replace(world, trace=replace(world.trace, arrival_s=np.array([0.0, 0.0, 0.0, 2.0])))
    assert run(together, plain=plain).requests.preemptions.tolist()[1] > 0, "as much as others: the longest prompt"
    assert run(together, plain=plain).requests.preemptions.tolist()[2] == 0, "although another was admitted last"


@KINDS
def test_with_drafts_sglang_retracts_from_the_end_of_its_batch(plain: bool) -> None:
    rules = replace(SGLANG, admission="prompt")
    world = Retraction(rules, k=2, prompts=[10, 20, 5]).world
    together = replace(world, trace=replace(world.trace, arrival_s=np.array([0.0, 0.0, 0.0, 2.0])))
    preemptions = run(together, plain=plain).requests.preemptions.tolist()
    assert preemptions[2] > 0
    assert preemptions[0] == 0


@KINDS
@pytest.mark.parametrize(("rules", "behind"), [(SGLANG, True), (VLLM, False)], ids=["sglang", "vllm"])
def test_who_was_thrown_out_waits_behind_others_in_sglang_and_before_them_in_vllm(
    plain: bool, rules: Discipline, behind: bool
) -> None:
    world = crowd(replace(rules, admission="prompt"), max_num_seqs=12)
    orders: list[list[int]] = []
    previous: list[int] = [0] * 12

    def check(call: str, replica: Any, now_s: float) -> None:
        counts = (replica.recorder if plain else replica._recorder).rows.preemptions.tolist()
        waiting = queues_of(replica)[0]
        fresh = [i for i in range(12) if counts[i] > previous[i] and i in waiting]
        if fresh and len(waiting) > len(fresh):
            orders.append([waiting.index(i) for i in fresh] + [len(waiting)])
        previous[:] = counts

    run(world, plain=plain, watch=Watch(check))
    assert orders, "the guard: somebody is thrown out while others wait"
    for *places, length in orders:
        assert sorted(places) == list(range(length - len(places), length) if behind else range(len(places)))


def test_sglang_lets_in_what_it_expects_to_fit() -> None:
    """240 tokens of room, requests of 40 + 30: vLLM takes six prompts at once, SGLang three requests."""
    assert run(crowd(VLLM, max_num_batched_tokens=1000), plain=False).totals.peak_batch == 6
    watch = Watch()
    run(crowd(SGLANG, max_num_batched_tokens=1000), plain=False, watch=watch)
    assert len(watch.steps[0].running) == 3


def test_the_estimate_falls_with_decode_steps_and_jumps_after_a_retraction() -> None:
    ratio = NewTokenRatio()
    for _ in range(300):
        ratio.decoded()
    assert ratio.value == pytest.approx((0.7 + 0.098) / 2)
    for _ in range(400):
        ratio.decoded()
    assert ratio.value == pytest.approx(0.098)
    ratio.retracted(emitted_tokens=500, asked_output_tokens=999, running=5)
    assert ratio.value == pytest.approx(0.6)
    ratio.idle()
    assert ratio.value == 0.7
    # 100 new + 200 asked + a block of 16, beside 0.7 of 1000 that others may write: 1016 tokens
    assert ratio.admits(100, 200, 0, 1000, 1017, 16)
    assert not ratio.admits(100, 200, 0, 1000, 1016, 16)
    assert not ratio.admits(100, 200, 1, 1000, 1017, 16)
    assert ratio.admits(100, 10**6, 0, 0, 100 + 4096 + 17, 16), "a new request is expected to write 4096 at most"


@KINDS
def test_a_finished_request_is_in_one_more_step(plain: bool) -> None:
    """It keeps its seat, its blocks and its tokens of the step, and the engine runs that step even with nobody else."""
    world = World(
        trace=make_trace(arrival_s=[0.0, 0.0], prompt_tokens=[10, 10], output_tokens=[2, 2]),
        limits=make_limits(max_num_seqs=1, block_size_tokens=4),
        policy=PolicySpec("static", 3),
        luck=FixedLuck(constant=0),
    )
    late = replace(world, limits=replace(world.limits, discipline=replace(VLLM, extra_step=True)))
    plainly, watch = Watch(), Watch()
    run(world, plain=plain, watch=plainly)
    result = run(late, plain=plain, watch=watch)
    shape = [(s.decode_requests, s.draft_tokens, s.kv_tokens, s.prefill_tokens) for s in watch.steps]
    assert shape == [(0, 0, 0, 10), (1, 3, 10, 0), (1, 3, 11, 0), (0, 0, 0, 10), (1, 3, 10, 0), (1, 3, 11, 0)]
    assert [s.finished for s in watch.steps] == [(), (0,), (), (), (1,), ()]
    assert watch.steps[2].used_blocks == watch.steps[1].used_blocks > 0
    assert len(plainly.steps) == 4
    assert result.totals.rounds == 2, "the step too many is nobody's round"
    assert result.totals.drafted_tokens == 6
    assert pool_of(watch.replicas[0]).used == 0


@KINDS
def test_a_request_with_one_token_to_compute_enters_with_placeholders(plain: bool) -> None:
    """Its prompt is cached but for the last token: one row of 1 + k tokens, which gives one token."""
    rules = replace(VLLM, first_round_placeholders=True)
    hashes = [[1, 2], [1, 2], [3, 4]]
    world = World(
        trace=make_trace(arrival_s=[0.0, 1.0, 1.0], prompt_tokens=[33, 33, 40], output_tokens=[3, 3, 3],
                         hashes=hashes, hash_block_tokens=16),
        limits=make_limits(discipline=rules),
        policy=PolicySpec("static", 3),
        luck=FixedLuck(constant=0),
    )  # fmt: skip
    watch = Watch()
    totals = run(world, plain=plain, watch=watch).totals
    step = next(s for s in watch.steps if s.began_s == 1.0)
    assert (step.decode_requests, step.draft_tokens, step.kv_tokens) == (1, 3, 32)
    assert (step.prefill_tokens, step.prefill_rows) == (40, 1), "it came first, so the next prompt was not in its way"
    assert totals.prefill_tokens == 33 + 40
    assert totals.drafted_tokens == 3 * 2 * 3, "placeholders are not drafts"
    changing = replace(world, policy=PolicySpec("schedule", 3, table=((1, 1, 3), (2, 9, 1))))
    other = Watch()
    run(changing, plain=plain, watch=other)
    assert next(s for s in other.steps if s.began_s == 1.0).prefill_tokens == 41, "only where k is constant"


def test_a_batch_stops_where_seats_tokens_or_memory_end() -> None:
    limits = make_limits(discipline=STATIC, num_kv_blocks=100, block_size_tokens=1, max_num_seqs=4,
                         max_num_batched_tokens=100)  # fmt: skip
    assert batch_of([(5, 5)] * 9, limits, 0) == (4, 5, 10), "four seats"
    assert batch_of([(20, 1), (40, 1), (60, 1)], limits, 0) == (2, 40, 41), "three prompts of 60 are 180 tokens"
    assert batch_of([(10, 10), (10, 40), (10, 2)], limits, 0) == (2, 10, 50), "three of 10 + 40 tokens are 150 blocks"
    assert batch_of([(10, 10), (10, 30), (10, 2)], limits, 5) == (2, 10, 50), "drafts and lookahead need room too"
    assert batch_of([], limits, 0) == (0, 0, 0)
