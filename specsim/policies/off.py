"""No speculation at all: no drafter in memory, none of its costs.

Models: an engine started without speculation. Leaves out: nothing. Numbers: none.
"""

from __future__ import annotations

from specsim.policies.kind import PolicyKind
from specsim.policies.static import Static

__all__ = ["KIND"]

KIND = PolicyKind(
    name="off",
    summary="no speculation, and its machinery not loaded",
    make=lambda spec, view: Static(0),
    label=lambda spec: "off",
    spelling="off",
    example="off",
    positional=(),
    uses=(),
    engines=("vllm", "sglang", "trtllm", "llamacpp"),
    rank=0,
)
