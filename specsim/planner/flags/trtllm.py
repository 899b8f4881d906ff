"""Flags of TensorRT-LLM.

Facts: documentation of its 1.3 and 1.4 release candidates. Keys of `draft_len_schedule` are upper bounds of the batch
there (lower bounds in late 2025), 0 above the last, and it excludes `max_concurrency`; the gate on acceptance is
permanent.
"""

from __future__ import annotations

from typing import Any

from specsim.config import PolicySpec
from specsim.planner.flags.base import Flags, Writer, batch_table, yaml_text
from specsim.planner.question import Question

__all__ = ["flags"]

_CHECKED = "1.3.0"
_FILE = "config.yml"
_OLD = ("Medusa", "Lookahead", "Eagle")
"""Decoding types of the older engine-build line, which takes no such file."""


def flags(question: Question, policy: PolicySpec) -> Flags:
    """Command line and configuration file that make TensorRT-LLM follow `policy`."""
    w = Writer("trtllm", _CHECKED, question, policy)
    deployment, limits = w.deployment, w.limits
    w.add("trtllm-serve", w.target)
    if deployment.tp > 1:
        w.add("--tp_size", deployment.tp)
    w.add("--max_batch_size", limits.max_num_seqs, "--max_num_tokens", limits.max_num_batched_tokens)
    w.add("--max_seq_len", limits.max_model_len, "--config", _FILE)
    speculative = _speculative(w)
    cache: dict[str, Any] = {"enable_block_reuse": limits.enable_prefix_caching}
    if deployment.kv_dtype in ("fp8", "nvfp4"):
        cache["dtype"] = deployment.kv_dtype
    text: dict[str, Any] = {"kv_cache_config": cache}
    if deployment.chunked_prefill:
        text["enable_chunked_prefill"] = True
    if deployment.capacity_policy is not None:
        text["scheduler_config"] = {"capacity_scheduler_policy": deployment.capacity_policy.upper()}
    if speculative is not None:
        text["speculative_config"] = speculative
    w.files[_FILE] = yaml_text(text)
    return w.done(speculative)


def _speculative(w: Writer) -> dict[str, Any] | None:
    offered = w.offered()
    if offered is None:
        return None
    k = w.num_spec_tokens
    found: dict[str, Any] = {"decoding_type": offered.name}
    model = w.drafter(offered)
    if model is not None:
        found["speculative_model"] = model
    found["max_draft_len"] = k
    if w.tree is not None and offered.name not in _OLD:
        nodes, topk = w.tree
        found |= {"use_dynamic_tree": True, "dynamic_tree_max_topK": topk, "max_total_draft_tokens": nodes}
        w.warn("TensorRT-LLM takes dynamic trees for EAGLE-3 and single-layer MTP, not for sliding-window or latent "
               "attention.")  # fmt: skip
    table = batch_table(w.policy, w.limits.max_num_seqs)
    if w.policy.kind == "off_above":
        found["max_concurrency"] = w.policy.batch_limit
        w.warn("max_concurrency is read in the two-model design; it excludes draft_len_schedule.")
    elif table is not None:
        found["draft_len_schedule"] = {last: k for _, last, k in table if k}
        w.warn("Keys of draft_len_schedule are upper bounds from 1.3 on and were lower bounds in late 2025; nothing is "
               "drafted above the last.")  # fmt: skip
    elif w.policy.kind == "trt_gate":
        s = w.policy.settings
        if s.over == "steps":
            found |= {"acceptance_rate_window_size": s.window, "acceptance_rate_threshold": s.threshold}
        else:
            found |= {"acceptance_window": s.window, "acceptance_length_threshold": s.threshold}
            w.warn("acceptance_window and acceptance_length_threshold are those of the 1.2 line.")
    else:
        w.rule()
    given = w.question.speculation
    if given.draft_tp not in (None, w.deployment.tp):
        w.warn("TensorRT-LLM runs the drafter on the GPUs of the target.")
    if given.draft_weight_dtype is not None or given.draft_kv_dtype is not None:
        w.warn("Formats of the drafter follow its checkpoint and the target's cache; the file has no field for them.")
    return found
