"""Prompts of wanted lengths, cut out of texts: what a trace without texts is served with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specsim.errors import ScenarioError
from specsim.rng import Purpose, stream

__all__ = ["cut_prompts", "tokens_of"]


def tokens_of(tokenizer: Any, texts: Iterable[str]) -> list[int]:
    """Token ids of texts, one after another, without special tokens."""
    return [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False)]


def cut_prompts(tokens: Sequence[int], lengths: Sequence[int], *, seed: int, first: int = 0) -> list[list[int]]:
    """A stretch of `tokens` for each length, from a drawn place; `first` is the number of the first prompt.

    Raises:
        ScenarioError: a length beyond the text.
    """
    longest = max(lengths, default=0)
    if longest > len(tokens):
        raise ScenarioError(
            f"a prompt of {longest} tokens cannot be cut out of a text of {len(tokens)}; give more text"
        )
    prompts = []
    for n, length in enumerate(lengths, first):
        rng = stream(seed, Purpose.PROMPTS, n)
        start = int(rng.integers(0, len(tokens) - length + 1))
        prompts.append(list(tokens[start : start + length]))
    return prompts
