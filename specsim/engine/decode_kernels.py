"""Compiled loops over the decoding requests of a replica: a step is one walk, a few nanoseconds a request.

Models: what a step takes (tokens, drafts, blocks), what it brings, who finishes; and whole steps in a row, with their
seconds and statistics, as long as nothing happens that anybody else could see. Leaves out: decisions; those are in
`fast_replica` and `fast_queues`. Everything is read from and written to arrays that `specsim.engine.decode_batch` owns:

sums     int64 [SUMS]: what the coming step takes, and the rules, see the names below
rows     int64 [requests, FIELDS]: decoding requests in order of admission
notes    int64 [NOTES, requests]: one step, by row: drafts scheduled and verified, tokens emitted, who finished
luck     int8 [positions, 2]: span and most drafts of a round that starts there
terms    float64 [places, TERMS]: hash table of seconds by make-up of a decode step
record   float64 [RECORD + gap bins]: totals of the run, see `specsim.engine.recorder`
"""

from __future__ import annotations

import math

import numpy as np

from specsim.compiled import kernel

__all__ = [
    "ACCEPTED", "AT", "BATCH_TIME", "BLOCK_SIZE", "BUSY", "COUNT", "DECODED", "DRAFTED", "DRAFT_ROUNDED", "EMITTED",
    "END", "FIELDS", "FINISHED", "GAPS", "GAP_BINS_PER_E", "GAP_LOW", "HELD", "KV", "KV_TIME", "K_STEPS", "LENGTH",
    "NEW_BLOCKS", "NOTES", "PEAK_BATCH", "PEAK_BLOCKS", "PREFILLED", "REQUEST", "ROUNDS", "SCHEDULED", "SPOILS",
    "STEPS", "SUMS", "TERMS", "TIGHT", "USED", "VERIFIED", "WHO", "WINDOW", "ZEROS", "cut", "end_step", "find_terms",
    "join", "leave", "run_steps", "schedule", "tidy", "verify",
]  # fmt: skip

# sums: the coming step if no draft is cut; rows behind those, which join after it; then the rules
COUNT, KV, WINDOWED, DRAFTS, DRAFT_ROUNDS, NEW_BLOCKS, PENDING, BLOCK_SIZE, LENGTH, WINDOW, SPOILS, TIGHT = range(12)
SUMS = 12
# rows: position in the luck, one past the last one, context less position, position up to which blocks reach, that
# less all its blocks, drafts waiting to be verified, who, whether its drafts never match
AT, END, OFFSET, ROOM, BASE, WAITING, REQUEST, STALE = range(8)
FIELDS = 8
# notes
SCHEDULED, VERIFIED, EMITTED, WHO, FINISHED, HELD = range(6)
NOTES = 6
# terms: decoding requests, levels, drafts verified, next k; whether the place is taken; seconds, per cached token, per
# windowed cached token
_REQUESTS, _LEVELS, _VERIFIED, _NEXT, USED, _BASE, _FULL, _CUT_OFF = range(8)
TERMS = 8
# record: totals, steps by k, the range of the gaps' histogram, gaps of zero seconds, then the histogram
STEPS, BUSY, BATCH_TIME, KV_TIME, PEAK_BATCH, PEAK_BLOCKS = range(6)
ROUNDS, DRAFT_ROUNDED, DRAFTED, ACCEPTED, DECODED, PREFILLED = range(6, 12)
K_STEPS = 12
GAP_LOW, GAP_BINS_PER_E, ZEROS = K_STEPS + 65, K_STEPS + 66, K_STEPS + 67
GAPS = K_STEPS + 68
# terms of steps with prompts share the table; their last key is the code, to which the next k is added where it matters
MIXED, MATRIX, HEAD, FIRST, FURTHER = 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12
APART = 1 << 20
"""Two counts in one key: this many times the one, and the other."""
# prices: of a change of k, whether host time is hidden, host time and that of a request, of a step with prompts,
# whether the target's matrix work follows from tokens alone; then attention of the target and the drafter, five each:
# a pair, the window, a pair in windowed layers, a cached token, a cached token in windowed layers
SWITCH, OVERLAPS, HOST, HOST_REQUEST, WITH_PROMPTS, ALONE, TARGET, DRAFTER = 0, 1, 2, 3, 4, 5, 6, 11
PRICES = 16
# drafting, by next k: whether this row is known, whether the drafter runs, whether its first pass follows from tokens
# alone and computes attention over prompts, passes that read finished prompts, further terms
ASKED, RUNS, SEEN_ALONE, CHUNKS, READS, MORE = range(6)
DRAFTING = 6
_ANY = 127


@kernel
def _proposed(sums, row, luck, k):  # type: ignore[no-untyped-def]
    """Drafts of the next round of a request: k, what the drafter has, and what the model's length leaves."""
    at = row[AT]
    return min(k, np.int64(luck[at, 1]), sums[LENGTH] - at - row[OFFSET])


@kernel
def _least(a, b):  # type: ignore[no-untyped-def]
    """The smaller of two numbers, without a branch: which one it is cannot be foreseen."""
    return a if a < b else b


@kernel
def _blocks(tokens, block_size):  # type: ignore[no-untyped-def]
    """Blocks that hold `tokens`, which are seldom more than one block, and may be negative."""
    if tokens > block_size:
        return (tokens - 1) // block_size + 1
    return np.int64(tokens > 0)


@kernel
def _grow(sums, row, drafts):  # type: ignore[no-untyped-def]
    """Blocks that a request lacks for a round with so many drafts."""
    return _blocks(row[AT] + drafts + 1 - row[ROOM], sums[BLOCK_SIZE])


@kernel
def _held(sums, row):  # type: ignore[no-untyped-def]
    """Blocks of a request."""
    return (row[ROOM] - row[BASE]) // sums[BLOCK_SIZE]


@kernel
def _count(sums, row, sign):  # type: ignore[no-untyped-def]
    """Add a request to what the coming step takes, or take it away."""
    context, drafts = row[AT] + row[OFFSET], row[WAITING]
    sums[COUNT] += sign
    sums[KV] += sign * context
    sums[WINDOWED] += sign * min(context, sums[WINDOW])
    sums[DRAFTS] += sign * drafts
    sums[DRAFT_ROUNDS] += sign * (drafts > 0)
    sums[NEW_BLOCKS] += sign * _grow(sums, row, drafts)


@kernel
def join(  # type: ignore[no-untyped-def]
    sums, rows, luck, place, spans, drafts, first, length, request, context, lookahead, held, k, stale, is_pending
):  # fmt: skip
    """A request joins as the last row, its luck copied to `place`; empty `drafts`: as many as asked."""
    for n in range(length):
        luck[place + n, 0] = spans[first + n]
        luck[place + n, 1] = drafts[first + n] if len(drafts) else _ANY
    block, row = sums[BLOCK_SIZE], rows[sums[COUNT] + sums[PENDING]]
    row[AT], row[END], row[OFFSET] = place, place + length, context - place
    row[ROOM] = place - context - lookahead + _blocks(context + lookahead, block) * block
    row[BASE], row[REQUEST], row[STALE] = row[ROOM] - held * block, request, stale
    row[WAITING] = _proposed(sums, row, luck, k)
    if is_pending:
        sums[PENDING] += 1
    else:
        _count(sums, row, 1)


@kernel
def leave(sums, rows, request):  # type: ignore[no-untyped-def]
    """Drop a request: (output tokens that it lacks, its blocks)."""
    n = sums[COUNT]
    at = n - 1
    while rows[at, REQUEST] != request:
        at -= 1
    left, blocks = rows[at, END] - rows[at, AT], _held(sums, rows[at])
    _count(sums, rows[at], -1)
    for r in range(at, n - 1):
        rows[r] = rows[r + 1]
    return left, blocks


@kernel
def tidy(sums, rows, luck, fresh):  # type: ignore[no-untyped-def]
    """Copy the luck that is still to come, without holes, into `fresh` (or `luck` itself); the first free place."""
    place = 0
    for r in range(sums[COUNT] + sums[PENDING]):
        row = rows[r]
        at, shift = row[AT], row[AT] - place
        for n in range(row[END] - at):
            fresh[place + n, 0], fresh[place + n, 1] = luck[at + n, 0], luck[at + n, 1]
        row[AT] -= shift
        row[END] -= shift
        row[ROOM] -= shift
        row[BASE] -= shift
        row[OFFSET] += shift
        place = row[END]
    return place


@kernel
def cut(sums, rows, notes, budget, slots):  # type: ignore[no-untyped-def]
    """Schedule what a token budget leaves: (served, drafts, rounds with drafts, new blocks, context, windowed)."""
    served = drafts = draft_rounds = new_blocks = kv = windowed = 0
    for r in range(sums[COUNT]):
        row = rows[r]
        budget -= slots
        tokens = min(row[WAITING] + 1, budget)
        if tokens <= 0:
            break
        budget -= tokens
        notes[SCHEDULED, r] = tokens - 1
        drafts += tokens - 1
        draft_rounds += tokens > 1
        new_blocks += _grow(sums, row, tokens - 1)
        kv += row[AT] + row[OFFSET]
        windowed += min(row[AT] + row[OFFSET], sums[WINDOW])
        served += 1
    return served, drafts, draft_rounds, new_blocks, kv, windowed


@kernel
def schedule(rows, notes, served, is_cut):  # type: ignore[no-untyped-def]
    """Note who is served in the coming step, and with how many drafts."""
    for r in range(served):
        notes[WHO, r] = rows[r, REQUEST]
        if not is_cut:
            notes[SCHEDULED, r] = rows[r, WAITING]


@kernel
def verify(notes, drafts):  # type: ignore[no-untyped-def]
    """Note what is verified in the coming step: (drafts, rounds with any)."""
    total = rounds = 0
    for r in range(len(drafts)):
        notes[VERIFIED, r] = drafts[r]
        total += drafts[r]
        rounds += drafts[r] > 0
    return total, rounds


@kernel
def _walk(sums, rows, notes, luck, served, next_k, is_cut, trims, finished):  # type: ignore[no-untyped-def]
    """Carry out a step for the first `served` rows: (tokens emitted, requests finished, with those that are noted
    already). Afterwards the sums are those of the step after it."""
    count, block, window, length = sums[COUNT], sums[BLOCK_SIZE], sums[WINDOW], sums[LENGTH]
    is_tight, may_be_stale, spoils = sums[TIGHT], sums[SPOILS], sums[SPOILS] and next_k == 0
    gained = windowed = all_drafts = draft_rounds = new_blocks = to = 0
    kv = sums[KV]
    for r in range(count):
        at, drafts = rows[r, AT], rows[r, WAITING]
        if r < served:
            if is_cut:
                drafts = notes[SCHEDULED, r]
            rows[r, ROOM] += block * _blocks(at + drafts + 1 - rows[r, ROOM], block)
            if trims:
                drafts = notes[VERIFIED, r]
            gain = _least(np.int64(luck[at, 0]), drafts + 1)
            if may_be_stale and rows[r, STALE]:
                gain = 1
            notes[EMITTED, r] = gain
            gained += gain
            at += gain
            if at == rows[r, END]:
                kv -= at + rows[r, OFFSET]
                notes[FINISHED, finished], notes[HELD, finished] = rows[r, REQUEST], _held(sums, rows[r])
                finished += 1
                continue
            drafts = _least(next_k, np.int64(luck[at, 1]))
            if is_tight:
                drafts = _least(drafts, length - at - rows[r, OFFSET])
            if spoils:
                rows[r, STALE] = 1
        if to != r:
            rows[to] = rows[r]
        rows[to, AT], rows[to, WAITING] = at, drafts
        all_drafts += drafts
        draft_rounds += drafts > 0
        new_blocks += _blocks(at + drafts + 1 - rows[to, ROOM], block)
        if window:
            windowed += min(at + rows[to, OFFSET], window)
        to += 1
    sums[COUNT], sums[KV], sums[WINDOWED] = to, kv + gained, windowed
    sums[DRAFTS], sums[DRAFT_ROUNDS], sums[NEW_BLOCKS] = all_drafts, draft_rounds, new_blocks
    return gained, finished


@kernel
def _tree_tokens(nodes, levels, requests):  # type: ignore[no-untyped-def]
    """`specsim.trees.verified_tokens`."""
    if len(nodes) == 0 or levels == 0:
        return levels
    depth, deeper = levels // requests, levels % requests
    more = nodes[depth + 1] - nodes[depth] if deeper else 0
    return requests * nodes[depth] + deeper * more


@kernel
def _add_step(record, seconds, batch, used_blocks, rounds, draft_rounds, drafts, gained, prefilled, next_k):  # type: ignore[no-untyped-def]
    """`specsim.engine.recorder.Recorder.step`."""
    record[STEPS] += 1
    record[BUSY] += seconds
    record[BATCH_TIME] += batch * seconds
    record[KV_TIME] += used_blocks * seconds
    record[PEAK_BATCH] = max(record[PEAK_BATCH], batch)
    record[PEAK_BLOCKS] = max(record[PEAK_BLOCKS], used_blocks)
    record[ROUNDS] += rounds
    record[DRAFT_ROUNDED] += draft_rounds
    record[DRAFTED] += drafts
    record[ACCEPTED] += gained - rounds
    record[DECODED] += gained
    record[PREFILLED] += prefilled
    record[K_STEPS + next_k] += 1
    record[ZEROS] += gained - rounds


@kernel
def _add_gaps(record, gap_s, count):  # type: ignore[no-untyped-def]
    """`specsim.records.GapHistogram.add`."""
    low = record[GAP_LOW]
    place = int(math.log(gap_s / low) * record[GAP_BINS_PER_E]) if gap_s > low else 0
    record[min(GAPS + place, len(record) - 1)] += count


@kernel
def end_step(  # type: ignore[no-untyped-def]
    sums, rows, notes, luck, record, served, next_k, is_cut, trims,
    measured, seconds, batch, used_blocks, draft_rounds, drafts, prefilled, gap_s, gaps,
):  # fmt: skip
    """Carry out a step: (tokens emitted, requests finished). Measured: it is added to the totals, and `gaps` rounds
    come `gap_s` after what they emitted before."""
    gained, finished = _walk(sums, rows, notes, luck, served, next_k, is_cut, trims, 0)
    if measured:
        _add_step(record, seconds, batch, used_blocks, served, draft_rounds, drafts, gained, prefilled, next_k)
        if gaps:
            _add_gaps(record, gap_s, gaps)
    return gained, finished


@kernel
def find_terms(terms, requests, levels, verified, next_k):  # type: ignore[no-untyped-def]
    """Place of a make-up in the table: where it is, or where it belongs."""
    mask = len(terms) - 1
    place = ((requests * 1_000_003 + levels) * 1_000_003 + verified * 69_069 + next_k * 7919) & mask
    while terms[place, USED] and not (
        terms[place, _REQUESTS] == requests
        and terms[place, _LEVELS] == levels
        and terms[place, _VERIFIED] == verified
        and terms[place, _NEXT] == next_k
    ):
        place = (place + 1) & mask
    return place


@kernel
def refill(old, fresh):  # type: ignore[no-untyped-def]
    """Put the makes-up of one table into another one, which is larger."""
    for place in range(len(old)):
        if old[place, USED]:
            a, b = np.int64(old[place, _REQUESTS]), np.int64(old[place, _LEVELS])
            c, d = np.int64(old[place, _VERIFIED]), np.int64(old[place, _NEXT])
            fresh[find_terms(fresh, a, b, c, d)] = old[place]


@kernel
def run_steps(  # type: ignore[no-untyped-def]
    sums, rows, notes, luck, terms, prices, nodes, record, history, now_s, until_s, from_s, measured_until_s,
    first_s, first_batch, prefilled, is_alone, last_k, next_k, then_k, most, kv_below, used_blocks, freed, capacity,
    budget, slots, trims, leaving, leaving_kv, leaving_windowed, stays, padding, gap_from_s, later, later_from_s,
):  # fmt: skip
    """Whole steps, one after another, until one ends at `until_s` or later, a request finishes, there are `most`, the
    context reaches `kv_below`, or the next one would double the time, need more blocks than there are, a draft cut, or
    terms that the table does not have.

    Args:
        prices: see above.
        history: int64 [steps, 5], gets requests, rounds, rounds with drafts, drafts and tokens emitted of each step, as
            far as it is long.
        nodes: int64, tokens verified by depth of a tree; empty: drafts are chains.
        first_s: seconds of the first step if it is special, with its blocks taken, `first_batch` requests in it,
            `prefilled` prompt tokens, alone in it or not, and after it rows that join; negative: it is like the others.
        last_k, next_k, then_k: drafts of the step before the first one, after the first one, and from then on.
        freed: blocks, of those used, that are given back when the first step ends.
        leaving: requests that are computed beside those of the rows, with their context; they stay or go after the
            first step.
        gap_from_s: when the rows emitted last, but for `later` of them, which did so at `later_from_s`.

    Returns:
        (end, steps, blocks taken, tokens emitted, requests finished, seconds of the last step; whether the table lacks
        the next one, and the make-up of that: the first four of `terms`).
    """
    steps = taken = all_gained = finished = drafts = draft_rounds = requests = levels = verified = 0
    seconds = 0.0
    k, lacks = next_k, False
    exact_s = 2.0 * now_s  # up to there `end - now` has no rounding, so that a clock can be moved on by it
    while now_s < until_s and steps < most and finished == 0:
        is_special = steps == 0 and first_s >= 0.0
        count, kv, new_blocks = sums[COUNT], sums[KV] + padding, sums[NEW_BLOCKS]
        served, batch = count, count
        coming, coming_rounds = sums[DRAFTS], sums[DRAFT_ROUNDS]
        if is_special:
            step_s, batch, new_blocks = first_s, first_batch, 0
            if is_alone:
                served = coming = coming_rounds = 0
        else:
            if used_blocks + new_blocks > capacity or count * (1 + slots) + coming > budget:
                break
            if steps and kv >= kv_below:
                break
            if trims:
                coming = coming_rounds = 0
                for r in range(count):
                    coming += notes[VERIFIED, r]
                    coming_rounds += notes[VERIFIED, r] > 0
            requests, levels = count + leaving, coming + leaving * last_k
            verified = _tree_tokens(nodes, levels, coming_rounds + (leaving if last_k else 0))
            place = find_terms(terms, requests, levels, verified, k)
            if not terms[place, USED]:
                lacks = True
                break
            step_s = terms[place, _BASE] + (kv + leaving_kv) * terms[place, _FULL]
            step_s += (sums[WINDOWED] + leaving_windowed) * terms[place, _CUT_OFF]
            if last_k != k:
                step_s += prices[SWITCH]
            if prices[OVERLAPS]:
                step_s = max(step_s, prices[HOST] + requests * prices[HOST_REQUEST])
        end_s = now_s + step_s
        if steps and end_s > exact_s:
            break
        seconds, drafts, draft_rounds = step_s, coming, coming_rounds
        used_blocks += new_blocks
        taken += new_blocks
        gained, finished = _walk(sums, rows, notes, luck, served, k, False, trims, 0)
        all_gained += gained
        if steps < len(history):
            history[steps, 0], history[steps, 1] = batch - count if is_special and is_alone else batch, served
            history[steps, 2], history[steps, 3], history[steps, 4] = draft_rounds, drafts, gained
        if from_s <= end_s <= measured_until_s:
            shown = _tree_tokens(nodes, drafts, draft_rounds)
            _add_step(record, end_s - now_s, batch, used_blocks, served, draft_rounds, shown, gained, prefilled, k)
            if served > later:
                _add_gaps(record, end_s - gap_from_s, served - later)
            if served and later:
                _add_gaps(record, end_s - later_from_s, later)
        if is_special:
            joined = sums[PENDING]
            sums[PENDING] = 0
            for r in range(joined):
                row = rows[sums[COUNT]]
                row[:] = rows[count + r]
                _count(sums, row, 1)
            if is_alone:
                later, later_from_s = later + joined, end_s
            used_blocks -= freed
            if not stays:
                leaving = leaving_kv = leaving_windowed = 0
        if not (is_special and is_alone):
            gap_from_s, later = end_s, 0
        prefilled = 0
        now_s = end_s
        last_k, k = k, then_k
        steps += 1
    make_up = requests, levels, verified, k
    return now_s, steps, taken, all_gained, finished, seconds, lacks, make_up
