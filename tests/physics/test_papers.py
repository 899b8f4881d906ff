"""Numbers printed in papers, and worked examples, each with where it stands or how it follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.closed_forms import (
    acceptance_length,
    alpha_from_length,
    break_even_length,
    conditionals_from_lengths,
    conditionals_from_marginals,
    draft_acceptance_rate,
    expected_tokens_per_round,
    marginals_from_conditionals,
    speedup_with_cost_ratio,
)
from specsim.errors import ScenarioError

probability = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    ("alpha", "k", "printed", "digits"),
    [
        # worked from the formula
        (0.7, 4, 2.773, 3),
        (0.5, 4, 1.938, 3),
        (0.8, 3, 2.952, 3),
        (0.8, 4, 3.362, 3),
        # Leviathan et al. 2023 (arXiv 2211.17192), operations table: the formula (1 - a^(k+1)) / (1 - a), two digits
        (0.6, 2, 1.96, 2),
        (0.7, 3, 2.53, 2),
        (0.8, 2, 2.44, 2),
        (0.8, 5, 3.69, 2),
        (0.9, 2, 2.71, 2),
        (0.9, 10, 6.86, 2),
    ],
)
def test_tokens_per_round(alpha: float, k: int, printed: float, digits: int) -> None:
    assert round(expected_tokens_per_round(alpha, k), digits) == printed


def test_speedup_with_draft_cost() -> None:
    assert round(speedup_with_cost_ratio(0.8, 4, 0.1), 3) == 2.401  # worked from the formula


def test_drafted_acceptance_rate_is_not_alpha() -> None:
    assert round(draft_acceptance_rate(0.8, 5), 2) == 0.54  # worked from the formula


def test_published_conditionals_give_the_published_length() -> None:
    # Llama-3.1-8B, EAGLE, k=3: GSM8K .67 .65 .64 -> 2.39; ShareGPT .62 .62 .66 -> 2.27 (two digits of each factor)
    assert acceptance_length((0.67, 0.65, 0.64)) == pytest.approx(2.39, abs=0.02)
    assert acceptance_length((0.62, 0.62, 0.66)) == pytest.approx(2.27, abs=0.02)


def test_mtp_curve_gives_the_printed_conditionals() -> None:
    # DeepSeek-V4-Pro, InferenceX curve 1.79 2.27 2.49 2.54 2.55 -> conditional .61 .46 .23 .20 for positions 2-5
    vector = conditionals_from_lengths((1.79, 2.27, 2.49, 2.54, 2.55))
    assert [round(a, 2) for a in vector[1:]] == pytest.approx([0.61, 0.46, 0.23, 0.20], abs=0.011)
    # Qwen3.5-397B 1.93 2.73 3.39 3.97 4.41 -> .86 .83 .88 .76
    vector = conditionals_from_lengths((1.93, 2.73, 3.39, 3.97, 4.41))
    assert [round(a, 2) for a in vector[1:]] == pytest.approx([0.86, 0.83, 0.88, 0.76], abs=0.011)


def test_alpha_one_accepts_everything() -> None:
    assert expected_tokens_per_round(1.0, 7) == 8.0
    assert expected_tokens_per_round(0.0, 7) == 1.0


@given(alpha=probability, k=st.integers(1, 20))
def test_alpha_is_found_again_from_its_length(alpha: float, k: int) -> None:
    length = expected_tokens_per_round(alpha, k)
    assert expected_tokens_per_round(alpha_from_length(length, k), k) == pytest.approx(length, abs=1e-9)


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=10))
def test_marginals_and_conditionals_are_inverse(conditionals: list[float]) -> None:
    assert conditionals_from_marginals(marginals_from_conditionals(conditionals)) == pytest.approx(conditionals)
    lengths = [acceptance_length(conditionals, k) for k in range(1, len(conditionals) + 1)]
    assert conditionals_from_lengths(lengths) == pytest.approx(conditionals, abs=1e-6)


@given(st.floats(0.05, 0.95), st.floats(0.1, 1.0))
def test_sparse_lengths_are_met(alpha: float, rate: float) -> None:
    at_3, at_7 = (1 + rate * (expected_tokens_per_round(alpha, k) - 1) for k in (3, 7))
    vector = conditionals_from_lengths({3: at_3, 7: at_7}, proposal_rate=rate)
    assert vector == pytest.approx((alpha,) * 7, abs=1e-6)


def test_noisy_curves_are_cut_and_made_good() -> None:
    vector = conditionals_from_lengths((1.5, 2.2, 2.4))  # the second draft cannot be accepted more often than the first
    assert vector[1] == pytest.approx(1.0)
    assert acceptance_length(vector) == pytest.approx(2.4)


def test_break_even_is_the_ratio_of_times() -> None:
    assert break_even_length(0.010, 0.023) == pytest.approx(2.3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: expected_tokens_per_round(1.2, 3),
        lambda: expected_tokens_per_round(float("nan"), 3),
        lambda: expected_tokens_per_round(0.5, -1),
        lambda: draft_acceptance_rate(0.5, 0),
        lambda: speedup_with_cost_ratio(0.5, 2, -0.1),
        lambda: alpha_from_length(5.0, 3),
        lambda: alpha_from_length(0.5, 3),
        lambda: conditionals_from_marginals((0.5, 0.6)),
        lambda: conditionals_from_lengths((2.5,)),
        lambda: break_even_length(0.0, 1.0),
    ],
)
def test_impossible_figures_are_refused_in_one_line(call) -> None:
    with pytest.raises(ScenarioError) as caught:
        call()
    assert "\n" not in str(caught.value)
