"""Suffix decoding: continuations of the longest matches in a request's own text and in past responses, by frequency.

Oliaro et al. 2024 (arXiv 2411.04975). Every stretch of up to `depth` tokens is counted in a trie. Of all suffixes of
the text that occur there, each proposes the most frequent path behind it: at most `factor` times its own length, as
long as the path's probability stays above `min_probability`. The proposal with the largest expected number of accepted
drafts (the sum of the path's probabilities) is taken.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from calibrate.drafters.base import NOTHING, Draftee, Law, Proposal
from calibrate.models import FlatModel, SlotCache
from specsim.errors import ScenarioError

__all__ = ["SuffixDrafter", "SuffixTrie"]


class _Node:
    __slots__ = ("children", "count")

    def __init__(self) -> None:
        self.count = 0
        self.children: dict[int, _Node] = {}


class SuffixTrie:
    """Counts of every stretch of up to `depth` tokens of the texts given to it, token by token."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._root = _Node()

    def extend(self, text: Sequence[int], known: int) -> None:
        """Count a text of which the first `known` tokens were counted before."""
        for end in range(known, len(text)):
            # the token at `end` lengthens the stretches that begin up to depth - 1 tokens before it
            for start in range(max(0, end - self.depth + 1), end + 1):
                node = self._root
                for token in text[start:end]:
                    node = node.children[token]
                child = node.children.get(text[end])
                if child is None:
                    child = node.children[text[end]] = _Node()
                child.count += 1

    def remove(self, text: Sequence[int]) -> None:
        """Take a whole text out again."""
        for start in range(len(text)):
            node = self._root
            for token in text[start : start + self.depth]:
                child = node.children[token]
                child.count -= 1
                if not child.count:
                    del node.children[token]
                    break
                node = child

    def propose(self, text: Sequence[int], k: int, *, factor: float, min_probability: float) -> tuple[list[int], float]:
        """(drafts, expected number accepted): the best continuation of any suffix of the text, or ([], 0)."""
        best: list[int] = []
        best_score = 0.0
        for length in range(1, min(self.depth - 1, len(text)) + 1):
            node: _Node | None = self._root
            for token in text[len(text) - length :]:
                node = node.children.get(token) if node is not None else None
            if node is None:
                break
            path: list[int] = []
            score, probability = 0.0, 1.0
            while len(path) < min(k, int(length * factor)) and node.children:
                seen = sum(child.count for child in node.children.values())
                token, child = max(node.children.items(), key=lambda pair: pair[1].count)
                probability *= child.count / seen
                if probability < min_probability:
                    break
                path.append(token)
                score += probability
                node = child
            if score > best_score or (score == best_score and path):
                best, best_score = path, score
        return best, best_score


class SuffixDrafter:
    """See `calibrate.drafters.base.Drafter`. Defaults are vLLM's."""

    name = "suffix"
    hidden_layers = None

    def __init__(
        self,
        *,
        depth: int = 24,
        max_responses: int = 10_000,
        factor: float = 1.0,
        min_probability: float = 0.1,
    ) -> None:
        """
        Args:
            depth: longest stretch that is counted, match and drafts together.
            max_responses: past responses that are kept, the oldest forgotten first; 0: none.
            factor: drafts per token of the match.
            min_probability: a draft less likely than this is not proposed.

        Raises:
            ScenarioError: an argument out of range.
        """
        if depth < 2 or max_responses < 0 or factor <= 0 or not 0 <= min_probability <= 1:
            raise ScenarioError(
                f"suffix decoding needs depth >= 2, max_responses >= 0, factor > 0 and min_probability in 0..1, got "
                f"{depth}, {max_responses}, {factor}, {min_probability}"
            )
        self._factor = factor
        self._min_probability = min_probability
        self._depth = depth
        self._max_responses = max_responses
        self._own: dict[int, tuple[SuffixTrie, int]] = {}
        """Trie of each running request, and tokens that it has counted."""
        self._prompt_tokens: dict[int, int] = {}
        self._past = SuffixTrie(depth)
        self._responses: OrderedDict[int, list[int]] = OrderedDict()

    def start(self, target: FlatModel, cache: SlotCache) -> None:
        """Nothing is needed of the target."""

    def propose(self, draftees: Sequence[Draftee], k: int, law: Law | None) -> list[Proposal]:
        return [self._propose(d, k) if d.drafts else NOTHING for d in draftees]

    def _propose(self, draftee: Draftee, k: int) -> Proposal:
        text = draftee.tokens
        trie, known = self._own.get(draftee.request) or (SuffixTrie(self._depth), 0)
        self._prompt_tokens.setdefault(draftee.request, draftee.computed_tokens)
        trie.extend(text, known)
        self._own[draftee.request] = trie, len(text)
        found = [
            source.propose(text, k, factor=self._factor, min_probability=self._min_probability)
            for source in (trie, self._past)
        ]
        drafts, _ = max(found, key=lambda pair: pair[1])
        return Proposal(tuple(drafts))

    def release(self, request: int, finished: Sequence[int] | None) -> None:
        self._own.pop(request, None)
        if finished is not None:
            self.learn(request, finished[self._prompt_tokens.pop(request, len(finished)) :])

    def learn(self, request: int, response: Sequence[int]) -> None:
        """Count a past response, as when its request had finished here."""
        if not self._max_responses:
            return
        response = list(response)
        self._past.extend(response, 0)
        self._responses[request] = response
        if len(self._responses) > self._max_responses:
            self._past.remove(self._responses.popitem(last=False)[1])
