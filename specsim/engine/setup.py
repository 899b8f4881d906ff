"""The parts of a run that do not depend on who carries it out: what is recorded, what policies know, what comes out."""

from __future__ import annotations

import numpy as np

from specsim.acceptance.base import AcceptanceModel
from specsim.config import PolicySpec, ReplicaLimits
from specsim.engine.curves import StartUpCurves
from specsim.engine.recorder import Recorder
from specsim.errors import InvariantError, ScenarioError
from specsim.latency import StepCost
from specsim.policies import EngineView
from specsim.records import RequestColumns, RunResult
from specsim.workload import Workload

__all__ = ["engine_view", "recorder_of", "result_of"]


def recorder_of(workload: Workload, arrival_s: np.ndarray, *, warmup_share: float, closed_loop: bool) -> Recorder:
    """Empty columns for the first `len(arrival_s)` requests of a workload, and the window that counts.

    Raises:
        ScenarioError: more arrivals than requests, or a warm-up that leaves nothing.
    """
    n = len(arrival_s)
    if n > len(workload):
        raise ScenarioError(f"{n} arrivals were given for {len(workload)} requests")
    if not 0 <= warmup_share < 1:
        raise ScenarioError(f"warmup_share must lie in 0..1, got {warmup_share!r}")
    rows = RequestColumns.empty(arrival_s, workload.trace.prompt_tokens[:n], workload.trace.output_tokens[:n])
    recorder = Recorder(rows)
    if not closed_loop and n:
        recorder.measure_from_s = float(arrival_s[int(warmup_share * n)]) if warmup_share else 0.0
        recorder.measure_until_s = float(arrival_s[-1]) if warmup_share else float("inf")
    return recorder


def engine_view(
    acceptance: AcceptanceModel | None, cost: StepCost, limits: ReplicaLimits, num_spec_tokens: int
) -> EngineView:
    """What policies know at the start. They weigh k = 0 with speculation loaded, so that it pays for it."""

    def step_s(batch: int, context_tokens: float, num_spec_tokens: int) -> float:
        drafts = None if acceptance is None else acceptance.expected_drafts(num_spec_tokens)
        return cost.decode_step_s(batch, context_tokens, num_spec_tokens, machinery=True, drafts_per_request=drafts)

    expected_length = None if acceptance is None else acceptance.expected_length
    return EngineView(expected_length, step_s, StartUpCurves(cost, limits, num_spec_tokens))


def result_of(
    recorder: Recorder,
    workload: Workload,
    limits: ReplicaLimits,
    policy: PolicySpec,
    *,
    end_s: float,
    replicas: int = 1,
) -> RunResult:
    """A run that has ended at `end_s`.

    Raises:
        InvariantError: when a request was lost.
    """
    rows = recorder.rows
    rows.freeze()
    lost = int(np.count_nonzero(np.isnan(rows.finish_s) & ~rows.rejected))
    if lost:
        raise InvariantError(
            f"{lost} of {len(rows.finish_s)} requests were neither finished nor rejected (seed {workload.seed})"
        )
    return RunResult(
        requests=rows,
        totals=recorder.totals(),
        gaps=recorder.gaps(),
        end_s=end_s,
        measure_from_s=recorder.measure_from_s,
        measure_until_s=min(recorder.measure_until_s, end_s),
        policy=policy.label,
        seed=workload.seed,
        num_replicas=replicas,
        num_kv_blocks=limits.num_kv_blocks,
    )
