"""The fast replica makes the same decisions as the plain scheduler, step by step, over random worlds."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace
from unittest.mock import patch

import numpy as np
from builders import FixedLuck, make_pass, make_profile, make_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import POLICY_LIST, RULES, TWO_POOL_RULES, limits_under, pools

from specsim import workload
from specsim.config import PolicySpec, ReplicaLimits
from specsim.engine import decode_batch
from specsim.engine.fast_replica import FastReplica
from specsim.engine.simulator import simulate
from specsim.latency import StepCost
from specsim.memory import tree_limits
from specsim.policies import parse_policy
from specsim.policies.budget import Budget
from specsim.records import RunResult
from specsim.trees import cut, grown_tree
from specsim.workload import Workload

POLICIES = st.one_of(
    st.integers(0, 6).map(lambda k: PolicySpec("static", k)),
    st.integers(0, 6).map(lambda limit: PolicySpec("off_above", 3, batch_limit=limit)),
    st.sampled_from(POLICY_LIST),
)


@st.composite
def worlds(draw: st.DrawFn, *, two_pools: bool = False) -> dict:
    """A trace with its luck, limits that bind in one of several ways, a policy and a fleet, or two pools of one."""
    n = draw(st.integers(1, 25))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.001, 0.02, 0.5]), min_size=n, max_size=n))
    prompts = draw(st.lists(st.integers(1, 70), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    block = draw(st.sampled_from([1, 4, 16]))
    hash_block = draw(st.sampled_from([None, 16]))
    hashes = None
    if hash_block is not None:
        # A request continues one of three conversations, so that prefixes repeat.
        hashes = [[1000 * draw(st.integers(0, 2)) + b for b in range(-(-p // hash_block))] for p in prompts]
    spec_room = 2 * 6 + 8
    need = max(p + o + spec_room for p, o in zip(prompts, outputs, strict=True)) + 2 * block + 8
    rules = draw(st.sampled_from(TWO_POOL_RULES if two_pools else RULES))
    limits = limits_under(draw, rules, need=need, block=block, lengths=[110, 120, 4096])
    trees = cut(grown_tree((0.6,), nodes=draw(st.integers(6, 20)), topk=3, depth=6)[0]) if draw(st.booleans()) else ()
    if trees and 1 + trees[-1].nodes + limits.draft_slots > limits.max_num_batched_tokens:
        trees = ()
    return {
        "trace": make_trace(
            arrival_s=np.cumsum(gaps).tolist(),
            prompt_tokens=prompts,
            output_tokens=outputs,
            hashes=hashes,
            hash_block_tokens=hash_block,
        ),
        "luck": FixedLuck(
            max_run=draw(st.integers(0, 6)),
            proposal_rate=draw(st.sampled_from([1.0, 0.4])),
            varied=draw(st.booleans()),
        ),
        "limits": tree_limits(limits, trees),
        "trees": trees,
        "policy": draw(POLICIES),
        "window": draw(st.sampled_from([0, 20])),
        "at_zero_drafts": draw(st.sampled_from(["synced", "stale"])),
        "replicas": draw(st.sampled_from([1, 1, 2])),
        "pools": draw(pools()) if two_pools else None,
        "router": draw(st.sampled_from(["round_robin", "least_outstanding", *["prefix_affinity"] * bool(hash_block)])),
        "concurrency": draw(st.sampled_from([None, None, 1, 5])),
        "seed": draw(st.integers(0, 5)),
        "warmup": draw(st.sampled_from([0.0, 0.0, 0.3])),
    }


def run(world: dict, *, plain: bool) -> RunResult:
    target = {"windowed_kv_token_s": 1e-8, "window_tokens": world["window"]} if world["window"] else {}
    return simulate(
        Workload(world["trace"], world["luck"], seed=world["seed"]),
        StepCost(make_profile(target=make_pass(**target), at_zero_drafts=world["at_zero_drafts"]), world["trees"]),
        limits=world["limits"],
        policy=world["policy"],
        replicas=world["replicas"],
        disaggregation=world.get("pools"),
        router=world["router"],
        concurrency=world["concurrency"],
        warmup_share=world["warmup"],
        plain=plain,
    )


def assert_same(fast: RunResult, plain: RunResult) -> None:
    for name, column in asdict(plain.requests).items():
        np.testing.assert_array_equal(getattr(fast.requests, name), column, err_msg=name)
    assert asdict(fast.totals) == asdict(plain.totals)
    assert (fast.prefill is None) == (plain.prefill is None)
    if fast.prefill is not None and plain.prefill is not None:
        assert asdict(fast.prefill.totals) == asdict(plain.prefill.totals)
        for name, column in asdict(plain.prefill.handover).items():
            np.testing.assert_array_equal(getattr(fast.prefill.handover, name), column, err_msg=name)
    assert fast.gaps.counts == plain.gaps.counts
    assert fast.gaps.zeros == plain.gaps.zeros
    assert fast.end_s == plain.end_s


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_fast_equals_plain(world: dict) -> None:
    assert_same(run(world, plain=False), run(world, plain=True))


@settings(max_examples=300, deadline=None)
@given(worlds(), st.sampled_from([1, 3, 1024]))
def test_fast_equals_plain_on_the_open_road(world: dict, chunk: int) -> None:
    """One replica and no shared prefixes, in open and closed loop: what compiled loops take in long stretches."""
    alone = replace(world["trace"], hash_block_tokens=None, hash_ids=None, hash_offsets=None)
    world = world | {"trace": alone, "replicas": 1, "router": "round_robin"}
    with patch.object(workload, "CHUNK", chunk), patch.object(decode_batch, "CHUNK", chunk):
        assert_same(run(world, plain=False), run(world, plain=True))


@settings(max_examples=300, deadline=None)
@given(worlds(two_pools=True))
def test_fast_equals_plain_in_two_pools(world: dict) -> None:
    assert_same(run(world, plain=False), run(world, plain=True))


def told_to_trim(world: dict, *, plain: bool) -> list[str]:
    """By replica, what its policy was asked to trim and what it answered."""
    told: dict[int, list] = {}
    trim = Budget.trim

    def spy(policy: Budget, requests: np.ndarray, drafts: np.ndarray, *step: int) -> np.ndarray:
        asked = (requests.tolist(), drafts.tolist(), *step)
        kept = trim(policy, requests, drafts, *step)
        told.setdefault(id(policy), []).append((*asked, kept.tolist()))
        return kept

    # where a compiled loop trims, nobody is told
    with patch.object(Budget, "trim", spy), patch.object(FastReplica, "follow"):
        run(world, plain=plain)
    return sorted(map(str, told.values()))


@settings(max_examples=100, deadline=None)
@given(st.booleans().flatmap(lambda two: worlds(two_pools=two)), st.sampled_from(["budget:5", "budget:2"]))
def test_a_policy_that_trims_is_told_the_same_of_every_step(world: dict, policy: str) -> None:
    world = world | {"policy": parse_policy(policy), "trees": (), "limits": tree_limits(world["limits"], ())}
    assert told_to_trim(world, plain=False) == told_to_trim(world, plain=True)


@settings(max_examples=150, deadline=None)
@given(worlds(), st.sampled_from([1, 16]))
def test_fast_equals_plain_with_small_columns(world: dict, spans: int) -> None:
    """The columns' arrays grow and are tidied all the time when they start small; chunks come with limits on the
    drafts and without."""
    world = world | {"luck": replace(world["luck"], every_other=True)}
    modules = (decode_batch, workload)
    with ExitStack() as stack:
        for module, name, value in [(decode_batch, "PLACES", spans), (decode_batch, "ROWS", 1)]:
            stack.enter_context(patch.object(module, name, value))
        for module in modules:
            stack.enter_context(patch.object(module, "CHUNK", 4))
        assert_same(run(world, plain=False), run(world, plain=True))


def test_who_is_computed_again_has_a_drafter_that_knows_it() -> None:
    """A request whose prompt was begun while nothing was drafted, and that is preempted later, comes back fresh."""
    trace = make_trace(arrival_s=[0.0] * 4, prompt_tokens=[38, 29, 25, 22], output_tokens=[17, 28, 9, 24])
    limits = ReplicaLimits(
        num_kv_blocks=80, block_size_tokens=1, max_num_seqs=3, max_num_batched_tokens=7, max_model_len=110,
        lookahead_drafts=False,
    )  # fmt: skip
    world = {"trace": trace, "luck": FixedLuck(max_run=1), "limits": limits, "trees": (), "window": 0, "replicas": 1,
             "router": "round_robin", "concurrency": None, "seed": 0, "warmup": 0.0, "at_zero_drafts": "stale",
             "policy": PolicySpec("off_above", 3, batch_limit=1)}  # fmt: skip
    fast, plain = run(world, plain=False), run(world, plain=True)
    assert_same(fast, plain)
    assert plain.requests.preemptions.sum() > 0


def test_worlds_reach_every_mechanism() -> None:
    """Guard: preemption, prefix hits, k changes and a cut budget really occur in worlds like those above."""
    trace = make_trace(
        arrival_s=[0.0] * 12,
        prompt_tokens=64,
        output_tokens=30,
        hashes=[[7, 8, 9, 10]] * 12,
        hash_block_tokens=16,
    )
    limits = ReplicaLimits(num_kv_blocks=30, block_size_tokens=4, max_num_seqs=8, max_num_batched_tokens=20)
    world = {"trace": trace, "luck": FixedLuck(), "limits": limits, "trees": (), "window": 0, "replicas": 1, "seed": 1,
             "router": "round_robin", "concurrency": None, "warmup": 0.0, "at_zero_drafts": "skipped",
             "policy": PolicySpec("schedule", 5, table=((1, 2, 5), (3, 9, 4)))}  # fmt: skip
    fast, plain = run(world, plain=False), run(world, plain=True)
    assert_same(fast, plain)
    assert plain.requests.preemptions.sum() > 0
    assert plain.requests.cached_tokens.sum() > 0
    assert len(plain.totals.k_steps) == 2
