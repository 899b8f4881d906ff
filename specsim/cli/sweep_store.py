"""The points of a sweep in the store: each a run of its own, shared with `specsim simulate` and with other sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from specsim.cli.single_store import save_profile, save_scenario, save_single, save_trace, single_key
from specsim.code_version import code_version

if TYPE_CHECKING:
    from db.store import Store
    from scenarios.loader import ScenarioFile
    from specsim.planner.single import SingleRun
    from specsim.planner.sweep import SweepJob, SweepPoint

__all__ = ["StoredPoints"]


class StoredPoints:
    """A `SweepCache` (see `specsim.planner.sweep`) on the results database; `keys` are those of finished points."""

    def __init__(self, store: Store, job: SweepJob, items: Mapping[tuple[Any, ...], ScenarioFile]) -> None:
        self._store, self._job, self._items = store, job, items
        self._started = datetime.now(UTC)
        self._traces: dict[int, str] = {}
        self._profiles: dict[int, str] = {}
        """Profile, by its id -> its hash."""
        self._scenarios: dict[str, str] = {}
        self._identities: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._keys: dict[SweepPoint, str] = {}
        self.keys: list[str] = []
        self.code_version = code_version()
        first = next(point for cell in job.cells for point in cell.points)
        self.trace_sha256 = self._trace(first.trace)
        self.profile_sha256 = self._profile(job.run_of(first))
        self.scenario_sha256 = self._scenario(first)

    # What runs refer to is hashed and stored once, before the first of them.

    def _trace(self, index: int) -> str:
        from specsim.traces.write import fingerprint

        if index not in self._traces:
            self._traces[index] = fingerprint(self._job.traces[index])
            save_trace(self._store, self._job.traces[index], self._traces[index])
        return self._traces[index]

    def _profile(self, run: SingleRun) -> str:
        profile = run.side.profile
        if id(profile) not in self._profiles:
            self._profiles[id(profile)] = profile.sha256
            save_profile(self._store, run)
        return self._profiles[id(profile)]

    def _scenario(self, point: SweepPoint) -> str:
        item = self._items[point.of_scenario]
        said = repr(item)
        if said not in self._scenarios:
            self._scenarios[said] = save_scenario(self._store, item)
        return self._scenarios[said]

    def _identity(self, point: SweepPoint, run: SingleRun) -> dict[str, Any]:
        """That of the run; it is the same for every seed."""
        like = (*point.of_scenario, point.rate_scale)
        if like not in self._identities:
            self._identities[like] = run.identity()
        return self._identities[like]

    def _key(self, point: SweepPoint) -> str:
        if point not in self._keys:
            run = self._job.run_of(point)
            self._keys[point] = single_key(
                run,
                self._identity(point, run),
                trace_sha256=self._trace(point.trace),
                profile_sha256=self._profile(run),
                code=self.code_version,
            )
        return self._keys[point]

    def find(self, points: Sequence[SweepPoint]) -> dict[SweepPoint, dict[str, Any]]:
        """Those of the points that are stored."""
        keys = {point: self._key(point) for point in points}
        known = self._store.find_runs(keys.values())
        found = {point: dict(known[key]["metrics"]) for point, key in keys.items() if key in known}
        self.keys += [keys[point] for point in found]
        return found

    def save(self, point: SweepPoint, metrics: Mapping[str, Any]) -> None:
        """Keep a point, in one transaction."""
        key, run = self._key(point), self._job.run_of(point)
        save_single(
            self._store,
            key,
            run,
            self._identity(point, run),
            metrics,
            trace_sha256=self._trace(point.trace),
            profile_sha256=self._profile(run),
            scenario_sha256=self._scenario(point),
            code=self.code_version,
            started=self._started,
        )
        self.keys.append(key)

    def run_id(self, point: SweepPoint) -> str | None:
        """The id under which a point is stored."""
        return f"run-{self._key(point)[:16]}"
