"""The planner's cache on top of the store: which stored run is which simulated point.

A point is found again when everything that its metrics depend on is equal, the code of the simulator included; a run
that another plan simulated is reused as well.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import specsim
from specsim.code_version import code_version
from specsim.planner.fleet_runner import batch_of
from specsim.planner.least_fleet import FleetPoint
from specsim.planner.points import Batch
from specsim.planner.question import PlanSettings, Question, acceptance_fingerprint
from specsim.traces.model import Trace

if TYPE_CHECKING:
    from db.store import Store
    from specsim.planner.whatif import WhatIfJob

__all__ = ["StoredFleets", "StoredRuns"]


class StoredRuns:
    """A `RunCache` (see `specsim.planner.point_runner`) for one plan; `keys` are those of its points, in order of use.

    The trace, both profiles and the scenario are stored first, since runs refer to them.
    """

    def __init__(
        self, store: Store, question: Question, trace: Trace, settings: PlanSettings, *, scenario: Mapping[str, Any]
    ) -> None:
        from specsim.traces.write import fingerprint

        self._store = store
        self._question = question
        self._settings = settings
        self._started = datetime.now(UTC)
        self._own_per_s = trace.rate_per_s
        self._acceptance: dict[float, str] = {}
        self.code_version = code_version()
        self.keys: list[str] = []
        self.trace_sha256 = fingerprint(trace)
        meta = trace.meta
        store.save_trace(
            self.trace_sha256,
            source=meta.source,
            format=meta.format,
            rows=len(trace),
            span_s=trace.span_s,
            stats={
                "file_sha256": meta.sha256,
                "time_unit": meta.time_unit,
                "rows_read": meta.rows_read,
                "dropped": dict(meta.dropped),
                "notes": meta.notes,
                "warnings": meta.warnings,
            },
        )
        for side in (question.off, question.on):
            profile = side.profile
            store.save_profile(profile.sha256, name=profile.name, kind=profile.kind, body=profile.to_dict())
        self.scenario_sha256 = store.save_scenario(scenario)

    @property
    def profile_sha256(self) -> str:
        """Profile of the side with speculation, which stands for the plan."""
        return self._question.on.profile.sha256

    def with_replicas(self, replicas: int) -> StoredRuns:
        """The same for a fleet of another size; `keys` are shared."""
        other = copy.copy(self)
        other._question = replace(self._question, deployment=replace(self._question.deployment, replicas=replicas))
        return other

    def run_id(self, batch: Batch) -> str:
        """The id under which the first point of a batch is stored."""
        return f"run-{self._points(batch)[0][0][:16]}"

    def _luck(self, change: float) -> str:
        if change not in self._acceptance:
            model = self._question.acceptance
            self._acceptance[change] = acceptance_fingerprint(model.with_change(change) if change else model)
        return self._acceptance[change]

    def _points(self, batch: Batch) -> list[tuple[str, dict[str, Any]]]:
        """Key and description of every load of a batch."""
        from db.canonical import run_key

        question = self._question
        side = question.side(batch.policy)
        found = []
        for load, count in zip(batch.loads_per_s, batch.requests, strict=True):
            point = {
                "requests": [batch.stretch.first, batch.stretch.first + count],
                "limits": asdict(side.limits),
                "replicas": question.deployment.replicas,
                "router": question.deployment.router,
                "disaggregation": None if side.disaggregation is None else asdict(side.disaggregation),
                "slo": asdict(question.slo),
                "warmup_share": self._settings.warmup_share,
                "acceptance_change": batch.acceptance_change,
                # Without speculation no draft is ever drawn, so runs are shared by all acceptance models.
                "acceptance": "" if batch.policy.kind == "off" else self._luck(batch.acceptance_change),
            }
            key = run_key(
                trace_sha256=self.trace_sha256,
                trace_slice=point["requests"],
                profile_sha256=side.profile.sha256,
                limits=[point["limits"], point["replicas"], point["router"], point["disaggregation"]],
                policy=asdict(batch.policy),
                acceptance=[point["acceptance"], batch.acceptance_change],
                load=load,
                seed=batch.stretch.seed,
                code_version=self.code_version,
                extra=[point["slo"], point["warmup_share"]],
            )
            found.append((key, point))
        return found

    def find(self, batch: Batch) -> list[dict[str, Any]] | None:
        """The metrics of every load of a batch, or None when one is missing."""
        keys = [key for key, _ in self._points(batch)]
        known = self._store.find_runs(keys)
        if any(key not in known for key in keys):
            return None
        self.keys += keys
        return [known[key]["metrics"] for key in keys]

    def save(self, batch: Batch, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Keep the metrics of a batch."""
        side = self._question.side(batch.policy)
        for (key, point), load, values in zip(self._points(batch), batch.loads_per_s, metrics, strict=True):
            self._store.save_run(
                key,
                metrics=values,
                policy=asdict(batch.policy),
                policy_label=batch.policy.label,
                load_per_s=load,
                rate_scale=load / self._own_per_s if self._own_per_s > 0 else None,
                seed=batch.stretch.seed,
                trace_sha256=self.trace_sha256,
                profile_sha256=side.profile.sha256,
                scenario_sha256=self.scenario_sha256,
                point=point,
                code_version=self.code_version,
                specsim_version=specsim.__version__,
                started_utc=self._started,
            )
            self.keys.append(key)


class StoredFleets:
    """Caches of a what-if, one for each kind of replica and number of replicas; `keys` as in `StoredRuns`."""

    def __init__(self, store: Store, job: WhatIfJob) -> None:
        trace, settings = job.trace, job.settings
        self._groups = [
            StoredRuns(store, question, trace, settings, scenario=question.identity()) for question in job.questions
        ]
        for group in self._groups:
            group.keys = self._groups[0].keys
        self._fleets: dict[tuple[int, int], StoredRuns] = {}
        self._trace, self._settings = trace, settings
        self.pools = [StoredFleets(store, pool.job) for pool in job.pools]
        """Those of each pool."""
        first = self._groups[0]
        for pool in self.pools:
            for group in pool._groups:
                group.keys = first.keys
        self.keys = first.keys
        self.code_version, self.trace_sha256 = first.code_version, first.trace_sha256
        self.profile_sha256, self.scenario_sha256 = first.profile_sha256, first.scenario_sha256

    def cache_of(self, group: int, replicas: int) -> StoredRuns:
        """The cache of so many replicas of a kind."""
        if (group, replicas) not in self._fleets:
            self._fleets[group, replicas] = self._groups[group].with_replicas(replicas)
        return self._fleets[group, replicas]

    def run_id(self, point: FleetPoint) -> str:
        """The id under which a point is stored."""
        return self.cache_of(point.group, point.replicas).run_id(batch_of(point, self._trace, self._settings))
