"""The verification budget: who gets it, how large it is against trying every size, what is learnt, and when it pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from builders import FixedLuck, make_cost, make_limits, make_pass, make_profile, make_trace
from hypothesis import given
from hypothesis import strategies as st
from strategies import ListedLuck, World, run

from specsim.acceptance import Constant
from specsim.engine.curves import StartUpCurves
from specsim.errors import ScenarioError
from specsim.latency import captured_sizes
from specsim.policies import EngineView, Observed, PolicySpec, make_policy, parse_policy
from specsim.policies.budget import Budget, cost_tables
from specsim.policies.budget_kernels import _keep, best_total, rank


@dataclass
class Line:
    """Costs as straight lines, with graphs at the sizes given."""

    token_s: float = 1.0
    base_s: float = 100.0
    captured_tokens: tuple[int, ...] = ()
    max_requests: int = 64
    max_tokens: int = 600

    def draft_s(self, requests: int, num_spec_tokens: int, context_tokens: int) -> float:
        return 0.5 * requests

    def verify_s(self, tokens: int, num_spec_tokens: int, context_tokens: int) -> float:
        return self.base_s + self.token_s * tokens


def budget(text: str, curves: Any = None) -> Budget:
    rule = make_policy(parse_policy(text), EngineView(curves=curves))
    assert isinstance(rule, Budget)
    return rule


def observed(requests: list[int], drafts: list[int], accepted: list[int]) -> Observed:
    n = len(requests)
    ids, verified, emitted = (np.array(v, dtype=np.int64) for v in (requests, drafts, [a + 1 for a in accepted]))
    return Observed(batch=n, rounds=n, draft_rounds=int(np.count_nonzero(verified)), drafted=sum(drafts),
                    accepted=sum(accepted), requests=ids, drafts=verified, emitted=emitted)  # fmt: skip


def trimmed(rule: Budget, requests: list[int], drafts: list[int], prefill_tokens: int = 0) -> list[int]:
    ids, scheduled = np.array(requests, dtype=np.int64), np.array(drafts, dtype=np.int64)
    kept = rule.trim(ids, scheduled, len(requests) + bool(prefill_tokens), prefill_tokens, 0)
    assert (kept >= 0).all()
    assert (kept <= scheduled).all()
    return kept.tolist()


def test_without_a_record_shallow_positions_come_first_and_then_the_order_of_admission() -> None:
    rule = budget("budget:3:budget_tokens=5")
    assert trimmed(rule, [7, 8, 9], [3, 3, 3]) == [2, 2, 1]
    assert trimmed(rule, [7, 8, 9], [1, 3, 0]) == [1, 3, 0], "no more than is scheduled; 4 fit"


def test_a_request_that_does_better_gets_more() -> None:
    rule = budget("budget:3:budget_tokens=4")
    for _ in range(10):
        rule.observe(observed([0, 1], [3, 3], [3, 0]))
    assert trimmed(rule, [0, 1], [3, 3]) == [3, 1]
    assert trimmed(rule, [1, 0], [3, 3]) == [1, 3]
    newcomer = trimmed(rule, [0, 1, 900], [3, 3, 3])
    assert newcomer[0] > newcomer[1], "room is made for any number, and a newcomer is like everybody"


def test_who_is_not_verified_is_tried_again_in_time() -> None:
    rule = budget("budget:2:budget_tokens=2:request_memory_rounds=3")
    for _ in range(10):
        rule.observe(observed([0, 1], [2, 2], [2, 0]))
    assert trimmed(rule, [0, 1], [2, 2]) == [2, 0]
    for _ in range(20):
        rule.observe(observed([0, 1], [2, 0], [1, 0]))
    assert trimmed(rule, [0, 1], [2, 2]) == [1, 1], "its record has faded"


@pytest.mark.parametrize("probability", [0.9, 0.5])
def test_estimates_come_to_the_acceptance_by_position(probability: float) -> None:
    rng = np.random.default_rng(1)
    rule = budget("budget:4:budget_tokens=9")
    for _ in range(600):
        runs = (rng.random((30, 4)) < probability).cumprod(axis=1).sum(axis=1)
        rule.observe(observed(list(range(30)), [4] * 30, runs.tolist()))
    np.testing.assert_allclose(rule._accepts, probability, atol=0.05)
    np.testing.assert_allclose(rule._due, np.arange(5) * probability, atol=0.12)


@given(
    scores=st.lists(st.floats(0, 1), min_size=1, max_size=60),
    tokens=st.integers(1, 200),
    token_s=st.sampled_from([0.0, 0.1, 3.0, 500.0]),
    captured=st.sampled_from([(), tuple(captured_sizes(64)), (1, 2, 4, 100)]),
    prefills=st.integers(0, 3),
)
def test_the_total_is_the_best_of_all_totals(
    scores: list[float], tokens: int, token_s: float, captured: tuple[int, ...], prefills: int
) -> None:
    curves = Line(token_s=token_s, captured_tokens=captured)
    ranked = sorted(scores, reverse=True)
    sampling, batch = min(tokens, 40), 40 + prefills
    draft, verify = cost_tables(curves, 5, 8192)
    chosen = best_total(np.array(ranked), len(ranked), sampling, verify, tokens, draft.item(batch))

    def rate(total: int) -> float:
        size = tokens + total
        limit = captured[-1] if captured else 0
        padded = next(c for c in captured if c >= size) if size <= limit else size
        return (sampling + sum(ranked[:total])) / (curves.verify_s(padded, 5, 0) + 0.5 * batch)

    limit = captured[-1] if captured else 0
    # below the first size profiled, and from the largest graph to the first size beyond it, the curve is flat by design
    if tokens >= max(6, 1.5 * limit) or (tokens + len(ranked) <= limit):
        rates = [rate(total) for total in range(len(ranked) + 1)]
        assert rates[chosen] == pytest.approx(max(rates), rel=1e-9)


@given(
    st.lists(
        st.sampled_from([-1.0, 0.0, 0.3, 0.3 + 1e-16, 0.30001, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=90
    )
)
def test_scores_are_ranked(values: list[float]) -> None:
    scores, ranked, slots = np.array(values), np.zeros(len(values)), np.full((2, len(values) + 2), 99)
    rank(scores, ranked, *slots)
    assert ranked.tolist() == sorted(values, reverse=True)


@given(
    st.integers(1, 5).flatmap(
        lambda k: st.lists(
            st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=k, max_size=k), min_size=1, max_size=9
        )
    ),
    st.data(),
)
def test_the_best_slots_are_kept_and_of_equal_ones_the_first(survival: list[list[float]], data: st.DataObject) -> None:
    """Position by position and in each all requests, as a stable sort has them."""
    n, k = len(survival), len(survival[0])
    drafts = np.array([data.draw(st.integers(0, k)) for _ in range(n)])
    table = np.minimum.accumulate(np.array(survival), axis=1).T
    table[np.arange(k)[:, None] >= drafts] = -1.0
    scores = table.reshape(-1)
    order = np.argsort(-scores, kind="stable")
    chosen = data.draw(st.integers(0, int(drafts.sum())))
    kept = np.full(n + 3, 99)
    _keep(scores, drafts, scores[order], chosen, kept)
    np.testing.assert_array_equal(kept[:n], np.bincount(order[:chosen] % n, minlength=n))


def test_everything_is_verified_where_it_is_free_and_nothing_where_it_is_dear() -> None:
    free, dear = budget("budget:3", Line(token_s=0.0)), budget("budget:3", Line(token_s=1e6))
    who = list(range(6))
    for rule, kept in ((free, 3), (dear, 0)):
        rule.observe(observed(who, [3] * 6, [0] * 6))
        assert trimmed(rule, who, [3] * 6) == [kept] * 6
    with pytest.raises(ScenarioError, match="policy budget needs a latency profile, or budget_tokens"):
        trimmed(budget("budget:3"), [0], [3])


def test_curves_are_those_of_the_profile() -> None:
    cost = make_cost(captured_tokens_max=64, uncaptured_s=0.002, host_s=5.0, speculation_host_s=2.0)
    limits = make_limits(max_num_seqs=32, max_num_batched_tokens=500)
    draft, verify = cost_tables(StartUpCurves(cost, limits, 3), 3, 1000)
    assert (len(draft), len(verify)) == (33, 501)
    assert (np.diff(verify) >= 0).all()
    assert (np.diff(draft) >= 0).all()
    assert verify[41] == verify[48] < verify[49], "padded to 48"
    assert verify[65] - verify[64] > 0.0019, "the slower mode beyond the graphs"
    assert verify[300] < 1.0, "host time is not in it"
    whole = cost.decode_step_s(16, 1000, 3) - 5.0 - 2.0
    assert draft[16] + verify[64] == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_the_budget_goes_to_requests_whose_drafts_match(seed: int) -> None:
    """Some requests accept everything, the others nothing: with as many drafts in all the first are done far sooner."""
    good = np.random.default_rng(seed).permutation(6) < 1 + seed % 3
    outputs = [300 if g else 60 for g in good]
    world = World(
        trace=make_trace(arrival_s=[0.0] * 6, prompt_tokens=20, output_tokens=outputs),
        luck=ListedLuck([np.full(300, 5 if g else 0) for g in good]),
        policy=parse_policy("budget:5:budget_tokens=12"),
    )
    shared = run(world, plain=False)
    even = run(World(**{**vars(world), "policy": PolicySpec("static", 2)}), plain=False)
    assert shared.totals.steps < 0.8 * even.totals.steps
    assert shared.totals.drafted_tokens <= 12 * shared.totals.steps


def test_under_heavy_load_it_beats_verifying_everything_and_costs_little_when_idle() -> None:
    """A block drafter (one pass) of seven drafts, as in vLLM's own examples; 256 requests in flight, and 1."""
    profile = make_profile(
        draft=make_pass(weights_s=5e-4, token_s=1e-6, head_weights_s=1e-4, kv_token_s=1e-9, fixed_s=1e-4),
        draft_mode="parallel",
    )
    seconds = {}
    for flight, requests in ((256, 600), (1, 6)):
        for text in ("static:7", "budget:7:profile_context_tokens=200"):
            world = World(
                trace=make_trace(arrival_s=[0.0] * requests, prompt_tokens=100, output_tokens=100),
                luck=Constant(0.6, max_spec_tokens=7),
                limits=make_limits(max_num_seqs=256, max_num_batched_tokens=8192),
                profile=profile,
                policy=parse_policy(text),
                concurrency=flight,
            )
            seconds[flight, text[0]] = run(world, plain=False).end_s
    assert seconds[256, "b"] < 0.85 * seconds[256, "s"]
    assert seconds[1, "b"] < 1.03 * seconds[1, "s"]


def test_blocks_and_token_budget_are_charged_for_all_drafts() -> None:
    """Trimming comes after scheduling: with two places for 1 + 5 tokens a third request waits, whatever is verified."""
    world = World(
        trace=make_trace(arrival_s=[0.0] * 3, prompt_tokens=1, output_tokens=30),
        luck=FixedLuck(constant=5),
        limits=make_limits(max_num_batched_tokens=12),
        policy=parse_policy("budget:5:budget_tokens=1"),
    )
    fast, plain = run(world, plain=False), run(world, plain=True)
    np.testing.assert_array_equal(fast.requests.finish_s, plain.requests.finish_s)
    alone = run(World(**{**vars(world), "policy": PolicySpec("static", 1)}), plain=False)
    assert fast.totals.steps > alone.totals.steps
