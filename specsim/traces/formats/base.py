"""What a log format is to the reader: which columns mean what, how a record splits into requests, what to skip.

Column names are compared in compact form (letters and digits, lower case), so `Prompt tokens`, `prompt_tokens` and
`promptTokens` are one name. Leaves out: the formats themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Format", "Row", "Sample", "compact", "dig", "failed_status", "text_chars"]

Row = dict[str, Any]
"""One record with compact column names; values as JSON or CSV gave them."""

_BRACKETS = re.compile(r"\s*[\[(][^\])]*[\])]")
_OTHER = re.compile(r"[^a-z0-9.]+")


def compact(name: str) -> str:
    """Column name without case, blanks, underscores and bracketed units; dots stay."""
    text = _BRACKETS.sub("", name) or name
    return _OTHER.sub("", text.lower()) or name.lower()


@dataclass(frozen=True, slots=True)
class Sample:
    """The first records of a file, from which its format is told."""

    keys: frozenset[str]
    """Compact names seen in any of them."""
    rows: tuple[Row, ...]
    """The first records."""
    header: bool = False
    """The names come from a CSV header, so no others will follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One log format. Column tuples are alternatives, best first, in any spelling; dots walk into nested objects."""

    name: str
    title: str
    matches: Callable[[Sample], bool]
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Field of `options.FIELD_NAMES` -> its possible columns."""
    unit: str | None = None
    """Unit of a numeric time column, None to find out."""
    duration_unit: str = "s"
    times: Literal["absolute", "session", "none"] = "absolute"
    split: Callable[[Row], Iterator[Row]] | None = None
    """One record -> its requests, with the same compact names; None when a record is a request."""
    skip: Callable[[Row], str | None] | None = None
    """Why a well-formed record is no request to plan for (failed, tool call, ...), or None."""
    zero_is_failure: bool = False
    """Rows with 0 tokens are failures by the format's own description, not bad rows."""
    local_hashes: bool = False
    mooncake_time: bool = False
    """`timestamp` may be ms or s (Mooncake, vLLM timed traces)."""
    keeps_zero: bool = False
    """Times count from the start of the trace, so the first arrival may be later than 0."""
    needs_bytes: bool = False
    """Only bytes are known."""
    notes: tuple[str, ...] = ()


def dig(value: Any, path: tuple[str, ...]) -> Any:
    """Nested value under compact names, or None."""
    for part in path:
        if type(value) is not dict:
            return None
        if part in value:
            value = value[part]
            continue
        for name, inner in value.items():
            if compact(str(name)) == part:
                value = inner
                break
        else:
            return None
    return value


_FAILED_WORDS = frozenset({"failure", "failed", "error", "timeout", "cancelled", "canceled", "expired", "aborted"})


def failed_status(value: Any) -> str | None:
    """A drop reason for an HTTP status outside 2xx or a word such as `failure`; None when it is fine or unknown."""
    if value is None or value == "" or type(value) is bool:
        return None
    text = str(value).strip().lower()
    if text in _FAILED_WORDS:
        return f"failed request (status {text})"
    if text.isdigit() and len(text) == 3:
        return None if text[0] in "123" else f"failed request (status {text})"
    return None


def text_chars(value: Any) -> int | None:
    """Characters of a prompt: a string, a list of strings, or chat messages; None when it is none of these."""
    if type(value) is str:
        return len(value)
    if type(value) is list:
        total = 0
        for item in value:
            chars = text_chars(item.get("content", item.get("text", item.get("value")))) if type(item) is dict else None
            chars = text_chars(item) if type(item) is str else chars
            if chars is None:
                return None
            total += chars
        return total
    return None
