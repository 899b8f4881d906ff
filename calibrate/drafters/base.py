"""What a drafter is to the engine that asks it.

A drafter that keeps a cache of its own, or a state by request, brings it up to date from the tokens that it is shown;
there is nothing to commit or roll back from outside. Whatever of its cache does not agree with those tokens is void.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from calibrate.models import FlatModel, SlotCache
from specsim.trees import Tree

__all__ = ["NOTHING", "Draftee", "Drafter", "Law", "Planted", "Proposal", "Spacious", "chosen"]

Law = Callable[[torch.Tensor], torch.Tensor]
"""Logits [..., vocabulary] -> probabilities from which drafts are drawn."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts for one sequence's next round: a chain, or a tree."""

    tokens: tuple[int, ...]
    probs: torch.Tensor | None = None
    """[drafts, vocabulary], float64 on the CPU: the law that each was drawn from, where siblings that were drawn before
    it have no chance any more; None: each was certain."""
    parents: tuple[int, ...] | None = None
    """Of each draft the number of the draft that it follows, lower than its own; -1: it follows the text. Siblings
    differ. None: a chain."""
    drafted_levels: int = 0
    """Levels that were drafted where the best drafts of all are verified, which may be less deep; 0: those are."""

    @property
    def above(self) -> tuple[int, ...]:
        """Of each draft the number of the draft that it follows, of a chain as well."""
        return tuple(range(-1, len(self.tokens) - 1)) if self.parents is None else self.parents

    @property
    def depths(self) -> list[int]:
        """Of each draft its place behind the text, from 1."""
        found: list[int] = []
        for parent in self.above:
            found.append(1 if parent < 0 else found[parent] + 1)
        return found

    @property
    def depth(self) -> int:
        """Drafts on the longest branch: as many as a round can accept."""
        return len(self.tokens) if self.parents is None else max(self.depths, default=0)

    @property
    def levels(self) -> int:
        """Levels of drafts that a scheduler counts."""
        return max(self.depth, self.drafted_levels)

    def first(self, levels: int, drafts: int | None = None) -> Proposal:
        """Its drafts on the first `levels` levels, of these the first `drafts`; None: all."""
        if levels >= self.levels and (drafts is None or drafts >= len(self.tokens)):
            return self
        if self.parents is None:
            return self.only(range(min(len(self.tokens), levels, levels if drafts is None else drafts)))
        return self.only([n for n, depth in enumerate(self.depths) if depth <= levels][:drafts])

    def only(self, kept: Sequence[int]) -> Proposal:
        """The proposal without its other drafts; with each of `kept` the draft that it follows, before it."""
        place = {-1: -1} | {node: n for n, node in enumerate(kept)}
        return Proposal(
            tuple(self.tokens[node] for node in kept),
            None if self.probs is None else self.probs[list(kept)],
            None if self.parents is None else tuple(place[self.parents[node]] for node in kept),
        )


NOTHING = Proposal(())


@dataclass(frozen=True, slots=True)
class Draftee:
    """A sequence of the step that was just computed."""

    request: int
    tokens: Sequence[int]
    """All known: prompt and output. Not to be changed or kept."""
    computed_tokens: int
    """Leading tokens with keys and values in the target's cache; one less than all, or less while its prompt lasts."""
    slot: int
    """Its place in the target's cache."""
    drafts: bool
    """Whether drafts are wanted, or it only must not be lost sight of."""
    generator: torch.Generator
    """The request's own random draws."""
    hidden: tuple[torch.Tensor, ...] = ()
    """What the drafter asked for by `hidden_layers`: [tokens, hidden size] of the target behind its last norm, then
    behind each of those layers, for the last of the computed tokens, which are those that this step computed."""


class Drafter(Protocol):
    """Proposes drafts. One object serves one run."""

    @property
    def name(self) -> str:
        """What it is, for records."""
        ...

    @property
    def hidden_layers(self) -> tuple[int, ...] | None:
        """Layers of the target, from 0, whose output a drafting head reads beside the last; None: it reads nothing."""
        ...

    def start(self, target: FlatModel, cache: SlotCache) -> None:
        """The target and its cache, before the first step.

        Raises:
            ScenarioError: it does not fit the target.
        """
        ...

    def propose(self, draftees: Sequence[Draftee], k: int, law: Law | None) -> list[Proposal]:
        """Up to `k` drafts for each, in their order; `NOTHING` where none are wanted.

        Called after every step, with k = 0 too. `law` None: the likeliest token is drafted.
        """
        ...

    def release(self, request: int, finished: Sequence[int] | None) -> None:
        """A request holds memory no longer; `finished`: all its tokens, if it is complete rather than preempted."""
        ...


@runtime_checkable
class Spacious(Protocol):
    """A drafter that needs more room behind a text than its k drafts and the pass that makes them."""

    def room(self, k: int) -> int:
        """Most tokens behind a text that it has verified or computes itself, when asked for k drafts."""
        ...


@runtime_checkable
class Planted(Protocol):
    """A drafter whose drafts may form trees."""

    def trees(self, k: int) -> tuple[Tree, ...]:
        """What a round verifies at most of 1, 2, ... k levels of its drafts; fewer where it has no more levels, and
        empty where drafts are chains."""
        ...


def chosen(logits: torch.Tensor, draftees: Sequence[Draftee], law: Law | None) -> tuple[list[int], torch.Tensor | None]:
    """One draft a row of logits [draftees, vocabulary], and the laws that they were drawn from."""
    if law is None:
        return logits.argmax(-1).tolist(), None
    probs = law(logits).cpu()
    tokens = [
        int(torch.multinomial(row, 1, generator=draftee.generator))
        for row, draftee in zip(probs, draftees, strict=True)
    ]
    return tokens, probs
