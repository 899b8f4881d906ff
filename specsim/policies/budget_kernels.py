"""Compiled loops of the verification budget: scores of all slots, how many to verify, and what was learnt.

Models: the arithmetic of `specsim.policies.budget`, slot by slot. Leaves out: everything else. Numbers: none.
"""

from __future__ import annotations

from specsim.compiled import kernel

__all__ = ["best_total", "choose", "learn", "rank"]


@kernel
def _score(requests, drafts, records, accepts, prior, scores):  # type: ignore[no-untyped-def]
    """Survival of each slot, position by position and in each all requests, -1 without a draft: drafts in all."""
    total, n = 0, len(requests)
    for i in range(n):
        total += drafts[i]
        ratio = (records[requests[i], 0] + prior) / (records[requests[i], 1] + prior)
        survival = 1.0
        for depth in range(len(accepts)):
            chance = min(accepts[depth] * ratio, 1.0)
            survival = survival * chance if depth else chance
            scores[depth * n + i] = survival if depth < drafts[i] else -1.0
    return total


@kernel
def rank(scores, order, counts):  # type: ignore[no-untyped-def]
    """Sort slots by score, highest first and of equals the first: `order` gets their numbers. `counts` is overwritten.

    Scores lie in 0..1, so they are dealt into as many ranges as there are slots, which leaves little to sort; a score
    of -1 comes last.
    """
    n = len(scores)
    counts[: n + 2] = 0
    for slot in range(n):
        counts[n - int(scores[slot] * (n - 1)) if scores[slot] >= 0.0 else n + 1] += 1
    first = 0
    for place in range(n + 2):
        first, counts[place] = first + counts[place], first
    for slot in range(n):
        place = n - int(scores[slot] * (n - 1)) if scores[slot] >= 0.0 else n + 1
        order[counts[place]] = slot
        counts[place] += 1
    for at in range(1, n):
        slot = order[at]
        to = at
        while to and scores[order[to - 1]] < scores[slot]:
            order[to] = order[to - 1]
            to -= 1
        order[to] = slot


@kernel
def best_total(scores, order, total, sampling, verify, tokens, draft_s):  # type: ignore[no-untyped-def]
    """How many of the best slots, first in `order`, to verify: most expected tokens per second, of equals
    the smallest.

    `sampling` requests emit a token anyway; the step has `tokens` tokens without drafts.
    """
    best, best_rate, expected = 0, 0.0, 0.0
    for n in range(total):
        expected += scores[order[n]]
        rate = (expected + sampling) / (verify[tokens + n + 1] + draft_s)
        if n == 0 or rate > best_rate:
            best, best_rate = n + 1, rate
    return best if best_rate > sampling / (verify[tokens] + draft_s) else 0


@kernel
def choose(  # type: ignore[no-untyped-def]
    requests, drafts, records, accepts, prior, most, sampling, verify, tokens, draft_s, scores, slots
):  # fmt: skip
    """Which slots to verify: how many, and by request in `slots[2]`; -1, and nothing is done, where `records` are too
    few.

    Args:
        most: slots that are given; negative: as many as `best_total` finds.
        scores, slots: float64 [k * requests] and int64 [3, k * requests + 2], overwritten.
    """
    n = len(requests)
    for i in range(n):
        if requests[i] >= len(records):
            return -1
    scores, order, kept = scores[: n * len(accepts)], slots[0], slots[2]
    total = _score(requests, drafts, records, accepts, prior, scores)
    if most >= total:
        kept[:n] = drafts
        return total
    rank(scores, order, slots[1])
    chosen = most if most >= 0 else best_total(scores, order, total, sampling, verify, tokens, draft_s)
    kept[:n] = 0
    for place in range(chosen):
        kept[order[place] % n] += 1
    return chosen


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
