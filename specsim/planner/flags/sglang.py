"""Flags of SGLang.

Facts: SGLang 0.5.23 sources. Its draft tokens count the token that a round starts from; topk 1 is a chain; admission is
48 requests with speculation unless told otherwise; `--speculative-adaptive` (PR 21599, spring 2026) is the only rule by
batch and acceptance.
"""

from __future__ import annotations

import json
from typing import Any

from specsim.config import PolicySpec
from specsim.planner.flags.base import Flags, Role, Writer
from specsim.planner.question import Question

__all__ = ["flags"]

_CHECKED = "0.5.23"
_STEPS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
"""Algorithms that draft in steps; the others take a number of draft tokens only."""
_ADAPTIVE = ("EAGLE", "EAGLE3")
_FILE = "adaptive.json"
_DEFAULT_SEATS = 48


def flags(question: Question, policy: PolicySpec, version: str | None = None, role: Role | None = None) -> Flags:
    """Command line that makes SGLang follow `policy`; version None: that of the deployment, or the one read."""
    w = Writer("sglang", _CHECKED, question, policy, version)
    deployment, limits = w.deployment, w.limits
    w.add("python", "-m", "sglang.launch_server", "--model-path", w.target)
    if deployment.tp > 1:
        w.add("--tp", deployment.tp)
    if deployment.weight_dtype == "fp8":
        w.add("--quantization", "fp8")
    if deployment.kv_dtype == "fp8":
        w.add("--kv-cache-dtype", "fp8_e4m3")
    elif deployment.kv_dtype not in ("bf16", "fp16"):
        w.warn(f"The command has no flag for a KV cache in {deployment.kv_dtype}; SGLang would use that of the model.")
    w.add("--max-running-requests", limits.max_num_seqs)
    captured = (deployment.max_captured if w.is_own else None) or limits.max_num_seqs
    w.add("--cuda-graph-max-bs", captured)
    w.graphs = f"CUDA graphs cover batches up to {captured:,} requests; beyond that decoding is eager."
    w.admission = (
        f"At most {limits.max_num_seqs:,} requests at once; without --max-running-requests SGLang lets "
        f"{_DEFAULT_SEATS} in with speculation, thousands without. The figure is shared by all data-parallel workers "
        f"of a server."
    )
    w.add("--chunked-prefill-size", limits.max_num_batched_tokens, "--context-length", limits.max_model_len)
    if role is not None:
        w.add("--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl")
        w.warn("A router joins the servers: python -m sglang_router.launch_router --pd-disaggregation, with --prefill "
               "and --decode for each.")  # fmt: skip
    if not limits.enable_prefix_caching:
        w.add("--disable-radix-cache")
    w.warn("Memory is left to SGLang (--mem-fraction-static); the cache of this plan is that of vLLM's rule.")
    return w.done(_speculative(w))


def _speculative(w: Writer) -> dict[str, Any] | None:
    offered = w.offered()
    if offered is None:
        return None
    k = w.num_spec_tokens
    verified = w.question.verified_drafts(k)
    found: dict[str, Any] = {"speculative_algorithm": offered.name}
    model = w.drafter(offered)
    if model is not None:
        found["speculative_draft_model_path"] = model
    if offered.name in _STEPS:
        found["speculative_num_steps"] = k
        found["speculative_eagle_topk"] = 1 if w.tree is None else w.tree[1]
        if w.tree is not None and w.question.speculation.static_levels:
            w.warn("SGLang grows its trees by confidence: a static tree becomes one of the same number of drafts.")
    found["speculative_num_draft_tokens"] = verified + 1
    if offered.name in ("DFLASH", "DSPARK"):
        w.warn("The block size of the checkpoint decides how many tokens are drafted.")
    if w.question.speculation.draft_tp not in (None, w.deployment.tp):
        w.warn("SGLang runs the drafter on the GPUs of the target.")
    if w.question.speculation.draft_weight_dtype is not None:
        found["speculative_draft_model_quantization"] = w.question.speculation.draft_weight_dtype
    if w.question.speculation.draft_kv_dtype not in (None, w.deployment.kv_dtype):
        w.warn("SGLang keeps the drafter's cache in the format of the target's.")
    for name, value in found.items():
        w.add(f"--{name.replace('_', '-')}", value)
    if w.policy.kind == "ema" and offered.name in _ADAPTIVE and w.tree is None:
        w.add("--speculative-adaptive", "--speculative-adaptive-config", _FILE)
        w.warn("SGLang's adaptive steps need topk 1 and neither attention data parallelism, two-batch overlap nor "
               "multi-layer EAGLE; otherwise it keeps the static number.")  # fmt: skip
        w.files[_FILE] = _adaptive(w.policy.settings)
    elif w.policy.kind == "ema":
        w.warn("SGLang adapts the number of steps for EAGLE and EAGLE3 chains only.")
    else:
        w.rule()
    return found


def _adaptive(settings: Any) -> str:
    def row(values: tuple[float, ...], at: int) -> float:
        return values[min(at, len(values) - 1)]

    table = {
        str(batch): {
            "candidate_steps": list(candidates),
            "up_hysteresis": row(settings.up_hysteresis, at),
            "down_hysteresis": row(settings.down_hysteresis, at),
            "ceiling_coeff": row(settings.ceiling_coeff, at),
            "ema_alpha": settings.ema_alpha,
            "update_interval": settings.update_interval,
            "warmup_batches": settings.warmup_batches,
        }
        for at, (batch, candidates) in enumerate(settings.candidates)
    }
    return json.dumps(table, indent=2) + "\n"
