"""Ready flags for vLLM, and what the engine cannot do of what the plan says.

Facts: vLLM 0.33.0 sources (the dynamic table, its lookup key, graph ceilings, admission limits).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from specsim.config import PolicySpec
from specsim.planner.question import Question
from specsim.policies import kind_of

__all__ = ["vllm_config"]

DYNAMIC_METHODS = ("ngram", "eagle", "eagle3", "mtp", "draft_model")
_DTYPE = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"}


def vllm_config(question: Question, policy: PolicySpec, *, alternatives: Sequence[PolicySpec] = ()) -> dict[str, Any]:
    """Command line and speculative config that make vLLM follow `policy`, with warnings.

    `alternatives` are policies that would do as well; each adds its own speculative config and command.
    """
    deployment, limits = question.deployment, question.side(policy).limits
    version = deployment.engine_version
    arguments = ["vllm", "serve", question.names.get("target_repo") or deployment.target]
    if deployment.tp > 1:
        arguments += ["--tensor-parallel-size", str(deployment.tp)]
    if deployment.weight_dtype in ("fp8",):
        arguments += ["--quantization", "fp8"]
    if deployment.kv_dtype == "fp8":
        arguments += ["--kv-cache-dtype", "fp8"]
    arguments += [
        "--max-num-seqs", str(limits.max_num_seqs),
        "--max-num-batched-tokens", str(limits.max_num_batched_tokens),
        "--max-model-len", str(limits.max_model_len),
        "--gpu-memory-utilization", f"{deployment.gpu_memory_utilization:g}",
    ]  # fmt: skip
    if not deployment.enable_prefix_caching:
        arguments += ["--no-enable-prefix-caching"]
    if deployment.block_size_tokens != 16:
        arguments += ["--block-size", str(deployment.block_size_tokens)]
    warnings: list[str] = []
    if not version.startswith("0.33"):
        warnings.append(f"These flags were checked for vLLM 0.33.0; {version} may name or default some differently.")
    if deployment.weight_dtype in ("int8", "int4", "mxfp4", "nvfp4"):
        warnings.append(
            f"Weights in {deployment.weight_dtype} need a checkpoint that is stored so: name it in the command."
        )
    if deployment.kv_dtype not in ("bf16", "fp16", "fp8"):
        warnings.append(f"The command has no flag for a KV cache in {deployment.kv_dtype}; vLLM would use bf16.")
    if "target_repo" not in question.names:
        warnings.append(f"'{deployment.target}' is your name: put the repository or path of the checkpoint there.")
    speculative: dict[str, Any] | None = None
    if policy.kind != "off":
        speculative = {"method": question.speculation.method}
        if question.speculation.method not in ("ngram", "mtp"):
            draft = question.names.get("draft", "DRAFT")
            speculative["model"] = question.names.get("draft_repo", draft)
            if "draft_repo" not in question.names:
                warnings.append(f"'{draft}' is specsim's name: put the repository or path of your drafter there.")
        speculative["num_speculative_tokens"] = policy.num_spec_tokens
        kind = kind_of(policy.kind)
        if "vllm" not in kind.engines:
            warnings.append(f"vLLM cannot be told to follow '{policy.label}'; use a schedule instead.")
        speculative |= kind.vllm(policy, limits.max_num_seqs)
        warnings += kind.vllm_remarks
        arguments += ["--speculative-config", json.dumps(speculative, separators=(",", ":"))]
        arguments += ["--per-request-spec-decode-metrics", "summary"]
        covered = question.on.profile.captured_tokens_max
        if covered:
            largest = covered // (1 + policy.num_spec_tokens)
            if largest < limits.max_num_seqs:
                warnings.append(
                    f"Full CUDA graphs cover {covered} tokens, {largest} requests at k={policy.num_spec_tokens}; raise "
                    f"--max-cudagraph-capture-size if you run more at once."
                )
        if limits.max_num_batched_tokens < 8192:
            warnings.append("vLLM warns at start-up when speculation runs with fewer than 8192 batched tokens.")
    return {
        "engine": "vllm",
        "engine_version": version,
        "policy": policy.label,
        "command": shlex.join(arguments),
        "speculative_config": speculative,
        "warnings": warnings,
        "alternatives": [
            {key: other[key] for key in ("policy", "command", "speculative_config")}
            for other in (vllm_config(question, p) for p in alternatives)
        ],
    }
