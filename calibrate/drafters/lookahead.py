"""Lookahead decoding: the target's own guesses far ahead, refined step by step, are kept as n-grams and tried.

Fu et al. 2024 (arXiv 2402.02057). A window of W columns and N - 1 levels stands behind the last token: column c begins
c tokens ahead with a guess, and each of its levels is what the target said one step later, with the guesses of the
first level before it and the levels above it in its own column (Jacobi iteration). What the target says to the last
level makes an n-gram of N tokens out of every column. N-grams are kept by their first token, for each the last G; those
that begin with the last token of the text are the drafts of a round, joined to a tree. N is k + 1. Each step the window
moves by one token, whatever was accepted: the oldest level leaves and the new one enters. At first there is one level,
wider by what it loses until there are N - 1. Another k begins another window; the n-grams stay.

Engines compute the window in the pass that verifies; here it has a pass of its own over the target's cache, which gives
the same tokens. Guesses are the likeliest tokens at every temperature, so that drafts are certain.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from calibrate.drafters.base import NOTHING, Draftee, Law, Proposal
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache
from calibrate.models.flat_batch import Branches
from specsim.errors import ScenarioError
from specsim.trees import Tree, cut

__all__ = ["LookaheadDrafter"]


@dataclass(slots=True)
class _Window:
    """The guesses of one request, and its n-grams."""

    k: int
    """Drafts of a round, for which it is as deep as it is."""
    levels: list[list[int]]
    """levels[0][c] is the guess at place c of the text's end, for c from 1; levels[l][c], for c from 0, follows
    levels[l - 1][c], or for l = 1 the last token or levels[0][c]."""
    pool: dict[int, OrderedDict[tuple[int, ...], None]] = field(default_factory=dict)
    """First token -> what followed, the newest last."""

    def keep(self, ngram: Sequence[int], most: int) -> None:
        """Remember an n-gram; of one first token `most`, the oldest forgotten first."""
        first, rest = ngram[0], tuple(ngram[1:])
        known = self.pool.setdefault(first, OrderedDict())
        known[rest] = None
        known.move_to_end(rest)
        if len(known) > most:
            known.popitem(last=False)


class LookaheadDrafter:
    """See `calibrate.drafters.base.Drafter`."""

    name = "lookahead"
    hidden_layers = None

    def __init__(self, *, window: int = 15, guesses: int = 15, from_prompt: bool = False, seed: int = 0) -> None:
        """
        Args:
            window: columns, W.
            guesses: n-grams tried at once and kept for a first token, G.
            from_prompt: n-grams of the prompt are there from the start (the paper's prompt as reference).
            seed: of the first guesses, which are drawn from the prompt.

        Raises:
            ScenarioError: a number out of range.
        """
        if not 1 <= window <= 64 or not 1 <= guesses <= 64:
            raise ScenarioError(f"lookahead needs window and guesses in 1..64, got {window} and {guesses}")
        self._columns, self._guesses, self._from_prompt, self._seed = window, guesses, from_prompt, seed
        self._windows: dict[int, _Window] = {}

    def room(self, k: int) -> int:
        """The window, or the n-grams."""
        return max(self._columns + k, self._guesses) * k + 1

    def trees(self, k: int) -> tuple[Tree, ...]:
        """See `calibrate.drafters.base.Planted`; n-grams that begin alike have fewer nodes."""
        return cut(Tree((self._guesses,) * k, (1, *(self._guesses,) * (k - 1)))) if k else ()

    def start(self, target: FlatModel, cache: SlotCache) -> None:
        self._target, self._cache = target, cache

    def propose(self, draftees: Sequence[Draftee], k: int, law: Law | None) -> list[Proposal]:
        live = [draftee for draftee in draftees if draftee.drafts]
        if not k or not live:
            return [NOTHING] * len(draftees)
        for draftee in live:
            self._begin(draftee, k)
        found = {draftee.request: self._guessed(draftee, k) for draftee in live}
        self._refine(live, k)
        return [found[draftee.request] if draftee.drafts else NOTHING for draftee in draftees]

    def _begin(self, draftee: Draftee, k: int) -> None:
        before = self._windows.get(draftee.request)
        if before is not None and before.k == k:
            return
        draws = np.random.default_rng((self._seed, draftee.request % 2**32))
        first = draws.choice(draftee.tokens, self._columns + k - 1).tolist()
        own = self._windows[draftee.request] = _Window(k, [first], {} if before is None else before.pool)
        if self._from_prompt and before is None:
            for start in range(len(draftee.tokens) - k):
                own.keep(draftee.tokens[start : start + k + 1], self._guesses)

    def _guessed(self, draftee: Draftee, k: int) -> Proposal:
        """N-grams that begin with the last token, the newest first, as a tree."""
        tokens: list[int] = []
        parents: list[int] = []
        known = self._windows[draftee.request].pool.get(draftee.tokens[-1], ())
        for rest in reversed(list(known)):
            at = -1
            for token in rest[:k]:
                same = (n for n, parent in enumerate(parents) if parent == at and tokens[n] == token)
                child = next(same, None)
                if child is None:
                    tokens.append(token)
                    parents.append(at)
                    child = len(tokens) - 1
                at = child
        return Proposal(tuple(tokens), None, tuple(parents)) if tokens else NOTHING

    def _refine(self, live: Sequence[Draftee], k: int) -> None:
        """One step of every window: what the target says to its last level, n-grams out of it, and the next window."""
        ids: list[int] = []
        parts: list[Part] = []
        rows: list[int] = []
        widths = [len(self._windows[draftee.request].levels[0]) for draftee in live]
        for draftee, width in zip(live, widths, strict=True):
            text = list(draftee.tokens[draftee.computed_tokens :])
            levels = self._windows[draftee.request].levels
            branches = _branches(draftee.computed_tokens, len(text), width, len(levels))
            tokens = [*text, *levels[0][1:], *(token for level in levels[1:] for token in level)]
            ids += tokens
            parts.append(Part(draftee.slot, draftee.computed_tokens, len(tokens), branches))
            # the first level's rows begin with the end of the text, whose place 0 it has
            rows += range(len(ids) - width, len(ids))
        hidden = self._target.forward(FlatBatch(ids, parts), self._cache)
        said = self._target.logits(hidden[rows]).argmax(-1).split(widths)
        for draftee, new in zip(live, said, strict=True):
            self._cache.rollback(draftee.slot)
            self._advance(draftee, new.tolist(), k)

    def _advance(self, draftee: Draftee, new: list[int], k: int) -> None:
        own = self._windows[draftee.request]
        if len(own.levels) < k:
            # a step further the end of the text stands where each level's column 1 was
            own.levels = [level[1:] for level in (*own.levels, new)]
            return
        heads = [draftee.tokens[-1], *own.levels[0][1:]]
        for column, first in enumerate(heads):
            own.keep([first, *(level[column] for level in own.levels[1:]), new[column]], self._guesses)
        # a step further the end of the text stands where the second level began
        own.levels = [*own.levels[1:], new]

    def release(self, request: int, finished: Sequence[int] | None) -> None:
        self._windows.pop(request, None)


def _branches(context: int, text_tokens: int, columns: int, levels: int) -> Branches:
    """Of the end of a text and the window behind it, level by level; the first level's column 0 is the text's end."""
    total = text_tokens - 1 + columns * levels
    seen = np.zeros((total, total), dtype=bool)
    end = text_tokens - 1
    seen[: end + columns, : end + columns] = np.tril(np.ones((end + columns, end + columns), dtype=bool))
    positions = list(range(context, context + end + columns))
    above = list(range(end, end + columns))
    row = end + columns
    for level in range(1, levels):
        for column in range(columns):
            seen[row] = seen[above[column]]
            seen[row, row] = True
            positions.append(context + end + column + level)
            above[column] = row
            row += 1
    return Branches(tuple(positions), seen)
