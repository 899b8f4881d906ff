"""What theory says and what the simulator gives, side by side: closed forms, known queues, Little's law.

Models: tokens a round under constant acceptance; a single server (one place, one output token, service by prompt
length) as M/M/1 and M/D/1; requests in service as rate times time in a continuous batch.
Leaves out: nothing that the tests hold; `docs/laws.md` lists those. Numbers: intervals are Student t over independent
seeds, at a level of 99 %, so that one in a hundred right figures lies outside its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from specsim.acceptance import PerPosition
from specsim.closed_forms import expected_tokens_per_round, speedup_with_cost_ratio
from specsim.config import PolicySpec, ReplicaLimits
from specsim.engine.simulator import simulate
from specsim.latency import StepCost
from specsim.metrics import summarise
from specsim.profiles import LatencyProfile, PassCost
from specsim.stats import Estimate, estimate
from specsim.traces.model import Trace, TraceMeta
from specsim.workload import Workload

__all__ = ["CLOSED_FORMS", "Comparison", "closed_forms", "little", "queues"]

_LEVEL = 0.99
_SEEDS = 12
_QUEUE_SEEDS = 16
_REQUESTS = 2000
_WARMUP = 400
"""Requests left out of mean waits: at a load of 0.7 an empty start is forgotten after some tens."""
_COST_RATIO = 0.1
_STREAMS = 20
_STREAM_TOKENS = 2_001
"""Long, since the last round of a request is cut, which the closed forms do not know."""
_TOKEN_S = 1e-6
_MEAN_TOKENS = 100_000

CLOSED_FORMS = ((0.7, 4), (0.5, 4), (0.8, 3), (0.8, 4))
"""(acceptance, drafts) of the table."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of theory and the simulated one."""

    what: str
    theory: float
    simulated: Estimate
    unit: str

    @property
    def holds(self) -> bool:
        """Whether the interval holds the theory."""
        return self.simulated.low <= self.theory <= self.simulated.high


def closed_forms() -> list[Comparison]:
    """Tokens a round, and speed-up at a draft cost ratio of 0.1, of simulated requests whose steps cost the same."""
    plain_s, _ = _streams(PolicySpec("off"), None, PerPosition((0.0,)), seed=0)
    found = []
    for alpha, k in CLOSED_FORMS:
        runs = [
            _streams(PolicySpec("static", k), _pass(weights_s=_COST_RATIO), PerPosition((alpha,)), seed=seed)
            for seed in range(_SEEDS)
        ]
        theory = expected_tokens_per_round(alpha, k)
        lengths = [length for _, length in runs]
        found.append(Comparison(f"tokens a round, a={alpha:g}, k={k}", theory, _estimate(lengths), "tokens"))
        ratio = speedup_with_cost_ratio(alpha, k, _COST_RATIO)
        gains = [plain_s / seconds for seconds, _ in runs]
        what = f"speed-up, a={alpha:g}, k={k}, c={_COST_RATIO:g}"
        found.append(Comparison(what, ratio, _estimate(gains), "x"))
    return found


def queues(loads: tuple[float, ...] = (0.5, 0.7)) -> list[Comparison]:
    """Mean wait before service in units of service: M/M/1 load / (1 - load), M/D/1 half of it."""
    found = []
    for exponential, name in ((True, "M/M/1"), (False, "M/D/1")):
        for load in loads:
            waits = [_mean_wait(seed, load=load, exponential=exponential) for seed in range(_QUEUE_SEEDS)]
            theory = load / (1.0 - load) / (1.0 if exponential else 2.0)
            found.append(Comparison(f"{name}, load {load:g}: mean wait", theory, _estimate(waits), "services"))
    return found


def little(profile: LatencyProfile, limits: ReplicaLimits) -> list[Comparison]:
    """Mean requests in service of a continuous batch, by the engine's own count, over completion rate x mean time in
    service by the moments of the requests: 1 by Little's law, within and without speculation."""
    cost = StepCost(profile)
    found = []
    for policy in (PolicySpec("off"), PolicySpec("static", 3)):
        ratios = []
        for seed in range(5):
            rng = np.random.default_rng((77, seed))
            trace = _trace(
                np.cumsum(rng.exponential(0.2, 400)), rng.integers(50, 800, 400), rng.integers(20, 400, 400), f"{seed}"
            )
            result = simulate(Workload(trace, PerPosition((0.7,)), seed=seed), cost, limits=limits, policy=policy)
            rows = result.requests
            by_moments = float(np.sum(rows.finish_s - rows.first_scheduled_s))
            ratios.append(result.totals.batch_time / by_moments)
        found.append(Comparison(f"Little, {policy.label}: batch over rate x time", 1.0, _estimate(ratios), "ratio"))
    return found


def _estimate(values: list[float] | tuple[float, ...]) -> Estimate:
    return estimate(values, level=_LEVEL)


def _streams(policy: PolicySpec, draft: PassCost | None, acceptance: PerPosition, *, seed: int) -> tuple[float, float]:
    """(mean seconds after the first token, tokens a round) of requests side by side, a target pass a second."""
    ones = np.ones(_STREAMS, dtype=np.int64)
    trace = _trace(np.zeros(_STREAMS), ones, ones * _STREAM_TOKENS, f"streams {seed}")
    profile = LatencyProfile(
        name="unit costs",
        kind="analytic",
        target=_pass(weights_s=1.0),
        draft=draft,
        draft_mode="none" if draft is None else "serial",
    )
    limits = replace(_one(), max_num_seqs=_STREAMS)
    result = simulate(Workload(trace, acceptance, seed=seed), StepCost(profile), limits=limits, policy=policy)
    seconds = float(np.mean(result.requests.finish_s - result.requests.first_token_s))
    return seconds, summarise(result).tokens_per_round


def _mean_wait(seed: int, *, load: float, exponential: bool) -> float:
    rng = np.random.default_rng((4127, seed))
    service_s = _MEAN_TOKENS * _TOKEN_S
    arrivals = np.cumsum(rng.exponential(service_s / load, _REQUESTS))
    drawn = rng.exponential(_MEAN_TOKENS, _REQUESTS) if exponential else np.full(_REQUESTS, _MEAN_TOKENS)
    prompts = np.maximum(1, np.rint(drawn)).astype(np.int64)
    trace = _trace(arrivals, prompts, np.ones(_REQUESTS, dtype=np.int64), f"queue {load} {exponential} {seed}")
    profile = LatencyProfile(
        name="single server", kind="analytic", target=_pass(token_s=_TOKEN_S), draft=None, draft_mode="none"
    )
    result = simulate(Workload(trace, None, seed=seed), StepCost(profile), limits=_one(), policy=PolicySpec("off"))
    rows = result.requests
    return float(np.mean((rows.first_scheduled_s - rows.arrival_s)[_WARMUP:])) / service_s


def _pass(*, weights_s: float = 0.0, token_s: float = 0.0) -> PassCost:
    return PassCost(
        weights_s=weights_s, token_s=token_s, head_weights_s=0.0, head_row_s=0.0, kv_token_s=0.0, kv_pair_s=0.0,
        fixed_s=0.0,
    )  # fmt: skip


def _one() -> ReplicaLimits:
    """One place and more memory than can be used."""
    return ReplicaLimits(num_kv_blocks=10**7, max_num_seqs=1, max_num_batched_tokens=10**8, max_model_len=10**8)


def _trace(arrival_s: np.ndarray, prompts: np.ndarray, outputs: np.ndarray, name: str) -> Trace:
    return Trace(
        arrival_s=arrival_s,
        prompt_tokens=prompts.astype(np.int32),
        output_tokens=outputs.astype(np.int32),
        meta=TraceMeta(
            source=f"synthetic: {name}",
            format="synthetic",
            time_unit="s",
            sha256=hashlib.sha256(name.encode()).hexdigest(),
            rows_read=len(arrival_s),
            rows_kept=len(arrival_s),
        ),
    )
