"""With one request in a batch and one token a request the simulator is a known queue: M/M/1, M/D/1, and Lindley's law.

Service is a prompt's tokens times `token_s`, everything else free, so that any service time can be had; exponential
times come as whole tokens of one microsecond, which rounds a mean of 100 000 by less than one part in 10^5.

False alarms: means are compared with theory over 40 seeds by a t interval at level 1e-6, so a change of seeds fails one
of these tests once in a million times; the seeds are fixed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from builders import make_limits, make_profile, make_trace
from scipy import stats
from strategies import World, run

from specsim.profiles import PassCost
from specsim.records import RunResult

FALSE_ALARM = 1e-6
SEEDS = 40
REQUESTS = 3000
WARMUP = 500
"""Requests left out of means; at load 0.7 an empty queue is forgotten after some tens of requests."""
TOKEN_S = 1e-6
MEAN_TOKENS = 100_000
MEAN_SERVICE_S = MEAN_TOKENS * TOKEN_S


def single_server(*, arrival_s: np.ndarray, service_tokens: np.ndarray) -> World:
    free = PassCost(
        weights_s=0.0, token_s=TOKEN_S, head_weights_s=0.0, head_row_s=0.0, kv_token_s=0.0, kv_pair_s=0.0, fixed_s=0.0
    )
    return World(
        trace=make_trace(arrival_s=arrival_s.tolist(), prompt_tokens=service_tokens.tolist(), output_tokens=1),
        limits=make_limits(num_kv_blocks=10**7, max_num_seqs=1, max_num_batched_tokens=10**8, max_model_len=10**8),
        profile=make_profile(lookup=True, target=free, host_s=0.0),
    )


def queue(seed: int, *, load: float, exponential: bool, requests: int = REQUESTS) -> tuple[World, RunResult]:
    rng = np.random.default_rng((1801, seed))
    arrival_s = np.cumsum(rng.exponential(MEAN_SERVICE_S / load, requests))
    drawn = rng.exponential(MEAN_TOKENS, requests) if exponential else np.full(requests, MEAN_TOKENS)
    world = single_server(arrival_s=arrival_s, service_tokens=np.maximum(1, np.rint(drawn)).astype(np.int64))
    return world, run(world, plain=False)


def mean_waits(*, load: float, exponential: bool) -> np.ndarray:
    """Mean wait before service by seed, in mean service times."""
    means = []
    for seed in range(SEEDS):
        rows = queue(seed, load=load, exponential=exponential)[1].requests
        means.append(float(np.mean((rows.first_scheduled_s - rows.arrival_s)[WARMUP:])) / MEAN_SERVICE_S)
    return np.array(means)


def half_width(values: np.ndarray) -> float:
    quantile = float(stats.t.ppf(1 - FALSE_ALARM / 2, len(values) - 1))
    return quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))


@pytest.mark.parametrize(("load", "exponential"), [(0.5, True), (0.7, True), (0.5, False), (0.7, False)])
def test_mean_wait_is_that_of_theory(load: float, exponential: bool) -> None:
    """Wait in units of service: M/M/1 load / (1 - load), M/D/1 half of that."""
    theory = load / (1 - load) / (1 if exponential else 2)
    other = theory / 2 if exponential else theory * 2
    waits = mean_waits(load=load, exponential=exponential)
    width = half_width(waits)
    assert abs(waits.mean() - theory) < width
    assert width < 0.15 * theory, "the guard: the interval says something"
    assert abs(waits.mean() - other) > width, "the guard: it tells the two queues apart"


def test_waits_follow_lindley_request_by_request() -> None:
    """W[n+1] = max(0, W[n] + S[n] - (t[n+1] - t[n])), whatever the distributions, on both kinds of replica."""
    world, fast = queue(7, load=0.9, exponential=True, requests=400)
    arrival_s = world.trace.arrival_s
    service_s = world.trace.prompt_tokens * TOKEN_S
    wait_s = np.zeros(len(arrival_s))
    for n in range(len(arrival_s) - 1):
        wait_s[n + 1] = max(0.0, wait_s[n] + service_s[n] - (arrival_s[n + 1] - arrival_s[n]))
    for result in (fast, run(world, plain=True)):
        rows = result.requests
        np.testing.assert_allclose(rows.first_scheduled_s - arrival_s, wait_s, rtol=0, atol=1e-9)
        np.testing.assert_allclose(rows.finish_s - arrival_s, wait_s + service_s, rtol=0, atol=1e-9)
    assert 0.02 < (wait_s == 0).mean() < 0.5, "the guard: some wait, some do not"


def test_busy_time_is_the_sum_of_service_and_the_share_is_the_load() -> None:
    world, result = queue(3, load=0.7, exponential=True)
    service_s = math.fsum((world.trace.prompt_tokens * TOKEN_S).tolist())
    assert result.totals.busy_s == pytest.approx(service_s, rel=1e-9)
    # 3000 exponential gaps and services: each mean is within 9 % at 4.9 standard errors (false alarm 1e-6).
    assert result.totals.busy_s / result.end_s == pytest.approx(0.7, rel=0.13)


def test_two_servers_by_turns_are_two_single_queues() -> None:
    """Round robin hands every second request to a server of its own, so each wait is Lindley's on that half."""
    world, _ = queue(5, load=1.5, exponential=True, requests=400)
    rows = run(replace(world, replicas=2, router="round_robin"), plain=False).requests
    for server in (0, 1):
        arrival_s = world.trace.arrival_s[server::2]
        alone = single_server(arrival_s=arrival_s, service_tokens=world.trace.prompt_tokens[server::2])
        expected = run(alone, plain=False).requests
        np.testing.assert_allclose(rows.finish_s[server::2], expected.finish_s, rtol=1e-12)
        assert (rows.first_scheduled_s[server::2] > arrival_s).mean() > 0.3, "the guard: there is queueing"


def test_batch_of_many_equal_requests_is_a_bulk_server() -> None:
    """D/D with bulk service: c places and fixed weights_s, c arrivals a service time keep every wait at zero or one."""
    cost = PassCost(
        weights_s=1.0, token_s=0.0, head_weights_s=0.0, head_row_s=0.0, kv_token_s=0.0, kv_pair_s=0.0, fixed_s=0.0
    )
    arrivals = np.arange(40) / 4.0
    world = World(
        trace=make_trace(arrival_s=arrivals.tolist(), prompt_tokens=3, output_tokens=1),
        limits=make_limits(max_num_seqs=4),
        profile=make_profile(lookup=True, target=cost, host_s=0.0),
    )
    result = run(world, plain=False)
    rows = result.requests
    # The first comes alone at 0; from then on steps start at whole seconds and take the four that came since.
    np.testing.assert_array_equal(rows.first_scheduled_s, np.ceil(arrivals))
    np.testing.assert_array_equal(rows.finish_s, np.ceil(arrivals) + 1.0)
    assert result.totals.peak_batch == 4
