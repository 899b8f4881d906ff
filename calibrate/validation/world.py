"""What is served for real and predicted: requests, loads, arms, and the order in which they take turns.

Both sides get the same requests, limits, policies and arrivals. Leaves out: models and devices
(`calibrate.validation.server`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from specsim.acceptance.base import AcceptanceModel
from specsim.config import PolicySpec
from specsim.engine.simulator import simulate
from specsim.errors import ScenarioError
from specsim.latency import StepCost
from specsim.planner.question import Side
from specsim.records import RunResult
from specsim.traces.arrivals import draw_arrivals
from specsim.traces.model import Trace
from specsim.traces.options import ArrivalProcess
from specsim.workload import Workload

__all__ = ["Load", "Trial", "World"]


@dataclass(frozen=True, slots=True)
class Load:
    """How requests come: so many in flight, or so many a second.

    Raises:
        ScenarioError: neither, both, or a number that makes no sense.
    """

    concurrency: int | None = None
    rate_per_s: float | None = None
    arrivals: Literal["trace", "poisson"] = "trace"
    """Of an open loop: the trace's own, scaled to the rate, or drawn."""

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate_per_s is None):
            raise ScenarioError("a load is a number of requests in flight or a rate; give one of them")
        if self.concurrency is not None and self.concurrency < 1:
            raise ScenarioError(f"requests in flight must be >= 1, got {self.concurrency}")
        if self.rate_per_s is not None and not 1e-6 <= self.rate_per_s <= 1e6:
            raise ScenarioError(f"a rate must lie in 1e-6..1e6 requests per second, got {self.rate_per_s!r}")

    @property
    def label(self) -> str:
        """`4 in flight`, `0.5/s`, `0.5/s poisson`."""
        if self.concurrency is not None:
            return f"{self.concurrency} in flight"
        return f"{self.rate_per_s:g}/s" + (" poisson" if self.arrivals == "poisson" else "")

    def arrival_s(self, trace: Trace, seed: int) -> np.ndarray:
        """float64 [requests], from 0; in closed loop only the length counts.

        Raises:
            ScenarioError: the trace has no rate that could be scaled.
        """
        if self.rate_per_s is None:
            return trace.arrival_s - trace.arrival_s[0]
        if self.arrivals == "poisson":
            return draw_arrivals(ArrivalProcess("poisson", self.rate_per_s), len(trace), seed)
        if not trace.rate_per_s > 0:
            raise ScenarioError(f"{trace.meta.source}: all requests arrive at once, so no rate can be scaled; "
                                f"give --arrivals poisson")  # fmt: skip
        return (trace.arrival_s - trace.arrival_s[0]) * (trace.rate_per_s / self.rate_per_s)


class Trial(NamedTuple):
    """One run to be made."""

    repeat: int
    load: Load
    policy: PolicySpec


@dataclass(frozen=True)
class World:
    """Everything that real and simulated runs share.

    Raises:
        ScenarioError: no load, no repeat, the same arm twice, or a policy that drafts without acceptance to predict it.
    """

    trace: Trace
    off: Side
    on: Side
    """Profile and limits without speculation, and with it."""
    policies: tuple[PolicySpec, ...]
    loads: tuple[Load, ...]
    acceptance: AcceptanceModel | None = None
    """Of other prompts; what predictions take. Forced: what rounds emit for real, too."""
    forced: bool = False
    """Real rounds emit what `acceptance` deals, the same as simulated ones of the same seed."""
    repeats: int = 3
    luck: int = 8
    """Simulations of each arm at each load, with luck of their own."""
    seed: int = 0
    warmup_share: float = 0.0

    def __post_init__(self) -> None:
        if not self.loads or not self.policies or self.repeats < 1 or self.luck < 1 or not len(self.trace):
            raise ScenarioError("requests, loads, policies, repeats and simulations: at least one of each is needed")
        labels = [policy.label for policy in self.policies]
        doubled = next((label for label in labels if labels.count(label) > 1), None)
        if doubled is not None or len(set(self.loads)) < len(self.loads):
            raise ScenarioError(f"{'policy ' + doubled if doubled else 'a load'} is given twice; give each once")
        for policy in self.policies:
            if policy.num_spec_tokens and self.acceptance is None:
                raise ScenarioError(f"policy {policy.label} drafts, and no acceptance is known to predict it with")

    @property
    def num_spec_tokens(self) -> int:
        """Most drafts in a round of any arm."""
        return max(policy.num_spec_tokens for policy in self.policies)

    def side(self, policy: PolicySpec) -> Side:
        """Profile and limits of an arm."""
        return self.off if policy.kind == "off" else self.on

    def trials(self) -> Iterator[Trial]:
        """Every run in order: arms next to each other (A B A B), repeats as far apart as they can be, so that what the
        machine does meanwhile shows as noise and not as a difference of arms."""
        for repeat in range(self.repeats):
            for load in self.loads:
                first = repeat % len(self.policies)
                for policy in self.policies[first:] + self.policies[:first]:
                    yield Trial(repeat, load, policy)

    def simulate(
        self,
        load: Load,
        policy: PolicySpec,
        *,
        seed: int | None = None,
        cost: StepCost | None = None,
        acceptance: AcceptanceModel | None = None,
        sooner: float = 1.0,
    ) -> RunResult:
        """An arm at a load in the simulator; `cost` and `acceptance` None: those of the prediction. Arrivals come
        `sooner` times as early."""
        side = self.side(policy)
        return simulate(
            Workload(self.trace, acceptance or self.acceptance, seed=self.seed if seed is None else seed),
            cost or side.cost,
            limits=side.limits,
            policy=policy,
            arrival_s=load.arrival_s(self.trace, self.seed) / sooner,
            concurrency=load.concurrency,
            warmup_share=self.warmup_share,
        )
