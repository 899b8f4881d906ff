"""What benchmarks are measured in: bare SimPy events and plain numpy draws, timed in turn with what is measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from specsim.traces import ReadOptions, read_trace
from specsim.traces.model import Trace

EXAMPLE = Path(__file__).parents[2] / "examples" / "azure_llm_2023_conv_rows1-10000.csv"
EVENTS = 50_000
DRAWS = 1_000_000


def event_s() -> float:
    """Processor seconds of one bare timeout event."""

    def process(env: simpy.Environment) -> Generator[simpy.Event, None, None]:
        for _ in range(EVENTS):
            yield env.timeout(1.0)

    env = simpy.Environment()
    env.process(process(env))
    start = time.process_time()
    env.run()
    return (time.process_time() - start) / EVENTS


def draw_s() -> float:
    """Processor seconds of one uniform of numpy's Philox, drawn with a million others."""
    draws, out = np.random.Generator(np.random.Philox(0)), np.empty(DRAWS)
    start = time.process_time()
    draws.random(out=out)
    return (time.process_time() - start) / DRAWS


class Unwritten:
    """A benchmark that is written down nowhere, for what another one is compared with."""

    def pedantic(self, run: Callable[[], None], *, rounds: int, warmup_rounds: int) -> None:
        for _ in range(rounds + warmup_rounds):
            run()


def in_units(
    benchmark: Any, unit_s: Callable[[], float], work: Callable[[], object], *, rounds: int, warmup: int = 1
) -> tuple[float, float]:
    """Medians of (units, processor seconds) that `work` takes, each time between two measurements of the unit."""
    ratios, seconds = [], []

    def run() -> None:
        unit = unit_s()
        start = time.process_time()
        work()
        took = time.process_time() - start
        ratios.append(took / ((unit + unit_s()) / 2))
        seconds.append(took)

    benchmark.pedantic(run, rounds=rounds, warmup_rounds=warmup)
    return statistics.median(ratios), statistics.median(seconds)


@cache
def example() -> Trace:
    """The shipped Azure conversation trace."""
    return read_trace(EXAMPLE, ReadOptions())
