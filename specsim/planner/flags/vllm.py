"""Flags of vLLM.

Facts: vLLM 0.33.0 sources (methods, the dynamic table and its lookup key, graph ceilings, admission limits). It
verifies chains only.
"""

from __future__ import annotations

import json
from typing import Any

from specsim.config import PolicySpec
from specsim.planner.flags.base import Flags, Writer
from specsim.planner.question import Question
from specsim.policies import kind_of

__all__ = ["flags"]

_CHECKED = "0.33.0"
_TABLE_METHODS = ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash")
"""Methods for which vLLM's first model runner takes a table by batch."""


def flags(question: Question, policy: PolicySpec) -> Flags:
    """Command line and speculative config that make vLLM follow `policy`."""
    w = Writer("vllm", _CHECKED, question, policy)
    deployment, limits = w.deployment, w.limits
    w.add("vllm", "serve", w.target)
    if deployment.tp > 1:
        w.add("--tensor-parallel-size", deployment.tp)
    if deployment.weight_dtype == "fp8":
        w.add("--quantization", "fp8")
    if deployment.kv_dtype == "fp8":
        w.add("--kv-cache-dtype", "fp8")
    elif deployment.kv_dtype not in ("bf16", "fp16"):
        w.warn(f"The command has no flag for a KV cache in {deployment.kv_dtype}; vLLM would use bf16.")
    w.add("--max-num-seqs", limits.max_num_seqs, "--max-num-batched-tokens", limits.max_num_batched_tokens)
    w.add("--max-model-len", limits.max_model_len)
    w.add("--gpu-memory-utilization", f"{deployment.gpu_memory_utilization:g}")
    if not limits.enable_prefix_caching:
        w.add("--no-enable-prefix-caching")
    if deployment.block_size_tokens not in (None, 16):
        w.add("--block-size", deployment.block_size_tokens)
    if deployment.chunked_prefill is False:
        w.add("--no-enable-chunked-prefill")
    if deployment.max_captured is not None:
        w.add("--max-cudagraph-capture-size", deployment.max_captured)
    speculative = _speculative(w)
    if speculative is not None:
        w.add("--speculative-config", json.dumps(speculative, separators=(",", ":")))
        w.add("--per-request-spec-decode-metrics", "summary")
        _graphs(w)
        if limits.max_num_batched_tokens < 8192:
            w.warn("vLLM warns at start-up when speculation runs with fewer than 8192 batched tokens.")
    return w.done(speculative)


def _speculative(w: Writer) -> dict[str, Any] | None:
    offered = w.offered()
    if offered is None:
        return None
    given = w.question.speculation
    found: dict[str, Any] = {"method": offered.name}
    model = w.drafter(offered)
    if model is not None:
        found["model"] = model
    found["num_speculative_tokens"] = w.num_spec_tokens
    found |= offered.settings
    if given.draft_sampling == "probabilistic":
        found["draft_sample_method"] = "probabilistic"
    if given.draft_tp is not None:
        found["draft_tensor_parallel_size"] = given.draft_tp
        if given.draft_tp not in (1, w.deployment.tp):
            w.warn(f"vLLM runs a drafter on one GPU or on all {w.deployment.tp}, not on {given.draft_tp}.")
    if given.draft_weight_dtype == "fp8":
        found["quantization"] = "fp8"
    elif given.draft_weight_dtype is not None:
        w.warn(f"A drafter in {given.draft_weight_dtype} needs a checkpoint that is stored so: name it as model.")
    if given.draft_kv_dtype is not None:
        found["kv_cache_dtype"] = {"bf16": "bfloat16", "fp16": "float16"}.get(
            given.draft_kv_dtype, given.draft_kv_dtype
        )
    if w.tree is not None:
        w.warn(f"vLLM verifies chains only: it would draft {w.num_spec_tokens} tokens in a row instead of the tree of "
               f"{w.tree[0]}, so that neither cost nor acceptance are those of this plan.")  # fmt: skip
    w.rule()
    kind = kind_of(w.policy.kind)
    found |= kind.vllm(w.policy, w.limits.max_num_seqs)
    for remark in kind.vllm_remarks:
        w.warn(remark)
    if "num_speculative_tokens_per_batch_size" in found and offered.name not in _TABLE_METHODS:
        w.warn(f"vLLM's first model runner takes no table by batch for method {offered.name}.")
    return found


def _graphs(w: Writer) -> None:
    covered = w.question.on.profile.captured_tokens_max
    largest = covered // (1 + w.num_spec_tokens)
    if covered and largest < w.limits.max_num_seqs:
        w.warn(f"Full CUDA graphs cover {covered} tokens, {largest} requests at k={w.num_spec_tokens}; raise "
               f"--max-cudagraph-capture-size if you run more at once.")  # fmt: skip
