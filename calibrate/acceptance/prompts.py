"""Prompts to measure acceptance on: a JSONL file read, checked row by row, and turned into token ids.

A row has `token_ids`, `messages` or `prompt` (the first of these that is there), and may have `id`, `task` and
`max_tokens`. A row that cannot be used is counted and explained, never dropped without a word.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from specsim.errors import ScenarioError

__all__ = ["Prompt", "PromptFile", "check_prompts", "lines_of", "read_prompts"]

_KEYS = ("id", "task", "max_tokens", "token_ids", "messages", "prompt")
_ROLES = ("system", "user", "assistant", "tool", "developer")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to be."""

    name: str | int
    """`id` of its row, or the number of the row among those that can be used."""
    task: str
    token_ids: tuple[int, ...]
    max_tokens: int
    """Most output tokens."""


@dataclass(slots=True)
class PromptFile:
    """What was read, and what was not."""

    prompts: list[Prompt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """A line for each row that cannot be used: place, value, reason."""
    unused_keys: dict[str, int] = field(default_factory=dict)
    """Keys that mean nothing here, with the rows that have them."""
    templated: int = 0
    """Prompts that went through the tokenizer's chat template."""


class _BadRow(Exception):
    pass


def check_prompts(path: str | Path, *, strict: bool = False) -> None:
    """Refuse a file that no tokenizer could make prompts of, before anything is loaded to find that out.

    Args:
        strict: refuse the first row that can never be used.

    Raises:
        ScenarioError: the file cannot be read, or no row can be used, or, with `strict`, one cannot.
    """
    place, first, usable = Path(path), "", 0
    for number, line in enumerate(_text(place).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = _object(line)
            _named(row, 0, 1)
            _content(row)
            usable += 1
        except _BadRow as problem:
            first = first or f"{place}: line {number}: {problem}"
            if strict:
                raise ScenarioError(f"{first} (--strict)") from None
    if not usable:
        raise ScenarioError(first or f"{place}: holds no prompt; the file is empty")


def read_prompts(
    path: str | Path,
    tokenizer: Any | None,
    *,
    vocab_size: int,
    max_tokens: int,
    max_context: int | None = None,
    use_template: bool = True,
    strict: bool = False,
) -> PromptFile:
    """Read prompts.

    Args:
        tokenizer: a transformers tokenizer; None: rows must have `token_ids`.
        vocab_size: tokens that the target knows.
        max_tokens: of rows that do not say.
        max_context: most tokens of prompt and output together; None: no limit.
        use_template: put a `prompt` into the tokenizer's chat template, where it has one, as the user's message.
        strict: refuse the first row that cannot be used.

    Raises:
        ScenarioError: the file cannot be read, no row can be used, or, with `strict`, one cannot.
    """
    place, found, names = Path(path), PromptFile(), set()
    for number, line in enumerate(_text(place).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = _object(line)
            for key in row.keys() - set(_KEYS):
                found.unused_keys[key] = found.unused_keys.get(key, 0) + 1
            prompt, templated = _prompt(row, len(found.prompts), tokenizer, max_tokens, use_template)
            _check(prompt, vocab_size, max_context)
            if str(prompt.name) in names:
                raise _BadRow(f"'id' {prompt.name!r} stands there twice; give each row its own")
        except _BadRow as problem:
            found.problems.append(f"{place}: line {number}: {problem}")
            if strict:
                raise ScenarioError(f"{found.problems[-1]} (--strict)") from None
            continue
        names.add(str(prompt.name))
        found.prompts.append(prompt)
        found.templated += templated
    if not found.prompts:
        raise ScenarioError(found.problems[0] if found.problems else f"{place}: holds no prompt; the file is empty")
    return found


def _text(place: Path) -> str:
    if place.exists() and not place.is_file():
        raise ScenarioError(f"{place}: is a folder, a pipe or a device; give a file of prompts")
    try:
        raw = place.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ScenarioError(f"{place}: cannot be read as prompts ({reason}); give a JSONL file, plain or .gz") from None


def _object(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadRow(f"not a JSON object ({error})") from None
    if not isinstance(row, dict):
        raise _BadRow(f"expected an object, got {type(row).__name__}")
    return row


def _prompt(
    row: Mapping[str, Any], number: int, tokenizer: Any | None, max_tokens: int, use_template: bool
) -> tuple[Prompt, bool]:
    name, task, most = _named(row, number, max_tokens)
    ids, templated = _ids(row, tokenizer, use_template)
    return Prompt(name, task, ids, most), templated


def _named(row: Mapping[str, Any], number: int, max_tokens: int) -> tuple[str | int, str, int]:
    """Name, content class and most output tokens of a row."""
    name, task, most = row.get("id", number), row.get("task") or "", row.get("max_tokens", max_tokens)
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise _BadRow(f"'id' must be a word or a whole number, got {name!r:.40}")
    if not isinstance(task, str):
        raise _BadRow(f"'task' must be a word, got {task!r:.40}")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise _BadRow(f"'max_tokens' must be a whole number >= 1, got {most!r:.40}")
    return name, task, most


def _content(row: Mapping[str, Any]) -> tuple[str, Any]:
    """The key that says what the prompt is, and its value: token ids, messages, or a text that is not empty."""
    if "token_ids" in row:
        ids = row["token_ids"]
        if not isinstance(ids, list) or not ids or any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
            raise _BadRow(f"'token_ids' must be a list of whole numbers, got {ids!r:.40}")
        return "token_ids", ids
    if "messages" in row:
        return "messages", _messages(row["messages"])
    if "prompt" not in row:
        raise _BadRow("has none of 'prompt', 'messages', 'token_ids'")
    text = row["prompt"]
    if not isinstance(text, str) or not text:
        raise _BadRow(f"'prompt' must be a text, got {text!r:.40}")
    return "prompt", text


def _ids(row: Mapping[str, Any], tokenizer: Any | None, use_template: bool) -> tuple[tuple[int, ...], bool]:
    """Token ids, and whether they came through the chat template."""
    kind, content = _content(row)
    if kind == "token_ids":
        return tuple(content), False
    if tokenizer is None:
        raise _BadRow("is text, and the target has no tokenizer; give 'token_ids', or a target with a tokenizer")
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if kind == "messages":
        if not has_template:
            raise _BadRow("has 'messages', and the tokenizer has no chat template; give 'prompt' or 'token_ids'")
        return _templated(tokenizer, content), True
    if use_template and has_template:
        return _templated(tokenizer, [{"role": "user", "content": content}]), True
    return tuple(tokenizer.encode(content)), False


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise _BadRow(f"'messages' must be a list of messages, got {given!r:.40}")
    for message in given:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise _BadRow(f"a message needs 'role' and 'content', each a text, got {message!r:.60}")
        if message.get("role") not in _ROLES:
            raise _BadRow(f"a message's 'role' must be one of {', '.join(_ROLES)}, got {message.get('role')!r:.40}")
    return given


def _templated(tokenizer: Any, messages: list[dict[str, Any]]) -> tuple[int, ...]:
    try:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise _BadRow(f"the chat template refuses these messages ({reason[0]:.120})") from None
    return tuple(ids)


def _check(prompt: Prompt, vocab_size: int, max_context: int | None) -> None:
    if not prompt.token_ids:
        raise _BadRow("becomes no token at all")
    wrong = next((i for i in prompt.token_ids if not 0 <= i < vocab_size), None)
    if wrong is not None:
        raise _BadRow(f"token {wrong} is not in the target's vocabulary of {vocab_size}")
    whole = len(prompt.token_ids) + prompt.max_tokens
    if max_context is not None and whole > max_context:
        raise _BadRow(
            f"{len(prompt.token_ids)} prompt tokens and {prompt.max_tokens} output tokens exceed the target's context "
            f"of {max_context}; shorten it, or lower 'max_tokens'"
        )


def lines_of(found: PromptFile, most: int = 5) -> Iterator[str]:
    """What a user is told about a file, in lines."""
    if found.problems:
        rows = "row" if len(found.problems) == 1 else "rows"
        yield f"{len(found.problems)} {rows} that cannot be used, {len(found.prompts)} that can:"
        yield from (f"  {problem}" for problem in found.problems[:most])
        if len(found.problems) > most:
            yield f"  and {len(found.problems) - most} more"
    if found.unused_keys:
        keys = ", ".join(f"'{key}' ({rows})" for key, rows in sorted(found.unused_keys.items()))
        yield f"keys without a meaning here, by rows: {keys}"
    yield f"{len(found.prompts)} prompts, {found.templated} of them through the tokenizer's chat template"
