"""Whether a draft model speaks the target's tokens, and which tokens end a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calibrate.models.flat_model import FlatModel
from calibrate.models.load import load_tokenizer
from specsim.errors import ScenarioError

__all__ = ["check_same_tokens", "check_vocabulary", "find_tokenizer", "stop_tokens"]

_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def find_tokenizer(source: str | Path) -> Any | None:
    """The tokenizer of a directory or GGUF file; None where a directory has none.

    Raises:
        ScenarioError: it is there and cannot be read.
    """
    path = Path(source)
    if path.is_dir() and not any((path / file).exists() for file in _FILES):
        return None
    return load_tokenizer(path)


def check_vocabulary(
    target: FlatModel, target_tokenizer: Any | None, draft: FlatModel, draft_tokenizer: Any | None
) -> None:
    """Refuse a draft model whose token ids mean something else than the target's.

    Raises:
        ScenarioError: different sizes, different tokens, or only one of them has a vocabulary.
    """
    if target.vocab_size != draft.vocab_size:
        raise ScenarioError(
            f"draft {draft.name} has {draft.vocab_size} tokens in its vocabulary and target {target.name} "
            f"{target.vocab_size}; drafts need the same vocabulary"
        )
    if (target_tokenizer is None) != (draft_tokenizer is None):
        lacking = draft if draft_tokenizer is None else target
        raise ScenarioError(f"{lacking.name} has no tokenizer, so that its vocabulary cannot be compared; add one")
    if target_tokenizer is not None and draft_tokenizer is not None:
        check_same_tokens(target.name, target_tokenizer, draft.name, draft_tokenizer)


def check_same_tokens(target: str, target_tokenizer: Any, draft: str, draft_tokenizer: Any) -> None:
    """Refuse a draft model whose tokenizer gives other numbers to tokens.

    Raises:
        ScenarioError: with the first token that differs, and how many do.
    """
    ours, theirs = (
        {number: token for token, number in tokenizer.get_vocab().items()}
        for tokenizer in (target_tokenizer, draft_tokenizer)
    )
    wrong = sorted(number for number in ours.keys() | theirs.keys() if ours.get(number) != theirs.get(number))
    if wrong:
        first = wrong[0]
        raise ScenarioError(
            f"the vocabularies of {target} and {draft} differ at token {first} ({ours.get(first)!r:.40} and "
            f"{theirs.get(first)!r:.40}), and at {len(wrong)} in all; use a drafter of the same family"
        )


def stop_tokens(target: FlatModel, source: str | Path, tokenizer: Any | None) -> tuple[int, ...]:
    """Tokens that end a text: of the configuration, of generation_config.json, and of the tokenizer; sorted."""
    found: set[int] = set()
    given = [getattr(target.config, "eos_token_id", None), getattr(tokenizer, "eos_token_id", None)]
    file = Path(source) / "generation_config.json"
    if file.is_file():
        try:
            given.append(json.loads(file.read_text(encoding="utf-8")).get("eos_token_id"))
        except (OSError, ValueError, AttributeError) as error:
            raise ScenarioError(f"{file}: cannot be read ({error}); mend or remove it") from None
    for value in given:
        found |= set(value) if isinstance(value, list) else set() if value is None else {value}
    return tuple(sorted(found))
