"""The cost surface: known answers, and how the answer must move when one thing changes (metamorphic)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from builders import make_limits
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_tables import make_question

from scenarios.resolve import resolve
from specsim.config import Deployment, Slo, Speculation
from specsim.planner import surface
from specsim.planner.question import Question

FREE = {"weights_s": 0.0, "token_s": 0.0, "head_weights_s": 0.0, "head_row_s": 0.0, "kv_token_s": 0.0,
        "kv_pair_s": 0.0, "fixed_s": 0.0}  # fmt: skip


def turn(question: Question, context: int, k: int) -> float:
    """The batch from which on k drafts no longer pay; infinity when they pay for all that fits."""
    batch = surface.crossing(question, context, k).batch
    return float("inf") if batch is None else batch


def test_a_free_drafter_and_a_memory_bound_target_gain_the_acceptance_length() -> None:
    """Verification costs nothing more than decoding: the speedup is E[tokens] = 1 + a + a^2 + a^3."""
    question = make_question(target={**FREE, "weights_s": 1e-2}, draft=FREE, profile={"host_s": 0.0}, acceptance=(0.8,))
    assert surface.speedup(question, 4, 1000, 3) == pytest.approx(2.952)
    assert turn(question, 1000, 3) == float("inf")


def test_a_compute_bound_target_turns_where_the_algebra_says() -> None:
    """Step = max-free: 10 ms + 0.1 ms a token; k=1 at a=0.5 pays while (10 + 0.2 b) < 1.5 (10 + 0.1 b): b < 100."""
    question = make_question(
        target={**FREE, "weights_s": 1e-2, "token_s": 1e-4}, draft=FREE, profile={"host_s": 0.0}, acceptance=(0.5,)
    )
    step = question.off.cost.decode_step_s
    algebra = next(
        b for b in range(1, 500) if step(b, 100, 1, machinery=True) >= 1.5 * step(b, 100, 0, machinery=False)
    )
    assert abs(turn(question, 100, 1) - algebra) <= max(1, 0.03 * algebra)
    gains = [surface.speedup(question, b, 100, 1) for b in (1, 10, 100, 500)]
    assert gains == sorted(gains, reverse=True)


@given(st.floats(0.2, 0.95), st.integers(1, 256), st.sampled_from([128, 1024, 8192]), st.sampled_from([1, 3, 5]))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_half_the_acceptance_is_always_slower(a: float, batch: int, context: int, k: int) -> None:
    whole, half = make_question(acceptance=(a,)), make_question(acceptance=(a / 2,))
    assert surface.speedup(half, batch, context, k) < surface.speedup(whole, batch, context, k)
    assert turn(half, context, k) <= turn(whole, context, k)


@pytest.mark.parametrize("context", [128, 512])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_more_compute_moves_the_turn_up(context: int, k: int) -> None:
    turns = [
        turn(make_question(target={"token_s": token_s, "kv_pair_s": 1e-10 * token_s / 2e-5}), context, k)
        for token_s in (8e-5, 4e-5, 2e-5, 1e-5)
    ]
    assert turns == sorted(turns)
    assert turns[0] < turns[-1]


@pytest.mark.parametrize("k", [1, 3, 5])
def test_more_bandwidth_moves_the_turn_down(k: int) -> None:
    """Reading weights and cache is what verification hides behind; twice as fast, less hides."""
    slow = {"weights_s": 5.5e-3, "head_weights_s": 4e-4, "kv_token_s": 4e-8}
    turns = [
        turn(make_question(target={name: value / faster for name, value in slow.items()}), 1024, k)
        for faster in (1, 2, 4)
    ]
    assert turns == sorted(turns, reverse=True)
    assert turns[0] > turns[-1]


def test_longer_contexts_pay_to_larger_batches_when_verification_shares_the_reads() -> None:
    shared = make_question(limits=make_limits(max_num_seqs=512, num_kv_blocks=10_000_000))
    turns = [turn(shared, context, 3) for context in (128, 1024, 8192, 32768)]
    assert turns == sorted(turns)
    assert turns[0] < float("inf") == turns[-1]
    apart = make_question(
        profile={"verify_reads_kv_once": False}, limits=make_limits(max_num_seqs=512, num_kv_blocks=10_000_000)
    )
    assert turn(apart, 32768, 3) < turn(shared, 32768, 3), "a kernel that reads the cache once a query loses that"


def test_a_lookup_that_rarely_proposes_gains_little_and_costs_little() -> None:
    rates = [
        surface.speedup(make_question(proposal_rate=rate, acceptance=(0.8,)), 4, 1024, 3) for rate in (0.1, 0.5, 0.9)
    ]
    assert rates == sorted(rates)
    assert 0.95 < rates[0] < 1.3


def test_a_mixture_of_experts_need_not_be_monotone_and_its_ranges_say_so() -> None:
    """At batch 1 a wide pass touches more experts, in the middle all are read anyway, at the top it is compute."""
    question = make_question(
        acceptance=(0.6,), ks=(3,),
        target={"weights_s": 5e-4, "experts_s": 8e-3, "num_experts": 64, "experts_per_token": 2, "token_s": 4e-5},
    )  # fmt: skip
    gains = [surface.speedup(question, b, 512, 3) for b in range(1, 400)]
    crossing = surface.crossing(question, 512, 3)
    assert any(a < b for a, b in pairwise(gains)), "the gain rises somewhere"
    assert any(a > b for a, b in pairwise(gains)), "and falls somewhere"
    for first, last in crossing.pays:
        assert surface.speedup(question, first, 512, 3) > 1
        assert surface.speedup(question, last, 512, 3) > 1
    assert crossing.pays[0][0] > 1, "alone it does not pay"
    assert crossing.batch is not None
    assert crossing.pays[-1][1] < crossing.batch <= 1.03 * crossing.pays[-1][1] + 1


@given(st.floats(0.05, 0.95), st.floats(0.0, 0.2), st.sampled_from([256, 2048]))
@settings(max_examples=25, derandomize=True, deadline=None)
def test_the_band_holds_the_turn(a: float, error: float, context: int) -> None:
    c = surface.crossing(make_question(acceptance=(a,), acceptance_error=error), context, 3)
    order = [c.limit + 1 if b is None else b for b in (c.low, c.batch, c.high)]
    assert order == sorted(order)


@given(st.floats(0.05, 0.95), st.sampled_from([256, 2048, 16384]))
@settings(max_examples=25, derandomize=True, deadline=None)
def test_the_schedule_covers_every_batch_once_and_is_near_the_best(a: float, context: int) -> None:
    question = make_question(acceptance=(a,))
    table = surface.best_k_table(question, context)
    assert table[0][0] == 1
    assert table[-1][1] >= question.on.limits.max_num_seqs
    assert all(before[1] + 1 == after[0] and before[2] != after[2] for before, after in pairwise(table))
    for first, _, k in table:
        gains = {j: surface.speedup(question, first, context, j) for j in (0, *question.speculation.num_spec_tokens)}
        assert gains[k] >= 0.985 * max(gains.values())


def test_break_even_is_where_the_speedup_is_one() -> None:
    question = make_question()
    for row in surface.break_even_rows(question, [512, 4096], [1, 3]):
        length = row["assumed_acceptance_length"]
        gain = surface.speedup(question, row["batch"], row["context_tokens"], row["k"])
        assert gain == pytest.approx(length / row["break_even_acceptance_length"])


def test_batches_scanned_reach_the_limit_and_skip_nothing_small() -> None:
    for limit in (1, 2, 63, 64, 65, 100, 1000):
        batches = surface.batches_up_to(limit)
        assert batches[-1] == limit
        assert batches[: min(limit, 64)] == list(range(1, min(limit, 64) + 1))
        assert all(b > a and b <= max(a + 1, 1.03 * a + 1) for a, b in pairwise(batches))


@pytest.mark.parametrize("gpu", ["a100-80 sxm", "h100-sxm", "h200-sxm", "b200"])
def test_the_catalogue_has_sane_turns(gpu: str) -> None:
    """A 8B model with its EAGLE head pays alone on every GPU, and for a chain of 5 never at 700 requests."""
    question = resolve(Deployment(gpu=gpu), Speculation(), Slo())
    assert surface.speedup(question, 1, 512, 3) > 1.2
    assert surface.speedup(question, 1, 512, 5) > surface.speedup(question, 512, 512, 5)
