"""Figures of a run from rows made by hand; every field is documented."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from builders import FixedLuck, make_cost, make_limits, make_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.config import PolicySpec, Slo
from specsim.engine.simulator import simulate
from specsim.metrics import RunMetrics, summarise
from specsim.planner.compare import SHOWN_METRICS
from specsim.records import GapHistogram, RequestColumns, RunResult, RunTotals
from specsim.workload import Workload

DOCS = Path(__file__).parents[2] / "docs" / "reference"


def make_result(*, measure_from_s: float = 0.0, measure_until_s: float = 10.0, **totals: object) -> RunResult:
    """Four requests: 1, 5 and 3 tokens, and a refused one."""
    rows = RequestColumns.empty(np.array([0.0, 1.0, 2.0, 3.0]), np.array([10, 20, 30, 40]), np.array([1, 5, 3, 9]))
    rows.freeze()
    rows.first_scheduled_s[:3] = [0.0, 1.5, 2.0]
    rows.first_token_s[:3] = [0.5, 2.0, 2.25]
    rows.finish_s[:3] = [0.5, 4.0, 2.75]
    rows.rejected[3] = True
    return RunResult(
        requests=rows, totals=RunTotals(**totals), gaps=GapHistogram(), end_s=4.0, measure_from_s=measure_from_s,
        measure_until_s=measure_until_s, policy="off", seed=0, num_replicas=1, num_kv_blocks=100,
    )  # fmt: skip


def test_times_of_a_request() -> None:
    m = summarise(make_result())
    assert m.requests == 3
    assert m.rejected == 1
    assert m.ttft_mean_s == pytest.approx((0.5 + 1.0 + 0.25) / 3)
    assert m.ttft_p50_s == 0.5
    assert m.tpot_mean_s == pytest.approx((2.0 / 4 + 0.5 / 2) / 2), "outputs of one token have no TPOT"
    assert m.e2e_mean_s == pytest.approx((0.5 + 3.0 + 0.75) / 3)
    assert m.queue_mean_s == pytest.approx(0.5 / 3)
    assert m.offered_requests_per_s == pytest.approx(0.4)
    assert m.served_requests_per_s == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (None, 3),
        (Slo(ttft_s=None, tpot_s=None), 3),
        (Slo(ttft_s=0.5, tpot_s=None), 2),
        (Slo(ttft_s=None, tpot_s=0.3), 2),
        (Slo(ttft_s=0.5, tpot_s=0.2), 1),
        (Slo(ttft_s=0.1, tpot_s=0.1), 0),
    ],
)
def test_a_refused_request_misses_every_objective(slo: Slo | None, good: int) -> None:
    m = summarise(make_result(), slo)
    assert m.slo_share == pytest.approx(good / 4)
    assert m.goodput_per_s == pytest.approx(good / 10)


@pytest.mark.parametrize(
    ("waits", "stays", "growth"),
    [
        (lambda t: 0.0 * t, lambda t: 5.0 + 0.0 * t, 0.0),
        (lambda t: 0.0 * t, lambda t: 150.0 + 0.0 * t, 0.0),
        (lambda t: 0.0 * t, lambda t: 0.2 * t, 1 / 6),
        (lambda t: 0.5 * t, lambda t: 0.5 * t + 1.0, 1 / 3),
    ],
    ids=["steady", "still filling up", "slower and slower", "ever longer queue"],
)
def test_a_backlog_grows_when_the_fleet_falls_behind_and_not_while_it_fills_up(
    waits: Callable[[np.ndarray], np.ndarray], stays: Callable[[np.ndarray], np.ndarray], growth: float
) -> None:
    """One arrival a second for 200 s: requests are scheduled after `waits` and leave after `stays`."""
    at = np.arange(0.5, 200.0)
    rows = RequestColumns.empty(at, np.full(200, 10), np.full(200, 2))
    rows.freeze()
    rows.first_scheduled_s[:] = at + waits(at)
    rows.first_token_s[:] = rows.first_scheduled_s
    rows.finish_s[:] = at + stays(at)
    result = replace(make_result(measure_until_s=200.0), requests=rows)
    assert summarise(result).backlog_growth_share == pytest.approx(growth, abs=0.02)


def test_only_requests_that_arrive_in_the_window_count() -> None:
    m = summarise(make_result(measure_from_s=1.0, measure_until_s=2.5))
    assert m.requests == 2
    assert m.e2e_mean_s == pytest.approx((3.0 + 0.75) / 2)
    assert m.offered_requests_per_s == pytest.approx(2 / 1.5)
    assert m.served_requests_per_s == 0.0, "none finishes inside"


def test_an_empty_window_has_no_figures_and_no_error() -> None:
    m = summarise(make_result(measure_from_s=9.0, measure_until_s=9.0))
    assert m.requests == 0
    assert all(math.isnan(v) for v in (m.ttft_mean_s, m.tpot_p99_s, m.e2e_mean_s, m.slo_share, m.output_tokens_per_s))


def test_counters() -> None:
    m = summarise(
        make_result(
            steps=10, busy_s=5.0, batch_time=20.0, kv_block_time=250.0, peak_batch=6, peak_kv_blocks=80, rounds=20,
            draft_rounds=16, drafted_tokens=48, accepted_tokens=24, decode_tokens=44, prefill_tokens=132,
            k_steps={0: 2, 3: 8},
        )
    )  # fmt: skip
    assert m.running_batch == 4.0
    assert m.kv_use == pytest.approx(0.5)
    assert (m.kv_peak, m.peak_batch) == (0.8, 6)
    assert m.utilisation == 0.5
    assert m.mean_acceptance_length == pytest.approx(2.5)
    assert m.tokens_per_round == pytest.approx(2.2)
    assert m.draft_acceptance_rate == 0.5
    assert m.wasted_draft_share == pytest.approx(24 / 200)
    assert m.prefill_share == pytest.approx(132 / 200)
    assert m.mean_k == pytest.approx(2.4)


@given(st.integers(0, 50), st.sampled_from([0, 1, 3]), st.floats(0.01, 0.5))
@settings(max_examples=25, derandomize=True, deadline=None)
def test_laws_of_any_run(seed: int, k: int, gap_s: float) -> None:
    rng = np.random.default_rng(seed)
    trace = make_trace(
        arrival_s=np.arange(40) * gap_s, prompt_tokens=rng.integers(1, 400, 40).tolist(),
        output_tokens=rng.integers(1, 30, 40).tolist(),
    )  # fmt: skip
    policy = PolicySpec("static", k) if k else PolicySpec("off")
    result = simulate(Workload(trace, FixedLuck(), seed=seed), make_cost(), limits=make_limits(), policy=policy)
    m = summarise(result, Slo())
    assert m.requests + m.rejected == 40
    assert m.ttft_p50_s <= m.ttft_p95_s <= m.ttft_p99_s <= m.e2e_p99_s
    assert 0 <= m.queue_mean_s <= m.ttft_mean_s <= m.e2e_mean_s
    assert 0 <= m.slo_share <= 1
    assert 0 < m.utilisation <= 1
    assert 0 < m.kv_use <= m.kv_peak <= 1
    assert m.running_batch <= m.peak_batch
    assert m.goodput_per_s <= m.offered_requests_per_s + 1e-12
    # Little's law over the whole run: running time of all requests is batch times busy time
    done = result.requests
    inside = float(np.sum(done.finish_s - done.first_scheduled_s))
    assert m.running_batch * result.totals.busy_s == pytest.approx(inside, rel=1e-6, abs=1e-9)
    if k:
        assert 1 <= m.mean_acceptance_length <= k + 1
        assert m.mean_acceptance_length == pytest.approx(1 + m.draft_acceptance_rate * _drafts(result), rel=1e-9)


def _drafts(result: RunResult) -> float:
    return result.totals.drafted_tokens / result.totals.draft_rounds


def test_every_metric_is_in_the_reference() -> None:
    text = (DOCS / "metrics.md").read_text()
    documented = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert documented == {f.name for f in fields(RunMetrics)}


def test_a_comparison_shows_metrics_that_exist() -> None:
    assert set(SHOWN_METRICS) <= {f.name for f in fields(RunMetrics)}
