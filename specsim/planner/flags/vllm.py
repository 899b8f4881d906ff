"""Flags of vLLM.

Facts: vLLM 0.33.0 sources (methods, the dynamic table and its lookup key, graph ceilings, admission limits). It
verifies chains only. By version: the table by batch came with 0.24 (PR 32374), metrics by request after 0.28 (PR
48915), the flag for the largest graph after 0.11; disable_by_batch_size (PR 4592) did nothing from 0.10 on and is gone
(PR 35060).
"""

from __future__ import annotations

import json
from typing import Any

from specsim.config import PolicySpec
from specsim.planner.flags.base import Flags, Role, Writer
from specsim.planner.question import Question
from specsim.policies import kind_of

__all__ = ["flags"]

_CHECKED = "0.33.0"
_TABLE = "num_speculative_tokens_per_batch_size"
_TABLE_SINCE, _METRICS_SINCE, _GRAPHS_SINCE, _V0_UNTIL = "0.24", "0.29", "0.12", "0.10"
_CAPTURE_STEP = 16
"""Distance of large captured sizes; a largest one between two is cut to the one below (vLLM PR 37865)."""
_TABLE_METHODS = ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash")
"""Methods for which vLLM's first model runner takes a table by batch."""


def flags(question: Question, policy: PolicySpec, version: str | None = None, role: Role | None = None) -> Flags:
    """Command line and speculative config that make vLLM follow `policy`; version None: that of the deployment."""
    w = Writer("vllm", _CHECKED, question, policy, version)
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
    if role is not None:
        part = {"prefill": "kv_producer", "decode": "kv_consumer"}[role]
        connector = {"kv_connector": "NixlConnector", "kv_role": part}
        w.add("--kv-transfer-config", json.dumps(connector, separators=(",", ":")))
        w.warn("A proxy sends each request to a prefill server with max_tokens 1, then to a decode server with the "
               "kv_transfer_params that came back; vLLM has a toy one (tests/v1/kv_connector/nixl_integration), and "
               "llm-d and Dynamo have routers.")  # fmt: skip
    if not limits.enable_prefix_caching:
        w.add("--no-enable-prefix-caching")
    if w.is_own and deployment.block_size_tokens not in (None, 16):
        w.add("--block-size", deployment.block_size_tokens)
    if deployment.chunked_prefill is False:
        w.add("--no-enable-chunked-prefill")
    speculative = _speculative(w)
    if role != "prefill":
        _graphs(w)
    if speculative is not None:
        w.add("--speculative-config", json.dumps(speculative, separators=(",", ":")))
        if not w.is_before(_METRICS_SINCE):
            w.add("--per-request-spec-decode-metrics", "summary")
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
    if _TABLE in found and w.is_before(_TABLE_SINCE):
        del found[_TABLE]
        found |= _without_table(w)
        return found
    for remark in kind.vllm_remarks:
        w.warn(remark)
    if _TABLE in found:
        _remarks_on_table(w, offered.name)
    return found


def _without_table(w: Writer) -> dict[str, Any]:
    """What a version from before the table has for a rule by batch."""
    if w.policy.kind == "off_above" and w.is_before(_V0_UNTIL):
        w.warn("disable_by_batch_size counts queued requests too; it does nothing from vLLM 0.10 on.")
        return {"disable_by_batch_size": w.policy.batch_limit}
    w.warn(f"vLLM has a table by batch from {_TABLE_SINCE} on: {w.version} drafts {w.num_spec_tokens} tokens at every "
           f"batch.")  # fmt: skip
    return {}


def _remarks_on_table(w: Writer, method: str) -> None:
    if w.policy.kind == "off_above":
        w.warn("disable_by_batch_size, which older advice names for this, does nothing from vLLM 0.10 on.")
    if method not in _TABLE_METHODS:
        w.warn(f"vLLM's first model runner takes no table by batch for method {method}.")
    w.warn("Under a table vLLM's first model runner leaves full CUDA graphs for piecewise ones; its second keeps one "
           "for each k.")  # fmt: skip


def _graphs(w: Writer) -> None:
    """The largest captured step, named so that the engine takes what was simulated."""
    seqs, width = w.limits.max_num_seqs, 1 + w.num_spec_tokens
    w.admission = (
        f"At most {seqs:,} requests and {w.limits.max_num_batched_tokens:,} tokens a step; prompt and output together "
        f"up to {w.limits.max_model_len:,} tokens."
    )
    if not w.is_own:
        w.graphs = "Full CUDA graphs cover what vLLM takes by itself: 512 tokens a step, 1024 on data-centre Blackwell."
        return
    covered = w.question.side(w.policy).profile.captured_tokens_max
    if not covered:
        return
    flag = "--cuda-graph-sizes" if w.is_before(_GRAPHS_SINCE) else "--max-cudagraph-capture-size"
    if w.deployment.max_captured is not None or covered <= 2 * seqs * width:  # else vLLM takes that product by itself
        w.add(flag, covered)
    largest = covered // width
    w.graphs = f"Full CUDA graphs cover {covered:,} tokens a step, {largest:,} requests at k={w.num_spec_tokens}."
    if largest < seqs and w.num_spec_tokens:
        needed = -(-seqs * width // _CAPTURE_STEP) * _CAPTURE_STEP
        w.warn(f"{flag} {needed} would let full CUDA graphs cover all {seqs:,} requests that are "
               f"let in, for memory and start-up time; plan with --max-captured to see what it brings.")  # fmt: skip
