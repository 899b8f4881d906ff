"""Where speculation pays on the cost surface: by batch and context, without simulating arrivals.

At batch b and context c every request advances by E[k] tokens a round, so TPOT with k drafts is
`step(b, c, k) / E[k]`, and the break-even acceptance length is `step(b, c, k) / step(b, c, off)`.
Leaves out: queueing, prefill sharing the step; the comparison over load has both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.admission import seats
from specsim.planner.question import Question

__all__ = ["Crossing", "batches_up_to", "best_k_table", "break_even_rows", "crossing", "speedup", "surface_error"]

ANALYTIC_RATIO_ERROR = 0.10
"""Relative error of a speedup from analytic or transferred costs: the same published cell on another software image
moved baselines by up to 35 % but speedups by under 10 %, since most of an error is shared by both sides."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where speculation with k drafts stops paying at one context length."""

    context_tokens: int
    k: int
    batch: int | None
    """First batch from which on it never pays again; None: it pays up to `limit`; 1: it never pays."""
    low: int | None
    """The same if speculation were worse by the error of the surface ..."""
    high: int | None
    """... and if it were better by it."""
    limit: int
    """Largest batch that fits at this context."""
    pays: tuple[tuple[int, int], ...]
    """Batch ranges in which it pays, in case they are several."""
    speedup_at_1: float
    speedup_at_limit: float


def step_on_s(question: Question, batch: int, context_tokens: float, k: int) -> float:
    """Seconds of a decode step with k drafts (k = 0: machinery loaded but idle)."""
    drafts = question.acceptance.expected_drafts(k)
    return question.on.cost.decode_step_s(batch, context_tokens, k, machinery=True, drafts_per_request=drafts)


def speedup(question: Question, batch: int, context_tokens: float, k: int) -> float:
    """TPOT without speculation over TPOT with k drafts."""
    length = question.acceptance.expected_length(k) if k else 1.0
    off = question.off.cost.decode_step_s(batch, context_tokens, 0, machinery=False)
    return length * off / step_on_s(question, batch, context_tokens, k)


def surface_error(question: Question) -> float:
    """One-sigma relative error of a speedup read off the surface: costs and acceptance together."""
    costs = max(question.off.profile.relative_error, question.on.profile.relative_error)
    if question.on.profile.kind in ("analytic", "transferred"):
        costs = min(costs, ANALYTIC_RATIO_ERROR)
    return float(np.hypot(costs, question.acceptance_error))


def batches_up_to(limit: int) -> list[int]:
    """Every batch to 64, then steps of about 3 %, ending at `limit`."""
    batches, b = [], 1
    while b < limit:
        batches.append(b)
        b = max(b + 1, int(b * 1.03)) if b >= 64 else b + 1
    return [*batches, limit]


def batch_limit(question: Question, context_tokens: float, *, on: bool = True) -> int:
    """Requests of this context that fit one replica."""
    limits = (question.on if on else question.off).limits
    slots = limits.num_kv_blocks * limits.block_size_tokens
    extra = question.max_k + limits.lookahead_tokens(question.max_k) if on else 1
    own = context_tokens + extra
    if limits.discipline.reserve == "slot":
        own = limits.max_model_len
    own += limits.fixed_blocks_per_request * limits.block_size_tokens
    return max(1, min(seats(limits, question.max_k if on else 0), int(slots // own)))


def crossing(question: Question, context_tokens: int, k: int) -> Crossing:
    """Scan the batch for the place where speculation with k drafts stops paying."""
    limit = batch_limit(question, context_tokens)
    batches = batches_up_to(limit)
    gains = np.array([speedup(question, b, context_tokens, k) for b in batches])
    error = surface_error(question)

    def last_turn(threshold: float) -> int | None:
        above = np.flatnonzero(gains > threshold)
        if not len(above):
            return 1
        return None if above[-1] == len(batches) - 1 else batches[above[-1] + 1]

    return Crossing(
        context_tokens=context_tokens,
        k=k,
        batch=last_turn(1.0),
        low=last_turn(1.0 + error),
        high=last_turn(1.0 - error),
        limit=limit,
        pays=_ranges([b for b, gain in zip(batches, gains, strict=True) if gain > 1.0], batches),
        speedup_at_1=float(gains[0]),
        speedup_at_limit=float(gains[-1]),
    )


def _ranges(chosen: Sequence[int], batches: Sequence[int]) -> tuple[tuple[int, int], ...]:
    index = {b: n for n, b in enumerate(batches)}
    ranges: list[list[int]] = []
    for b in chosen:
        if ranges and index[b] == index[ranges[-1][1]] + 1:
            ranges[-1][1] = b
        else:
            ranges.append([b, b])
    return tuple((first, last) for first, last in ranges)


def break_even_rows(question: Question, contexts: Sequence[int], ks: Sequence[int]) -> list[dict[str, Any]]:
    """Acceptance length (bonus included) at which k drafts cost exactly what they bring, by batch and context."""
    rows = []
    for context in contexts:
        limit = batch_limit(question, context)
        for batch in [b for b in (1, 4, 16, 32, 64, 128, 256, 512) if b <= limit]:
            off = question.off.cost.decode_step_s(batch, context, 0, machinery=False)
            for k in ks:
                rows.append(
                    {
                        "batch": batch,
                        "context_tokens": context,
                        "k": k,
                        "break_even_acceptance_length": step_on_s(question, batch, context, k) / off,
                        "assumed_acceptance_length": question.acceptance.expected_length(k),
                    }
                )
    return rows


def best_k_table(question: Question, context_tokens: float) -> tuple[tuple[int, int, int], ...]:
    """k by batch as rows (first, last, k): the k with most tokens per second, 0 where none gains 1 % on not drafting.

    A row goes on while its k is within 0.5 % of the best, or padding to captured sizes would make many short rows.
    The last row reaches to `max_num_seqs`, as an engine's table must cover every batch.
    """
    ks = (0, *sorted(set(question.speculation.num_spec_tokens)))
    limit = batch_limit(question, context_tokens)
    lengths = {k: question.acceptance.expected_length(k) if k else 1.0 for k in ks}
    rows: list[list[int]] = []
    previous = 0
    for batch in batches_up_to(limit):
        rates = {k: lengths[k] / step_on_s(question, batch, context_tokens, k) for k in ks}
        best = max(ks, key=lambda k: (rates[k], -k))
        best = best if rates[best] > 1.01 * rates[0] else 0
        if rows and rates[rows[-1][2]] >= 0.995 * rates[best]:
            best = rows[-1][2]
        if rows and rows[-1][2] == best:
            rows[-1][1] = batch
        else:
            rows.append([previous + 1, batch, best])
        previous = batch
    rows[-1][1] = max(rows[-1][1], question.on.limits.max_num_seqs)
    return tuple((first, last, k) for first, last, k in rows)
