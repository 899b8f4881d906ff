"""Single runs in the store: the key of one, and saving it with all that it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from db.store import Store
    from scenarios.loader import ScenarioFile
    from specsim.planner.single import SingleRun
    from specsim.traces.model import Trace

__all__ = ["save_profile", "save_scenario", "save_single", "save_trace", "single_key"]


def single_key(run: SingleRun, point: Mapping[str, Any], *, trace_sha256: str, profile_sha256: str, code: str) -> str:
    """The key under which a run is stored: equal exactly when it would give the same bytes.

    `point` is the identity of the run.
    """
    from db.canonical import run_key

    return run_key(
        trace_sha256=trace_sha256,
        trace_slice=None,
        profile_sha256=profile_sha256,
        limits=[point["limits"], point["replicas"], point["router"], point["disaggregation"]],
        policy=asdict(run.policy),
        acceptance=point["acceptance"],
        load=[point["concurrency"], point["rate_scale"]],
        seed=run.seed,
        code_version=code,
        extra=[point["slo"], point["warmup_share"], point["plain"], "simulate"],
    )


def save_trace(store: Store, trace: Trace, trace_sha256: str) -> None:
    """Remember a trace that a run refers to."""
    meta = trace.meta
    store.save_trace(
        trace_sha256,
        source=meta.source,
        format=meta.format,
        rows=len(trace),
        span_s=trace.span_s,
        stats={"file_sha256": meta.sha256, "time_unit": meta.time_unit, "rows_read": meta.rows_read,
               "dropped": dict(meta.dropped), "notes": meta.notes, "warnings": meta.warnings},
    )  # fmt: skip


def save_profile(store: Store, run: SingleRun) -> None:
    """Keep the latency profile of a run."""
    profile = run.side.profile
    store.save_profile(profile.sha256, name=profile.name, kind=profile.kind, body=profile.to_dict())


def save_scenario(store: Store, item: ScenarioFile) -> str:
    """Keep the scenario of a run; its hash."""
    return store.save_scenario({**asdict(item), "path": item.path.name})


def save_single(
    store: Store,
    key: str,
    run: SingleRun,
    point: Mapping[str, Any],
    metrics: Mapping[str, Any],
    *,
    trace_sha256: str,
    profile_sha256: str,
    scenario_sha256: str,
    code: str,
    started: datetime,
) -> str:
    """Store a run; its id. Trace, profile and scenario must have been saved before."""
    import specsim

    is_open = run.concurrency is None and bool(run.trace.rate_per_s)
    return store.save_run(
        key,
        metrics=metrics,
        policy=asdict(run.policy),
        policy_label=run.policy.label,
        load_per_s=run.trace.rate_per_s * run.rate_scale if is_open else None,
        rate_scale=run.rate_scale if is_open and run.rate_scale != 1.0 else None,
        seed=run.seed,
        trace_sha256=trace_sha256,
        profile_sha256=profile_sha256,
        scenario_sha256=scenario_sha256,
        point=point,
        code_version=code,
        specsim_version=specsim.__version__,
        started_utc=started,
    )
