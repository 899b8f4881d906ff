"""Costs of drafts that form a tree, against chains and against the surface."""

from __future__ import annotations

import pytest
from builders import make_limits, make_profile
from hypothesis import given
from hypothesis import strategies as st

from specsim.errors import CapacityError, ScenarioError
from specsim.latency import StepCost, StepWork
from specsim.tree_cost import TreeCost, tree_limits


def decode_work(batch: int, context: int, depth: int) -> StepWork:
    return StepWork(
        decode_requests=batch,
        draft_tokens=batch * depth,
        kv_tokens=batch * context,
        next_num_spec_tokens=depth,
        machinery=True,
    )


@given(
    batch=st.integers(1, 300), context=st.integers(1, 50_000), depth=st.integers(1, 6), wider=st.integers(0, 40),
    lookup=st.booleans(),
)  # fmt: skip
def test_a_decode_step_costs_what_the_surface_says(
    batch: int, context: int, depth: int, wider: int, lookup: bool
) -> None:
    profile = make_profile(lookup=lookup, lookup_request_s=1e-6, speculation_host_s=2e-4)
    cost = TreeCost(profile, num_nodes=depth + wider, depth=depth)
    surface = StepCost(profile).decode_step_s(batch, context, depth, draft_nodes=depth + wider)
    assert cost.step_s(decode_work(batch, context, depth)) == pytest.approx(surface, rel=1e-9)
    assert cost.decode_step_s(batch, context, depth) == pytest.approx(surface, rel=1e-9)


@given(batch=st.integers(1, 200), depth=st.integers(1, 5), prompt=st.integers(0, 2000))
def test_a_tree_of_one_node_a_level_is_the_chain(batch: int, depth: int, prompt: int) -> None:
    work = decode_work(batch, 700, depth)
    work.prefill_tokens, work.prefill_rows, work.prefill_pairs = prompt, int(prompt > 0), prompt * (prompt + 1) // 2
    profile = make_profile(speculation_host_s=2e-4, mixed_s=1e-4)
    chain, tree = StepCost(profile), TreeCost(profile, num_nodes=depth, depth=depth)
    assert tree.step_s(work) == pytest.approx(chain.step_s(work), rel=1e-9)


def test_steps_without_speculation_cost_the_same() -> None:
    work = StepWork(decode_requests=5, kv_tokens=900)
    profile = make_profile()
    assert TreeCost(profile, num_nodes=9, depth=3).step_s(work) == StepCost(profile).step_s(work)


def test_wider_trees_cost_more() -> None:
    seconds = [TreeCost(make_profile(), num_nodes=n, depth=3).step_s(decode_work(32, 500, 3)) for n in (3, 9, 27, 81)]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 1.5 * seconds[0]


def test_fewer_nodes_than_levels_are_refused() -> None:
    with pytest.raises(ScenarioError, match="at least one node a level, got 2 nodes for depth 3"):
        TreeCost(make_profile(), num_nodes=2, depth=3)


@given(
    budget=st.integers(8, 20_000), seqs=st.integers(1, 600), depth=st.integers(1, 6), wider=st.integers(0, 60),
    in_flight=st.integers(1, 600),
)  # fmt: skip
def test_the_budget_of_levels_holds_exactly_what_nodes_may_take(
    budget: int, seqs: int, depth: int, wider: int, in_flight: int
) -> None:
    limits = make_limits(max_num_batched_tokens=budget, max_num_seqs=seqs)
    if 1 + depth + wider > budget:
        with pytest.raises(CapacityError, match="does not fit max_num_batched_tokens"):
            tree_limits(limits, num_nodes=depth + wider, depth=depth, in_flight=in_flight)
        return
    cut = tree_limits(limits, num_nodes=depth + wider, depth=depth, in_flight=in_flight)
    assert cut.max_num_seqs * (1 + depth) <= cut.max_num_batched_tokens
    assert cut.max_num_seqs * wider + cut.max_num_batched_tokens == budget
    assert cut.max_num_seqs <= min(seqs, in_flight)
    assert cut.fixed_blocks_per_request * limits.block_size_tokens >= wider
