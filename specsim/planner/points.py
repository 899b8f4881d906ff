"""One simulated point of a comparison: a policy, a load, a replication. Plain data in, plain data out.

A replication is a stretch of the trace with its own luck; every policy and load meets the same stretch with the same
luck, so that differences are paired.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from specsim.config import PolicySpec
from specsim.engine.simulator import simulate
from specsim.metrics import summarise
from specsim.planner.question import PlanSettings, Question
from specsim.planner.repeat import repeated
from specsim.traces.model import Trace
from specsim.workload import Workload

__all__ = ["Batch", "Stretch", "Worker", "stretches"]

MIN_STRETCH = 400
"""Requests below which a stretch says too little about a percentile."""

_IN_FLIGHT = (1.0, 0.7)
"""Shares of the requests that fit, tried for the capacity."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Requests `first..stop - 1` of the trace, and the seed of their luck."""

    index: int
    first: int
    stop: int
    seed: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Points that share a policy and a stretch, and so their derived rounds."""

    policy: PolicySpec
    stretch: Stretch
    loads_per_s: tuple[float, ...]
    requests: tuple[int, ...]
    """How many requests of the stretch each load serves."""
    acceptance_change: float = 0.0


def stretches(trace: Trace, settings: PlanSettings, *, repeats: bool = False) -> tuple[list[Stretch], str]:
    """Replications of a trace, and a sentence on what their spread means.

    Long traces are cut into consecutive stretches, so that intervals cover traffic and luck; short ones are used
    whole with another luck each time, so that intervals cover luck alone; so are those of which one half `repeats`
    the other.
    """
    n, count = len(trace), settings.replications
    if n >= count * MIN_STRETCH and not repeats:
        edges = np.linspace(0, n, count + 1).astype(int).tolist()
        cut = [Stretch(i, first, stop, settings.seed + i) for i, (first, stop) in enumerate(itertools.pairwise(edges))]
        rates = [trace.rows(part.first, part.stop).rate_per_s / trace.rate_per_s for part in cut]
        return cut, (
            f"{count} replications: consecutive stretches of about {n // count:,} requests, each with its own luck; "
            f"intervals cover traffic and acceptance. A load is the mean over the stretches, of which single ones "
            f"bring {min(rates):.2f} to {max(rates):.2f} times as many requests a second."
        )
    whole = [Stretch(i, 0, n, settings.seed + i) for i in range(count)]
    return whole, (
        f"{count} replications of all {n:,} requests, each with its own luck; the trace is too short to cut, "
        f"so intervals cover acceptance but not traffic."
    )


class Worker:
    """Simulates points in one process; keeps the last workloads, whose luck every policy shares."""

    def __init__(self, question: Question, trace: Trace, settings: PlanSettings) -> None:
        self.question = question
        self.trace = trace
        self.settings = settings
        self._workloads: OrderedDict[tuple[int, float], Workload] = OrderedDict()

    def workload(self, stretch: Stretch, change: float = 0.0) -> Workload:
        """The requests of a stretch with their luck, acceptance shifted by `change`."""
        key = (stretch.index, change)
        if key not in self._workloads:
            model = self.question.acceptance if not change else self.question.acceptance.with_change(change)
            rows = self.trace.rows(stretch.first, stretch.stop)
            self._workloads[key] = Workload(rows, model, seed=stretch.seed, first_request_id=stretch.first)
            if len(self._workloads) > 2:
                self._workloads.popitem(last=False)
        self._workloads.move_to_end(key)
        return self._workloads[key]

    def run(self, batch: Batch) -> list[dict[str, Any]]:
        """Metrics of every load of a batch, nan as None."""
        workload = self.workload(batch.stretch, batch.acceptance_change)
        side = self.question.side(batch.policy)
        found = []
        for load, count in zip(batch.loads_per_s, batch.requests, strict=True):
            scale = load / self.trace.rate_per_s
            arrivals = workload.trace.arrival_s[:count]
            result = simulate(
                workload,
                side.cost,
                limits=side.limits,
                policy=batch.policy,
                arrival_s=(arrivals - arrivals[0]) / scale,
                replicas=self.question.deployment.replicas,
                disaggregation=side.disaggregation,
                router=self.question.deployment.router,
                warmup_share=self.settings.warmup_share,
            )
            found.append(plain_numbers(asdict(summarise(result, self.question.slo))))
        return found

    def capacity_per_s(self, requests: int, fit: int) -> float:
        """Most requests per second that the fleet without speculation completes; nan when nothing can be served.

        One replica, or all of two pools, in a closed loop over at least `requests` of the trace. `fit` requests of mean
        length fill what is simulated; so many are kept in flight, or fewer, since an overfull cache may spend its time
        on recomputing what it preempted. Counted is the middle half of the completions, which has neither the start
        nor the end.
        """
        pools = self.question.off.disaggregation
        trace = repeated(self.trace.rows(0, min(requests, len(self.trace))), requests)
        best = math.nan
        for share in _IN_FLIGHT:
            concurrency = max(1, round(share * fit))
            result = simulate(
                Workload(_under_way(trace, concurrency), None, seed=0),
                self.question.off.cost,
                limits=self.question.off.limits,
                policy=PolicySpec("off"),
                concurrency=concurrency,
                disaggregation=pools,
            )
            finish_s = np.sort(result.requests.finish_s[np.isfinite(result.requests.finish_s)])
            if len(finish_s) == 0:
                return math.nan
            first, last = len(finish_s) // 4, (3 * len(finish_s)) // 4
            if last > first and finish_s[last] > finish_s[first]:
                rate = (last - first) / float(finish_s[last] - finish_s[first])
            else:
                rate = len(finish_s) / float(finish_s[-1])
            best = rate if math.isnan(best) else max(best, rate)
        return best if pools is not None else best * self.question.deployment.replicas


def _under_way(trace: Trace, concurrency: int) -> Trace:
    """The trace with its first `concurrency` outputs cut to a rising part, or equal ones end in waves."""
    first = min(concurrency, len(trace))
    outputs = trace.output_tokens.copy()
    outputs[:first] = np.ceil(outputs[:first] * (np.arange(first) + 0.5) / first)
    return replace(trace, output_tokens=outputs)


def plain_numbers(values: dict[str, Any]) -> dict[str, Any]:
    """nan and infinity as None, so that the dict is JSON."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
