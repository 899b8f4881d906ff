"""Compiled loops of the verification budget: scores of all slots, how many to verify, and what was learnt.

Models: the arithmetic of `specsim.policies.budget`, slot by slot. Leaves out: everything else. Numbers: none.
"""

from __future__ import annotations

from specsim.compiled import kernel

__all__ = ["best_total", "choose", "learn", "rank"]


@kernel
def _score(requests, drafts, records, accepts, prior, scores, ratios):  # type: ignore[no-untyped-def]
    """Survival of each slot, position by position and in each all requests, -1 without a draft: drafts in all. `ratios`
    is overwritten."""
    total, n = 0, len(requests)
    for i in range(n):
        total += drafts[i]
        ratios[i] = (records[requests[i], 0] + prior) / (records[requests[i], 1] + prior)
    for depth in range(len(accepts)):
        before, here, accept = scores[(depth - 1) * n : depth * n], scores[depth * n : (depth + 1) * n], accepts[depth]
        for i in range(n):
            chance = min(accept * ratios[i], 1.0)
            survival = before[i] * chance if depth else chance
            here[i] = survival if depth < drafts[i] else -1.0
    return total


@kernel
def rank(scores, ranked, counts, places):  # type: ignore[no-untyped-def]
    """Sort scores, highest first, into `ranked`. `counts` and `places` are overwritten.

    Scores lie in 0..1, so they are dealt into as many ranges as there are slots, which leaves little to sort; a score
    of -1 comes last.
    """
    n = len(scores)
    counts[: n + 2] = 0
    for slot in range(n):
        places[slot] = n - int(scores[slot] * (n - 1)) if scores[slot] >= 0.0 else n + 1
    for slot in range(n):
        counts[places[slot]] += 1
    first = 0
    for place in range(n + 2):
        first, counts[place] = first + counts[place], first
    for slot in range(n):
        at = counts[places[slot]]
        counts[places[slot]] = at + 1
        ranked[at] = scores[slot]
    for at in range(1, n):
        score = ranked[at]
        if ranked[at - 1] < score:
            to = at
            while to and ranked[to - 1] < score:
                ranked[to] = ranked[to - 1]
                to -= 1
            ranked[to] = score


@kernel
def _keep(scores, drafts, ranked, chosen, kept):  # type: ignore[no-untyped-def]
    """Of each request, how many of its slots are among the `chosen` best; of equal ones the first are."""
    n = len(drafts)
    kept[:n] = 0
    if chosen == 0:
        return
    least, equal, others = ranked[chosen - 1], 0, 0
    while equal < chosen and ranked[chosen - 1 - equal] == least:
        equal += 1
    while chosen + others < len(ranked) and ranked[chosen + others] == least:
        others += 1
    # a request's slots never rise in score, so that those chosen are its first ones
    for i in range(n):
        depth, slot = 0, i
        while depth < drafts[i] and (scores[slot] > least or (not others and scores[slot] == least)):
            depth, slot = depth + 1, slot + n
        kept[i] = depth
    if others:
        for slot in range(len(ranked)):
            if equal and scores[slot] == least:
                kept[slot % n] += 1
                equal -= 1


@kernel
def best_total(ranked, total, sampling, verify, tokens, draft_s):  # type: ignore[no-untyped-def]
    """How many of the best slots, of these scores, to verify: most expected tokens per second, of equals the smallest.

    `sampling` requests emit a token anyway; the step has `tokens` tokens without drafts.
    """
    best, best_rate, expected = 0, 0.0, 0.0
    for n in range(total):
        expected += ranked[n]
        rate = (expected + sampling) / (verify[tokens + n + 1] + draft_s)
        if n == 0 or rate > best_rate:
            best, best_rate = n + 1, rate
    return best if best_rate > sampling / (verify[tokens] + draft_s) else 0


@kernel
def choose(  # type: ignore[no-untyped-def]
    requests, drafts, records, accepts, prior, most, sampling, verify, tokens, draft_s, scores, slots
):  # fmt: skip
    """Which slots to verify: how many, and by request in `slots[0]`; -1, and nothing is done, where `records` are too
    few.

    Args:
        most: slots that are given; negative: as many as `best_total` finds.
        scores, slots: float64 [2, k * requests] and int64 [3, k * requests + 2], overwritten.
    """
    n = len(requests)
    for i in range(n):
        if requests[i] >= len(records):
            return -1
    many, kept = n * len(accepts), slots[0]
    ranked = scores[1, :many]
    total = _score(requests, drafts, records, accepts, prior, scores[0], ranked)
    if most >= total:
        kept[:n] = drafts
        return total
    rank(scores[0, :many], ranked, slots[1], slots[2])
    chosen = most if most >= 0 else best_total(ranked, total, sampling, verify, tokens, draft_s)
    _keep(scores[0, :many], drafts, ranked, chosen, kept)
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
