"""With a virtual clock and recorded acceptance, the reference engine and the simulator's fast engine are one.

Step by step the same batch, tokens, drafts, KV blocks, queues and preemptions, and the same times of every request to
1e-9 s, over random traces, disciplines, policies and memory sizes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import CROWDED, World, worlds

pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from alike import assert_simulated_exactly

from calibrate.engine import RecordedRunner, Served, VirtualClock, serve
from specsim.memory import tree_limits
from specsim.trees import cut, grown_tree
from specsim.workload import Workload

ALONE = replace(CROWDED, replicas=1)


def served(world: World) -> Served:
    workload, cost = Workload(world.trace, world.luck, seed=world.seed), world.cost
    spoils = world.policy.kind != "off" and world.profile.at_zero_drafts == "stale"
    return serve(
        workload,
        RecordedRunner(workload, spoils=spoils),
        VirtualClock(cost),
        limits=world.limits,
        policy=world.policy,
        cost=cost,
        concurrency=world.concurrency,
        warmup_share=world.warmup_share,
    )


def with_trees(world: World, nodes: int) -> World:
    if not nodes or 1 + nodes + world.limits.draft_slots > world.limits.max_num_batched_tokens:
        return world
    trees = tuple(cut(grown_tree((0.6,), nodes=nodes, topk=3, depth=6)[0]))
    return replace(world, trees=trees, limits=tree_limits(world.limits, trees))


@settings(max_examples=200, deadline=None)
@given(worlds(replicas=(1,)), st.sampled_from([0, 0, 7, 20]))
@example(ALONE, 0)
def test_the_reference_engine_schedules_as_the_simulator(world: World, tree_nodes: int) -> None:
    """`tree_nodes`: drafts verified as a tree of up to so many nodes, where a step has room for it; 0: chains."""
    world = with_trees(world, tree_nodes)
    assert_simulated_exactly(served(world), world)


def test_the_rounds_of_a_run_are_its_outputs() -> None:
    """Every round is recorded once, at the position where the one before it ended; the first token has no round."""
    real = served(ALONE)
    rows = real.result.requests
    assert rows.preemptions.sum() > 0
    assert rows.rejected.sum() == 1
    for request in np.flatnonzero(~rows.rejected):
        own = [r for r in real.rounds if r.request == request]
        ends = [r.position + r.emitted for r in own]
        starts = [r.position for r in own]
        assert starts[0] == 1
        # a request that is preempted emits one token from its recomputed prompt, again without a round
        assert all(start - end in (0, 1) for end, start in zip(ends, starts[1:], strict=False))
        assert sum(start - end for end, start in zip(ends, starts[1:], strict=False)) <= rows.preemptions[request]
        assert ends[-1] in (rows.output_tokens[request], rows.output_tokens[request] - 1)
        assert all(1 <= r.emitted <= r.drafted + 1 for r in own)


def test_worlds_reach_preemption_drafts_and_waiting() -> None:
    """Guard: the crowded world has all that is compared."""
    real = served(ALONE)
    assert any(step.preempted for step in real.steps)
    assert any(step.waiting for step in real.steps)
    assert {step.work.next_num_spec_tokens for step in real.steps} >= {4, 5}
    assert any(step.work.prefill_tokens and step.work.draft_tokens for step in real.steps)
