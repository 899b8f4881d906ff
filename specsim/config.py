"""What is to be simulated, as frozen records: deployment, limits of a replica, policy, service objective.

Users write `Deployment`, `Speculation` and `Slo` (through flags or a scenario file). They are resolved into
`ReplicaLimits` and a `LatencyProfile`, which is all that the simulator sees.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from specsim.checks import positive as _positive
from specsim.checks import whole as _whole
from specsim.errors import ScenarioError
from specsim.policies.spec import PolicySpec

__all__ = [
    "METHODS",
    "Deployment",
    "Method",
    "PolicySpec",
    "ReplicaLimits",
    "RouterName",
    "Slo",
    "Speculation",
]

Method = Literal["draft_model", "eagle", "eagle3", "mtp", "ngram"]
METHODS: tuple[Method, ...] = ("draft_model", "eagle", "eagle3", "mtp", "ngram")
RouterName = Literal["round_robin", "least_outstanding"]


@dataclass(frozen=True, slots=True)
class Deployment:
    """Hardware, model and engine of the fleet; None means the engine's own default for that GPU."""

    target: str = "llama-3.1-8b"
    """Catalogue name, or path of a Hugging Face config.json."""
    gpu: str = "h100-sxm"
    """GPU of the catalogue, by any spelling (`specsim hardware list`)."""
    tp: int = 1
    """Tensor parallelism: GPUs that share one replica."""
    replicas: int = 1
    """Copies of the engine behind the router, each with its own cache."""
    router: RouterName = "least_outstanding"
    """How an arrival picks its replica: in turn, or the one with fewest tokens outstanding."""
    weight_dtype: str | None = None
    """None: as the checkpoint stores it."""
    kv_dtype: str = "bf16"
    """Number format of the KV cache: bf16, fp16, fp8 or int8."""
    engine: str = "vllm"
    """Engine whose scheduling and defaults are followed; vllm is the only one."""
    engine_version: str = "0.33.0"
    """Version of the engine for which flags are written."""
    gpu_memory_utilization: float = 0.9
    """Share of the GPU's memory that the engine may take, in (0, 1]."""
    max_num_seqs: int | None = None
    """Most requests in one step; None: the engine's default for the GPU."""
    max_num_batched_tokens: int | None = None
    """Token budget of one step, prefills and drafts included; None: the engine's default for the GPU."""
    max_model_len: int | None = None
    """Longest prompt plus output, in tokens; None: the model's own, if the cache holds it."""
    block_size_tokens: int = 16
    """Tokens that one block of the KV cache holds."""
    enable_prefix_caching: bool = True
    """Whether prompts share cached prefixes, where the trace has prefix hashes."""

    def __post_init__(self) -> None:
        for name, high in (("tp", 1024), ("replicas", 4096), ("block_size_tokens", 4096)):
            _whole(f"deployment.{name}", getattr(self, name), 1, high)
        for name, high in (("max_num_seqs", 65536), ("max_num_batched_tokens", 2**24), ("max_model_len", 2**31)):
            if getattr(self, name) is not None:
                _whole(f"deployment.{name}", getattr(self, name), 1, high)
        if self.engine != "vllm":
            raise ScenarioError(f"deployment.engine '{self.engine}' is not modelled; the only one is vllm")
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}[a-z0-9.+-]{0,20}", self.engine_version):
            raise ScenarioError(
                f"deployment.engine_version {self.engine_version!r} is not a version such as 0.33.0; correct it"
            )
        _positive("deployment.gpu_memory_utilization", self.gpu_memory_utilization)
        if self.gpu_memory_utilization > 1:
            raise ScenarioError(f"deployment.gpu_memory_utilization must be <= 1, got {self.gpu_memory_utilization!r}")
        if self.router not in ("round_robin", "least_outstanding"):
            raise ScenarioError(f"deployment.router '{self.router}' is not round_robin or least_outstanding")


@dataclass(frozen=True, slots=True)
class Speculation:
    """Drafting method and what is known of its acceptance."""

    method: Method = "eagle"
    """How drafts are made: by a small model, an EAGLE-type head, the target's MTP layer, or n-gram lookup."""
    draft: str | None = None
    """Catalogue name or config.json of the drafter; None: the usual one for the target and method."""
    num_spec_tokens: tuple[int, ...] = (1, 2, 3, 5)
    """Values of k that the planner tries."""
    task: str | None = None
    """Content class that picks the acceptance default; None: the catalogue's default for the method."""
    acceptance: tuple[float, ...] | None = None
    """Conditional acceptance by draft position, given by the user."""
    acceptance_length: float | None = None
    """Mean acceptance length (bonus included) at `acceptance_length_k` draft tokens, given by the user."""
    acceptance_length_k: int | None = None
    """Draft tokens a round at which `acceptance_length` was measured; None: `num_spec_tokens`, if it is one number."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ScenarioError(f"speculation.method '{self.method}' is not one of {', '.join(METHODS)}")
        if not self.num_spec_tokens:
            raise ScenarioError("speculation.num_spec_tokens is empty; give at least one k, e.g. [3]")
        for k in self.num_spec_tokens:
            _whole("speculation.num_spec_tokens", k, 1)
            if k > 64:
                raise ScenarioError(f"speculation.num_spec_tokens must be <= 64, got {k}")
        for a in self.acceptance or ():
            if not (isinstance(a, int | float) and math.isfinite(a) and 0 <= a <= 1):
                raise ScenarioError(f"speculation.acceptance must lie in 0..1, got {a!r}")
        if self.acceptance is not None and not self.acceptance:
            raise ScenarioError("speculation.acceptance is empty; give at least one probability")
        if self.acceptance is not None and self.acceptance_length is not None:
            raise ScenarioError("speculation.acceptance and speculation.acceptance_length exclude each other; give one")
        if self.acceptance_length_k is not None:
            _whole("speculation.acceptance_length_k", self.acceptance_length_k, 1, 64)
            if self.acceptance_length is None:
                raise ScenarioError(
                    "speculation.acceptance_length_k says at which k acceptance_length was measured; give that too"
                )
        if self.task is not None and (self.acceptance is not None or self.acceptance_length is not None):
            raise ScenarioError(
                "speculation.task picks a published acceptance, which your own replaces; give one of the two"
            )
        if self.acceptance_length is not None:
            _positive("speculation.acceptance_length", self.acceptance_length)
            if self.acceptance_length < 1:
                raise ScenarioError(
                    f"speculation.acceptance_length counts the bonus token, so it is at least 1, got "
                    f"{self.acceptance_length!r}"
                )


@dataclass(frozen=True, slots=True)
class Slo:
    """Service objective of a request; None: not asked for."""

    ttft_s: float | None = 1.0
    """Most time to the first token; None: any."""
    tpot_s: float | None = 0.05
    """Most mean time per output token after the first; None: any."""
    share: float = 0.95
    """Share of requests that must meet both."""

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            if getattr(self, name) is not None:
                _positive(f"slo.{name}", getattr(self, name))
        _positive("slo.share", self.share)
        if self.share > 1:
            raise ScenarioError(f"slo.share must be <= 1, got {self.share!r}")


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """Everything that bounds the batch of one replica, after weights, drafter and reserve have left memory."""

    num_kv_blocks: int
    block_size_tokens: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131072
    fixed_blocks_per_request: int = 0
    """Blocks a request holds whatever its length (sliding-window layers)."""
    lookahead_drafts: bool = True
    """Whether the drafter writes its own KV ahead, so that k more slots are reserved (False for lookup methods)."""
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in (
            "num_kv_blocks",
            "block_size_tokens",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
        ):
            _whole(f"limits.{name}", getattr(self, name), 1)
        _whole("limits.fixed_blocks_per_request", self.fixed_blocks_per_request, 0)
