"""Arrivals by hour, and when speculation pays by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.report.traffic import traffic_rows, traffic_sentence
from specsim.traces.rates import arrival_rates


def result_of(
    rates: list[float], verdicts: dict[float, str], search: dict[float, tuple[float, float]]
) -> dict[str, Any]:
    return {
        "recommendation": {"compared_policy": "k=3"},
        "comparison": [
            *({"policy": "k=3", "load_per_s": load, "verdict": verdict} for load, verdict in verdicts.items()),
            *({"policy": "k=1", "load_per_s": load, "verdict": "slower"} for load in verdicts),
        ],
        "search": [
            {"policy": "k=3", "load_per_s": load, "e2e_speedup": {"mean": 1.0, "low": low, "high": high}}
            for load, (low, high) in search.items()
        ],
        "loads": {"best": [{"load_per_s": load, "policy": "k=3" if v == "faster" else "off"}
                           for load, v in verdicts.items()]},
        "trace": {"arrivals": {"first_s": 0.0, "bin_s": 3600.0, "rate_per_s": rates}},
    }  # fmt: skip


VERDICTS = {2.0: "faster", 4.0: "faster", 8.0: "slower", 10.0: "slower"}


@pytest.mark.parametrize(
    ("rate", "search", "state", "best"),
    [
        (0.1, {}, "pays", "k=3"),
        (2.0, {}, "pays", "k=3"),
        (3.0, {}, "pays", "k=3"),
        (5.0, {}, "not sure", "k=3"),
        (5.0, {6.0: (1.1, 1.2)}, "pays", "k=3"),
        (5.0, {5.5: (0.9, 1.2), 4.5: (1.1, 1.2)}, "not sure", "k=3"),
        (7.0, {6.5: (0.8, 0.9)}, "does not pay", "off"),
        (9.0, {}, "does not pay", "off"),
        (10.5, {}, "not simulated", "off"),
    ],
)
def test_a_time_is_judged_by_the_loads_around_it(
    rate: float, search: dict[float, tuple[float, float]], state: str, best: str
) -> None:
    ((start, shown, found, policy),) = traffic_rows(result_of([rate], VERDICTS, search))
    assert (start, shown, found, policy) == (0.0, rate, state, best)


def test_ties_are_not_sure() -> None:
    ((_, _, state, _),) = traffic_rows(result_of([3.0], {2.0: "tie", 4.0: "tie"}, {}))
    assert state == "not sure"


def test_the_sentence_weighs_by_time_and_by_requests() -> None:
    said = traffic_sentence(result_of([1.0, 1.0, 1.0, 9.0], VERDICTS, {}))
    assert "75% of the time (25% of the requests) k=3 is faster" in said
    assert "25% of the time (75% of the requests) it is slower" in said


def test_a_day_is_counted_by_the_hour() -> None:
    arrivals = np.sort(np.concatenate([np.arange(24) * 3600.0 + 10.0, np.full(50, 3600.0 * 9 + 600.0), [86400.0]]))
    found = arrival_rates(arrivals)
    assert (found.first_s, found.bin_s, len(found.rate_per_s)) == (10.0, 3600.0, 24)
    assert found.rate_per_s[9] == pytest.approx(51 / 3600)
    assert found.rate_per_s[0] == pytest.approx(1 / 3600)


@given(st.lists(st.floats(0, 4e6), min_size=2, max_size=60), st.sampled_from([1e-5, 1e-3, 0.1, 1.0]))
def test_no_request_is_lost(times: list[float], scale: float) -> None:
    arrivals = np.sort(np.array(times)) * scale
    found = arrival_rates(arrivals)
    span = arrivals[-1] - arrivals[0]
    assert 1 <= len(found.rate_per_s) <= 745
    widths = [found.bin_s] * len(found.rate_per_s)
    widths[-1] = max(span - found.bin_s * (len(widths) - 1), found.bin_s / 2)
    assert sum(rate * width for rate, width in zip(found.rate_per_s, widths, strict=True)) == pytest.approx(len(times))
    assert widths[-1] <= 1.5 * found.bin_s * (1 + 1e-9)
