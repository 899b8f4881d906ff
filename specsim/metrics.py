"""Figures of a run, derived from its rows and totals.

TTFT: first token of any kind minus arrival. TPOT: (last - first token) / (output tokens - 1), for outputs of 2 or more,
comparable with and without speculation. ITL per chunk: gap between two deliveries of a request; rounds deliver bursts.
ITL per token: the same gaps with a zero for every further token of a burst. E2E: last token minus arrival.
Goodput: requests that met the objective, per second. All over requests that arrived in the measured window.
Where prefill and decode replicas are apart, batch, KV use, steps and rounds are those of the decode replicas.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise

import numpy as np

from specsim.config import Slo
from specsim.records import PrefillPool, RequestColumns, RunResult

__all__ = ["POOL_METRICS", "RunMetrics", "summarise"]


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """One number each; nan when nothing was there to measure. Times in seconds."""

    requests: int
    """Finished requests that arrived in the measured window."""
    rejected: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p50_s: float
    tpot_p95_s: float
    tpot_p99_s: float
    itl_chunk_p50_s: float
    itl_chunk_p95_s: float
    itl_chunk_p99_s: float
    itl_token_p50_s: float
    itl_token_p95_s: float
    itl_token_p99_s: float
    e2e_mean_s: float
    e2e_p50_s: float
    e2e_p95_s: float
    e2e_p99_s: float
    queue_mean_s: float
    """First scheduled minus arrival."""
    offered_requests_per_s: float
    served_requests_per_s: float
    """Completions in the measured window per second of it."""
    backlog_growth_share: float
    """Growth of the backlog over the second half of the window, over the arrivals of that half: 0 in a steady state,
    above it when the fleet falls behind. The backlog is the requests that wait to be scheduled; or those in flight,
    where they grow by more and the half is at least three times as long as a request stays. A shorter window sees a
    fleet that fills up as it sees one that falls behind."""
    output_tokens_per_s: float
    goodput_per_s: float
    slo_share: float
    running_batch: float
    """Requests per step, weighted by step time."""
    peak_batch: int
    kv_use: float
    """Used share of KV blocks, weighted by step time."""
    kv_peak: float
    utilisation: float
    """Share of the window in which a replica computes."""
    preemptions: int
    steps: int
    rounds: int
    mean_acceptance_length: float
    """Tokens per round that had drafts, bonus included: 1 + accepted / draft rounds. nan without drafts."""
    tokens_per_round: float
    """Tokens per round, with or without drafts."""
    draft_acceptance_rate: float
    """Accepted / drafted, as vLLM logs it; of trees, over all their nodes."""
    wasted_draft_share: float
    """Rejected drafts per token of target work (drafts, decoded tokens and prefill)."""
    mean_k: float
    """Drafts asked for per step."""
    prefill_share: float
    """Prefill tokens of all tokens computed."""
    handover_mean_s: float = math.nan
    """With prefill and decode replicas: prompt computed until the first step on the decode replica begins."""
    handover_p50_s: float = math.nan
    handover_p95_s: float = math.nan
    handover_p99_s: float = math.nan
    room_mean_s: float = math.nan
    """The part of it in which the decode replica has no room, or has not looked yet."""
    link_mean_s: float = math.nan
    """The part of it in which a link is busy with other caches."""
    transfer_mean_s: float = math.nan
    """The part of it in which the cache is sent, latency included."""
    link_use: float = math.nan
    """Share of the window in which the link of a prefill replica sends."""
    prefill_utilisation: float = math.nan
    """Share of the window in which a prefill replica computes."""
    decode_utilisation: float = math.nan
    """Share of the window in which a decode replica computes."""
    prefill_kv_use: float = math.nan
    """Used share of KV blocks of prefill replicas, caches that are not read yet included, weighted by step time."""
    prefill_kv_peak: float = math.nan


POOL_METRICS = tuple(f.name for f in fields(RunMetrics) if f.default is not MISSING)
"""Figures that only a run with prefill and decode replicas has."""


def _quantiles(values: np.ndarray) -> tuple[float, float, float, float]:
    if not len(values):
        return (math.nan,) * 4
    p50, p95, p99 = np.quantile(values, (0.5, 0.95, 0.99))
    return float(values.mean()), float(p50), float(p95), float(p99)


_STAYS_IN_HALF = 3
"""Mean times in the system that half a window must hold before growth of requests in flight tells anything. A server
whose step takes a + b x batch fills up with the time constant stay / (1 - load): what it gains between three stays and
six is at most 7 % of the arrivals up to a load of 0.6."""


def _backlog_growth(rows: RequestColumns, middle_s: float, end_s: float, stay_s: float) -> float:
    arrivals = _between(rows.arrival_s[~rows.rejected], middle_s, end_s)
    if not arrivals:
        return math.nan
    waiting = arrivals - _between(rows.first_scheduled_s, middle_s, end_s)
    if end_s - middle_s < _STAYS_IN_HALF * stay_s:
        return waiting / arrivals
    return max(waiting, arrivals - _between(rows.finish_s, middle_s, end_s)) / arrivals


def _between(moments_s: np.ndarray, after_s: float, until_s: float) -> int:
    """How many moments lie after the first and not after the second; nan is none."""
    return int(np.count_nonzero((moments_s > after_s) & (moments_s <= until_s)))


def summarise(result: RunResult, slo: Slo | None = None) -> RunMetrics:
    """Derive every figure of `RunMetrics`; without an objective every finished request is good."""
    rows, totals, gaps = result.requests, result.totals, result.gaps
    prompts = totals if result.prefill is None else result.prefill.totals
    busy_s = totals.busy_s if result.prefill is None else totals.busy_s + prompts.busy_s
    first, last = result.measure_from_s, result.measure_until_s
    window_s = max(last - first, 0.0)
    inside = (rows.arrival_s >= first) & (rows.arrival_s <= last)
    done = inside & ~rows.rejected & np.isfinite(rows.finish_s)
    ttft = rows.first_token_s[done] - rows.arrival_s[done]
    e2e = rows.finish_s[done] - rows.arrival_s[done]
    outputs = rows.output_tokens[done]
    long = outputs >= 2
    tpot = (rows.finish_s[done][long] - rows.first_token_s[done][long]) / (outputs[long] - 1)
    good = np.ones(len(ttft), dtype=bool)
    if slo is not None and slo.ttft_s is not None:
        good &= ttft <= slo.ttft_s
    if slo is not None and slo.tpot_s is not None:
        good[long] &= tpot <= slo.tpot_s
    if slo is not None and slo.e2e_s is not None:
        good &= e2e <= slo.e2e_s
    completed = (rows.finish_s >= first) & (rows.finish_s <= last)
    first_tokens = int(np.count_nonzero((rows.first_token_s >= first) & (rows.first_token_s <= last)))
    asked = int(np.count_nonzero(inside))
    refused = int(np.count_nonzero(inside & rows.rejected))
    ttft_q, tpot_q, e2e_q = _quantiles(ttft), _quantiles(tpot), _quantiles(e2e)
    prefill_tokens, preemptions = totals.prefill_tokens, totals.preemptions
    if result.prefill is not None:
        prefill_tokens, preemptions = prefill_tokens + prompts.prefill_tokens, preemptions + prompts.preemptions
    computed = totals.drafted_tokens + totals.rounds + prefill_tokens
    return RunMetrics(
        requests=int(np.count_nonzero(done)),
        rejected=refused,
        ttft_mean_s=ttft_q[0],
        ttft_p50_s=ttft_q[1],
        ttft_p95_s=ttft_q[2],
        ttft_p99_s=ttft_q[3],
        tpot_mean_s=tpot_q[0],
        tpot_p50_s=tpot_q[1],
        tpot_p95_s=tpot_q[2],
        tpot_p99_s=tpot_q[3],
        itl_chunk_p50_s=gaps.quantile(0.5),
        itl_chunk_p95_s=gaps.quantile(0.95),
        itl_chunk_p99_s=gaps.quantile(0.99),
        itl_token_p50_s=gaps.quantile(0.5, with_zeros=True),
        itl_token_p95_s=gaps.quantile(0.95, with_zeros=True),
        itl_token_p99_s=gaps.quantile(0.99, with_zeros=True),
        e2e_mean_s=e2e_q[0],
        e2e_p50_s=e2e_q[1],
        e2e_p95_s=e2e_q[2],
        e2e_p99_s=e2e_q[3],
        queue_mean_s=float((rows.first_scheduled_s[done] - rows.arrival_s[done]).mean()) if done.any() else math.nan,
        offered_requests_per_s=_per(asked, window_s),
        served_requests_per_s=_per(int(np.count_nonzero(completed)), window_s),
        backlog_growth_share=_backlog_growth(rows, (first + last) / 2, last, e2e_q[0]),
        output_tokens_per_s=_per(totals.decode_tokens + first_tokens, window_s),
        goodput_per_s=_per(int(np.count_nonzero(good)), window_s),
        slo_share=_per(int(np.count_nonzero(good)), asked),
        running_batch=_per(totals.batch_time, totals.busy_s),
        peak_batch=totals.peak_batch,
        kv_use=_per(totals.kv_block_time, totals.busy_s * result.num_kv_blocks),
        kv_peak=totals.peak_kv_blocks / result.num_kv_blocks,
        utilisation=_share(busy_s, window_s * result.num_replicas),
        preemptions=preemptions,
        steps=totals.steps,
        rounds=totals.rounds,
        mean_acceptance_length=1 + _per(totals.accepted_tokens, totals.draft_rounds),
        tokens_per_round=_per(totals.decode_tokens, totals.rounds),
        draft_acceptance_rate=_per(totals.accepted_tokens, totals.drafted_tokens),
        wasted_draft_share=_per(totals.drafted_tokens - totals.accepted_tokens, computed),
        mean_k=_per(sum(k * n for k, n in totals.k_steps.items()), totals.steps),
        prefill_share=_per(prefill_tokens, computed),
        **({} if result.prefill is None else _pools(result, result.prefill, done, window_s)),
    )


def _pools(result: RunResult, pool: PrefillPool, done: np.ndarray, window_s: float) -> dict[str, float]:
    """The figures that only a run with two pools has. An output that was complete with its prompt went nowhere."""
    columns, totals = pool.handover, pool.totals
    went = done & np.isfinite(columns.transfer_end_s)
    handover = _quantiles(columns.decode_start_s[went] - columns.prefill_end_s[went])
    moments = (columns.prefill_end_s, columns.room_s, columns.transfer_start_s, columns.transfer_end_s)
    parts = [_quantiles(after[went] - before[went])[0] for before, after in pairwise(moments)]
    sent_s = columns.link_s[went].sum()
    return {
        "handover_mean_s": handover[0],
        "handover_p50_s": handover[1],
        "handover_p95_s": handover[2],
        "handover_p99_s": handover[3],
        "room_mean_s": parts[0],
        "link_mean_s": parts[1],
        "transfer_mean_s": parts[2],
        "link_use": _share(float(sent_s), window_s * pool.num_replicas),
        "prefill_utilisation": _share(totals.busy_s, window_s * pool.num_replicas),
        "decode_utilisation": _share(result.totals.busy_s, window_s * (result.num_replicas - pool.num_replicas)),
        "prefill_kv_use": _per(totals.kv_block_time, totals.busy_s * result.num_kv_blocks),
        "prefill_kv_peak": totals.peak_kv_blocks / result.num_kv_blocks,
    }


def _per(part: float, whole: float) -> float:
    """A quotient; nan where there is nothing to divide by."""
    return part / whole if whole > 0 else math.nan


def _share(part_s: float, whole_s: float) -> float:
    """At most 1: a step may have begun before the window."""
    return min(1.0, part_s / whole_s) if whole_s > 0 else math.nan
