"""Null models against figures computed by hand, and acceptance bent to a length."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.hardware import gpu
from scenarios.models import model
from specsim.acceptance import PerPosition
from specsim.acceptance.scaled import longest_length, scaled_to_length
from specsim.errors import ScenarioError
from specsim.planner.null_model import LinearFit, PlainRoofline, Round, null_length, null_speedup, plain_roofline


def test_the_linear_fit_by_hand() -> None:
    """Batch 16 at 200 tokens, k = 3: 3200 cached tokens, 64 verified tokens, 48 drafts."""
    point = Round(16, 200.0, 3.0, 3.0)
    fit = LinearFit()
    plain = 3.926e-8 * 3200 + 2.101e-5 * 16 + 5.886e-3 + 1.207e-3
    rounds = 3.926e-8 * 3200 + 2.101e-5 * 64 + 5.886e-3 + 1.207e-3 + 2.378e-9 * 3200 + 8.414e-7 * 48 + 2.135e-3
    assert fit.plain_s(point) == pytest.approx(plain, rel=1e-12)
    assert fit.round_s(point) == pytest.approx(rounds, rel=1e-12)
    assert null_speedup(fit, point, 2.388) == pytest.approx(2.388 * plain / rounds, rel=1e-12)
    assert null_length(fit, point, 2.388 * plain / rounds) == pytest.approx(2.388, rel=1e-12)


def test_a_lookup_has_no_draft_cost_and_other_k_cost_in_proportion() -> None:
    fit = LinearFit()
    assert fit.round_s(Round(1, 100.0, 3.0, 0.0)) - fit.plain_s(Round(1, 100.0, 3.0, 0.0)) == pytest.approx(
        3 * 2.101e-5
    )
    three, six = (fit.round_s(Round(1, 0.0, k, k)) - fit.plain_s(Round(1, 0.0, k, k)) for k in (3.0, 6.0))
    assert six == pytest.approx(2 * three, rel=1e-9)


def test_the_roofline_is_the_closed_form_where_memory_bounds() -> None:
    """T(b w) = T(b): speed-up is E / (1 + k c) with c the ratio of the weights."""
    line = PlainRoofline(weights_s=1.0, token_s=1e-6, kv_token_s=0.0, draft_weights_s=0.1, draft_token_s=1e-7)
    assert null_speedup(line, Round(1, 0.0, 4.0, 4.0), 3.362) == pytest.approx(3.362 / 1.4, rel=1e-9)


def test_the_roofline_beyond_the_knee_pays_for_every_draft() -> None:
    line = PlainRoofline(weights_s=1.0, token_s=0.1, kv_token_s=0.0)
    assert null_speedup(line, Round(100, 0.0, 3.0, 0.0), 2.0) == pytest.approx(2.0 / 4.0, rel=1e-9)


def test_the_roofline_of_a_deployment_by_hand() -> None:
    """Llama-3.1-8B in bf16 on one H100: 7.505e9 weights read a pass at 3.35 TB/s, 128 KiB of cache a token."""
    target, card = model("llama-3.1-8b"), gpu("h100-sxm")
    line = plain_roofline(target, card, tp=1, weight_dtype=None, kv_dtype="bf16", draft=None)
    read = target.total_parameters - target.embedding_parameters
    assert line.weights_s == pytest.approx(2 * read / card.bandwidth_bytes_per_s, rel=1e-9)
    assert line.weights_s == pytest.approx(4.48e-3, rel=0.01)
    assert line.token_s == pytest.approx(2 * read / card.flops_per_s["bf16"], rel=1e-9)
    assert line.kv_token_s == pytest.approx(131072 / card.bandwidth_bytes_per_s, rel=1e-9)
    halved = plain_roofline(target, card, tp=2, weight_dtype="fp8", kv_dtype="fp8", draft=target)
    assert halved.weights_s == pytest.approx(line.weights_s / 4)
    assert halved.draft_weights_s == pytest.approx(line.weights_s / 2)
    assert halved.kv_token_s == pytest.approx(line.kv_token_s / 4)


VECTORS = st.lists(st.floats(0.02, 0.98), min_size=1, max_size=6).map(tuple)


@given(VECTORS, st.integers(1, 8), st.floats(0.0, 1.0), st.floats(0.05, 1.0))
def test_a_scaled_vector_has_the_length_and_keeps_its_order(
    vector: tuple[float, ...], k: int, share: float, rate: float
) -> None:
    base = PerPosition(vector, proposal_rate=rate)
    length = 1.0 + 1e-6 + share * (k - 2e-6)
    scaled = scaled_to_length(base, length, k)
    assert scaled.expected_length(k) == pytest.approx(length, rel=1e-5)
    # one rule for every position: the smaller stays the smaller
    order = [(a <= b) == (x <= y + 1e-12) or math.isclose(x, y, abs_tol=1e-9)
             for a, x in zip(base.given[:k], scaled.given, strict=True)
             for b, y in zip(base.given[:k], scaled.given, strict=True)]  # fmt: skip
    assert all(order)


def test_a_lookup_is_scaled_by_how_often_it_proposes_first() -> None:
    base = PerPosition((0.8, 0.6), proposal_rate=0.3)
    more = scaled_to_length(base, 1.5, 2)
    assert more.given == base.given
    assert more.proposal_rate == pytest.approx(0.5 / (0.8 + 0.48))
    most = scaled_to_length(base, 2.6, 2)
    assert most.proposal_rate == 1.0
    assert most.given[0] > 0.8


def test_a_drafter_that_proposes_few_cannot_be_scaled_beyond_them() -> None:
    base = PerPosition((0.5,), proposed=(1.0, 0.5, 0.0))
    assert longest_length(base, 3) == pytest.approx(2.5)
    assert scaled_to_length(base, 2.49, 3).expected_length(3) == pytest.approx(2.49, rel=1e-5)
    with pytest.raises(ScenarioError, match=r"must lie in 1\.\.2\.5"):
        scaled_to_length(base, 2.6, 3)


@pytest.mark.parametrize("length", [0.9, 4.1, math.nan, math.inf])
def test_lengths_that_k_does_not_allow_are_refused(length: float) -> None:
    with pytest.raises(ScenarioError, match=r"must lie in 1\.\.4"):
        scaled_to_length(PerPosition((0.5,)), length, 3)


def test_a_vector_of_zeros_is_refused_with_a_way_out() -> None:
    with pytest.raises(ScenarioError, match="no power of it gives that; use another vector"):
        scaled_to_length(PerPosition((0.0,)), 2.0, 3)
