"""Seconds of the drafter's part of a step: the passes that make the next round's drafts.

Models: serial passes, of which the first also takes every token that the drafter has not seen (prompts too) and each
later one a row a request, or a row a node that is drafted on where drafts form a tree; one parallel pass with further
rows; one block pass of k + 1 queries, catching up by projecting keys and values only; heads at once on the last hidden
state; own cache, own window. With no drafts at all a drafter that catches up runs its first pass for its cache alone.
Leaves out: overlap of drafting with anything else. Numbers: a LatencyProfile; nothing is hard-coded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specsim.passes import ChunkWork, CompiledPass
from specsim.profiles import LatencyProfile
from specsim.trees import Tree

__all__ = ["DraftPasses"]


class _Work(ChunkWork, Protocol):
    """What of `specsim.latency.StepWork` is read here."""

    decode_requests: int
    prefill_rows: int


class DraftPasses:
    """The passes of one profile's drafter. `trees[k - 1]` is what k levels of drafts look like; empty: chains."""

    def __init__(self, profile: LatencyProfile, trees: Sequence[Tree] = ()) -> None:
        if profile.draft is None:
            raise ValueError(f"profile {profile.name} has no drafter")
        self._profile = profile
        self._draft = CompiledPass(profile.draft)
        self._trees = tuple(trees)

    def kv_rates(self, num_spec_tokens: int, width: float, unsplit: float) -> tuple[float, float]:
        """Attention seconds per cached token of a decoding request over all passes: (full layers, windowed layers).

        `width`: tokens a request that the drafter catches up on. `unsplit`: how much slower a kernel reads the cache
        for several queries.
        """
        p, k = self._profile, num_spec_tokens
        once = p.verify_reads_kv_once
        if p.draft_mode == "heads":
            return 0.0, 0.0
        if k == 0:
            catches_up = p.draft_catches_up and p.draft_mode != "block"
            return self._draft.kv_rates(width, unsplit, read_once=once) if catches_up else (0.0, 0.0)
        if p.draft_mode == "block":
            return self._draft.kv_rates(k + 1, unsplit, read_once=once)
        if p.draft_mode == "parallel":
            return self._draft.kv_rates(width + self._extra_rows(k), unsplit, read_once=once)
        queries = width + self._extra_rows(k) if p.draft_catches_up else 1.0
        rates = [self._draft.kv_rates(queries, unsplit if queries > 1.0 else 1.0, read_once=once)]
        rates += [
            self._draft.kv_rates(rows, unsplit if rows > 1 else 1.0, read_once=once) for rows in self._later_passes(k)
        ]
        return sum(full for full, _ in rates), sum(windowed for _, windowed in rates)

    def _later_passes(self, num_spec_tokens: int) -> tuple[int, ...]:
        """Rows a request of every serial pass but the first."""
        return self._trees[num_spec_tokens - 1].expanded[1:] if self._trees else (1,) * (num_spec_tokens - 1)

    def _extra_rows(self, num_spec_tokens: int) -> int:
        p = self._profile
        return max(0, p.draft_rows_fixed + p.draft_rows_per_draft * num_spec_tokens)

    def matrix_s(self, work: _Work, path: int, num_spec_tokens: int) -> float:
        """Matrix work and heads of all passes of a step.

        `path`: drafts that the target has verified on the paths of its requests; branches of a tree that were not taken
        are not caught up on.
        """
        p, draft, k = self._profile, self._draft, num_spec_tokens
        decode = work.decode_requests
        rows, seen = decode + work.prefill_rows, decode + path + work.prefill_tokens
        if k == 0:
            return self._catch_up_s(decode, path, seen)
        if p.draft_mode == "heads":
            fixed = draft.cost.fixed_s
            return fixed + k * (draft.matrix(rows) - fixed + draft.head(rows)) if rows else 0.0
        if p.draft_mode == "block":
            caught_up = seen * p.draft_catch_up_share * draft.cost.token_s
            matrix = draft.matrix(rows * (k + 1), draft.alike(rows, rows * k))
            return caught_up + matrix + draft.head(rows * k) + rows * draft.cost.request_s
        if p.draft_mode == "parallel":
            more = rows * self._extra_rows(k)
            matrix = draft.matrix(seen + more, draft.alike(rows, path + more))
            return matrix + draft.head(rows * k) + rows * draft.cost.request_s
        if p.draft_catches_up:
            more = rows * self._extra_rows(k)
            seconds = draft.matrix(seen + more, draft.alike(decode, path + more)) + draft.head(rows)
        else:
            seconds = draft.matrix(rows) + draft.head(rows)
        for nodes in self._later_passes(k):
            seconds += draft.drafting(rows, nodes)
        return seconds + k * rows * draft.cost.request_s

    def _catch_up_s(self, decode: int, path: int, seen: int) -> float:
        """Matrix work of a first pass from which nothing is drafted, so that no logits are asked for."""
        p, draft = self._profile, self._draft
        if p.draft_mode == "heads" or not p.draft_catches_up:
            return 0.0
        if p.draft_mode == "block":
            return seen * p.draft_catch_up_share * draft.cost.token_s
        return draft.matrix(seen, draft.alike(decode, path)) + decode * draft.cost.request_s

    def prompt_s(self, work: _Work, num_spec_tokens: int) -> float:
        """Attention over prompts: their own chunks where the drafter catches up, and finished ones read by the passes
        that draft behind them."""
        p, cost, k = self._profile, self._draft.cost, num_spec_tokens
        if p.draft_mode == "heads":
            return 0.0
        chunks = p.draft_catches_up and p.draft_mode != "block"
        seconds = self._draft.prefill(work) if chunks else 0.0
        if not work.prefill_rows or k == 0:
            return seconds
        if p.draft_mode == "block":
            passes = 1
        else:
            passes = 0 if p.draft_mode == "parallel" else k - 1 if p.draft_catches_up else k
        prompts = work.prefill_kv_tokens + work.prefill_tokens
        windowed = min(prompts, work.prefill_rows * cost.window_tokens)
        return seconds + passes * (prompts * cost.kv_token_s + windowed * cost.windowed_kv_token_s)
