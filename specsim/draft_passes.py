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
from specsim.profiles import LatencyProfile, PassCost
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
        decode = work.decode_requests
        rows = decode + work.prefill_rows
        seconds = self.first_s(decode, rows, path, decode + path + work.prefill_tokens, num_spec_tokens)
        for more in self.further_s(decode, rows, num_spec_tokens):
            seconds += more
        return seconds

    def first_s(self, decode: int, rows: int, path: int, seen: int, num_spec_tokens: int) -> float:
        """What of `matrix_s` depends on the tokens `seen`, that is on all that the drafter catches up on."""
        p, draft, k = self._profile, self._draft, num_spec_tokens
        if p.draft_mode == "heads" or not (p.draft_catches_up or (k and p.draft_mode != "serial")):
            return 0.0
        if p.draft_mode == "block":
            return seen * p.draft_catch_up_share * draft.cost.token_s
        if k == 0:
            return draft.matrix(seen, draft.alike(decode, path))
        more = rows * self._extra_rows(k)
        requests = rows if p.draft_mode == "parallel" else decode
        return draft.matrix(seen + more, draft.alike(requests, path + more))

    def by_seen_alone(self, num_spec_tokens: int) -> bool:
        """Whether `first_s` follows from the tokens seen and `num_spec_tokens`."""
        cost = self._draft.cost
        shares = cost.num_experts > 0 and cost.expert_sharing != 1.0
        return not shares and (num_spec_tokens == 0 or self._extra_rows(num_spec_tokens) == 0)

    def further_s(self, decode: int, rows: int, num_spec_tokens: int) -> list[float]:
        """The rest of `matrix_s`, in the order in which it is added up."""
        p, draft, k = self._profile, self._draft, num_spec_tokens
        cost = draft.cost
        if k == 0:  # nothing is drafted, so that no logits are asked for
            return [decode * cost.request_s] if p.draft_catches_up and p.draft_mode in ("serial", "parallel") else []
        if p.draft_mode == "heads":
            fixed = cost.fixed_s
            return [fixed + k * (draft.matrix(rows) - fixed + draft.head(rows)) if rows else 0.0]
        if p.draft_mode == "block":
            matrix = draft.matrix(rows * (k + 1), draft.alike(rows, rows * k))
            return [matrix, draft.head(rows * k), rows * cost.request_s]
        if p.draft_mode == "parallel":
            return [draft.head(rows * k), rows * cost.request_s]
        first = [draft.head(rows)] if p.draft_catches_up else [draft.matrix(rows), draft.head(rows)]
        return [*first, *(draft.drafting(rows, nodes) for nodes in self._later_passes(k)), k * rows * cost.request_s]

    def reading(self, num_spec_tokens: int) -> tuple[bool, int]:
        """(whether the first pass computes attention over prompts, passes that read finished prompts)."""
        p, k = self._profile, num_spec_tokens
        if p.draft_mode == "heads":
            return False, 0
        chunks = p.draft_catches_up and p.draft_mode != "block"
        if k == 0 or p.draft_mode == "parallel":
            return chunks, 0
        if p.draft_mode == "block":
            return chunks, 1
        return chunks, k - 1 if p.draft_catches_up else k

    def prompt_s(self, work: _Work, num_spec_tokens: int) -> float:
        """Attention over prompts: their own chunks where the drafter catches up, and finished ones read by the passes
        that draft behind them."""
        cost = self._draft.cost
        chunks, passes = self.reading(num_spec_tokens)
        seconds = self._draft.prefill(work) if chunks else 0.0
        if not work.prefill_rows or not passes:
            return seconds
        prompts = work.prefill_kv_tokens + work.prefill_tokens
        windowed = min(prompts, work.prefill_rows * cost.window_tokens)
        return seconds + passes * (prompts * cost.kv_token_s + windowed * cost.windowed_kv_token_s)

    @property
    def cost(self) -> PassCost:
        """Of one pass of the drafter."""
        return self._draft.cost
