"""Flags of the llama.cpp server.

Facts: documentation and merged changes of mid-2026. Slots bound the requests at once; drafting stops early below
`--spec-draft-p-min`; there is no rule by batch size. `--draft-max`, `--draft-min` and `--draft-p-min` were renamed in
April and removed by May 2026; before that a drafter was given by `--model-draft` alone, and each slot drafted by itself
(PR 22838).
"""

from __future__ import annotations

from typing import Any

from specsim.config import PolicySpec
from specsim.drafters import EngineName
from specsim.planner.flags.base import Flags, Role, Writer
from specsim.planner.question import Question

__all__ = ["flags"]

_CHECKED = "2026.6"
_RENAMED = "2026.5"
_CACHES = {"bf16": "bf16", "fp16": "f16", "fp8": "q8_0", "int8": "q8_0"}


def flags(question: Question, policy: PolicySpec, version: str | None = None, role: Role | None = None) -> Flags:
    """Command line that makes the llama.cpp server follow `policy`; version None: that of the deployment."""
    w = Writer("llamacpp", _CHECKED, question, policy, version)
    if role is not None:
        w.warn("llama.cpp does not serve prefill and decode apart: the command is that of a server that does both.")
    deployment, limits = w.deployment, w.limits
    slots = _slots(w)
    w.add("llama-server", "-m", w.target, "-np", slots)
    w.add("-c", limits.max_model_len * slots, "-b", limits.max_num_batched_tokens)
    w.admission = (
        f"{slots:,} slots of {limits.max_model_len:,} tokens each; a request longer than a slot is refused, the others "
        f"wait."
    )
    cache = _CACHES.get(deployment.kv_dtype)
    if cache is None:
        w.warn(f"The command has no flag for a KV cache in {deployment.kv_dtype}; llama.cpp would use f16.")
    elif cache != "f16":
        w.add("--cache-type-k", cache, "--cache-type-v", cache)
    if deployment.tp > 1:
        w.add("--split-mode", "row")
    w.warn("llama.cpp reads GGUF files: put those of target and drafter in the command, and look at --help, since "
           "flags of speculation were renamed in 2026.")  # fmt: skip
    speculative = _speculative(w)
    for name, value in (speculative or {}).items():
        w.add(name, value)
    return w.done(speculative)


def _slots(w: Writer) -> int:
    """As many as were planned, or as fit the cache where another engine, which shares it, was."""
    limits = w.limits
    fit = max(1, limits.num_kv_blocks * limits.block_size_tokens // limits.max_model_len)
    if w.is_own or fit >= limits.max_num_seqs:
        return limits.max_num_seqs
    w.warn(f"Each slot has room for a whole request: {limits.max_num_seqs:,} slots of {limits.max_model_len:,} tokens "
           f"do not fit the cache, {fit:,} do; plan with --engine llamacpp and a smaller --max-model-len.")  # fmt: skip
    return fit


def _speculative(w: Writer) -> dict[str, Any] | None:
    offered = w.offered()
    if offered is None:
        return None
    w.rule()
    if w.is_before(_RENAMED):
        return _old(w, offered)
    found: dict[str, Any] = {"--spec-type": offered.name}
    model = w.drafter(offered)
    if model is not None:
        found["--spec-draft-model"] = model
    found["--spec-draft-n-max"] = w.num_spec_tokens
    found["--spec-draft-p-min"] = 0
    if w.tree is not None:
        w.warn("llama.cpp verifies chains only, so that neither cost nor acceptance are those of this plan's tree.")
    w.warn("--draft-max, --draft-min and --draft-p-min, which older advice names, were removed in 2026.")
    return found


def _old(w: Writer, offered: EngineName) -> dict[str, Any] | None:
    """The names before they were changed, which are known for draft models only."""
    if offered.name != "draft-simple":
        w.warn(f"What {w.version} calls {offered.name}, and whether it has it, is not known: the command leaves "
               f"speculation out.")  # fmt: skip
        return None
    w.warn("Before mid-2026 llama.cpp drafted for one slot after the other: a second slot often halved throughput.")
    return {"--model-draft": w.drafter(offered), "--draft-max": w.num_spec_tokens, "--draft-min": 0, "--draft-p-min": 0}
