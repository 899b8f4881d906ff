"""Runs made for real, one after another, each kept with its own figures and with those of its replay."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from calibrate.engine.records import Served
from calibrate.engine.replay import MeasuredSteps, recorded_rounds
from calibrate.latency.device import is_out_of_memory
from calibrate.validation.world import Load, Trial, World
from specsim.config import PolicySpec
from specsim.errors import CapacityError
from specsim.metrics import summarise
from specsim.records import RunResult
from specsim.workload import Workload

__all__ = ["FIGURES", "Prediction", "Run", "figures_of", "make_runs", "predict", "predicted_s"]

FIGURES: tuple[str, ...] = (
    "output_tokens_per_s",
    *(f"{metric}_{what}_s" for metric in ("ttft", "tpot") for what in ("mean", "p50", "p95", "p99")),
    "mean_acceptance_length",
    "tokens_per_round",
)
"""What is measured, predicted and compared, of `specsim.metrics.RunMetrics`."""

Serve = Callable[[Trial, np.ndarray], Served]
"""Serves the world's requests for real, arriving at these times; each repeat has prompts of its own."""


@dataclass(frozen=True)
class Run:
    """One real run."""

    trial: Trial
    figures: Mapping[str, float]
    replay: Mapping[str, float]
    """The same by the simulator, given the run's own step times and rounds."""
    unmatched: int
    """Steps of the replay that the run did not have."""
    steps: int
    running_batch: float
    preemptions: int
    began_utc: str
    wall_s: float
    reference_s: tuple[float, ...] = ()
    """The reference point, timed now and then during the run; empty: it was not."""


@dataclass(frozen=True)
class Prediction:
    """An arm at a load, simulated several times with luck of its own."""

    figures: Mapping[str, float]
    """Means."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Standard deviations over luck, relative to the means."""
    running_batch: float = math.nan


def figures_of(result: RunResult) -> dict[str, float]:
    """Every figure of `FIGURES`; nan where nothing was there to measure."""
    metrics = summarise(result)
    return {name: float(getattr(metrics, name)) for name in FIGURES}


def make_runs(
    world: World,
    serve: Serve,
    progress: Callable[[Run], None] = lambda run: None,
    *,
    budget_s: float = math.inf,
    now: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[list[Run], bool]:
    """Every trial of a world; what was made, and whether all of it.

    An interrupt (Ctrl-C), the end of `budget_s`, or a device out of memory ends with the runs that were finished; the
    first is made whatever the budget.

    Raises:
        CapacityError: the first run does not fit the memory of the device.
    """
    made: list[Run] = []
    ends = now() + budget_s
    try:
        for trial in world.trials():
            if made and now() + made[-1].wall_s > ends:
                return made, False
            made.append(_run(world, serve, trial))
            progress(made[-1])
    except KeyboardInterrupt:
        return made, False
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        where = f"out of memory on the device at {trial.load.label}, {trial.policy.label}"
        if not made:
            raise CapacityError(f"{where}; give a lower --concurrency, or a smaller --target") from None
        say(f"{where}; what is finished is compared")
        return made, False
    return made, True


def _run(world: World, serve: Serve, trial: Trial) -> Run:
    began, started = datetime.now(UTC), time.perf_counter()
    served = serve(trial, trial.load.arrival_s(world.trace, world.seed))
    wall_s = time.perf_counter() - started
    metrics = summarise(served.result)
    steps = MeasuredSteps(served, world.side(trial.policy).profile)
    rounds = recorded_rounds(served, Workload(world.trace, None, seed=world.seed))
    again = world.simulate(trial.load, trial.policy, cost=steps, acceptance=rounds)
    return Run(
        trial=trial,
        figures=figures_of(served.result),
        replay=figures_of(again),
        unmatched=steps.unmatched,
        steps=len(served.steps),
        running_batch=metrics.running_batch,
        preemptions=metrics.preemptions,
        began_utc=began.isoformat(timespec="seconds"),
        wall_s=wall_s,
        reference_s=tuple(served.reference_s),
    )


def predict(world: World, load: Load, policy: PolicySpec, slower: float = 1.0) -> Prediction:
    """An arm at a load from the profile and the acceptance of other prompts, on a machine whose steps all take `slower`
    times what the profile says."""
    # without drafts there is no luck, and forced luck is the very same
    count = world.luck if policy.num_spec_tokens and not world.forced else 1
    # steps that take longer are arrivals that come sooner, by another unit of time
    results = [summarise(world.simulate(load, policy, seed=world.seed + n, sooner=slower)) for n in range(count)]
    scale = {name: slower if name.endswith("_s") else 1.0 for name in FIGURES} | {"output_tokens_per_s": 1 / slower}
    values = {name: [scale[name] * float(getattr(metrics, name)) for metrics in results] for name in FIGURES}
    means = {name: float(np.mean(own)) for name, own in values.items()}
    return Prediction(
        means,
        {name: _relative(values[name], means[name]) for name in FIGURES},
        float(np.mean([metrics.running_batch for metrics in results])),
    )


def _relative(values: Sequence[float], mean: float) -> float:
    return float(np.std(values)) / mean if math.isfinite(mean) and mean else math.nan


def predicted_s(world: World) -> float:
    """Seconds that all real runs should take by the profile, without loading and warming up."""
    seconds = sum(world.simulate(load, policy).end_s for load in world.loads for policy in world.policies)
    return world.repeats * seconds
