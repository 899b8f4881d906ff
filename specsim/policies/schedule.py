"""k by the number of requests in the step.

Models: vLLM's num_speculative_tokens_per_batch_size (rows [first, last, k]; gaps and the tail carry the previous k; the
key counts every request scheduled in the step, prefills included). TensorRT-LLM's draft_len_schedule in both of its
meanings is spelled as one (`specsim.policies.spellings`).
Leaves out: vLLM's V1 runner leaves full graphs for piecewise ones under such a table. Numbers: the user's table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from specsim.checks import read_whole
from specsim.policies.base import Ahead, Policy
from specsim.policies.kind import PolicyKind
from specsim.policies.spec import check_table

__all__ = ["KIND", "VLLM_REMARK", "Schedule", "rows_from_text", "vllm_table"]

VLLM_REMARK = (
    "vLLM looks the table up by requests scheduled in a step, prefills included, and switches it off under data "
    "parallelism above 1."
)


class Schedule(Policy):
    """See the module."""

    def __init__(self, table: Sequence[tuple[int, int, int]], num_spec_tokens: int) -> None:
        super().__init__(num_spec_tokens)
        # Gaps and the tail carry the previous k, so that where a range starts is all that counts.
        self._first = [first for first, _, _ in table]
        self._k = [table[0][2]] + [k for _, _, k in table]

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        return self._k[bisect_right(self._first, batch)]

    def ahead(self, most_requests: int) -> Ahead:
        return Ahead(np.array([[self.next_k(batch, 0, 0) for batch in range(most_requests + 1)]], dtype=np.int8))

    def steady_for(self, batch: int, kv_tokens: int, decode_requests: int) -> tuple[int, int]:
        return self.ALWAYS, self.ALWAYS


def rows_from_text(text: str) -> tuple[tuple[int, int, int], ...]:
    """Rows of `1-16=5,17-64=3`; a range of one is written `1=5`.

    Raises:
        ValueError: it is not written so.
    """
    rows = []
    for piece in text.split(","):
        batches, k = piece.split("=")
        first, _, last = batches.partition("-")
        rows.append((read_whole(first), read_whole(last or first), read_whole(k)))
    return tuple(rows)


def vllm_table(rows: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """Rows (first, last, k) as vLLM's --speculative-config has them."""
    return {"num_speculative_tokens_per_batch_size": [list(row) for row in rows]}


def _read(parts: Sequence[str]) -> dict[str, Any]:
    (text,) = parts
    rows = rows_from_text(text)
    return {"table": rows, "num_spec_tokens": max(k for _, _, k in rows)}


def _label(rows: Sequence[tuple[int, int, int]]) -> str:
    return "schedule " + "/".join(str(k) if first == 1 else f"{k}@{first}" for first, _, k in rows)


KIND = PolicyKind(
    name="schedule",
    summary="by the number of requests in the step, rows `[first, last, k]`; gaps and the tail carry the previous k",
    make=lambda spec, view: Schedule(spec.table, spec.num_spec_tokens),
    label=lambda spec: _label(spec.table),
    spelling="schedule:FIRST-LAST=K,...",
    example="schedule:1-16=5,17-64=3,65-512=0",
    uses=("num_spec_tokens", "table"),
    check=lambda spec: check_table("policy.table", spec.table, spec.num_spec_tokens),
    read=_read,
    engines=("vllm", "trtllm"),
    vllm=lambda spec, max_num_seqs: vllm_table(spec.table),
    vllm_remarks=(VLLM_REMARK,),
    rank=3,
)
