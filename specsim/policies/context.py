"""k by context and batch: a schedule for each range of mean cached tokens.

Models: the table that practitioners ask for because verify gets dearer with context where the kernel reads the cache
more than once, and cheaper in proportion where it does not. The context is that of the decoding requests, in the mean.
Leaves out: k by request; everybody in a step has the same. Numbers: the user's. No engine offers it yet (a context axis
for vLLM's table is proposed: RFC 48627, PR 48944).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.checks import read_whole, whole
from specsim.errors import ScenarioError
from specsim.policies.base import Ahead, Policy
from specsim.policies.kind import PolicyKind
from specsim.policies.schedule import Schedule, rows_from_text
from specsim.policies.spec import LARGEST_BATCH, LARGEST_K, PolicySpec, check_table
from specsim.type_checks import check_types

__all__ = ["KIND", "ByContext", "ContextSettings"]

Rows = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """Settings of `context`.

    Raises:
        ScenarioError: rows that do not rise.
    """

    rows: Rows = ((0, 1, 1, 0),)
    """Rows (context from which on, first, last, k), by context and then by requests in the step; the first starts at 0
    tokens, and the batches of each context at 1."""

    def __post_init__(self) -> None:
        check_types(self, "policy")
        if not self.rows or any(len(row) != 4 for row in self.rows):
            raise ScenarioError(f"policy.rows must be rows [context_from, first, last, k], got {self.rows!r}")
        for row in self.rows:
            whole("policy.rows context", row[0], 0, LARGEST_BATCH)
        if self.rows[0][0] != 0:
            raise ScenarioError(f"policy.rows must start at context 0, got {self.rows[0][0]}")
        contexts = [row[0] for row in self.rows]
        if contexts != sorted(contexts):
            raise ScenarioError("policy.rows must rise in context")
        for context, table in _tables(self.rows):
            check_table(f"policy.rows at context {context}:", table, LARGEST_K)


def _tables(rows: Rows) -> list[tuple[int, tuple[tuple[int, int, int], ...]]]:
    """(context from which on, schedule) of each context."""
    groups = itertools.groupby(rows, key=lambda row: row[0])
    return [(context, tuple((first, last, k) for _, first, last, k in group)) for context, group in groups]


class ByContext(Policy):
    """See the module."""

    def __init__(self, rows: Rows, num_spec_tokens: int) -> None:
        super().__init__(num_spec_tokens)
        tables = _tables(rows)
        self._from = [context for context, _ in tables]
        self._rules = [Schedule(table, num_spec_tokens) for _, table in tables]

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        context = kv_tokens // decode_requests if decode_requests else 0
        return self._rules[bisect_right(self._from, context) - 1].next_k(batch, kv_tokens, decode_requests)

    def ahead(self, most_requests: int) -> Ahead:
        ks = np.concatenate([rule.ahead(most_requests).ks for rule in self._rules])
        return Ahead(ks, np.array(self._from, dtype=np.int64))

    def steady_for(self, batch: int, kv_tokens: int, decode_requests: int) -> tuple[int, int]:
        further = bisect_right(self._from, kv_tokens // decode_requests)
        return self.ALWAYS, self._from[further] * decode_requests if further < len(self._from) else self.ALWAYS


def _check(spec: PolicySpec) -> None:
    largest = max(row[3] for row in spec.settings.rows)
    if largest > spec.num_spec_tokens:
        raise ScenarioError(f"policy.rows k {largest} exceeds num_spec_tokens {spec.num_spec_tokens}")


def _read(parts: Sequence[str]) -> dict[str, Any]:
    (text,) = parts
    rows = []
    for piece in text.split(";"):
        context, table = piece.split("/")
        rows += [(read_whole(context), *row) for row in rows_from_text(table)]
    return {"rows": tuple(rows), "num_spec_tokens": max(k for *_, k in rows)}


def _label(spec: PolicySpec) -> str:
    parts = []
    for context, table in _tables(spec.settings.rows):
        ks = "/".join(str(k) if first == 1 else f"{k}@{first}" for first, _, k in table)
        parts.append(ks if not context else f"from {context}: {ks}")
    return "context " + ", ".join(parts)


KIND = PolicyKind(
    name="context",
    summary="by mean cached tokens of the decoding requests and by requests in the step",
    make=lambda spec, view: ByContext(spec.settings.rows, spec.num_spec_tokens),
    label=_label,
    spelling="context:FROM/FIRST-LAST=K,...;FROM/...",
    example="context:0/1-32=3,33-512=0;8192/1-512=5",
    positional=("rows",),
    settings=ContextSettings,
    check=_check,
    read=_read,
    rank=4,
)
