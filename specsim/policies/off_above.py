"""A static k up to a batch, no drafts above it.

Models: TensorRT-LLM's max_concurrency (spelled so by `max_concurrency:K:BATCH` too), and vLLM's table of two rows.
Leaves out: TensorRT-LLM caps the count by max_num_tokens // (1 + k) first, which matters only where it is smaller.
Numbers: the user's.
"""

from __future__ import annotations

from typing import Any

from specsim.policies.base import EngineView, Policy
from specsim.policies.kind import PolicyKind
from specsim.policies.schedule import VLLM_REMARK, Schedule, vllm_table
from specsim.policies.spec import PolicySpec

__all__ = ["KIND"]


def _make(spec: PolicySpec, view: EngineView) -> Policy:
    k, limit = spec.num_spec_tokens, spec.batch_limit
    return Schedule(((1, limit, k), (limit + 1, limit + 1, 0)) if limit else ((1, 1, 0),), k)


def _vllm(spec: PolicySpec, max_num_seqs: int) -> dict[str, Any]:
    k, limit = spec.num_spec_tokens, spec.batch_limit
    if limit == 0:
        return vllm_table([(1, max_num_seqs, 0)])
    if limit >= max_num_seqs:
        return vllm_table([(1, max_num_seqs, k)])
    return vllm_table([(1, limit, k), (limit + 1, max_num_seqs, 0)])


KIND = PolicyKind(
    name="off_above",
    summary="`num_spec_tokens` while at most `batch_limit` requests are in the step, else none",
    make=_make,
    label=lambda spec: f"k={spec.num_spec_tokens} to {spec.batch_limit}",
    spelling="off_above:K:BATCH",
    example="off_above:3:64",
    positional=("num_spec_tokens", "batch_limit"),
    uses=("num_spec_tokens", "batch_limit"),
    engines=("vllm", "trtllm"),
    vllm=_vllm,
    vllm_remarks=(VLLM_REMARK,),
    rank=2,
)
