"""The points of a sweep in the store: each a run of its own, shared with `specsim simulate` and with other sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from specsim.cli.single_store import save_profile, save_single, save_trace, single_key
from specsim.code_version import code_version

if TYPE_CHECKING:
    from db.store import Store
    from scenarios.loader import ScenarioFile
    from specsim.planner.sweep import SweepJob, SweepPoint

__all__ = ["StoredPoints"]


class StoredPoints:
    """A `SweepCache` (see `specsim.planner.sweep`) on the results database; `keys` are those of finished points."""

    def __init__(self, store: Store, job: SweepJob, items: Mapping[tuple[Any, ...], ScenarioFile]) -> None:
        self._store, self._job, self._items = store, job, items
        self._started = datetime.now(UTC)
        self._traces: dict[int, str] = {}
        self._profiles: set[str] = set()
        self._keys: dict[SweepPoint, str] = {}
        self.keys: list[str] = []
        self.code_version = code_version()
        first = next(point for cell in job.cells for point in cell.points)
        self.trace_sha256, self.profile_sha256 = self._refer(first)
        item = items[first.of_scenario]
        self.scenario_sha256 = store.save_scenario({**asdict(item), "path": item.path.name})

    def _trace(self, index: int) -> str:
        from specsim.traces.write import fingerprint

        if index not in self._traces:
            self._traces[index] = fingerprint(self._job.traces[index])
            save_trace(self._store, self._job.traces[index], self._traces[index])
        return self._traces[index]

    def _refer(self, point: SweepPoint) -> tuple[str, str]:
        """Hashes of trace and profile of a point, which are stored first, since its run refers to them."""
        run = self._job.run_of(point)
        profile = run.side.profile.sha256
        if profile not in self._profiles:
            save_profile(self._store, run)
            self._profiles.add(profile)
        return self._trace(point.trace), profile

    def _key(self, point: SweepPoint) -> str:
        if point not in self._keys:
            self._keys[point] = single_key(self._job.run_of(point), self._trace(point.trace), self.code_version)
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
        key = self._key(point)
        trace_sha256, _ = self._refer(point)
        save_single(
            self._store,
            key,
            self._job.run_of(point),
            metrics,
            self._items[point.of_scenario],
            trace_sha256=trace_sha256,
            code=self.code_version,
            started=self._started,
        )
        self.keys.append(key)

    def run_id(self, point: SweepPoint) -> str | None:
        """The id under which a point is stored."""
        return f"run-{self._key(point)[:16]}"
