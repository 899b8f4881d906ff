"""Whether a draft model speaks the target's tokens, and which tokens end a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrate.models import FlatModel, load_tokenizer
from specsim.errors import ScenarioError

__all__ = ["check_vocabulary", "find_tokenizer", "stop_tokens"]

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
    if target_tokenizer is None and draft_tokenizer is None:
        return
    for model, tokenizer in ((target, target_tokenizer), (draft, draft_tokenizer)):
        if tokenizer is None:
            raise ScenarioError(
                f"{model.name} has no tokenizer, so its vocabulary cannot be compared; put a tokenizer beside it"
            )
    ours, theirs = _tokens(target_tokenizer), _tokens(draft_tokenizer)
    wrong = sorted(i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i))
    if wrong:
        first = wrong[0]
        raise ScenarioError(
            f"token {first} is {theirs.get(first)!r:.40} to draft {draft.name} and {ours.get(first)!r:.40} to target "
            f"{target.name}, and so for {len(wrong)} tokens; drafts need the same vocabulary"
        )


def _tokens(tokenizer: Any) -> Mapping[int, str]:
    return {number: token for token, number in tokenizer.get_vocab().items()}


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
