"""Speculation off and on at fixed concurrency and lengths: the experiment behind published speed-up tables.

Models: a closed loop that is in its steady state from the start: the first wave of requests stands at random places of
its outputs, so that requests neither run in lockstep nor end together; both sides meet the same requests with the same
luck; throughput and TPOT are taken between a warm-up and the moment when requests run out.
Leaves out: arrivals, and so queueing (`specsim plan`); shared prefixes.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np

from specsim.acceptance import AcceptanceModel
from specsim.admission import never_fits
from specsim.config import PolicySpec, ReplicaLimits
from specsim.engine.simulator import simulate
from specsim.errors import ScenarioError
from specsim.latency import StepCost
from specsim.metrics import summarise
from specsim.planner.question import Question
from specsim.records import RunResult
from specsim.rng import Purpose, stream
from specsim.stats import Estimate, estimate, paired_ratio
from specsim.traces.model import Trace, TraceMeta
from specsim.traces.recipe import LengthSpec
from specsim.type_checks import check_types
from specsim.workload import Workload

__all__ = ["CrossoverSettings", "Figures", "PairedLoop", "Point", "figures", "requests_needed", "run_point",
           "steady_trace"]  # fmt: skip

_POOL = 4096
"""Drawn pairs of lengths from which the first wave is picked."""
_ALMOST_ALL = 0.97
"""Running batch over concurrency below which the rest is said to queue."""


@dataclass(frozen=True, slots=True)
class CrossoverSettings:
    """What is simulated."""

    concurrency: tuple[int, ...]
    prompt: LengthSpec
    output: LengthSpec
    num_spec_tokens: int
    """Drafts of a chain, or the depth of a tree; 0: speculation is loaded and drafts nothing."""
    seeds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self, "crossover")
        if not self.concurrency:
            raise ScenarioError("concurrency is empty; give at least one number of requests in flight, e.g. 1,16,64")
        for c in self.concurrency:
            if not 1 <= c <= 65536:
                raise ScenarioError(f"concurrency must be whole numbers in 1..65536, got {c!r}")
        if self.num_spec_tokens < 0:
            raise ScenarioError(f"k must be a whole number >= 0, got {self.num_spec_tokens!r}; off is always compared")
        if not 3 <= self.seeds <= 1000:
            raise ScenarioError(f"seeds must be 3..1000, since fewer pairs give no interval, got {self.seeds!r}")
        if self.seed < 0:
            raise ScenarioError(f"seed must be >= 0, got {self.seed!r}")


@dataclass(frozen=True, slots=True)
class Point:
    """One concurrency, all seeds."""

    concurrency: int
    throughput_off: Estimate
    """Output tokens per second, speculation off."""
    throughput_on: Estimate
    tpot_off_s: Estimate
    tpot_on_s: Estimate
    speedup: Estimate
    """Throughput on over off, paired by seed."""
    tpot_speedup: Estimate
    """TPOT off over on."""
    latency_speedup: Estimate
    """Mean seconds from arrival to last token, off over on."""
    running_off: float
    """Mean requests per step; below `concurrency` the rest waits for slots or cache."""
    running_on: float
    tokens_per_round: float
    """Tokens a request gets a round with speculation on, rounds without a proposal included."""
    preemptions: int
    refused: int

    @property
    def verdict(self) -> str:
        """`faster`, `slower` or `tie` of speculation on against off."""
        return {"higher": "faster", "lower": "slower"}.get(self.speedup.compared_to(1.0), "tie")

    @property
    def queued(self) -> bool:
        """Whether some of the requests in flight could not run at once."""
        return min(self.running_off, self.running_on) < _ALMOST_ALL * self.concurrency


def requests_needed(concurrency: int, output_tokens: float) -> int:
    """Requests of a steady run: warm-up, at least three waves (fewer when outputs are long) and the wave left over."""
    measured = max(3 * concurrency, 16, min(96, math.ceil(40_000 / output_tokens)))
    return warmup_requests(concurrency) + measured + concurrency


def warmup_requests(concurrency: int) -> int:
    """Completions before the measurement: the first wave, and half a wave more."""
    return math.ceil(1.5 * concurrency)


def steady_trace(prompt: LengthSpec, output: LengthSpec, concurrency: int, requests: int, seed: int) -> Trace:
    """Requests for a closed loop that starts in its steady state.

    The first `concurrency` ones are midway: in a loop that has run for long, the outputs in flight are longer than the
    mean (picked in proportion to their length) and each stands anywhere in its output with the same chance. What it has
    emitted already counts as prompt, so that contexts are right too. The rest are whole.
    """
    rng = stream(seed, Purpose.LENGTHS)
    prompts = prompt.draw(requests, rng).astype(np.int64)
    outputs = output.draw(requests, rng).astype(np.int64)
    first = min(concurrency, requests)
    pool_prompts, pool_outputs = prompt.draw(_POOL, rng), output.draw(_POOL, rng).astype(np.int64)
    picked = rng.choice(_POOL, size=first, p=pool_outputs / pool_outputs.sum())
    places = rng.permutation((np.arange(first) + rng.random(first)) / first)
    left = np.clip(np.ceil(pool_outputs[picked] * places), 1, pool_outputs[picked]).astype(np.int64)
    prompts[:first] = pool_prompts[picked] + pool_outputs[picked] - left
    outputs[:first] = left
    said = f"closed loop of {concurrency}: prompt {prompt}, output {output} tokens"
    return Trace(
        arrival_s=np.zeros(requests),
        prompt_tokens=prompts.astype(np.int32),
        output_tokens=outputs.astype(np.int32),
        meta=TraceMeta(
            source=f"synthetic: {said}",
            format="synthetic",
            time_unit="s (closed loop)",
            sha256=hashlib.sha256(f"{said} {requests} {seed}".encode()).hexdigest(),
            rows_read=requests,
            rows_kept=requests,
            notes=(f"{said}; the first {first} requests start midway, so that the loop is in its steady state",),
        ),
    )


def run_point(question: Question, settings: CrossoverSettings, concurrency: int) -> Point:
    """Simulate one concurrency off and on, `settings.seeds` times.

    Raises:
        ScenarioError: when no request of these lengths fits.
    """
    return PairedLoop(question, settings, concurrency).point(question.acceptance)


class PairedLoop:
    """One load, off and on: speculation off is simulated once, on for every acceptance that is asked for.

    All of them meet the same requests, and the same uniforms decide what is accepted, so that more acceptance never
    means other luck.

    Raises:
        ScenarioError: when no request of these lengths fits.
    """

    def __init__(self, question: Question, settings: CrossoverSettings, concurrency: int) -> None:
        self.concurrency = concurrency
        self._question = question
        self._k = settings.num_spec_tokens
        self._on_cost, self._on_limits = question.on.cost, question.on.limits
        self._settings = settings
        self._refused = 0
        self._traces: list[tuple[int, Trace]] = []
        for seed in range(settings.seed, settings.seed + settings.seeds):
            trace, lost = _fitting(self.draw(seed), question, self._on_limits, self._k)
            self._refused += lost
            self._traces.append((seed, trace))
        self._off: list[Figures] | None = None

    def draw(self, seed: int) -> Trace:
        """The requests of one seed."""
        settings = self._settings
        count = requests_needed(self.concurrency, settings.output.mean)
        return steady_trace(settings.prompt, settings.output, self.concurrency, count, seed)

    def simulate(self, workload: Workload, cost: StepCost, limits: ReplicaLimits, policy: PolicySpec) -> Figures:
        """One run."""
        needed = requests_needed(self.concurrency, self._settings.output.mean)
        result = simulate(
            workload,
            cost,
            limits=limits,
            policy=policy,
            concurrency=self.concurrency,
            warmup_share=warmup_requests(self.concurrency) / needed,
        )
        rows = result.requests
        done = (rows.finish_s >= result.measure_from_s) & (rows.finish_s <= result.measure_until_s)
        done[: self.concurrency] = False
        return figures(result, done)

    def point(self, acceptance: AcceptanceModel) -> Point:
        """Both sides, all seeds, under one acceptance."""
        if self._off is None:
            side = self._question.off
            self._off = self._run(PolicySpec("off"), side.cost, side.limits, None)
        on = self._run(PolicySpec("static", self._k), self._on_cost, self._on_limits, acceptance)
        off = self._off
        return Point(
            concurrency=self.concurrency,
            throughput_off=estimate([run.tokens_per_s for run in off]),
            throughput_on=estimate([run.tokens_per_s for run in on]),
            tpot_off_s=estimate([run.tpot_s for run in off]),
            tpot_on_s=estimate([run.tpot_s for run in on]),
            speedup=paired_ratio([run.tokens_per_s for run in on], [run.tokens_per_s for run in off]),
            tpot_speedup=paired_ratio([run.tpot_s for run in off], [run.tpot_s for run in on]),
            latency_speedup=paired_ratio([run.latency_s for run in off], [run.latency_s for run in on]),
            running_off=float(np.mean([run.running for run in off])),
            running_on=float(np.mean([run.running for run in on])),
            tokens_per_round=estimate([run.tokens_per_round for run in on]).mean,
            preemptions=sum(run.preemptions for run in (*off, *on)),
            refused=self._refused,
        )

    def _run(
        self, policy: PolicySpec, cost: StepCost, limits: ReplicaLimits, acceptance: AcceptanceModel | None
    ) -> list[Figures]:
        return [
            self.simulate(Workload(trace, acceptance, seed=seed), cost, limits, policy) for seed, trace in self._traces
        ]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run says of its measured stretch."""

    tokens_per_s: float
    tpot_s: float
    """Mean over the whole requests that finish in it, so that those that drain at the end do not count."""
    latency_s: float
    """Mean from arrival to last token, over the same requests."""
    running: float
    tokens_per_round: float
    preemptions: int


def _fitting(trace: Trace, question: Question, on_limits: ReplicaLimits, k: int) -> tuple[Trace, int]:
    """The requests that both sides can serve, and how many they cannot."""
    pairs = zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    good = [not (never_fits(p, o, question.off.limits, 0) or never_fits(p, o, on_limits, k)) for p, o in pairs]
    kept = np.flatnonzero(good)
    if not len(kept):
        room = on_limits.num_kv_blocks * on_limits.block_size_tokens
        raise ScenarioError(
            f"requests of {trace.prompt_tokens[-1]} prompt and {trace.output_tokens[-1]} output tokens do not fit: "
            f"the longest sequence served is {on_limits.max_model_len} tokens, the cache holds {room}; lower isl or osl"
        )
    if len(kept) == len(trace):
        return trace, 0
    kept_columns = {name: getattr(trace, name)[kept] for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    return replace(trace, **kept_columns), len(trace) - len(kept)


def figures(result: RunResult, done: np.ndarray) -> Figures:
    """Figures of a run; times are means over the requests that `done` marks."""
    metrics, rows = summarise(result), result.requests
    several = done & (rows.output_tokens >= 2)
    tpot = (rows.finish_s[several] - rows.first_token_s[several]) / (rows.output_tokens[several] - 1)
    latency = rows.finish_s[done] - rows.arrival_s[done]
    return Figures(
        tokens_per_s=metrics.output_tokens_per_s,
        tpot_s=float(tpot.mean()) if len(tpot) else math.nan,
        latency_s=float(latency.mean()) if len(latency) else math.nan,
        running=metrics.running_batch,
        tokens_per_round=metrics.tokens_per_round,
        preemptions=metrics.preemptions,
    )
