"""Carries out steps on a real model: one flat pass, one verification, one round of drafting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from calibrate.drafters.base import NOTHING, Draftee, Drafter, Proposal, Spacious
from calibrate.engine.runner import Outcome
from calibrate.engine.verify import Sampling, emit_branches, stream
from calibrate.engine.widths import tree_widths
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache
from calibrate.models.flat_batch import Branches, tree_branches
from calibrate.rejection import Branch
from specsim.admission import seats
from specsim.config import ReplicaLimits
from specsim.errors import ScenarioError
from specsim.request import Request
from specsim.scheduler import Scheduled, StepPlan
from specsim.workload import Workload

__all__ = ["ModelRunner"]

_FILLER = 0
"""Token of padding and placeholders: computed, never looked at."""


@dataclass(slots=True)
class _Sequence:
    """What is kept of a request from its first step on."""

    tokens: list[int]
    """Prompt and output."""
    generator: torch.Generator
    slot: int | None = None
    proposal: Proposal = NOTHING
    """Drafts waiting to be verified."""


@dataclass(slots=True)
class _Job:
    """One part of the pass: the tokens computed, and which of its rows are sampled."""

    sequence: _Sequence
    part: Part
    token_ids: list[int]
    rows: range = field(default_factory=lambda: range(0))
    proposal: Proposal = NOTHING
    kept: Sequence[int] = ()
    """Rows of which keys, values and hidden states stay, known once the step is verified."""


class ModelRunner:
    """See `calibrate.engine.runner.Runner`. Requests emit as many tokens as the workload says."""

    def __init__(
        self,
        model: FlatModel,
        prompts: Sequence[Sequence[int]],
        workload: Workload,
        limits: ReplicaLimits,
        *,
        drafter: Drafter | None = None,
        num_spec_tokens: int = 0,
        sampling: Sampling | None = None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            prompts: token ids of each request, as long as the workload says.
            drafter: what proposes drafts; None: nothing does.
            num_spec_tokens: most drafts in a round, or levels of them.
            timer: seconds, by which the parts of a step are told.

        Raises:
            ScenarioError: prompts that do not fit the workload, trees that are not those of the drafter, a prefix cache
                that is shared, drafts without a drafter.
        """
        lengths = [len(prompt) for prompt in prompts]
        if lengths != workload.prompt_tokens:
            wrong = next(
                (n for n, (a, b) in enumerate(zip(lengths, workload.prompt_tokens, strict=False)) if a != b),
                len(lengths),
            )
            raise ScenarioError(
                f"prompt {wrong} does not have the length that the workload gives it; one prompt a request"
            )
        shares = limits.enable_prefix_caching and limits.discipline.prefix_caching
        if shares and workload.trace.hash_block_tokens is not None:
            raise ScenarioError("the reference engine computes every prompt; set enable_prefix_caching to false")
        if num_spec_tokens and drafter is None:
            raise ScenarioError(f"{num_spec_tokens} drafts a round need a drafter")
        self.model = model
        self.drafter = drafter
        self._num_spec_tokens = num_spec_tokens
        self._timer = timer
        self.sampling = sampling or Sampling()
        longest = max(p + o for p, o in zip(workload.prompt_tokens, workload.output_tokens, strict=True))
        if limits.discipline.order == "batch":
            longest = max(workload.prompt_tokens) + max(workload.output_tokens)
        most = min(seats(limits, num_spec_tokens), len(workload))
        self._widths = tree_widths(limits, drafter, num_spec_tokens)
        room = max(2 * num_spec_tokens, num_spec_tokens + self._width(num_spec_tokens))
        if isinstance(drafter, Spacious):
            room = max(room, drafter.room(num_spec_tokens))
        self.cache = SlotCache(most, longest + room + 1)
        if drafter is not None:
            drafter.start(model, self.cache)
        self._outputs = workload.output_tokens
        self._prompt_tokens = workload.prompt_tokens
        self._sequences = [_Sequence(list(prompt), stream(self.sampling, n)) for n, prompt in enumerate(prompts)]
        self._live: set[int] = set()

    def warm_up(self, limits: ReplicaLimits) -> None:
        """Make and touch all memory, and run passes of the usual shapes, so that no step of the run has to."""
        slots = [self.cache.acquire() for _ in range(self.cache.num_slots)]
        chunk = min(limits.max_num_batched_tokens, self.cache.max_tokens - self._num_spec_tokens - 2)
        texts = [(chunk, slots[:1]), *((width, slots) for width in sorted({1, 1 + self._num_spec_tokens}))]
        shapes = [[Part(slot, 0, width) for slot in own] for width, own in texts]
        if self._widths:
            shapes[-1] = [self._round(slot, 0, NOTHING, self._num_spec_tokens) for slot in slots]
        for parts in shapes:
            batch = FlatBatch([_FILLER] * sum(part.num_tokens for part in parts), parts)
            layers = None if self.drafter is None else self.drafter.hidden_layers
            states = self.model.forward_keeping(batch, self.cache, layers or ())
            self.model.logits(states[0][-len(parts) :])
        if self.drafter is not None and self._num_spec_tokens:
            self.cache.commit(slots[0], 1)
            hidden = () if self.drafter.hidden_layers is None else tuple(state[:1] for state in states)
            nobody = Draftee(-1, [_FILLER] * 2, 1, slots[0], True, stream(self.sampling, 0), hidden)
            self.drafter.propose([nobody], self._num_spec_tokens, self.law_of_drafts)
            self.drafter.release(-1, None)
        for slot in slots:
            self.cache.release(slot)
        self.model.synchronize()

    def output(self, request: int) -> list[int]:
        """Tokens that a request has emitted so far."""
        return self._sequences[request].tokens[self._prompt_tokens[request] :]

    def run(self, plan: StepPlan, next_k: int, held: frozenset[int]) -> Outcome:
        started = self._timer()
        for request in sorted(self._live - held):
            self._release(request)
        jobs = [self._job(item, plan.padded_tokens) for item in plan.scheduled]
        jobs += [self._leaving(request) for request in plan.leaving]
        batch = FlatBatch([t for job in jobs for t in job.token_ids], [job.part for job in jobs])
        layers = None if self.drafter is None else self.drafter.hidden_layers
        states = self.model.forward_keeping(batch, self.cache, layers or ())
        hidden = states[0]
        sampled = [job for job in jobs if job.rows]
        rows, first = [], 0
        for job in jobs:
            rows += [first + row for row in job.rows]
            first += job.part.num_tokens
        logits = self.model.logits(hidden[rows]) if rows else None
        self.model.synchronize()
        forwarded = self._timer()
        said: list[Branch] = []
        if logits is not None:
            proposals = [job.proposal for job in sampled]
            streams = [job.sequence.generator for job in sampled]
            if self._widths:
                logits = _without_filler(logits, sampled)
            said = emit_branches(logits, proposals, streams, self.sampling)
        emitted = self._apply(plan, dict(zip(map(id, sampled), said, strict=True)), jobs)
        verified = self._timer()
        if self.drafter is not None:
            self._draft(plan, next_k, jobs, () if layers is None else states)
            self.model.synchronize()
        drafted = self._timer()
        return Outcome(emitted, forwarded - started, verified - forwarded, drafted - verified)

    def drafts(self, request: Request) -> int:
        return self._sequences[request.request_id].proposal.levels

    def _width(self, levels: int) -> int:
        """Drafts that a round of so many levels verifies."""
        return self._widths[levels] if self._widths else levels

    def _round(self, slot: int, context: int, proposal: Proposal, levels: int) -> Part:
        """The last token and its drafts; a tree is as wide as is counted, whatever its drafter had to say."""
        if not self._widths:
            return Part(slot, context, 1 + levels)
        parents = proposal.above + (-1,) * (self._width(levels) - len(proposal.tokens))
        shape = _shape(parents)
        own = Branches(tuple(context + place for place in shape.positions), shape.seen)
        return Part(slot, context, 1 + len(parents), own)

    def _job(self, item: Scheduled, padded_tokens: int) -> _Job:
        request = item.request
        sequence = self._sequences[request.request_id]
        context = item.context_tokens
        if sequence.slot is None:
            sequence.slot = self.cache.acquire()
            self._live.add(request.request_id)
        if request.is_decoding:
            levels = item.num_draft_tokens
            proposal = sequence.proposal.first(levels, self._width(levels))
            part = self._round(sequence.slot, context, proposal, levels)
            return _Job(sequence, part, _padded([sequence.tokens[-1], *proposal.tokens], part),
                        range(part.num_tokens), proposal)  # fmt: skip
        ids = sequence.tokens[context : context + item.num_tokens]
        rows = range(len(ids) - 1, len(ids)) if item.finishes_prompt else range(0)
        filler = max(0, padded_tokens - len(ids)) + self._width(item.num_placeholder_tokens)
        ids += [_FILLER] * filler
        return _Job(sequence, Part(sequence.slot, context, len(ids)), ids, rows)

    def _leaving(self, request: Request) -> _Job:
        """A finished request that is computed all the same; what comes of it is not looked at."""
        sequence = self._sequences[request.request_id]
        assert sequence.slot is not None
        part = self._round(sequence.slot, request.num_computed_tokens, NOTHING, request.num_draft_tokens)
        return _Job(sequence, part, _padded([sequence.tokens[-1]], part))

    def _apply(self, plan: StepPlan, said: dict[int, Branch], jobs: list[_Job]) -> dict[int, int]:
        """Append what was emitted, no more than is wanted, and keep what was accepted."""
        emitted: dict[int, int] = {}
        for item, job in zip(plan.scheduled, jobs, strict=False):
            request, sequence = item.request.request_id, job.sequence
            assert sequence.slot is not None
            branch = said.get(id(job))
            if branch is None or not item.request.is_decoding:
                job.kept = range(item.num_tokens)
                self.cache.commit(sequence.slot, item.context_tokens + item.num_tokens)
            if branch is None:
                continue
            text = branch.tokens[: self._outputs[request] - item.request.num_emitted_tokens]
            if item.request.is_decoding:
                # the last token that was emitted has not been computed
                job.kept = (0, *(1 + node for node in branch.nodes[: len(text) - 1]))
                self.cache.keep(sequence.slot, item.context_tokens, job.kept)
            sequence.tokens += text
            sequence.proposal = NOTHING
            emitted[request] = len(text)
        return emitted

    def _draft(self, plan: StepPlan, next_k: int, jobs: list[_Job], states: tuple[torch.Tensor, ...]) -> None:
        assert self.drafter is not None
        draftees = []
        row = 0
        for item, job in zip(plan.scheduled, jobs, strict=False):
            request, sequence, first = item.request.request_id, job.sequence, row
            row += job.part.num_tokens
            assert sequence.slot is not None
            emits = item.request.is_decoding or item.finishes_prompt
            ended = len(sequence.tokens) - self._prompt_tokens[request] >= self._outputs[request]
            if not ended:
                hidden = tuple(_kept(state, first, job.kept) for state in states)
                draftees.append(Draftee(request, sequence.tokens, self.cache.committed[sequence.slot], sequence.slot,
                                        emits, sequence.generator, hidden))  # fmt: skip
        for draftee, proposal in zip(draftees, self.drafter.propose(draftees, next_k, self.law_of_drafts), strict=True):
            self._sequences[draftee.request].proposal = proposal

    @property
    def law_of_drafts(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Turns a drafter's logits into the law that its drafts are drawn from; None: the likeliest is taken."""
        if self.sampling.is_greedy or self.sampling.drafts == "greedy":
            return None
        return self.sampling.law

    def _release(self, request: int) -> None:
        sequence = self._sequences[request]
        assert sequence.slot is not None
        self.cache.release(sequence.slot)
        sequence.slot, sequence.proposal = None, NOTHING
        self._live.discard(request)
        if self.drafter is not None:
            ended = len(sequence.tokens) - self._prompt_tokens[request] >= self._outputs[request]
            self.drafter.release(request, sequence.tokens if ended else None)


@lru_cache(maxsize=256)
def _shape(parents: tuple[int, ...]) -> Branches:
    """A tree at the beginning of its sequence; static ones are the same every round."""
    return tree_branches(0, 1, parents)


def _padded(ids: list[int], part: Part) -> list[int]:
    return ids + [_FILLER] * (part.num_tokens - len(ids))


def _without_filler(logits: torch.Tensor, jobs: Sequence[_Job]) -> torch.Tensor:
    """The rows behind tokens that say something, of all rows that were sampled."""
    rows: list[int] = []
    first = 0
    for job in jobs:
        rows += range(first, first + 1 + len(job.proposal.tokens))
        first += len(job.rows)
    return logits if len(rows) == first else logits[rows]


def _kept(state: torch.Tensor, first: int, rows: Sequence[int]) -> torch.Tensor:
    """Some rows of a part that begins at row `first`."""
    if rows[-1] == len(rows) - 1:  # they rise, so that these are the first ones
        return state[first : first + len(rows)]
    return state[[first + row for row in rows]]
