"""Flags of the llama.cpp server.

Facts: documentation and merged changes of mid-2026. Slots bound the requests at once; drafting stops early below
`--spec-draft-p-min`; there is no rule by batch size, and older flags were removed.
"""

from __future__ import annotations

from typing import Any

from specsim.config import PolicySpec
from specsim.planner.flags.base import Flags, Writer
from specsim.planner.question import Question

__all__ = ["flags"]

_CHECKED = "2026.6"
_CACHES = {"bf16": "bf16", "fp16": "f16", "fp8": "q8_0", "int8": "q8_0"}


def flags(question: Question, policy: PolicySpec) -> Flags:
    """Command line that makes the llama.cpp server follow `policy`."""
    w = Writer("llamacpp", _CHECKED, question, policy)
    deployment, limits = w.deployment, w.limits
    w.add("llama-server", "-m", w.target, "-np", limits.max_num_seqs)
    w.add("-c", limits.max_model_len * limits.max_num_seqs, "-b", limits.max_num_batched_tokens)
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


def _speculative(w: Writer) -> dict[str, Any] | None:
    offered = w.offered()
    if offered is None:
        return None
    found: dict[str, Any] = {"--spec-type": offered.name}
    model = w.drafter(offered)
    if model is not None:
        found["--spec-draft-model"] = model
    found["--spec-draft-n-max"] = w.num_spec_tokens
    found["--spec-draft-p-min"] = 0
    if w.tree is not None:
        w.warn("llama.cpp verifies chains only, so that neither cost nor acceptance are those of this plan's tree.")
    w.rule()
    return found
