"""Compiled loops of the verification budget: scores of all slots, how many to verify, and what was learnt.

Models: the arithmetic of `specsim.policies.budget`, slot by slot. Leaves out: sorting, which numpy does.
"""

from __future__ import annotations

from specsim.compiled import kernel

__all__ = ["best_total", "keep", "learn", "score"]


@kernel
def score(requests, drafts, records, accepts, prior, scores):  # type: ignore[no-untyped-def]
    """Write the survival of each slot, negative so that the best come first, into `scores` (position by position, in
    each all requests); slots without a draft get 1. The drafts, or -1 where `records` are too few."""
    total, n = 0, len(requests)
    for i in range(n):
        request = requests[i]
        if request >= len(records):
            return -1
        total += drafts[i]
        ratio = (records[request, 0] + prior) / (records[request, 1] + prior)
        survival = 1.0
        for depth in range(len(accepts)):
            chance = min(accepts[depth] * ratio, 1.0)
            survival = survival * chance if depth else chance
            scores[depth * n + i] = -survival if depth < drafts[i] else 1.0
    return total


@kernel
def best_total(scores, order, total, sampling, verify, tokens, draft_s):  # type: ignore[no-untyped-def]
    """How many of the best slots to verify: the total with most expected tokens per second, the smallest of equals.

    `sampling` requests emit a token anyway; the step has `tokens` tokens without drafts.
    """
    best, best_rate, expected = 0, 0.0, 0.0
    for n in range(total):
        expected = expected - scores[order[n]] if n else -scores[order[0]]
        rate = (expected + sampling) / (verify[tokens + n + 1] + draft_s)
        if n == 0 or rate > best_rate:
            best, best_rate = n + 1, rate
    return best if best_rate > sampling / (verify[tokens] + draft_s) else 0


@kernel
def keep(order, chosen, kept):  # type: ignore[no-untyped-def]
    """Count the first `chosen` slots by request."""
    kept[:] = 0
    for n in range(chosen):
        kept[order[n] % len(kept)] += 1


@kernel
def learn(  # type: ignore[no-untyped-def]
    requests, drafts, emitted, records, request_fade, fade, accepts, due, tried, hits, looked
):  # fmt: skip
    """Fold a step into the records of its requests, and into acceptance by position; False, and nothing is done, where
    `records` are too few.

    `tried`, `hits`, `accepts` [k]; `due` [k + 1]; `looked` int64 [2, k + 1] is overwritten.
    """
    for i in range(len(requests)):
        if requests[i] >= len(records):
            return False
    k = len(accepts)
    looked[:] = 0
    for i in range(len(requests)):
        request, accepted = requests[i], emitted[i] - 1
        seen = min(emitted[i], drafts[i])
        records[request, 0] = records[request, 0] * request_fade + accepted
        records[request, 1] = records[request, 1] * request_fade + due[seen]
        looked[0, seen] += 1
        looked[1, accepted] += 1
    more = hit = 0
    for position in range(k - 1, -1, -1):
        more += looked[0, position + 1]
        hit += looked[1, position + 1]
        tried[position] = tried[position] * fade + more
        hits[position] = hits[position] * fade + hit
    due[0] = 0.0
    for position in range(k):
        accepts[position] = (hits[position] + 1.0) / (tried[position] + 1.0)
        due[position + 1] = due[position] + accepts[position] if position else accepts[position]
    return True
