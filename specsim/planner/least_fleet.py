"""The least number of replicas that hold an objective: a bracketing search, and its proof at n and at n - 1.

Models: a search over simulated points that are asked for in batches, so that whoever runs them is free to run many
searches at once; every point of a search meets the same requests with the same luck as those of any other.
Leaves out: the simulation of a point. The search takes it that more replicas never serve worse; the proof does not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from specsim.config import PolicySpec

__all__ = ["FleetPoint", "FleetSearch", "Found", "Searching"]

ALONE = 1.02
"""Mean running requests of a busy replica up to which more replicas change nothing any more."""
MOST_REPLICAS = 4096
"""More are not tried (`specsim.config.Deployment`)."""
STEP_OUT = 1.25
"""Factor by which a load grows until an objective fails."""
CLOSE_ENOUGH = 0.04
"""Width of a bracket of loads over its upper end below which it is left."""


@dataclass(frozen=True, slots=True)
class FleetPoint:
    """One simulation: a fleet under a policy, at a multiple of the traffic, with one seed's luck."""

    group: int
    """Which kind of replica: an index into the groups of the job."""
    replicas: int
    policy: PolicySpec
    factor: float = 1.0
    """Traffic over that of the window."""
    seed_index: int = 0
    alone: bool = False
    """Whether requests come so far apart that each has its replica to itself."""


Metrics = dict[str, Any]
Searching = Generator[list[FleetPoint], list[Metrics], Any]
"""Yields points that it needs, is sent their metrics in the same order, and returns what it found."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a search ended. `verdict`:

    holds       `replicas` of `policy` hold the objective, and one less does not
    never       requests miss the objective even where each has a replica to itself, as with `replicas`
    not found   not with `replicas`, the most that are tried
    """

    verdict: str
    policy: PolicySpec
    replicas: int
    share: float
    """Share of requests within the objective there: mean over the replications that were run."""
    below: tuple[PolicySpec, float] | None = None
    """The policy that comes closest with one replica less, and its share; None: there is no less."""


class FleetSearch:
    """Searches of one group; remembers its points, so that none is asked for twice.

    Args:
        share: of requests that must meet the objective.
        seeds: paired replications, whose mean a share is; one without speculation, where luck plays no part.
        requests: of the window, more replicas than which never help.
    """

    def __init__(self, group: int, *, share: float, seeds: int, requests: int) -> None:
        self.group = group
        self._share = share
        self._seeds = seeds
        self._most = min(MOST_REPLICAS, requests)
        self._known: dict[FleetPoint, Metrics] = {}

    def point(self, policy: PolicySpec, replicas: int, seed_index: int, factor: float = 1.0) -> FleetPoint:
        return FleetPoint(self.group, replicas, policy, factor, seed_index)

    def _seeds_of(self, policy: PolicySpec) -> int:
        return 1 if policy.kind == "off" else self._seeds

    def runs(self, policy: PolicySpec, replicas: int, factor: float = 1.0) -> list[Metrics]:
        """Metrics of the replications that were run, in the order of their seeds."""
        points = (self.point(policy, replicas, i, factor) for i in range(self._seeds))
        return [self._known[point] for point in points if point in self._known]

    def _all_seeds(self, policy: PolicySpec, replicas: int, factor: float) -> list[FleetPoint]:
        return [self.point(policy, replicas, i, factor) for i in range(self._seeds_of(policy))]

    def _ask(self, points: Sequence[FleetPoint]) -> Searching:
        new = [point for point in points if point not in self._known]
        if new:
            found = yield new
            self._known.update(zip(new, found, strict=True))

    def _mean_share(self, policy: PolicySpec, replicas: int, factor: float) -> float:
        return fmean(float(m["slo_share"] or 0.0) for m in self.runs(policy, replicas, factor))

    def holds(self, policy: PolicySpec, replicas: int, factor: float = 1.0) -> Searching:
        """Whether the mean share over all replications is what is asked for.

        The rest is not run where the first one falls so short that the others cannot make up for it.
        """
        yield from self._ask([self.point(policy, replicas, 0, factor)])
        first = float(self._known[self.point(policy, replicas, 0, factor)]["slo_share"] or 0.0)
        seeds = self._seeds_of(policy)
        if (first + seeds - 1) / seeds < self._share:
            return False
        yield from self._ask(self._all_seeds(policy, replicas, factor))
        return self._mean_share(policy, replicas, factor) >= self._share

    def _first_that_holds(self, policies: Sequence[PolicySpec], replicas: int, factor: float) -> Searching:
        for policy in policies:
            if (yield from self.holds(policy, replicas, factor)):
                return policy
        return None

    def least(self, policies: Sequence[PolicySpec], guess: int, factor: float = 1.0) -> Searching:
        """`Found`: the least replicas with which any of the policies holds; policies are tried in their order."""
        guess = max(1, min(guess, self._most))
        winner = yield from self._first_that_holds(policies, guess, factor)
        fails, holds, step = 0, guess, 1
        if winner is None:
            policies, best = yield from self._not_hopeless(policies)
            if not policies:
                return best
            fails = guess
        while winner is None:
            if fails >= self._most or self._are_alone(policies, fails, factor):
                closest, share = self._closest(policies, fails, factor)
                return Found("not found" if fails >= self._most else "never", closest, fails, share)
            holds = min(self._most, fails + step)
            winner = yield from self._first_that_holds(policies, holds, factor)
            if winner is None:
                fails, step = holds, 2 * step
        while holds - fails > 1:
            # away from a guess that held in steps that grow, then between the two ends
            replicas = max(fails + 1, holds - step) if fails == 0 else (fails + holds) // 2
            other = yield from self._first_that_holds(policies, replicas, factor)
            if other is None:
                fails = replicas
            else:
                holds, winner, step = replicas, other, 2 * step
        assert winner is not None
        below = self._closest(policies, holds - 1, factor) if holds > 1 else None
        return Found("holds", winner, holds, self._mean_share(winner, holds, factor), below)

    def _closest(self, policies: Sequence[PolicySpec], replicas: int, factor: float) -> tuple[PolicySpec, float]:
        shares = {policy: self._mean_share(policy, replicas, factor) for policy in policies}
        best = max(policies, key=lambda policy: shares[policy])
        return best, shares[best]

    def _are_alone(self, policies: Sequence[PolicySpec], replicas: int, factor: float) -> bool:
        """Whether requests hardly ever share a replica, under each of the policies."""
        runs = [m for policy in policies for m in self.runs(policy, replicas, factor)[:1]]
        return all(float(m["running_batch"] or 1.0) <= ALONE for m in runs)

    def _not_hopeless(self, policies: Sequence[PolicySpec]) -> Searching:
        """The policies under which requests alone on a replica may meet the objective, and `Found` for when none is.

        A policy is dropped when its share misses by more than three standard deviations of so many requests.
        """
        points = [FleetPoint(self.group, 1, policy, alone=True) for policy in policies]
        yield from self._ask(points)
        shares = {point.policy: float(self._known[point]["slo_share"] or 0.0) for point in points}
        best = max(policies, key=lambda policy: shares[policy])
        count = max(1, int(self._known[points[0]]["requests"] or 1))
        spread = 3 * (self._share * (1 - self._share) / count) ** 0.5
        kept = tuple(policy for policy in policies if shares[policy] >= self._share - spread)
        return kept, Found("never", best, 1, shares[best])

    def alone(self, policy: PolicySpec) -> Metrics | None:
        """Figures of a request that has a replica to itself, if they were needed."""
        return self._known.get(FleetPoint(self.group, 1, policy, alone=True))

    def headroom(self, policy: PolicySpec, replicas: int, good: Callable[[Sequence[Metrics]], bool]) -> Searching:
        """(factor of traffic up to which `good` is true of the replications, factor at which it is not any more).

        Starts from 1, where it is true.
        """
        low, high = 1.0, 0.0
        while high == 0.0 or high - low > CLOSE_ENOUGH * high:
            factor = float(f"{low * STEP_OUT if high == 0.0 else (low + high) / 2:.4g}")
            if factor > 100.0:
                return low, None
            yield from self._ask(self._all_seeds(policy, replicas, factor))
            if good(self.runs(policy, replicas, factor)):
                low = factor
            else:
                high = factor
        return low, high
