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
    from specsim.planner.single import SingleRun
    from specsim.planner.sweep import SweepJob, SweepPoint

__all__ = ["StoredPoints"]


class StoredPoints:
    """A `SweepCache` (see `specsim.planner.sweep`) on the results database; `keys` are those of finished points."""

    def __init__(self, store: Store, job: SweepJob, items: Sequence[ScenarioFile | None]) -> None:
        from specsim.traces.write import fingerprint

        self._store, self._job = store, job
        self._started = datetime.now(UTC)
        self._traces = [fingerprint(trace) for trace in job.traces]
        self._item_of = {
            _of_cell(point): item
            for cell, item in zip(job.cells, items, strict=True)
            for point in cell.points
            if item is not None
        }
        self._keys: dict[SweepPoint, str] = {}
        self.keys: list[str] = []
        self.code_version = code_version()
        for trace, sha256 in zip(job.traces, self._traces, strict=True):
            save_trace(store, trace, sha256)
        profiles: dict[str, SingleRun] = {}
        for cell in job.cells:
            for point in cell.points[:1]:
                run = job.run_of(point)
                profiles.setdefault(run.side.profile.sha256, run)
        for run in profiles.values():
            save_profile(store, run)
        self.trace_sha256, self.profile_sha256 = self._traces[0], next(iter(profiles))
        first = next(item for item in items if item is not None)
        self.scenario_sha256 = store.save_scenario({**asdict(first), "path": first.path.name})

    def _key(self, point: SweepPoint) -> str:
        if point not in self._keys:
            run = self._job.run_of(point)
            self._keys[point] = single_key(run, self._traces[point.trace], self.code_version)
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
        save_single(
            self._store,
            key,
            self._job.run_of(point),
            metrics,
            self._item_of[_of_cell(point)],
            trace_sha256=self._traces[point.trace],
            code=self.code_version,
            started=self._started,
        )
        self.keys.append(key)

    def run_id(self, point: SweepPoint) -> str | None:
        """The id under which a point is stored."""
        return f"run-{self._key(point)[:16]}"


def _of_cell(point: SweepPoint) -> tuple[Any, ...]:
    """What a point has from the scenario of its cell."""
    return point.question, point.trace, point.policy, point.warmup_share
