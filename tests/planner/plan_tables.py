"""Hand-made tables of points, and small questions, for the planner's tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from builders import make_limits, make_pass, make_profile

from specsim.acceptance.vector import PerPosition
from specsim.config import Deployment, ReplicaLimits, Slo, Speculation
from specsim.planner.compare import LoadTable
from specsim.planner.question import Question, Side
from specsim.profiles import LatencyProfile

__all__ = ["make_question", "make_table"]


def make_table(
    e2e_s: Mapping[str, Sequence[Sequence[float | None]]],
    *,
    loads: Sequence[float] | None = None,
    metrics: Callable[[str, float, int], Mapping[str, Any]] = lambda policy, load, replication: {},
) -> LoadTable:
    """A table from mean end-to-end times by policy: one row a load, one value a replication.

    `metrics` adds or overrules figures of a (policy, load, replication).
    """
    rows = next(iter(e2e_s.values()))
    at = tuple(float(x) for x in (loads or range(1, len(rows) + 1)))
    points = {}
    for policy, by_load in e2e_s.items():
        for load, values in zip(at, by_load, strict=True):
            for r, value in enumerate(values):
                figures = {
                    "e2e_mean_s": value, "tpot_mean_s": value, "slo_share": 1.0, "served_requests_per_s": load,
                    "offered_requests_per_s": load, "utilisation": 0.5, "running_batch": 4.0, "rejected": 0,
                }  # fmt: skip
                points[(policy, load, r, 0.0)] = {**figures, **metrics(policy, load, r)}
    return LoadTable(points, tuple(e2e_s), at, len(rows[0]))


def make_question(
    *,
    ks: Sequence[int] = (1, 3, 5),
    acceptance: Sequence[float] = (0.7,),
    proposal_rate: float = 1.0,
    target: Mapping[str, float] | None = None,
    draft: Mapping[str, float] | None = None,
    profile: Mapping[str, object] | None = None,
    limits: ReplicaLimits | None = None,
    relative_error: float = 0.0,
    acceptance_error: float = 0.0,
) -> Question:
    """A question about a made-up 8B-like model; `target` and `draft` change terms of their passes."""
    shared: dict[str, object] = {"relative_error": relative_error, **(profile or {})}
    shared["target"] = make_pass(**(target or {}))
    small = {"weights_s": 6e-4, "token_s": 2e-6, "head_weights_s": 2e-4, "kv_token_s": 2e-9, "fixed_s": 2e-5}
    lookup = proposal_rate < 1
    on: LatencyProfile = (
        make_profile(lookup=True, **shared)
        if lookup
        else make_profile(draft=make_pass(**{**small, **(draft or {})}), **shared)
    )
    limits = limits or make_limits(max_num_seqs=512)
    return Question(
        deployment=Deployment(),
        speculation=Speculation(method="ngram" if lookup else "eagle", num_spec_tokens=tuple(ks)),
        slo=Slo(),
        off=Side(make_profile(lookup=True, **shared), limits),
        on=Side(on, limits),
        acceptance=PerPosition(tuple(acceptance), proposal_rate=proposal_rate),
        acceptance_source="test",
        acceptance_error=acceptance_error,
        names={"target": "t", "gpu": "g", "draft": "d"},
    )
