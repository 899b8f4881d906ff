"""Seconds of one engine step from a latency profile.

Models: one target pass over decoding and prefilling tokens together, weights read once, expert coverage, attention
over cached tokens, graph padding and the slower mode beyond the captured sizes, then the drafter's passes for the
next round in the same step, as vLLM V1 runs them: the first pass takes every token of the step (the drafter catches
up on accepted and prompt tokens), each further one takes one token a request.
Leaves out: overlap of drafting with scheduling, jitter. Numbers: a LatencyProfile; nothing is hard-coded here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specsim.passes import CompiledPass
from specsim.profiles import LatencyProfile

__all__ = ["StepCost", "StepWork", "captured_sizes"]

_MEMO_LIMIT = 200_000


@dataclass(slots=True)
class StepWork:
    """What one step contains. Mutable, since an engine reuses one object for millions of steps."""

    decode_requests: int = 0
    """Requests past their prompt, each with one token to compute plus its drafts."""
    draft_tokens: int = 0
    """Drafts verified in this step, summed over requests."""
    kv_tokens: int = 0
    """Cached tokens that decoding requests attend to, summed (before this step's tokens)."""
    windowed_kv_tokens: int = 0
    """The same, each request's share cut at the window; 0 when no layer is windowed."""
    prefill_tokens: int = 0
    """Prompt tokens computed in this step."""
    prefill_rows: int = 0
    """Prefilling requests that reach the end of their prompt and sample a token."""
    prefill_kv_tokens: int = 0
    """Cached tokens in front of this step's chunks, summed over chunks."""
    prefill_pairs: int = 0
    """(query, key) pairs of the chunks under causal attention, summed."""
    prefill_windowed_pairs: int = 0
    """The same, each query's keys cut at the window."""
    next_num_spec_tokens: int = 0
    """Drafts that the drafter makes per request at the end of this step."""
    machinery: bool = False
    """Whether speculation is loaded at all (False only for the policy `off`)."""


def captured_sizes(largest: int) -> list[int]:
    """Token counts with a captured graph up to `largest`, as vLLM chooses them: 1, 2, 4, by 8 to 256, then by 16."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, max(largest, 256) + 1, 16)]
    return [size for size in sizes if size <= largest]


class StepCost:
    """Seconds of steps under one profile, compiled once and then asked millions of times.

    Pure decode steps are linear in the cached tokens once their make-up is fixed, so the rest is remembered by
    (requests, drafts, next k, machinery).
    """

    def __init__(self, profile: LatencyProfile) -> None:
        self.profile = profile
        self._target = CompiledPass(profile.target)
        self._draft = None if profile.draft is None else CompiledPass(profile.draft)
        self._decode: dict[tuple[int, int, int, bool], tuple[float, float, float]] = {}
        self._mixed: dict[tuple[int, int, int, bool], tuple[float, float, float]] = {}
        self._padded = _padding(profile.captured_tokens_max)

    def step_s(self, work: StepWork) -> float:
        """Seconds of the step that `work` describes."""
        if work.prefill_tokens or work.prefill_rows:
            return self._mixed_s(work)
        key = (work.decode_requests, work.draft_tokens, work.next_num_spec_tokens, work.machinery)
        terms = self._decode.get(key)
        if terms is None:
            terms = self._decode_terms(key)
        return terms[0] + work.kv_tokens * terms[1] + work.windowed_kv_tokens * terms[2]

    def parts(self, work: StepWork) -> dict[str, float]:
        """The same seconds by cause, in the order in which they occur; their sum is `step_s`.

        weights    reading weights and experts, output head included
        compute    what matrix products add to that, output head included
        kv         attention: cached keys and values, and the pairs of prefill chunks
        fixed      launches and norms of the target pass, and latency of collectives
        collectives  the part of collectives that grows with tokens
        graph      padding to captured sizes, and what steps outside a full graph pay
        draft      the drafter's passes for the next round
        lookup     n-gram search
        host       scheduling and sampling
        speculation  host and rejection sampling because of speculation
        """
        p, target, c = self.profile, self._target, self._target.cost
        decode, drafts = work.decode_requests, work.draft_tokens
        tokens = decode + drafts + work.prefill_tokens
        rows = decode + drafts + work.prefill_rows
        width, unsplit = self._width(decode, drafts)
        full, windowed = target.kv_rates(width, unsplit, read_once=p.verify_reads_kv_once)
        padded, graph = tokens, 0.0
        if work.prefill_tokens:
            graph = p.mixed_s
        elif p.captured_tokens_max and tokens > p.captured_tokens_max:
            graph = p.uncaptured_s
        elif p.captured_tokens_max and (not drafts or drafts % decode):
            padded = self._padded[tokens]
        alike = target.alike(decode, drafts)
        graph += target.matrix(padded, alike) - target.matrix(tokens, alike)
        memory = (target.memory_s(tokens, alike) if tokens else 0.0) + (c.head_weights_s if rows else 0.0)
        fixed = c.fixed_s if tokens else 0.0
        collectives = tokens * c.collective_token_s
        lookup, spoken = self._speculation_s(decode, drafts, work.next_num_spec_tokens, work.machinery)
        return {
            "weights": memory,
            "compute": target.matrix(tokens, alike) - fixed - collectives + target.head(rows) - memory,
            "kv": work.kv_tokens * full + work.windowed_kv_tokens * windowed + target.prefill(work),
            "fixed": fixed,
            "collectives": collectives,
            "graph": graph,
            "draft": self._draft_s(work, tokens, width, unsplit),
            "lookup": lookup,
            "host": p.host_s + decode * p.host_request_s,
            "speculation": spoken,
        }

    def _mixed_s(self, work: StepWork) -> float:
        """A step with prefill chunks: what depends on the decoding requests alone is remembered."""
        decode, drafts, k = work.decode_requests, work.draft_tokens, work.next_num_spec_tokens
        key = (decode, drafts, k, work.machinery)
        terms = self._mixed.get(key)
        if terms is None:
            terms = self._mixed_terms(key)
        target, draft = self._target, self._draft
        tokens = decode + drafts + work.prefill_tokens
        seconds = terms[0] + work.kv_tokens * terms[1] + work.windowed_kv_tokens * terms[2]
        seconds += target.matrix(tokens, target.alike(decode, drafts))
        seconds += target.head(decode + drafts + work.prefill_rows) + target.prefill(work)
        if work.prefill_tokens:
            seconds += self.profile.mixed_s
        if k and draft is not None:
            seconds += self._draft_matrix_s(work, tokens) + draft.prefill(work)
        return seconds

    def decode_step_s(
        self,
        batch: int,
        context_tokens: float,
        num_spec_tokens: int = 0,
        *,
        machinery: bool | None = None,
        drafts_per_request: float | None = None,
        draft_nodes: int | None = None,
    ) -> float:
        """Seconds of one steady decode step: `batch` requests at a mean context, drafting as they verify.

        `machinery` None: loaded when `num_spec_tokens` > 0. `drafts_per_request`: mean drafts verified, below
        `num_spec_tokens` for lookup methods that often propose nothing. `draft_nodes`: a tree of that many drafts
        and depth `num_spec_tokens`: verify is 1 + nodes wide, the drafter makes one pass a level over its share
        of the nodes.
        """
        loaded = num_spec_tokens > 0 if machinery is None else machinery
        window = self.profile.target.window_tokens
        kv = batch * context_tokens
        windowed = batch * min(context_tokens, window)
        if draft_nodes is not None and num_spec_tokens > 0:
            return self._tree_step_s(batch, kv, windowed, num_spec_tokens, draft_nodes)
        mean = num_spec_tokens if drafts_per_request is None else min(drafts_per_request, num_spec_tokens)
        low = math.floor(batch * mean)
        share = batch * mean - low
        seconds = 0.0
        for drafts, weight in ((low, 1.0 - share), (low + 1, share)):
            if weight > 0.0:
                terms = self._terms((batch, drafts, num_spec_tokens, loaded))
                seconds += weight * (terms[0] + kv * terms[1] + windowed * terms[2])
        return seconds

    def _terms(self, key: tuple[int, int, int, bool]) -> tuple[float, float, float]:
        return self._decode.get(key) or self._decode_terms(key)

    def _decode_terms(self, key: tuple[int, int, int, bool]) -> tuple[float, float, float]:
        """(seconds without cache, per cached token, per windowed cached token) of a pure decode step."""
        decode, drafts, next_k, machinery = key
        work = StepWork(decode_requests=decode, draft_tokens=drafts, next_num_spec_tokens=next_k, machinery=machinery)
        base = math.fsum(self.parts(work).values())
        width, unsplit = self._width(decode, drafts)
        full, windowed = self._target.kv_rates(width, unsplit, read_once=self.profile.verify_reads_kv_once)
        if next_k and self._draft is not None:
            draft_full, draft_windowed = self._draft_kv_rates(next_k, width, unsplit)
            full, windowed = full + draft_full, windowed + draft_windowed
        if len(self._decode) >= _MEMO_LIMIT:
            self._decode.clear()
        terms = self._decode[key] = (base, full, windowed)
        return terms

    def _mixed_terms(self, key: tuple[int, int, int, bool]) -> tuple[float, float, float]:
        """As `_decode_terms`, without matrix work, which depends on the prompt tokens too."""
        _, full, windowed = self._terms(key)
        host = self.profile.host_s + key[0] * self.profile.host_request_s
        base = math.fsum((host, *self._speculation_s(*key)))
        if len(self._mixed) >= _MEMO_LIMIT:
            self._mixed.clear()
        terms = self._mixed[key] = (base, full, windowed)
        return terms

    def _speculation_s(self, decode: int, drafts: int, next_k: int, machinery: bool) -> tuple[float, float]:
        """(lookup, host time because of speculation); a lookup that proposed nothing has nothing to reject."""
        p = self.profile
        spoken = p.speculation_host_s if drafts or (next_k and p.draft is not None) else 0.0
        if machinery:
            spoken += p.loaded_host_s + decode * p.loaded_request_s
        return (p.lookup_request_s * decode if next_k and p.draft is None else 0.0), spoken

    def _width(self, decode: int, drafts: int) -> tuple[float, float]:
        """Mean queries a request, and how much slower an attention kernel reads that does not split its cache."""
        if not drafts:
            return 1.0, 1.0
        return (decode + drafts) / decode, max(1.0, self.profile.verify_unsplit_requests / decode)

    def _draft_kv_rates(self, num_spec_tokens: int, width: float, unsplit: float) -> tuple[float, float]:
        """Drafter's attention seconds per cached token over all passes of a round: (full, windowed).

        Steps carry the cache cut at the target's window only; a windowed drafter of a target without windows is
        charged for the full cache.
        """
        assert self._draft is not None
        once = self.profile.verify_reads_kv_once
        if self.profile.draft_mode == "parallel":
            full, windowed = self._draft.kv_rates(width + num_spec_tokens - 1, unsplit, read_once=once)
        else:
            first, later = (self._draft.kv_rates(w, u, read_once=once) for w, u in ((width, unsplit), (1.0, 1.0)))
            full, windowed = (a + (num_spec_tokens - 1) * b for a, b in zip(first, later, strict=True))
        return (full, windowed) if self.profile.target.window_tokens else (full + windowed, 0.0)

    def _draft_s(self, work: StepWork, tokens: int, width: float, unsplit: float) -> float:
        k, draft = work.next_num_spec_tokens, self._draft
        if not k or draft is None or not tokens:
            return 0.0
        full, windowed = self._draft_kv_rates(k, width, unsplit)
        seconds = work.kv_tokens * full + work.windowed_kv_tokens * windowed + draft.prefill(work)
        return seconds + self._draft_matrix_s(work, tokens)

    def _draft_matrix_s(self, work: StepWork, tokens: int) -> float:
        """Matrix work of all passes, and the later passes' reading of prompts that this step has finished."""
        k, draft = work.next_num_spec_tokens, self._draft
        assert draft is not None
        rows = work.decode_requests + work.prefill_rows
        if self.profile.draft_mode == "parallel":
            return draft.matrix(
                tokens + rows * (k - 1), draft.alike(rows, work.draft_tokens + rows * (k - 1))
            ) + draft.head(rows * k)
        seconds = draft.matrix(tokens, draft.alike(work.decode_requests, work.draft_tokens)) + draft.head(rows)
        if k > 1:
            seconds += (k - 1) * (draft.matrix(rows) + draft.head(rows))
            if work.prefill_rows:
                prompts = work.prefill_kv_tokens + work.prefill_tokens
                seconds += (k - 1) * prompts * (draft.cost.kv_token_s + draft.cost.windowed_kv_token_s)
        return seconds

    def _tree_step_s(self, batch: int, kv: float, windowed: float, depth: int, nodes: int) -> float:
        """A tree round: verify every node, then one drafter pass a level; the drafter catches up on one path only."""
        drafts = batch * nodes
        work = StepWork(decode_requests=batch, draft_tokens=drafts, machinery=True)
        seconds = math.fsum(self.parts(work).values())
        width, unsplit = self._width(batch, drafts)
        full, windowed_rate = self._target.kv_rates(width, unsplit, read_once=self.profile.verify_reads_kv_once)
        draft = self._draft
        if draft is not None:
            level = math.ceil(nodes / depth)
            seconds += draft.matrix(batch * (depth + 1), draft.alike(batch, batch * depth)) + draft.head(batch)
            alike = draft.alike(batch, batch * (level - 1))
            seconds += (depth - 1) * (draft.matrix(batch * level, alike) + draft.head(batch * level))
            draft_full, draft_windowed = self._draft_kv_rates(depth, depth + 1.0, unsplit)
            full, windowed_rate = full + draft_full, windowed_rate + draft_windowed
        else:
            seconds += batch * self.profile.lookup_request_s
        return seconds + kv * full + windowed * windowed_rate


def _padding(largest: int) -> list[int]:
    """Token count -> captured size that it is padded to, 0..largest."""
    padded = [0] * (largest + 1)
    low = 1
    for size in captured_sizes(largest):
        padded[low : size + 1] = [size] * (size + 1 - low)
        low = size + 1
    padded[low:] = range(low, largest + 1)
    return padded
