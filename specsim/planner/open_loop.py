"""Speculation off and on at a fixed rate of arrivals: the experiment behind tables by requests per second.

Models: Poisson arrivals into an idle server, as benchmark clients send them; the first fifth is warm-up. Where the rate
is more than a side can serve its queue grows all the while, in the simulation as in the benchmark.
Leaves out: how long a benchmark ran; a queue that grows is longer in a longer one.
"""

from __future__ import annotations

import math

from specsim.config import PolicySpec, ReplicaLimits
from specsim.engine.simulator import simulate
from specsim.errors import ScenarioError
from specsim.latency import StepCost
from specsim.planner.concurrency import CrossoverSettings, Figures, PairedLoop, figures
from specsim.planner.question import Question
from specsim.traces.model import Trace
from specsim.traces.options import ArrivalProcess
from specsim.traces.recipe import SynthSpec
from specsim.traces.synth import synthesise
from specsim.workload import Workload

__all__ = ["PairedArrivals"]

_FEWEST, _MOST, _SECONDS = 200, 2000, 120.0
"""Requests of a run: two minutes of arrivals, within bounds."""
_WARMUP = 0.2


class PairedArrivals(PairedLoop):
    """As `PairedLoop`, at `rate_per_s` instead of a concurrency (which the points then give as 0).

    Raises:
        ScenarioError: when the rate is not positive, or no request of these lengths fits.
    """

    def __init__(self, question: Question, settings: CrossoverSettings, rate_per_s: float) -> None:
        if not (math.isfinite(rate_per_s) and rate_per_s > 0):
            raise ScenarioError(f"rate of arrivals must be a finite number > 0 a second, got {rate_per_s!r}")
        self.rate_per_s = rate_per_s
        super().__init__(question, settings, 0)

    def draw(self, seed: int) -> Trace:
        """The requests of one seed."""
        return synthesise(
            SynthSpec(
                process=ArrivalProcess(kind="poisson", rate_per_s=self.rate_per_s),
                requests=min(_MOST, max(_FEWEST, math.ceil(_SECONDS * self.rate_per_s))),
                prompt=self._settings.prompt,
                output=self._settings.output,
                seed=seed,
            )
        )

    def simulate(self, workload: Workload, cost: StepCost, limits: ReplicaLimits, policy: PolicySpec) -> Figures:
        """One run."""
        result = simulate(workload, cost, limits=limits, policy=policy, warmup_share=_WARMUP)
        rows = result.requests
        return figures(result, (rows.arrival_s >= result.measure_from_s) & ~rows.rejected)
