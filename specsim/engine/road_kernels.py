"""Compiled walk along the open road: whole steps with their arrivals, admissions, prompts and completions.

Models: a replica alone, with requests that come whatever it does or one as another finishes, under rules by which
decoding requests go first and prompts take what they leave of a step. Carried out as long as no block is short and no
draft is cut; at anything else it stops before the step, which is then decided in Python.
Leaves out: the rest of the rules, which are in `fast_queues` and `fast_step`. Beside the arrays of `decode_kernels`:

asks      int32 [requests, 4]: prompt and output tokens, blocks that it starts with, whether it is refused
rules     int64 [RULES]: limits of the replica, see the names below
queue     int64 [QUEUE]: who waits, how far things are, and why the walk has stopped
answers   the policy's, see `specsim.policies.base.Ahead`
trimmer   what `specsim.policies.budget` trims by; None: nothing is trimmed
"""

from __future__ import annotations

import math

import numpy as np

from specsim.compiled import kernel
from specsim.engine.decode_kernels import (
    ALONE,
    APART,
    ASKED,
    CHUNKS,
    COUNT,
    DRAFT_ROUNDS,
    DRAFTER,
    DRAFTS,
    EMITTED,
    FINISHED,
    FIRST,
    FURTHER,
    HEAD,
    HELD,
    HOST,
    HOST_REQUEST,
    KV,
    MATRIX,
    MIXED,
    MORE,
    NEW_BLOCKS,
    OVERLAPS,
    READS,
    RUNS,
    SCHEDULED,
    SEEN_ALONE,
    SPOILS,
    SWITCH,
    TARGET,
    USED,
    WHO,
    WINDOWED,
    WITH_PROMPTS,
    _add_gaps,
    _add_step,
    _blocks,
    _tree_tokens,
    _walk,
    find_terms,
    join,
    schedule,
    verify,
)
from specsim.policies.budget_kernels import choose, learn

__all__ = ["travel"]

# asks
PROMPT, OUTPUT, BLOCKS, REFUSED = range(4)
# rules
TOKENS, SEATS, CAPACITY, SLOTS, LOOKAHEAD, BLOCK, FIXED, WHOLE, BY_BLOCK, CUT, PROMPT_FITS, GROWS = range(12)
PLACEHOLDERS, STEP_WINDOW, KNEES, COMPLETIONS, CLOSED = 12, 13, 14, 15, 16
RULES = 17
# queue: the first that waits, the first that has not come, blocks used, prompt tokens of those not finished, next k,
# steps taken, place for luck; whose prompt is unfinished (-1: nobody's), how much of it is computed, the blocks that it
# holds, of whose prompt the drafter has missed a part; steps so far, where iterations are counted; requests that have
# finished, and how many more until a closed loop is measured; first request and requests of the luck given; why it
# stopped, steps to tell of, requests that finished with the last of them, and, from ASK on, what is asked for
WAITS, COMING, IN_USE, OUTSTANDING, NEXT_K, TAKEN, PLACE, PARTIAL, COMPUTED, HOLDS, STALE_PROMPT = range(11)
DECODE_STEPS, DONE, BEFORE_MEASURED, LUCK_FROM, LUCK_OF, WHY, TO_TELL, ENDED, ASK = range(11, 20)
QUEUE = 26
# closed loop: whether requests are sent as others finish, and whether as many as wanted have been in flight
UNFILLED, FILLED = 1, 2
# why
FULL, IDLE, DECIDE, TERMS_LACK, LUCK_LACKS, ROOM_LACKS, ANSWER_LACKS, TOLD = range(8)


@kernel
def _attention(prices, at, prompts):  # type: ignore[no-untyped-def]
    """`CompiledPass.prefill`, for no `attention_knee` or nothing cached; `prompts` see `_mixed_s`."""
    tokens, _, cached, pairs, windowed_pairs = prompts
    full = _larger(cached * prices[at + 3], pairs * prices[at])
    window = np.int64(prices[at + 1])
    if not window:
        return full
    if not windowed_pairs:
        windowed_pairs = min(pairs, tokens * window)
    return full + _larger(min(cached, window) * prices[at + 4], windowed_pairs * prices[at + 2])


@kernel
def _larger(memory, compute):  # type: ignore[no-untyped-def]
    """The larger one: reading and computing that overlap."""
    return memory if memory > compute else compute


@kernel
def _drafter_s(terms, prices, drafting, decode, levels, k, prompts):  # type: ignore[no-untyped-def]
    """The drafter's part of `StepCost._mixed_s`; negative: terms are lacking."""
    tokens, ending, cached, _, _ = prompts
    rows, seen = decode + ending, decode + levels + tokens
    if drafting[k, SEEN_ALONE]:
        place = find_terms(terms, seen, 0, 0, FIRST + k)
    else:
        place = find_terms(terms, seen, rows * APART + decode, levels, FIRST + k)
    if not terms[place, USED]:
        return -1.0
    seconds, more = terms[place, USED + 1], drafting[k, MORE]
    for part in range((more + 2) // 3):
        place = find_terms(terms, decode, rows, part, FURTHER + k)
        if not terms[place, USED]:
            return -1.0
        for n in range(min(3, more - 3 * part)):
            seconds += terms[place, USED + 1 + n]
    reading = _attention(prices, DRAFTER, prompts) if drafting[k, CHUNKS] else 0.0
    if ending and drafting[k, READS]:
        read = cached + tokens
        windowed = min(read, ending * np.int64(prices[DRAFTER + 1]))
        reading += drafting[k, READS] * (read * prices[DRAFTER + 3] + windowed * prices[DRAFTER + 4])
    return seconds + reading


@kernel
def _mixed_s(terms, prices, drafting, decode, levels, verified, k, kv, windowed, prompts):  # type: ignore[no-untyped-def]
    """`StepCost._mixed_s` without change of k and hidden host time; negative: terms are lacking.

    `prompts`: (tokens computed, prompts that end, tokens cached in front of them, pairs, pairs within the window).
    """
    tokens, ending, _, _, _ = prompts
    place = find_terms(terms, decode, levels, verified, MIXED + k)
    if not terms[place, USED] or not drafting[k, ASKED]:
        return -1.0
    seconds = terms[place, USED + 1] + kv * terms[place, USED + 2] + windowed * terms[place, USED + 3]
    if prices[ALONE]:
        place = find_terms(terms, decode + verified + tokens, 0, 0, MATRIX)
    else:
        place = find_terms(terms, decode + verified + tokens, decode, verified, MATRIX)
    if not terms[place, USED]:
        return -1.0
    seconds += terms[place, USED + 1]
    place = find_terms(terms, decode + verified + ending, 0, 0, HEAD)
    if not terms[place, USED]:
        return -1.0
    seconds += terms[place, USED + 1] + _attention(prices, TARGET, prompts)
    seconds += prices[WITH_PROMPTS]
    if drafting[k, RUNS]:
        drafter_s = _drafter_s(terms, prices, drafting, decode, levels, k, prompts)
        if drafter_s < 0.0:
            return -1.0
        seconds += drafter_s
    return seconds


@kernel
def _in_window(context, tokens, window):  # type: ignore[no-untyped-def]
    """`specsim.engine.core.windowed_chunk_pairs`."""
    below = min(max(window - context, 0), tokens)
    return below * context + below * (below + 1) // 2 + (tokens - below) * window


@kernel
def _chunk(rules, left, budget):  # type: ignore[no-untyped-def]
    """`specsim.admission.chunk_of`."""
    if left <= budget:
        return left
    if budget <= 0:
        return 0
    return budget // rules[BLOCK] * rules[BLOCK] if rules[BY_BLOCK] else budget


@kernel
def _answer(contexts, ks, size, kv, rounds):  # type: ignore[no-untyped-def]
    """The policy's k; negative: it has to be asked."""
    context, band, high = (kv // rounds if rounds else 0), 0, len(contexts)
    while high - band > 1:
        middle = (band + high) // 2
        if contexts[middle] <= context:
            band = middle
        else:
            high = middle
    return np.int64(ks[band, size])


@kernel
def _trim(notes, count, batch, prefill_tokens, prefill_rows, trimmer):  # type: ignore[no-untyped-def]
    """`specsim.policies.budget.Budget.trim`: what is verified of each request."""
    numbers, draft_s, verify_s, scores, slots, records, accepts = trimmer[:7]
    most = np.int64(numbers[0])
    drafter_s = draft_s[batch] if most < 0 else 0.0
    choose(
        notes[WHO, :count], notes[SCHEDULED, :count], records, accepts, numbers[1], most, count + prefill_rows,
        verify_s, count + prefill_tokens, drafter_s, scores, slots,
    )  # fmt: skip
    return slots[0, :count]


@kernel
def _learn(notes, count, trims, trimmer):  # type: ignore[no-untyped-def]
    """`specsim.policies.budget.Budget.observe`."""
    numbers, _, _, _, slots, records, accepts, due, tried, hits, looked = trimmer
    drafts = slots[0, :count] if trims else notes[SCHEDULED, :count]
    learn(
        notes[WHO, :count], drafts, notes[EMITTED, :count], records, numbers[2], numbers[3], accepts, due, tried, hits,
        looked,
    )  # fmt: skip


@kernel
def travel(  # type: ignore[no-untyped-def]
    sums, rows, notes, luck, terms, prices, nodes, drafting, record, history, asks, arrival_s, scheduled_s, token_s,
    finish_s, iterations, spans, most_drafts, offsets, rules, queue, contexts, ks, groups, left, trimmer,
    now_s, until_s, from_s, measured_until_s,
):  # fmt: skip
    """Steps one after another, one at least if `queue[TAKEN]` is 0, until the next one would end behind `until_s` or
    the walk stops: (end, seconds of the last step, 0 where there is none, from when to when is measured)."""
    capacity, slots, lookahead = rules[CAPACITY], rules[SLOTS], rules[LOOKAHEAD]
    used, head, coming, last_k, steps = queue[IN_USE], queue[WAITS], queue[COMING], queue[NEXT_K], queue[TAKEN]
    place, partial, computed, holds, told = queue[PLACE], queue[PARTIAL], queue[COMPUTED], queue[HOLDS], 0
    seconds, why, queue[ENDED] = 0.0, FULL, 0
    while True:
        while arrival_s[coming] <= now_s:
            if not asks[coming, REFUSED]:
                queue[OUTSTANDING] += asks[coming, PROMPT]
            coming += 1
        while head < coming and asks[head, REFUSED]:
            head += 1
        # what decodes
        count, kv = sums[COUNT], sums[KV]
        drafts, draft_rounds = sums[DRAFTS], sums[DRAFT_ROUNDS]
        free = capacity - used - sums[NEW_BLOCKS]
        budget = rules[TOKENS]
        if free < 0 or (rules[CUT] and count * (1 + slots) + drafts > budget):
            why = DECIDE
            break
        budget -= count * (1 + slots) + _tree_tokens(nodes, drafts, draft_rounds)
        # prompts, from what that leaves of the step
        last, admitted, length, ending = head, 0, 0, 0
        tokens = cached = pairs = windowed_pairs = 0
        runs, then_partial, then_computed, then_holds = count + (partial >= 0), partial, computed, holds
        if partial >= 0:
            left_tokens, budget = asks[partial, PROMPT] - computed, budget - slots
            chunk = _chunk(rules, left_tokens, budget) if budget + slots > 0 else 0
            if chunk:
                if rules[GROWS]:
                    then_holds = max(holds, _blocks(computed + chunk + lookahead, rules[BLOCK]) + rules[FIXED])
                    free -= then_holds - holds
                if free < 0 or rules[KNEES]:
                    why = DECIDE
                    break
                tokens, cached, pairs = chunk, computed, chunk * computed + chunk * (chunk + 1) // 2
                if rules[STEP_WINDOW]:
                    windowed_pairs = _in_window(computed, chunk, rules[STEP_WINDOW])
                then_computed += chunk
            if chunk == left_tokens:
                then_partial, ending, length, budget = -1, 1, asks[partial, OUTPUT] - 1, budget - chunk
            else:
                budget = 0
        got = tokens > 0
        while last < coming and budget > slots:
            if asks[last, REFUSED]:
                last += 1
                continue
            if runs + admitted >= rules[SEATS]:
                break
            prompt = np.int64(asks[last, PROMPT])
            if prompt == 1 and rules[PLACEHOLDERS] and not tokens:
                why = DECIDE
                break
            chunk, needs = prompt, np.int64(asks[last, BLOCKS])
            if prompt > budget - slots:
                chunk = 0 if rules[WHOLE] else _chunk(rules, prompt, budget - slots)
                if chunk == 0 or (rules[PROMPT_FITS] and _blocks(prompt, rules[BLOCK]) + rules[FIXED] > free):
                    break
                if rules[GROWS]:
                    needs = _blocks(chunk + lookahead, rules[BLOCK]) + rules[FIXED]
            if needs > free:
                break
            free -= needs
            budget -= chunk + slots
            tokens += chunk
            pairs += chunk * (chunk + 1) // 2
            if rules[STEP_WINDOW]:
                windowed_pairs += _in_window(0, chunk, rules[STEP_WINDOW])
            admitted += 1
            last += 1
            if chunk < prompt:
                then_partial, then_computed, then_holds = last - 1, chunk, needs
                break
            ending += 1
            length += asks[last - 1, OUTPUT] - 1
        if why == DECIDE:
            break
        size = count + got + admitted
        if size == 0:
            why = IDLE
            break
        lowest = partial if partial >= 0 else head
        if ending and (last > queue[LUCK_FROM] + queue[LUCK_OF] or lowest < queue[LUCK_FROM]):
            queue[ASK], why = lowest, LUCK_LACKS
            break
        if size > len(rows) or place + length > len(luck):
            queue[ASK], queue[ASK + 1] = size - count, length
            why = ROOM_LACKS
            break
        k = _answer(contexts, ks, size, kv, count)
        if k < 0:
            queue[ASK], queue[ASK + 1], queue[ASK + 2] = size, kv, count
            why = ANSWER_LACKS
            break
        trims = False
        if trimmer is not None:
            schedule(rows, notes, count, False)
            trims = drafts > 0
            if trims:
                drafts, draft_rounds = verify(notes, _trim(notes, count, size, tokens, ending, trimmer))
        # how long it takes
        verified = _tree_tokens(nodes, drafts, draft_rounds)
        if tokens:
            step_s = _mixed_s(
                terms, prices, drafting, count, drafts, verified, k, kv, sums[WINDOWED],
                (tokens, ending, cached, pairs, windowed_pairs),
            )  # fmt: skip
        else:
            found = find_terms(terms, count, drafts, verified, k)
            step_s = terms[found, USED + 1] + kv * terms[found, USED + 2] + sums[WINDOWED] * terms[found, USED + 3]
            if not terms[found, USED]:
                step_s = -1.0
        if step_s < 0.0:
            queue[ASK], queue[ASK + 1], queue[ASK + 2], queue[ASK + 3] = count, drafts, verified, k
            queue[ASK + 4], queue[ASK + 5] = tokens, ending
            why = TERMS_LACK
            break
        if last_k >= 0 and last_k != k:
            step_s += prices[SWITCH]
        if prices[OVERLAPS]:
            step_s = max(step_s, prices[HOST] + count * prices[HOST_REQUEST])
        end_s = now_s + step_s
        if steps and end_s > until_s:
            break
        # carry it out
        used = capacity - free
        for request in range(head, last):
            if not asks[request, REFUSED]:
                scheduled_s[request] = now_s
        gained, finished = _walk(sums, rows, notes, luck, count, k, False, trims, 0)
        if told < len(history):
            history[told, 0], history[told, 1], history[told, 2] = size, count, draft_rounds
            history[told, 3], history[told, 4] = drafts, gained
            told += 1
        if from_s <= end_s <= measured_until_s:
            _add_step(record, end_s - now_s, size, used, count, draft_rounds, verified, gained, tokens, k)
            if count:
                _add_gaps(record, end_s - now_s, count)
        queue[DECODE_STEPS] += 1
        if trimmer is not None and count:
            _learn(notes, count, trims, trimmer)
        for n in range(finished):
            request = notes[FINISHED, n]
            finish_s[request] = end_s
            used -= notes[HELD, n]
            queue[OUTSTANDING] -= asks[request, PROMPT]
        for n in range(head - 1, last):
            request = partial if n < head else n
            if request < 0 or asks[request, REFUSED] or request == then_partial:
                continue
            token_s[request] = end_s
            if rules[COMPLETIONS]:
                iterations[request] += 1 - queue[DECODE_STEPS]
            more, prompt = np.int64(asks[request, OUTPUT] - 1), np.int64(asks[request, PROMPT])
            if more == 0:
                finish_s[request] = end_s
                used -= asks[request, BLOCKS]
                queue[OUTSTANDING] -= prompt
                notes[FINISHED, finished] = request
                finished += 1
                continue
            first = offsets[request - queue[LUCK_FROM]] + 1
            is_stale = sums[SPOILS] and (k == 0 or request == queue[STALE_PROMPT])
            join(
                sums, rows, luck, place, spans, most_drafts, first, more, np.int64(request), prompt, lookahead,
                np.int64(asks[request, BLOCKS]), k, is_stale, False,
            )  # fmt: skip
            place += more
        if sums[SPOILS] and k == 0 and then_partial >= 0 and (then_partial != partial or then_computed != computed):
            queue[STALE_PROMPT] = then_partial
        partial, computed, holds = then_partial, then_computed, then_holds
        queue[DONE] += finished
        if rules[CLOSED] and finished:
            places = finished
            for request in range(coming, len(arrival_s) - 1):
                if places == 0:
                    break
                arrival_s[request] = end_s
                places -= not asks[request, REFUSED]
            if places and rules[CLOSED] == FILLED and measured_until_s == math.inf:
                measured_until_s = end_s
            if queue[BEFORE_MEASURED] > 0:
                queue[BEFORE_MEASURED] -= finished
                if queue[BEFORE_MEASURED] <= 0:
                    from_s = end_s
        seconds, now_s, last_k, head = step_s, end_s, k, last
        steps += 1
        if len(groups):
            left[groups[count]] -= count > 0
            if (count and left[groups[count]] == 0) or told == len(history) or (rules[COMPLETIONS] and finished):
                queue[ENDED], why = finished, TOLD
                break
    queue[IN_USE], queue[WAITS], queue[COMING], queue[NEXT_K], queue[TAKEN] = used, head, coming, last_k, steps
    queue[PLACE], queue[PARTIAL], queue[COMPUTED], queue[HOLDS] = place, partial, computed, holds
    queue[WHY], queue[TO_TELL] = why, told
    return now_s, seconds, from_s, measured_until_s
