"""Rounds of a drafter on a target, until the text ends: no arrivals, no scheduler, only who drafts and what is kept.

Every round is one of `calibrate.engine.verify`, so that sampled text follows the target's own law. The first round of a
request starts behind its prompt. A text ends with one of the stop tokens, which belongs to it, or at its most tokens;
what a round emitted beyond is cut. Random draws belong to the request, so that what runs beside it changes nothing but
rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from calibrate.acceptance.prompts import Prompt
from calibrate.drafters.base import NOTHING, Draftee, Drafter, Proposal, Spacious
from calibrate.engine.verify import Sampling, emit_branches, stream
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache
from calibrate.models.flat_batch import tree_branches

__all__ = ["Finished", "run_rounds"]


@dataclass(frozen=True, slots=True)
class Finished:
    """A request whose text has ended."""

    number: int
    """Its place among the prompts that were given."""
    output: list[int]
    emitted: list[int]
    """Tokens of each round; they sum to the output."""
    drafted: list[int]
    """Drafts of each round; of a tree those on its longest branch."""


@dataclass(slots=True)
class _Live:
    number: int
    prompt: Prompt
    tokens: list[int]
    slot: int
    generator: torch.Generator
    hidden: tuple[torch.Tensor, ...] = ()
    emitted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.prompt.max_tokens - (len(self.tokens) - len(self.prompt.token_ids))


def run_rounds(
    target: FlatModel,
    prompts: Sequence[tuple[int, Prompt]],
    *,
    stops: Collection[int],
    batch: int,
    drafter: Drafter | None = None,
    k: int = 0,
    sampling: Sampling | None = None,
) -> Iterator[Finished]:
    """Let the target write behind each prompt, `batch` requests at a time, and yield each as it ends.

    Args:
        prompts: (number, prompt); the number chooses the random draws.
        stops: tokens that end a text.
        drafter: a fresh one; None: one token a round.
        k: most drafts a round.
    """
    if not prompts:
        return
    sampling = sampling or Sampling()
    longest = max(len(p.token_ids) + p.max_tokens for _, p in prompts)
    room = max(2 * k, drafter.room(k)) if isinstance(drafter, Spacious) else 2 * k
    cache = SlotCache(min(batch, len(prompts)), longest + room + 1)
    if drafter is not None:
        drafter.start(target, cache)
    waiting, live = list(reversed(prompts)), list[_Live]()
    while waiting or live:
        new = []
        while waiting and len(live) < cache.num_slots:
            number, prompt = waiting.pop()
            new.append(_Live(number, prompt, list(prompt.token_ids), cache.acquire(), stream(sampling, number)))
            live.append(new[-1])
        if drafter is not None:
            _prefill(target, cache, new, drafter)
        proposals = _proposals(cache, live, drafter, k, sampling)
        _verify(target, cache, live, proposals, drafter, stops, sampling)
        ended = [one for one in live if not one.room or one.tokens[-1] in stops]
        for one in ended:
            live.remove(one)
            cache.release(one.slot)
            if drafter is not None:
                drafter.release(one.number, one.tokens)
            yield Finished(one.number, one.tokens[len(one.prompt.token_ids) :], one.emitted, one.drafted)


def _prefill(target: FlatModel, cache: SlotCache, new: Sequence[_Live], drafter: Drafter) -> None:
    """Prompts but for their last token, which the first round computes."""
    longer = [one for one in new if len(one.tokens) > 1]
    if not longer:
        return
    batch = FlatBatch(
        [token for one in longer for token in one.tokens[:-1]],
        [Part(one.slot, 0, len(one.tokens) - 1) for one in longer],
    )
    states = _pass(target, batch, cache, drafter)
    row = 0
    for one in longer:
        count = len(one.tokens) - 1
        cache.commit(one.slot, count)
        one.hidden = _kept(states, range(row, row + count), drafter)
        row += count


def _pass(target: FlatModel, batch: FlatBatch, cache: SlotCache, drafter: Drafter | None) -> tuple[torch.Tensor, ...]:
    """The last hidden states, then those that the drafter reads."""
    layers = None if drafter is None else drafter.hidden_layers
    return target.forward_keeping(batch, cache, layers) if layers else (target.forward(batch, cache),)


def _kept(states: tuple[torch.Tensor, ...], rows: Sequence[int], drafter: Drafter | None) -> tuple[torch.Tensor, ...]:
    if drafter is None or drafter.hidden_layers is None:
        return ()
    return tuple(state[list(rows)] for state in states)


def _proposals(
    cache: SlotCache, live: Sequence[_Live], drafter: Drafter | None, k: int, sampling: Sampling
) -> list[Proposal]:
    if drafter is None:
        return [NOTHING] * len(live)
    draftees = [
        Draftee(one.number, one.tokens, cache.committed[one.slot], one.slot, True, one.generator, one.hidden)
        for one in live
    ]
    law = None if sampling.is_greedy or sampling.drafts == "greedy" else sampling.law
    return drafter.propose(draftees, k, law)


def _verify(
    target: FlatModel,
    cache: SlotCache,
    live: Sequence[_Live],
    proposals: Sequence[Proposal],
    drafter: Drafter | None,
    stops: Collection[int],
    sampling: Sampling,
) -> None:
    """One pass over every last token and its drafts, and what each round emits."""
    ids: list[int] = []
    parts: list[Part] = []
    rows: list[int] = []
    for one, proposal in zip(live, proposals, strict=True):
        context = cache.committed[one.slot]
        own = [*one.tokens[context:], *proposal.tokens]
        branches = None
        if proposal.parents is not None:
            branches = tree_branches(context, len(one.tokens) - context, proposal.parents)
        parts.append(Part(one.slot, context, len(own), branches))
        ids += own
        rows += range(len(ids) - len(proposal.tokens) - 1, len(ids))
    states = _pass(target, FlatBatch(ids, parts), cache, drafter)
    said = emit_branches(target.logits(states[0][rows]), proposals, [one.generator for one in live], sampling)
    row = 0
    for one, part, proposal, branch in zip(live, parts, proposals, said, strict=True):
        known = len(one.tokens) - part.context_tokens
        text = branch.tokens[: one.room]
        end = next((n for n, token in enumerate(text) if token in stops), len(text) - 1)
        one.tokens += text[: end + 1]
        one.emitted.append(end + 1)
        one.drafted.append(proposal.depth)
        # the last token that was emitted has not been computed
        own_rows = [*range(known), *(known + node for node in branch.nodes[:end])]
        cache.keep(one.slot, part.context_tokens, own_rows)
        one.hidden = _kept(states, [row + n for n in own_rows], drafter)
        row += part.num_tokens
