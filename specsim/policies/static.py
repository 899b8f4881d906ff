"""Always the same k.

Models: vLLM's num_speculative_tokens, SGLang's speculative_num_steps. k = 0 is speculation loaded but idle, which costs
what the profile says of loaded machinery. Leaves out: nothing. Numbers: the user's k.
"""

from __future__ import annotations

from specsim.policies.base import Policy
from specsim.policies.kind import PolicyKind

__all__ = ["KIND", "Static"]


class Static(Policy):
    """See the module."""

    constant = True

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        return self.num_spec_tokens


KIND = PolicyKind(
    name="static",
    summary="always `num_spec_tokens`",
    make=lambda spec, view: Static(spec.num_spec_tokens),
    label=lambda spec: f"k={spec.num_spec_tokens}",
    spelling="static:K",
    example="static:3",
    engines=("vllm", "sglang", "trtllm", "llamacpp"),
    rank=1,
)
