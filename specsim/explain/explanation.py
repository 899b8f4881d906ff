"""Where the time of a run went, beside that of the same requests without speculation, as one JSON-able dict.

Models nothing by itself: steps are those of a `Breakdown`, times of requests those of the run's rows. Per token means
per token that a decoding request gets: the mean over tokens, where TPOT is the mean over requests. Both runs meet the
same requests with the same luck, once, so there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from specsim.engine.observe import Observer
from specsim.explain.breakdown import Breakdown, BreakdownObserver
from specsim.explain.sentences import sentences
from specsim.planner.single import SingleRun
from specsim.records import RunResult

__all__ = ["explain", "side_of"]


def explain(run: SingleRun, observers: Sequence[Observer] = ()) -> tuple[RunResult, dict[str, Any]]:
    """Simulate a run, and the same without speculation unless that is what it is; the run's result and why it is so.

    `observers` look on at the run itself.

    Raises:
        TraceError: when every request was refused.
    """
    result, on = _observed(run, observers)
    sides = {"on": on}
    if run.policy.kind == "off":
        sides = {"off": on}
    else:
        sides = {"off": _observed(run.without_speculation)[1], "on": on}
    return result, {**sides, "text": sentences(sides.get("off"), sides.get("on"))}


def _observed(run: SingleRun, observers: Sequence[Observer] = ()) -> tuple[RunResult, dict[str, Any]]:
    pools = run.side.disaggregation
    observer = BreakdownObserver(run.side.cost, 0 if pools is None else pools.prefill_replicas)
    result = run.simulate([observer, *observers])
    return result, side_of(result, observer.breakdown)


def side_of(result: RunResult, sums: Breakdown) -> dict[str, Any]:
    """One run in figures; None where there was nothing to measure."""
    totals, tokens = result.totals, result.totals.decode_tokens
    window_s = (result.measure_until_s - result.measure_from_s) * result.num_replicas
    step = dict(sums.request_decode_s)
    step["prefill"] = sums.request_prefill_s
    step["stalled"] = sums.request_stalled_s
    prefill_s = math.fsum(sums.prefill_s.values())
    return {
        "policy": result.policy,
        "busy_s": sums.busy_s,
        "busy_share": _per(min(sums.busy_s, window_s), window_s),  # a step may have begun before the window
        "steps": sums.steps,
        "step_s": {"decode": dict(sums.decode_s), "prefill": dict(sums.prefill_s)},
        "prefill_share": _per(prefill_s, sums.busy_s),
        "round_s": {cause: _per(value, sums.rounds) for cause, value in step.items()},
        "round_total_s": _per(math.fsum(step.values()), sums.rounds),
        "token_s": {cause: _per(value, tokens) for cause, value in step.items()},
        "token_total_s": _per(math.fsum(step.values()), tokens),
        "busy_per_token_s": _per(sums.busy_s, tokens),
        "tokens_per_round": _per(tokens, sums.rounds),
        "verified_per_round": _per(sums.verified_tokens, sums.rounds),
        "decoding_requests": _per(sums.rounds, sums.steps),
        "verified_per_step": _per(sums.verified_tokens, sums.steps),
        "prefill_tokens_per_step": _per(totals.prefill_tokens, sums.steps),
        "preemptions": totals.preemptions,
        "request_s": _requests(result),
    }


def _requests(result: RunResult) -> dict[str, float | None]:
    """Mean seconds of a request that arrived in the measured window, in the order in which it passes them."""
    rows = result.requests
    inside = (rows.arrival_s >= result.measure_from_s) & (rows.arrival_s <= result.measure_until_s)
    done = inside & ~rows.rejected & np.isfinite(rows.finish_s)
    moments = {"queued": rows.first_scheduled_s, "prompt": rows.first_token_s, "decode": rows.finish_s}
    if result.prefill is not None:
        columns = result.prefill.handover
        # what was complete with its prompt went nowhere, and is over at once
        way = (columns.prefill_end_s, columns.room_s, columns.transfer_start_s, columns.transfer_end_s)
        there = [np.where(np.isfinite(column), column, rows.first_token_s) for column in way]
        names = ("prompt", "room", "link", "transfer")
        moments = {"queued": rows.first_scheduled_s, **dict(zip(names, there, strict=True)),
                   "joining": rows.first_token_s, "decode": rows.finish_s}  # fmt: skip
    mean = [float(column[done].mean()) if done.any() else math.nan for column in (rows.arrival_s, *moments.values())]
    spans = {name: after - before for name, (before, after) in zip(moments, pairwise(mean), strict=True)}
    spans["total"] = mean[-1] - mean[0]
    return {name: value if math.isfinite(value) else None for name, value in spans.items()}


def _per(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
