"""Trees of drafts: what they accept, against brute force, laws and published figures; and what verifying them costs."""

from __future__ import annotations

import itertools

import pytest
from builders import make_limits, make_profile
from hypothesis import given
from hypothesis import strategies as st

from specsim.closed_forms import acceptance_length
from specsim.errors import CapacityError, ScenarioError
from specsim.latency import StepCost, StepWork
from specsim.memory import tree_limits
from specsim.trees import Tree, chain_from_tree_length, cut, grown_tree, level_tree, match_any, verified_tokens

CHAINS = st.lists(st.floats(0.05, 0.95), min_size=1, max_size=5)
EAGLE_TREE = (4, 8, 8, 3, 2)
"""Nodes by level of the static tree of 25 drafts that EAGLE ships."""


def test_the_chance_of_a_match_among_candidates_is_that_of_specinfer() -> None:
    """arXiv 2305.09781, table 1: LLaMA-7B with LLaMA-68M, greedy, Alpaca and WebQA; top 1 to 5."""
    for published in ((0.68, 0.77, 0.81, 0.84, 0.85), (0.62, 0.72, 0.77, 0.80, 0.82)):
        ours = [match_any(published[0], w) for w in range(1, 6)]
        assert ours == pytest.approx(published, abs=0.02)


def test_eagle_s_tree_accepts_what_was_published_for_it() -> None:
    """EAGLE (arXiv 2401.15077), Vicuna-7B, MT-Bench, greedy: 3.94 tokens a round; chain .79 .74 .72 .73 .67."""
    chain = (0.79, 0.74, 0.72, 0.73, 0.67)
    _, by_level = level_tree(chain, EAGLE_TREE)
    assert acceptance_length(chain) < 3.35
    assert acceptance_length(by_level) == pytest.approx(3.94, rel=0.03)


@given(chain=CHAINS, nodes=st.integers(1, 40), topk=st.integers(1, 8), depth=st.integers(1, 6))
def test_a_grown_tree_is_a_tree_and_accepts_at_least_the_chain_it_has_room_for(
    chain: list[float], nodes: int, topk: int, depth: int
) -> None:
    tree, by_level = grown_tree(chain, nodes=nodes, topk=topk, depth=depth)
    room = sum(topk**level for level in range(1, depth + 1))
    assert tree.nodes == min(nodes, room)
    assert all(below <= above * topk for above, below in itertools.pairwise((1, *tree.levels)))
    assert all(0.0 <= chance <= 1.0 for chance in by_level)
    longest = min(depth, tree.nodes)
    carried = [*chain, *[chain[-1]] * depth]
    assert acceptance_length(by_level) >= acceptance_length(carried[:longest]) - 1e-12
    assert acceptance_length(by_level) <= 1 + tree.nodes


@given(chain=CHAINS, topk=st.integers(2, 6), depth=st.integers(1, 5))
def test_more_nodes_never_accept_less(chain: list[float], topk: int, depth: int) -> None:
    lengths = [
        acceptance_length(grown_tree(chain, nodes=nodes, topk=topk, depth=depth)[1]) for nodes in range(1, 25, 3)
    ]
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(lengths))


@given(chain=CHAINS, nodes=st.integers(1, 9))
def test_no_tree_of_two_children_and_three_levels_is_better(chain: list[float], nodes: int) -> None:
    """All trees of that size, by brute force: a grown one is the best."""
    carried = [*chain, *[chain[-1]] * 3]
    ranks = [(match_any(a, 1), match_any(a, 2) - match_any(a, 1)) for a in carried]
    paths = [path for length in (1, 2, 3) for path in itertools.product((0, 1), repeat=length)]

    def chance(path: tuple[int, ...]) -> float:
        product = 1.0
        for level, rank in enumerate(path):
            product *= ranks[level][rank]
        return product

    best = 1.0
    if nodes <= 5:
        for chosen in itertools.combinations(paths, min(nodes, len(paths))):
            held = set(chosen)
            if all((len(p) == 1 or p[:-1] in held) for p in held):
                best = max(best, 1.0 + sum(map(chance, held)))
    _, by_level = grown_tree(carried, nodes=nodes, topk=2, depth=3)
    assert acceptance_length(by_level) >= best - 1e-12


@given(chain=CHAINS)
def test_a_tree_of_one_candidate_is_the_chain(chain: list[float]) -> None:
    depth = len(chain)
    for tree, by_level in (grown_tree(chain, nodes=depth, topk=1, depth=depth), level_tree(chain, (1,) * depth)):
        assert tree == Tree((1,) * depth, (1,) * depth)
        assert by_level == pytest.approx(chain)


def test_nothing_matches_nowhere() -> None:
    _, by_level = grown_tree((0.0,), nodes=20, topk=4, depth=5)
    assert acceptance_length(by_level) == 1.0


@given(length=st.floats(1.0, 4.99), topk=st.integers(1, 6))
def test_the_chain_behind_a_length_gives_the_length_back(length: float, topk: int) -> None:
    alpha = chain_from_tree_length(length, nodes=20, topk=topk, depth=4)
    _, by_level = grown_tree((alpha,), nodes=20, topk=topk, depth=4)
    assert acceptance_length(by_level) == pytest.approx(length, abs=1e-6)


def test_impossible_trees_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"acceptance length 6 of a tree must lie in 1\.\.5"):
        chain_from_tree_length(6.0, nodes=20, topk=3, depth=4)
    with pytest.raises(ScenarioError, match="at least one node a level, got levels \\[2, 0, 1\\]"):
        Tree((2, 0, 1), (1, 1, 1))
    with pytest.raises(ScenarioError, match="as many passes, the first on one node"):
        Tree((2, 2), (2, 2))
    with pytest.raises(ScenarioError, match="at least one node a level"):
        level_tree((0.5,), (2, 0))


def test_verified_tokens_count_nodes_and_deeper_requests() -> None:
    assert verified_tokens((), 7, 3) == 7
    assert verified_tokens((0, 4, 10, 13), 9, 3) == 3 * 13
    assert verified_tokens((0, 4, 10, 13), 8, 3) == 13 + 13 + 10
    assert verified_tokens((0, 4, 10, 13), 0, 0) == 0


def decode_work(batch: int, context: int, depth: int) -> StepWork:
    return StepWork(
        decode_requests=batch, draft_tokens=batch * depth, kv_tokens=batch * context, next_num_spec_tokens=depth,
        machinery=True, draft_requests=batch,
    )  # fmt: skip


def some_trees(nodes: int, topk: int, depth: int) -> tuple[Tree, ...]:
    return cut(grown_tree((0.6,), nodes=nodes, topk=topk, depth=depth)[0])


@given(
    batch=st.integers(1, 300), context=st.integers(1, 50_000), depth=st.integers(1, 6), wider=st.integers(0, 40),
    topk=st.integers(2, 6), lookup=st.booleans(),
)  # fmt: skip
def test_a_decode_step_costs_what_the_surface_says(
    batch: int, context: int, depth: int, wider: int, topk: int, lookup: bool
) -> None:
    profile = make_profile(lookup=lookup, lookup_request_s=1e-6, speculation_host_s=2e-4)
    cost = StepCost(profile, some_trees(depth + wider, topk, depth))
    work = decode_work(batch, context, depth)
    assert cost.step_s(work) == pytest.approx(cost.decode_step_s(batch, context, depth), rel=1e-9)
    assert sum(cost.parts(work).values()) == pytest.approx(cost.step_s(work), rel=1e-9)


@given(batch=st.integers(1, 200), depth=st.integers(1, 5), prompt=st.integers(0, 2000))
def test_a_tree_of_one_node_a_level_costs_the_chain(batch: int, depth: int, prompt: int) -> None:
    work = decode_work(batch, 700, depth)
    work.prefill_tokens, work.prefill_rows, work.prefill_pairs = prompt, int(prompt > 0), prompt * (prompt + 1) // 2
    profile = make_profile(speculation_host_s=2e-4, mixed_s=1e-4)
    chain, tree = StepCost(profile), StepCost(profile, some_trees(depth, 1, depth))
    assert tree.step_s(work) == pytest.approx(chain.step_s(work), rel=1e-9)


def test_steps_without_speculation_cost_the_same() -> None:
    work = StepWork(decode_requests=5, kv_tokens=900)
    profile = make_profile()
    assert StepCost(profile, some_trees(9, 3, 3)).step_s(work) == StepCost(profile).step_s(work)


def test_wider_trees_cost_more() -> None:
    seconds = [StepCost(make_profile(), some_trees(n, 5, 3)).step_s(decode_work(32, 500, 3)) for n in (3, 9, 27, 81)]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 1.5 * seconds[0]


@given(budget=st.integers(8, 20_000), seqs=st.integers(1, 600), depth=st.integers(1, 6), wider=st.integers(0, 60))
def test_every_running_request_s_tree_fits_the_budget(budget: int, seqs: int, depth: int, wider: int) -> None:
    limits = make_limits(max_num_batched_tokens=budget, max_num_seqs=seqs)
    trees = some_trees(depth + wider, 9, depth)
    nodes = trees[-1].nodes
    if 1 + nodes > budget:
        with pytest.raises(CapacityError, match="do not fit max_num_batched_tokens"):
            tree_limits(limits, trees)
        return
    cut_limits = tree_limits(limits, trees)
    assert 1 <= cut_limits.max_num_seqs <= seqs
    assert cut_limits.max_num_seqs * (1 + nodes) <= budget
    assert cut_limits.max_num_seqs == seqs or (cut_limits.max_num_seqs + 1) * (1 + nodes) > budget
    assert cut_limits.fixed_blocks_per_request * limits.block_size_tokens >= nodes - depth
    assert cut_limits.tree_nodes == (0, *(tree.nodes for tree in trees))
