"""One engine's steps without clock and without luck: decide a step, say what it computes, apply what came of it.

Models: the scheduler, the policy, and the books of what was computed and emitted. Whoever drives it knows how long a
step takes and how many tokens each round emits: the simulator asks a cost model and dealt luck, the reference engine
runs a model. Both make the same decisions because both make them here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from specsim.admission import asked_tokens, never_fits
from specsim.config import ReplicaLimits
from specsim.engine.recorder import Recorder
from specsim.engine.replica import StepView
from specsim.latency import StepWork
from specsim.policies import Observed, Policy
from specsim.request import Request
from specsim.scheduler import Scheduler, StepPlan
from specsim.workload import Workload

__all__ = ["EngineCore", "chunk_pairs", "windowed_chunk_pairs"]


def chunk_pairs(context: int, tokens: int) -> int:
    """(query, key) pairs of a causal chunk of `tokens` behind `context` cached tokens."""
    return tokens * context + tokens * (tokens + 1) // 2


def windowed_chunk_pairs(context: int, tokens: int, window: int) -> int:
    """The same with every query's keys cut at `window`."""
    below = min(max(window - context, 0), tokens)
    return chunk_pairs(context, below) + (tokens - below) * window


class EngineCore:
    """Call `begin`; carry out `plan`, after which `next_k` drafts are proposed; call `end`."""

    def __init__(
        self,
        index: int,
        workload: Workload,
        limits: ReplicaLimits,
        policy: Policy,
        machinery: bool,
        window_tokens: int,
        recorder: Recorder,
    ) -> None:
        """
        Args:
            index: number of this engine in its fleet.
            machinery: whether speculation is loaded, drafting or not.
            window_tokens: of the target's windowed layers, 0 without any; only `work` depends on it.
        """
        self.index = index
        self.workload = workload
        self.limits = limits
        self.policy = policy
        self.recorder = recorder
        self.window = window_tokens
        self.work = StepWork(machinery=machinery)
        """What the step that has begun computes; the same object every step."""
        self.plan = StepPlan()
        """The step that has begun."""
        self.next_k = -1
        """Drafts that the step proposes for the next round; -1 before the first step."""
        self.scheduler = Scheduler(
            limits,
            num_spec_tokens=policy.num_spec_tokens,
            is_constant=policy.constant,
            hash_block_tokens=workload.trace.hash_block_tokens,
        )
        self.asked = asked_tokens(workload.trace.output_tokens, limits).tolist()
        self.outstanding_tokens = 0
        refused = never_fits(workload.trace.prompt_tokens, workload.trace.output_tokens, limits, policy.num_spec_tokens)
        self._refused = frozenset(np.flatnonzero(refused).tolist())
        self._last_emit_s: dict[int, float] = {}
        self._rounds = self._drafted = self._stalled = 0
        self._began_s = 0.0
        self._iterations: Counter[int] = Counter()
        """Steps in which a request emitted tokens, for policies that watch completions."""

    def submit(self, request: int, now_s: float) -> bool:
        """Queue a request; False when it can never fit, which refuses it."""
        prompt = self.workload.prompt_tokens[request]
        if request in self._refused:
            return False
        hashes = tuple(self.workload.trace.hashes(request).tolist())
        self.scheduler.add(Request(request, prompt, hashes, self.asked[request]))
        self.outstanding_tokens += prompt
        return True

    def begin(self, now_s: float) -> bool:
        """Decide a step, into `plan`, `work` and `next_k`; False when there is nothing to do."""
        plan = self.plan = self.scheduler.schedule()
        rows = self.recorder.rows
        for request in plan.preempted:
            rows.preemptions[request.request_id] += 1
        if self.recorder.measures(now_s):
            self.recorder.preemptions += len(plan.preempted)
        if not plan:
            return False
        self._began_s = now_s
        if self.policy.trims:
            self._trim(plan)
        work = self.work
        work.decode_requests = work.draft_tokens = work.draft_requests = work.kv_tokens = work.windowed_kv_tokens = 0
        work.prefill_tokens = work.prefill_rows = work.prefill_kv_tokens = 0
        work.prefill_pairs = work.prefill_windowed_pairs = 0
        decoding_kv = self._rounds = self._drafted = 0
        for item in plan.scheduled:
            i, context = item.request.request_id, item.context_tokens
            if item.request.is_decoding:
                self._rounds += 1
                self._drafted += item.num_draft_tokens
                decoding_kv += context + item.request.padding_tokens
                self._add_decode(item.request, context, item.num_draft_tokens)
                continue
            if rows.first_scheduled_s[i] != rows.first_scheduled_s[i]:
                rows.first_scheduled_s[i] = now_s
                rows.cached_tokens[i] = context
                if self.recorder.measures(now_s):
                    self.recorder.cached_tokens += context
            if item.enters_decoding:
                self._add_decode(item.request, context, item.num_placeholder_tokens)
                continue
            tokens = plan.padded_tokens or item.num_tokens
            work.prefill_tokens += tokens
            work.prefill_rows += item.finishes_prompt
            work.prefill_kv_tokens += context
            work.prefill_pairs += chunk_pairs(context, tokens)
            if self.window:
                work.prefill_windowed_pairs += windowed_chunk_pairs(context, tokens, self.window)
        for request in plan.leaving:
            self._add_decode(request, request.num_computed_tokens, request.num_draft_tokens)
        k = self.next_k
        self._stalled = sum(r.is_decoding for r in self.scheduler.running) if plan.prompts_only else 0
        if not self._stalled:  # else their drafts are made already, and the whole batch goes on with the same k
            k = self.policy.next_k(len(plan.scheduled), decoding_kv, self._rounds)
        work.switches = 0 <= self.next_k != k
        self.next_k = k
        # Alone, prompts only fill the drafter's cache: the drafts come with the next decode step.
        work.next_num_spec_tokens = min(k, 1) if plan.prompts_only else k
        return True

    def _trim(self, plan: StepPlan) -> None:
        """Verify fewer of the drafts scheduled, as the policy says; blocks for all of them stay taken."""
        decoding = [n for n, item in enumerate(plan.scheduled) if item.request.is_decoding]
        others = [item for item in plan.scheduled if not item.request.is_decoding]
        drafts = np.array([plan.scheduled[n].num_draft_tokens for n in decoding], dtype=np.int64)
        if not drafts.any():
            return
        requests = np.array([plan.scheduled[n].request.request_id for n in decoding], dtype=np.int64)
        prefill_tokens = sum(item.num_tokens + item.num_placeholder_tokens for item in others)
        prefill_rows = sum(item.finishes_prompt for item in others)
        kept = self.policy.trim(requests, drafts, len(plan.scheduled), prefill_tokens, prefill_rows)
        for n, count in zip(decoding, kept.tolist(), strict=True):
            item = plan.scheduled[n]
            tokens = item.num_tokens - item.num_draft_tokens + count
            plan.scheduled[n] = replace(item, num_tokens=tokens, num_draft_tokens=count)

    def _add_decode(self, request: Request, context: int, drafts: int) -> None:
        work = self.work
        work.decode_requests += 1
        work.draft_tokens += drafts
        work.draft_requests += drafts > 0
        work.kv_tokens += context + request.padding_tokens
        if self.window:
            work.windowed_kv_tokens += min(context, self.window)

    def end(self, now_s: float, emitted: Mapping[int, int], drafts: Callable[[Request], int]) -> list[int]:
        """Apply the step that began; the requests that finished with it.

        Args:
            emitted: request -> tokens, of every request that decoded or reached the end of its prompt.
            drafts: asked for each request that decodes next: drafts proposed for it, at most `next_k`.
        """
        measured = self.recorder.measures(now_s)
        rows, outputs = self.recorder.rows, self.workload.output_tokens
        used_blocks = self.scheduler.kv.pool.used
        finished: list[int] = []
        completed: list[tuple[int, int]] = []
        draft_rounds = gained = 0
        for item in self.plan.scheduled:
            i, position = item.request.request_id, item.request.num_emitted_tokens
            if item.request.is_decoding:
                draft_rounds += item.num_draft_tokens > 0
                gained += emitted[i]
            elif not item.finishes_prompt:
                continue
            self._iterations[i] += 1
            if position == 0:
                rows.first_token_s[i] = now_s
            elif measured:
                self.recorder.gap(now_s - self._last_emit_s[i])
            self._last_emit_s[i] = now_s
            if position + emitted[i] == outputs[i]:
                finished.append(i)
                rows.finish_s[i] = now_s
                self.outstanding_tokens -= item.request.prompt_tokens
                del self._last_emit_s[i]
                completed.append((outputs[i], self._iterations.pop(i)))
        if measured:
            self.recorder.step(
                now_s - self._began_s,
                batch=len(self.plan.scheduled) + self._stalled,
                used_blocks=used_blocks,
                rounds=self._rounds,
                draft_rounds=draft_rounds,
                drafts=self.limits.verified_tokens(self._drafted, draft_rounds),
                gained=gained,
                prefilled=self.work.prefill_tokens,
                next_k=self.next_k,
            )
        if self.policy.watches != "nothing":
            decoding = [item for item in self.plan.scheduled if item.request.is_decoding]
            self.policy.observe(
                Observed(
                    batch=len(self.plan.scheduled),
                    rounds=self._rounds,
                    draft_rounds=draft_rounds,
                    drafted=self._drafted,
                    accepted=gained - self._rounds,
                    completed=completed,
                    requests=np.array([item.request.request_id for item in decoding], dtype=np.int64),
                    drafts=np.array([item.num_draft_tokens for item in decoding], dtype=np.int64),
                    emitted=np.array([emitted[item.request.request_id] for item in decoding], dtype=np.int64),
                )
            )
        self.scheduler.update(self.plan, emitted, set(finished), drafts, self.next_k)
        return finished

    def view(self) -> StepView:
        """The step that has begun, for observers."""
        scheduler = self.scheduler
        return StepView(
            self.work,
            len(scheduler.running),
            len(scheduler.waiting),
            scheduler.kv.pool.used,
            self._rounds,
            self._drafted,
        )
