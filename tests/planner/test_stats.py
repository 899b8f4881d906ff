"""Intervals against known values and scipy; pairing; what is a tie."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference

from specsim.stats import estimate, paired, paired_ratio

finite = st.floats(-1e6, 1e6, allow_nan=False)
positive = st.floats(1e-6, 1e6, allow_nan=False)


def test_interval_of_a_textbook_sample() -> None:
    # mean 5, sd sqrt(2.5), n 5: half = 2.776445 * 0.707107
    e = estimate([3.0, 4.0, 5.0, 6.0, 7.0])
    assert e.mean == 5.0
    assert (e.high - e.low) / 2 == pytest.approx(2.776445 * math.sqrt(2.5 / 5), rel=1e-6)
    assert e.n == 5


@given(st.lists(finite, min_size=2, max_size=20), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_interval_equals_scipy(values: list[float], level: float) -> None:
    e = estimate(values, level=level)
    scale = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    if scale == 0:
        assert e.low == e.mean == e.high
        return
    low, high = reference.t.interval(level, len(values) - 1, loc=np.mean(values), scale=scale)
    size = max(1.0, max(map(abs, values)))
    assert e.low == pytest.approx(low, abs=1e-9 * size)
    assert e.high == pytest.approx(high, abs=1e-9 * size)


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=10))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_ratio_of_pairs_is_the_inverse_of_the_ratio_turned_round(pairs: list[tuple[float, float]]) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    there, back = paired_ratio(a, b), paired_ratio(b, a)
    assert there.mean * back.mean == pytest.approx(1.0)
    verdicts = {"higher": "lower", "lower": "higher", "tie": "tie"}
    assert verdicts[there.compared_to(1.0)] == back.compared_to(1.0)


def test_pairing_sees_a_difference_that_the_spread_of_traffic_hides() -> None:
    traffic = [1.0, 4.0, 2.0, 8.0, 3.0]
    slower = [x * 1.02 for x in traffic]
    assert paired_ratio(slower, traffic).compared_to(1.0) == "higher"
    assert paired(slower, traffic).mean == pytest.approx(0.072)
    apart = estimate(slower), estimate(traffic)
    assert apart[0].low < apart[1].mean, "unpaired intervals overlap by far"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.11, 1.12, 1.13], "higher"),
        ([0.89, 0.88, 0.87], "lower"),
        ([0.9, 1.0, 1.1], "tie"),
        ([1.0, 1.0, 1.0], "tie"),
        ([1.5], "tie"),
        ([math.nan, 1.5], "tie"),
        ([], "unknown"),
        ([math.nan], "unknown"),
    ],
)
def test_what_is_a_tie(values: list[float], verdict: str) -> None:
    assert estimate(values).compared_to(1.0) == verdict


def test_pairs_with_nothing_measured_are_left_out() -> None:
    e = paired_ratio([2.0, math.nan, 4.0, 5.0], [1.0, 1.0, 2.0, 0.0])
    assert (e.mean, e.n) == (pytest.approx(2.0), 2)


@pytest.mark.parametrize("function", [paired, paired_ratio])
def test_sequences_of_different_length_are_a_bug(function: object) -> None:
    with pytest.raises(ValueError, match="zip"):
        function([1.0, 2.0], [1.0])  # type: ignore[operator]


def test_coverage_of_the_interval() -> None:
    """95 % intervals of 4000 normal samples of 5 hold the mean in 3800 +- 69 (5 sigma): false alarm below 1e-6."""
    draws = np.random.default_rng(7).normal(3.0, 2.0, size=(4000, 5))
    held = sum(e.low <= 3.0 <= e.high for e in (estimate(row) for row in draws.tolist()))
    assert abs(held - 3800) <= 5 * math.sqrt(4000 * 0.95 * 0.05)
