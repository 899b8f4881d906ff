"""Flags of TensorRT-LLM.

Facts: documentation of its 1.3 and 1.4 release candidates. Keys of `draft_len_schedule` are upper bounds of the batch
there (PR 10860), 0 above the last, and it excludes `max_concurrency`; in the 1.2 line, of late 2025 (PR 8194), they are
lower bounds, 1 among them. The gate on acceptance is permanent; 1.3.0rc27 gave it other names.
"""

from __future__ import annotations

from typing import Any

from specsim.config import PolicySpec
from specsim.planner.flags.base import Flags, Role, Writer, batch_table, yaml_text
from specsim.planner.question import Question

__all__ = ["flags"]

_CHECKED = "1.3.0"
_FILE = "config.yml"
_SCHEDULE_SINCE, _UPPER_SINCE, _RATE_GATE_SINCE = "1.2.0rc0", "1.3.0rc0", "1.3.0rc27"
_OLD = ("Medusa", "Lookahead", "Eagle")
"""Decoding types of the older engine-build line, which takes no such file."""


def flags(question: Question, policy: PolicySpec, version: str | None = None, role: Role | None = None) -> Flags:
    """Command line and configuration file that make TensorRT-LLM follow `policy`; version None: the deployment's."""
    w = Writer("trtllm", _CHECKED, question, policy, version)
    file = _FILE if role is None else f"{role}-{_FILE}"
    deployment, limits = w.deployment, w.limits
    w.add("trtllm-serve", w.target)
    if deployment.tp > 1:
        w.add("--tp_size", deployment.tp)
    w.add("--max_batch_size", limits.max_num_seqs, "--max_num_tokens", limits.max_num_batched_tokens)
    w.add("--max_seq_len", limits.max_model_len, "--config", file)
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
    if role is not None:
        text["cache_transceiver_config"] = {"backend": "DEFAULT"}
        if role == "prefill":
            text["disable_overlap_scheduler"] = True
        w.warn("trtllm-serve disaggregated -c FILE joins the servers; FILE names them under context_servers and "
               "generation_servers.")  # fmt: skip
    w.files[file] = yaml_text(text)
    w.graphs = "CUDA graphs are looked up by exact batch and draft length: 1 to 32, 64 and 128 requests by default."
    policy_name = deployment.capacity_policy or "guaranteed_no_evict"
    w.admission = (
        f"At most {limits.max_num_seqs:,} requests and {limits.max_num_batched_tokens:,} tokens a step, prompt and "
        f"output together up to {limits.max_model_len:,} tokens; {policy_name.upper()}"
        + (": prompt and max_tokens are reserved at once, so clients that ask for too much cut the batch."
           if policy_name == "guaranteed_no_evict" else ": requests may be paused when blocks run out.")
    )  # fmt: skip
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
    _rule(w, found)
    given = w.question.speculation
    if given.draft_tp not in (None, w.deployment.tp):
        w.warn("TensorRT-LLM runs the drafter on the GPUs of the target.")
    if given.draft_weight_dtype is not None or given.draft_kv_dtype is not None:
        w.warn("Formats of the drafter follow its checkpoint and the target's cache; the file has no field for them.")
    return found


def _rule(w: Writer, found: dict[str, Any]) -> None:
    """Rules by batch and by acceptance, as this version has them."""
    table = batch_table(w.policy, w.limits.max_num_seqs)
    if w.policy.kind == "off_above":
        found["max_concurrency"] = w.policy.batch_limit
        w.warn("max_concurrency is read in the two-model design; it excludes draft_len_schedule.")
    elif table is not None:
        _schedule(w, found, table)
    elif w.policy.kind == "trt_gate":
        s = w.policy.settings
        if s.over == "steps":
            found |= {"acceptance_rate_window_size": s.window, "acceptance_rate_threshold": s.threshold}
            if w.is_before(_RATE_GATE_SINCE) and w.version != _CHECKED:
                w.warn(f"acceptance_rate_window_size came with {_RATE_GATE_SINCE}; {w.version} has acceptance_window, "
                       f"over completed requests, instead (trt_gate with over=requests).")  # fmt: skip
        else:
            found |= {"acceptance_window": s.window, "acceptance_length_threshold": s.threshold}
            w.warn("acceptance_window and acceptance_length_threshold are those of the 1.2 line.")
        w.warn("The gate is permanent: once it has switched speculation off, only a restart brings it back.")
    else:
        w.rule()


def _schedule(w: Writer, found: dict[str, Any], table: list[tuple[int, int, int]]) -> None:
    """Draft length by batch: by the last batch of a row, or by the first, as the version reads its keys."""
    if w.is_before(_SCHEDULE_SINCE):
        w.warn(f"draft_len_schedule came with the 1.2 line: {w.version} drafts {w.num_spec_tokens} tokens at every "
               f"batch.")  # fmt: skip
        return
    if w.is_before(_UPPER_SINCE):
        found["draft_len_schedule"] = {first: k for first, _, k in table}
        w.warn("Keys of draft_len_schedule are lower bounds of the batch in this version (two models), and upper "
               "bounds from 1.3 on: do not carry the file over.")  # fmt: skip
        return
    found["draft_len_schedule"] = {last: k for _, last, k in table if k}
    w.warn("Keys of draft_len_schedule are upper bounds from 1.3 on and were lower bounds in late 2025; nothing is "
           "drafted above the last.")  # fmt: skip
    if "rc" in w.version and not w.is_before(_UPPER_SINCE) and w.is_before("1.3.0"):
        w.warn("The meaning changed among the candidates of 1.3 (PR 10860): early ones may read lower bounds.")
    if any(k == 0 for _, _, k in table):
        w.warn("After a stretch without drafts, acceptance of requests that were running stays low, as the drafter's "
               "cache was not filled meanwhile (PR 16888).")  # fmt: skip
