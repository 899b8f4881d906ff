"""Seconds of one engine step from a latency profile.

Models: one target pass over decoding and prefilling tokens together, weights read once, expert coverage, attention
over cached tokens, graph padding and the slower mode beyond the captured sizes, then the drafter's passes for the
next round in the same step (`specsim.draft_passes`), as vLLM V1 runs them. Drafts that form a tree are verified whole.
Leaves out: overlap of drafting with anything, tree attention slower than causal attention of the same width, jitter.
Numbers: a LatencyProfile; nothing is hard-coded here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specsim.draft_passes import DraftPasses
from specsim.passes import CompiledPass
from specsim.profiles import LatencyProfile
from specsim.trees import Tree, verified_tokens

__all__ = ["StepCost", "StepWork", "captured_sizes"]

_MEMO_LIMIT = 200_000
_Key = tuple[int, int, int, int, bool]
"""(decoding requests, levels of drafts, drafts verified, next k, machinery loaded) of a pure decode step."""


@dataclass(slots=True)
class StepWork:
    """What one step contains. Mutable, since an engine reuses one object for millions of steps."""

    decode_requests: int = 0
    """Requests past their prompt, each with one token to compute plus its drafts."""
    draft_tokens: int = 0
    """Drafts verified in this step, summed over requests; of trees, the levels."""
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
    switches: bool = False
    """Whether `next_num_spec_tokens` is not what it was in the step before."""
    draft_requests: int = 0
    """Decoding requests with at least one draft; only asked for where drafts form trees."""


def captured_sizes(largest: int) -> list[int]:
    """Token counts with a captured graph up to `largest`, as vLLM chooses them: 1, 2, 4, by 8 to 256, then by 16."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, max(largest, 256) + 1, 16)]
    return [size for size in sizes if size <= largest]


class StepCost:
    """Seconds of steps under one profile, compiled once and then asked millions of times.

    Pure decode steps are linear in the cached tokens once their make-up is fixed, so the rest is remembered by it.
    `trees[k - 1]` is what k levels of drafts look like; empty: drafts are chains, or nothing more than their number
    counts.
    """

    by_law = True
    """Whether seconds follow from the terms of the profile. Where they do not, each step must be asked for, in order,
    and a replica that walks steps by their terms must not be used."""

    def __init__(self, profile: LatencyProfile, trees: Sequence[Tree] = ()) -> None:
        self.profile = profile
        self.trees = tuple(trees)
        self.nodes: tuple[int, ...] = (0, *(tree.nodes for tree in self.trees)) if trees else ()
        """Drafts verified by depth of a tree; empty: chains."""
        self._target = CompiledPass(profile.target)
        self._draft = None if profile.draft is None else DraftPasses(profile, self.trees)
        self._syncs = profile.draft is not None and profile.at_zero_drafts == "synced"
        self._decode: dict[_Key, tuple[float, float, float]] = {}
        self._mixed: dict[_Key, tuple[float, float, float]] = {}
        self._padded = _padding(profile)
        self._in_one_pass = not (profile.pass_tokens_max or profile.verify_skip_share)
        self._overlaps = profile.host_overlaps
        self.tables: dict[bool, object] = {}
        """What an engine derives from this cost and wants to share between runs, with speculation loaded or not."""

    @property
    def window_tokens(self) -> int:
        """Window at which an engine cuts `StepWork.windowed_kv_tokens`: the target's, else the drafter's; 0: none."""
        draft = self.profile.draft
        return self.profile.target.window_tokens or (0 if draft is None else draft.window_tokens)

    def step_s(self, work: StepWork) -> float:
        """Seconds of the step that `work` describes."""
        if work.prefill_tokens or work.prefill_rows:
            return self._mixed_s(work)
        path = verified = work.draft_tokens
        if self.nodes:
            verified = verified_tokens(self.nodes, path, work.draft_requests)
        key = (work.decode_requests, path, verified, work.next_num_spec_tokens, work.machinery)
        terms = self._decode.get(key)
        if terms is None:
            terms = self._decode_terms(key)
        seconds = terms[0] + work.kv_tokens * terms[1] + work.windowed_kv_tokens * terms[2]
        if work.switches:
            seconds += self.profile.switch_s
        return max(seconds, self._host_s(work.decode_requests)) if self._overlaps else seconds

    def _host_s(self, decode: int) -> float:
        return self.profile.host_s + decode * self.profile.host_request_s

    def parts(self, work: StepWork) -> dict[str, float]:
        """The same seconds by cause, in the order in which they occur; their sum is `step_s`.

        weights    reading weights and experts, output head included
        compute    what matrix products add to that, output head included
        kv         attention: cached keys and values, and the pairs of prefill chunks
        fixed      launches and norms of the target pass, and latency of collectives
        collectives  the part of collectives that grows with tokens
        graph      padding to captured sizes, what steps outside a full graph pay, and going over to another k
        draft      the drafter's passes for the next round
        lookup     search of text on the host
        host       scheduling and sampling, as far as it is not hidden behind the rest
        speculation  host and rejection sampling because of speculation
        """
        parts = self._parts(work, work.draft_tokens, self.drafts_verified(work))
        if self._overlaps:
            host = parts.pop("host")
            parts["host"] = max(0.0, host - math.fsum(parts.values()))
        return parts

    def drafts_verified(self, work: StepWork) -> int:
        """Drafts that the target computes in the step: of trees, all of their nodes."""
        return verified_tokens(self.nodes, work.draft_tokens, work.draft_requests)

    def _parts(self, work: StepWork, path: int, drafts: int) -> dict[str, float]:
        """`parts` of a step that verifies `drafts` drafts, `path` of them on the paths of their trees."""
        p, target, c = self.profile, self._target, self._target.cost
        decode = work.decode_requests
        tokens = decode + drafts + work.prefill_tokens
        rows = decode + drafts + work.prefill_rows
        width, unsplit = self._width(decode, drafts)
        full, windowed = target.kv_rates(width, unsplit, read_once=p.verify_reads_kv_once)
        padded, graph = (tokens, p.mixed_s) if work.prefill_tokens else self._graph(decode, drafts)
        alike = target.alike(decode, drafts)
        matrix = self._target_matrix_s(tokens, drafts, alike)
        # rows of padding touch no experts of their own
        graph += (
            self._target_matrix_s(padded, drafts, alike + padded - tokens)
            - matrix
            + (p.switch_s if work.switches else 0.0)
        )
        passes = self._passes(tokens)
        memory = math.fsum(target.memory_s(part, alike) for part in passes) + (c.head_weights_s if rows else 0.0)
        fixed = c.fixed_s * len(passes)
        collectives = (tokens - p.verify_skip_share * drafts) * c.collective_token_s
        lookup, spoken = self._speculation_s(decode, drafts, work.next_num_spec_tokens, work.machinery)
        busy = matrix - fixed - collectives + target.head(rows)
        memory = min(memory, busy)  # some kernels of a measured profile take less than the smooth law
        attention = work.kv_tokens * full + work.windowed_kv_tokens * windowed + target.prefill(work)
        return {
            "weights": memory,
            "compute": busy - memory,
            "kv": attention + decode * c.request_s,
            "fixed": fixed,
            "collectives": collectives,
            "graph": graph,
            "draft": self._draft_s(work, path),
            "lookup": lookup,
            "host": self._host_s(decode),
            "speculation": spoken,
        }

    def _graph(self, decode: int, drafts: int) -> tuple[int, float]:
        """(tokens to which a pure decode step is padded, extra seconds where no captured graph holds it)."""
        p, tokens = self.profile, decode + drafts
        if p.captured_requests:
            size = self._padded[decode] if decode < len(self._padded) else 0
            # every request of the graph is as wide as those of the step are in the mean
            return (-(-tokens * size // decode), 0.0) if size else (tokens, p.uncaptured_s if decode else 0.0)
        if not p.captured_tokens_max:
            return tokens, 0.0
        if tokens > p.captured_tokens_max:
            return tokens, p.uncaptured_s
        return (self._padded[tokens] if not drafts or drafts % decode else tokens), 0.0

    def _passes(self, tokens: int) -> list[int]:
        """Tokens of each target pass of a step."""
        most = self.profile.pass_tokens_max
        if not most or tokens <= most:
            return [tokens] if tokens else []
        full, rest = divmod(tokens, most)
        return [most] * full + ([rest] if rest else [])

    def _target_matrix_s(self, tokens: int, drafts: int, alike: float) -> float:
        most = self.profile.pass_tokens_max
        if most and tokens > most:
            return math.fsum(self._target.matrix(part, alike) for part in self._passes(tokens))
        skip = self.profile.verify_skip_share
        if skip and drafts:
            return self._target.matrix_partly(tokens, tokens - skip * drafts, alike)
        return self._target.matrix(tokens, alike)

    def _mixed_s(self, work: StepWork) -> float:
        """A step with prefill chunks: what depends on the decoding requests alone is remembered."""
        decode, path, k = work.decode_requests, work.draft_tokens, work.next_num_spec_tokens
        drafts = self.drafts_verified(work) if self.nodes else path
        key = (decode, path, drafts, k, work.machinery)
        terms = self._mixed.get(key)
        if terms is None:
            terms = self._mixed_terms(key)
        target, draft = self._target, self._draft
        tokens = decode + drafts + work.prefill_tokens
        seconds = terms[0] + work.kv_tokens * terms[1] + work.windowed_kv_tokens * terms[2]
        if self._in_one_pass:
            seconds += target.matrix(tokens, target.alike(decode, drafts))
        else:
            seconds += self._target_matrix_s(tokens, drafts, target.alike(decode, drafts))
        seconds += target.head(decode + drafts + work.prefill_rows) + target.prefill(work)
        if work.prefill_tokens:
            seconds += self.profile.mixed_s
        if draft is not None and self._runs_drafter(k, work.machinery):
            seconds += draft.matrix_s(work, path, k) + draft.prompt_s(work, k)
        if work.switches:
            seconds += self.profile.switch_s
        return max(seconds, self._host_s(decode)) if self._overlaps else seconds

    def _runs_drafter(self, num_spec_tokens: int, machinery: bool) -> bool:
        return num_spec_tokens > 0 or (machinery and self._syncs)

    def decode_step_s(
        self,
        batch: int,
        context_tokens: float,
        num_spec_tokens: int = 0,
        *,
        machinery: bool | None = None,
        drafts_per_request: float | None = None,
    ) -> float:
        """Seconds of one steady decode step: `batch` requests at a mean context, drafting as they verify.

        `machinery` None: loaded when `num_spec_tokens` > 0. `drafts_per_request`: mean drafts verified, below
        `num_spec_tokens` for lookup methods that often propose nothing. Of trees, both count levels.
        """
        loaded = num_spec_tokens > 0 if machinery is None else machinery
        window = self.window_tokens
        kv = batch * context_tokens
        windowed = batch * min(context_tokens, window)
        mean = num_spec_tokens if drafts_per_request is None else min(drafts_per_request, num_spec_tokens)
        low = math.floor(batch * mean)
        share = batch * mean - low
        seconds = 0.0
        for drafts, weight in ((low, 1.0 - share), (low + 1, share)):
            if weight > 0.0:
                verified = drafts
                if self.trees and drafts:  # requests that draft have all levels
                    verified = round(drafts * self.nodes[num_spec_tokens] / num_spec_tokens)
                terms = self.terms(batch, drafts, verified, num_spec_tokens, loaded)
                step = terms[0] + kv * terms[1] + windowed * terms[2]
                seconds += weight * (max(step, self._host_s(batch)) if self._overlaps else step)
        return seconds

    def terms(
        self, decode_requests: int, levels: int, verified: int, next_k: int, machinery: bool
    ) -> tuple[float, float, float]:
        """(seconds without cache, per cached token, per windowed cached token) of a pure decode step that verifies
        `verified` drafts, `levels` of them on the paths of their trees; host time that overlaps left out."""
        key = (decode_requests, levels, verified, next_k, machinery)
        return self._decode.get(key) or self._decode_terms(key)

    def _decode_terms(self, key: _Key) -> tuple[float, float, float]:
        decode, path, drafts, next_k, machinery = key
        work = StepWork(decode_requests=decode, next_num_spec_tokens=next_k, machinery=machinery)
        parts = self._parts(work, path, drafts)
        if self._overlaps:
            del parts["host"]
        base = math.fsum(parts.values())
        width, unsplit = self._width(decode, drafts)
        full, windowed = self._target.kv_rates(width, unsplit, read_once=self.profile.verify_reads_kv_once)
        if self._draft is not None and self._runs_drafter(next_k, machinery):
            draft_full, draft_windowed = self._draft_kv_rates(decode, path, next_k)
            full, windowed = full + draft_full, windowed + draft_windowed
        if len(self._decode) >= _MEMO_LIMIT:
            self._decode.clear()
        terms = self._decode[key] = (base, full, windowed)
        return terms

    def mixed_terms(
        self, decode_requests: int, levels: int, verified: int, next_k: int, machinery: bool
    ) -> tuple[float, float, float]:
        """The same of a step with prompts; matrix work, attention of prompts and what a mixed step pays left out."""
        key = (decode_requests, levels, verified, next_k, machinery)
        return self._mixed.get(key) or self._mixed_terms(key)

    def target_matrix_s(self, tokens: int, requests: int, verified: int) -> float:
        """Matrix work of the target over so many tokens, prompts included, head left out."""
        return self._target_matrix_s(tokens, verified, self._target.alike(requests, verified))

    @property
    def target_by_tokens_alone(self) -> bool:
        """Whether `target_matrix_s` follows from the tokens."""
        cost = self._target.cost
        shares = cost.num_experts > 0 and cost.expert_sharing != 1.0
        return not shares and not self.profile.verify_skip_share

    @property
    def has_knees(self) -> bool:
        """Whether reading the cache and computing pairs overlap in part, in the target or the drafter."""
        draft = self.profile.draft
        return self.profile.target.attention_knee > 0.0 or (draft is not None and draft.attention_knee > 0.0)

    def head_s(self, rows: int) -> float:
        """Output head and sampling of the target."""
        return self._target.head(rows)

    def drafter_of(self, num_spec_tokens: int, machinery: bool) -> DraftPasses | None:
        """The drafter's passes, None where none are run."""
        return self._draft if self._runs_drafter(num_spec_tokens, machinery) else None

    def _mixed_terms(self, key: _Key) -> tuple[float, float, float]:
        """As `terms`, without matrix work, which depends on the prompt tokens too."""
        _, full, windowed = self.terms(*key)
        decode, _, drafts, next_k, machinery = key
        host = 0.0 if self._overlaps else self._host_s(decode)
        attention = decode * self._target.cost.request_s
        base = math.fsum((host, attention, *self._speculation_s(decode, drafts, next_k, machinery)))
        if len(self._mixed) >= _MEMO_LIMIT:
            self._mixed.clear()
        terms = self._mixed[key] = (base, full, windowed)
        return terms

    def _speculation_s(self, decode: int, drafts: int, next_k: int, machinery: bool) -> tuple[float, float]:
        """(lookup, host time because of speculation); a lookup that proposed nothing has nothing to reject."""
        p = self.profile
        speaks = drafts or (next_k and p.draft is not None)
        spoken = p.speculation_host_s + decode * p.speculation_request_s if speaks else 0.0
        if machinery:
            spoken += p.loaded_host_s + decode * p.loaded_request_s
        return (p.lookup_request_s * decode if next_k and p.draft is None else 0.0), spoken

    def _width(self, decode: int, drafts: int) -> tuple[float, float]:
        """Mean queries a request, and how much slower an attention kernel reads that does not split its cache."""
        if not drafts:
            return 1.0, 1.0
        return (decode + drafts) / decode, max(1.0, self.profile.verify_unsplit_requests / decode)

    def _draft_kv_rates(self, decode: int, path: int, num_spec_tokens: int) -> tuple[float, float]:
        """Drafter's attention seconds per (cached token, windowed cached token) over all passes of a round."""
        assert self._draft is not None
        width, unsplit = self._width(decode, path)
        full, windowed = self._draft.kv_rates(num_spec_tokens, width, unsplit)
        return (full, windowed) if self.window_tokens else (full + windowed, 0.0)

    def _draft_s(self, work: StepWork, path: int) -> float:
        """`path`: drafts verified on the paths of their trees."""
        k, draft = work.next_num_spec_tokens, self._draft
        tokens = work.decode_requests + path + work.prefill_tokens
        if draft is None or not tokens or not self._runs_drafter(k, work.machinery):
            return 0.0
        full, windowed = self._draft_kv_rates(work.decode_requests, path, k) if work.decode_requests else (0.0, 0.0)
        seconds = work.kv_tokens * full + work.windowed_kv_tokens * windowed
        return seconds + draft.matrix_s(work, path, k) + draft.prompt_s(work, k)


def _padding(profile: LatencyProfile) -> list[int]:
    """Count of tokens (of requests, where graphs are captured by those) -> captured size that it is padded to, 0: none.

    Beyond vLLM's sizes, but within the largest captured count, a count is not padded.
    """
    by_requests = profile.captured_requests
    sizes = by_requests or captured_sizes(profile.captured_tokens_max)
    padded = [0] * ((by_requests[-1] if by_requests else profile.captured_tokens_max) + 1)
    low = 1
    for size in sizes:
        first = size if profile.captured_exactly else low
        padded[first : size + 1] = [size] * (size + 1 - first)
        low = size + 1
    padded[low:] = range(low, len(padded))
    return padded
