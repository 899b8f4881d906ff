"""What is to be simulated, as frozen records: deployment, limits of a replica, policy, service objective.

Users write `Deployment`, `Speculation` and `Slo` (through flags or a scenario file). They are resolved into
`ReplicaLimits` and a `LatencyProfile`, which is all that the simulator sees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from specsim.checks import number as _number
from specsim.checks import positive as _positive
from specsim.checks import whole as _whole
from specsim.disciplines import VLLM, Discipline
from specsim.drafters import Drafter, drafter
from specsim.errors import ScenarioError, nearest
from specsim.policies.spec import PolicySpec
from specsim.serving import ENGINES, Serving
from specsim.trees import full_levels, verified_tokens
from specsim.type_checks import check_types

__all__ = [
    "AcceptanceKind",
    "Deployment",
    "DraftSampling",
    "PolicySpec",
    "ReplicaLimits",
    "RouterName",
    "Slo",
    "Speculation",
]

RouterName = Literal["round_robin", "least_outstanding", "prefix_affinity"]
AcceptanceKind = Literal["replay", "mixture", "vector", "constant"]
DraftSampling = Literal["greedy", "probabilistic"]
_FIGURES = ("acceptance", "acceptance_length", "acceptance_file")


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
    prefill_replicas: int | None = None
    """Replicas that only compute prompts, with `decode_replicas` and instead of `replicas`; None: all do both."""
    decode_replicas: int | None = None
    """Replicas that only decode what `prefill_replicas` hand over, each with the GPUs and dtypes of a replica."""
    kv_link_gb_per_s: float | None = None
    """GB/s of one direction of the link by which a GPU of a prefill replica sends its share of a prompt's cache, as
    reached; None: 0.6 of 400 Gbit/s, or of the GPU's own link where that is slower."""
    kv_link_latency_s: float | None = None
    """Seconds before the bytes of a cache begin to flow; None: 1 ms."""
    router: RouterName = "least_outstanding"
    """How an arrival picks its replica: in turn, by fewest prompt tokens outstanding, or by its prefix."""
    weight_dtype: str | None = None
    """None: as the checkpoint stores it."""
    kv_dtype: str = "bf16"
    """Number format of the KV cache: bf16, fp16, fp8, int8 or nvfp4 (4 bits and a scale for each 16)."""
    engine: str = "vllm"
    """Engine whose scheduling and defaults are followed: vllm, sglang, trtllm, llamacpp, or static batching."""
    engine_version: str | None = None
    """Version of the engine, which decides some costs and for which flags are written; None: the one that was read."""
    capacity_policy: str | None = None
    """Of trtllm: guaranteed_no_evict or max_utilization; None: the first."""
    chunked_prefill: bool | None = None
    """Whether prompts may be computed in chunks; None: the engine's default."""
    async_scheduling: bool = False
    """Of vllm: the next step is scheduled while this one runs, so that a finished request is in one step more."""
    asked_output_tokens: int | None = None
    """max_tokens that clients ask for where it is more than what they get; None: just that."""
    max_captured: int | None = None
    """Largest captured graph, in tokens for vllm, in requests for sglang and trtllm; None: the engine's default."""
    gpu_memory_utilization: float = 0.9
    """Share of the GPU's memory that the engine may take, in (0, 1]."""
    max_num_seqs: int | None = None
    """Most requests in one step; None: the engine's default for the GPU."""
    max_num_batched_tokens: int | None = None
    """Token budget of one step, prefills and drafts included; None: the engine's default for the GPU."""
    max_model_len: int | None = None
    """Longest prompt plus output, in tokens; None: the model's own, if the cache holds it."""
    block_size_tokens: int | None = None
    """Tokens that one block of the KV cache holds; None: the engine's default."""
    enable_prefix_caching: bool | None = None
    """Whether prompts share cached prefixes, where the trace has prefix hashes; None: where the engine can."""
    profile: str | None = None
    """Latency profile with the step times: a file (a relative path starts at the scenario's folder) or the name of a
    shipped one (`specsim profile list`); None: analytic, from datasheets."""

    def __post_init__(self) -> None:
        check_types(self, "deployment")
        for name, high in (("tp", 1024), ("replicas", 4096)):
            _whole(f"deployment.{name}", getattr(self, name), 1, high)
        for name, high in (
            ("max_num_seqs", 65536),
            ("max_num_batched_tokens", 2**24),
            ("max_model_len", 2**31),
            ("block_size_tokens", 4096),
            ("asked_output_tokens", 2**31),
            ("max_captured", 65536),
        ):
            if getattr(self, name) is not None:
                _whole(f"deployment.{name}", getattr(self, name), 1, high)
        self._check_engine()
        self._check_pools()
        _positive("deployment.gpu_memory_utilization", self.gpu_memory_utilization)
        if self.gpu_memory_utilization > 1:
            raise ScenarioError(f"deployment.gpu_memory_utilization must be <= 1, got {self.gpu_memory_utilization!r}")

    def _check_engine(self) -> None:
        """Refuse what the engine does not have."""
        if self.engine not in ENGINES:
            raise ScenarioError(
                f"deployment.engine '{self.engine}' is not modelled{nearest(self.engine, ENGINES)}; one of "
                f"{', '.join(ENGINES)}"
            )
        version = self.engine_version
        if version is not None and not re.fullmatch(r"b?[0-9]{1,6}(\.[0-9]{1,4}){0,2}[a-z0-9.+-]{0,20}", version):
            raise ScenarioError(f"deployment.engine_version {version!r} is not a version such as 0.33.0; correct it")
        policies = self.serving.capacity_policies
        if self.capacity_policy is not None and self.capacity_policy not in policies:
            raise ScenarioError(
                f"deployment.capacity_policy '{self.capacity_policy}' is not one of {', '.join(policies)}"
                if policies
                else f"deployment.capacity_policy is for trtllm; {self.engine} has none, leave it out"
            )
        if self.async_scheduling and self.engine != "vllm":
            raise ScenarioError(
                f"deployment.async_scheduling is a choice of vllm; {self.engine} runs as it always does"
            )
        if self.chunked_prefill and self.serving.discipline.order == "batch":
            raise ScenarioError("deployment.chunked_prefill makes no sense with static batching; leave it out")
        if self.enable_prefix_caching and not self.serving.discipline.prefix_caching:
            raise ScenarioError(f"deployment.enable_prefix_caching is not modelled for {self.engine}; leave it out")
        if self.max_captured is not None and self.engine in ("llamacpp", "static"):
            raise ScenarioError(f"deployment.max_captured: no graphs are modelled for {self.engine}; leave it out")

    def _check_pools(self) -> None:
        """Refuse half a split, and a link between no pools."""
        pools = ("prefill_replicas", "decode_replicas")
        given = [name for name in pools if getattr(self, name) is not None]
        for name in given:
            _whole(f"deployment.{name}", getattr(self, name), 1, 4096)
        if len(given) == 1:
            missing = next(name for name in pools if name not in given)
            raise ScenarioError(f"deployment.{given[0]} needs deployment.{missing} beside it; give both or neither")
        for name, low, high in (("kv_link_gb_per_s", 1e-3, 1e6), ("kv_link_latency_s", 0.0, 60.0)):
            if getattr(self, name) is not None:
                _number(f"deployment.{name}", getattr(self, name), low, high)
                if not given:
                    raise ScenarioError(
                        f"deployment.{name} is of the link between prefill and decode replicas, and there are none; "
                        f"give prefill_replicas and decode_replicas, or leave it out"
                    )
        if given and self.replicas != 1:
            raise ScenarioError(
                f"deployment.replicas {self.replicas} compute prompts and decode, prefill_replicas and decode_replicas "
                f"do one each; give the one or the others"
            )
        rules = self.serving.discipline
        if given and (rules.order == "batch" or rules.reserve == "slot"):
            raise ScenarioError(
                f"deployment.prefill_replicas: {self.engine} does not serve prefill and decode apart; choose vllm, "
                f"sglang or trtllm"
            )

    @property
    def is_disaggregated(self) -> bool:
        """Whether prompts are computed on replicas of their own."""
        return self.prefill_replicas is not None

    @property
    def decoding_replicas(self) -> int:
        """Replicas that decode."""
        return self.replicas if self.decode_replicas is None else self.decode_replicas

    @property
    def all_replicas(self) -> int:
        """Replicas of either kind."""
        return self.decoding_replicas + (self.prefill_replicas or 0)

    @property
    def serving(self) -> Serving:
        """Facts of the engine."""
        return ENGINES[self.engine]

    @property
    def version(self) -> str:
        """The engine's version, as given or as read."""
        return self.serving.version if self.engine_version is None else self.engine_version


@dataclass(frozen=True, slots=True)
class Speculation:
    """Drafting method, how it runs, and what is known of its acceptance."""

    method: str = "eagle"
    """How drafts are made: a drafter by its name or as people write it (`specsim drafters list`)."""
    draft: str | None = None
    """Catalogue name or config.json of the drafter; None: the usual one for the target and method."""
    num_spec_tokens: tuple[int, ...] = (1, 2, 3, 5)
    """Values of k that the planner tries: drafts of a chain, or levels of a tree."""
    task: str | None = None
    """Content class that picks the acceptance default; None: the catalogue's default for the method."""
    acceptance: tuple[float, ...] | None = None
    """Conditional acceptance by draft position (by level of a tree, where one is given), given by the user."""
    acceptance_length: float | None = None
    """Mean acceptance length (bonus included) at `acceptance_length_k` draft tokens, given by the user."""
    acceptance_length_k: int | None = None
    """Draft tokens a round (levels of a tree) at which `acceptance_length` was measured; None: `num_spec_tokens`, if it
    is one number."""
    acceptance_file: str | None = None
    """Measured requests (JSON lines) whose acceptance is taken; a relative path starts at the scenario's folder."""
    acceptance_drafter: str | None = None
    """Drafter of that file; None: the one named like the method."""
    acceptance_model: AcceptanceKind | None = None
    """How measured or published figures are used: replay or mixture (spread and memory), vector, constant. None: a
    file is replayed, and published figures keep what spread and memory is known of them."""
    temperature: float | None = None
    """Sampling temperature of the requests, for which published acceptance (greedy) is lowered, and against which that
    of `acceptance_file` is held; None: as published or measured."""
    draft_sampling: DraftSampling | None = None
    """How drafts are drawn at a temperature: greedy (the engine's default), or probabilistic."""
    tree_nodes: int | None = None
    """Drafts verified a round as a tree, the sampled token left out; None: the method's usual tree, or a chain."""
    topk: int | None = None
    """Most children of a node of such a tree, grown where acceptance is likely; 1 is a chain. None: the method's usual,
    or 4."""
    tree_levels: tuple[int, ...] = ()
    """Nodes by level of a static tree instead; its depth is their number, and `num_spec_tokens` must not exceed it."""
    tree_branching: tuple[int, ...] = ()
    """Candidates behind each node, by level, of a full static tree instead: 4, 2, 1 has 4, 8 and 8 nodes."""
    draft_tp: int | None = None
    """GPUs that share the drafter; None: as the target."""
    draft_weight_dtype: str | None = None
    """Number format of the drafter's weights; None: as its checkpoint stores them."""
    draft_kv_dtype: str | None = None
    """Number format of the drafter's cache; None: as the target's."""
    options: Mapping[str, int] = field(default_factory=dict)
    """Whole numbers that only some drafters have, such as window and guesses of lookahead, layers of layer_skip."""

    def __post_init__(self) -> None:
        check_types(self, "speculation")
        try:
            object.__setattr__(self, "method", drafter(self.method).name)
        except ScenarioError as error:
            raise ScenarioError(f"speculation.{error}") from None
        if not self.num_spec_tokens:
            raise ScenarioError("speculation.num_spec_tokens is empty; give at least one k, e.g. [3]")
        for k in self.num_spec_tokens:
            _whole("speculation.num_spec_tokens", k, 1)
            if k > 64:
                raise ScenarioError(f"speculation.num_spec_tokens must be <= 64, got {k}")
            if self.num_spec_tokens.count(k) > 1:
                raise ScenarioError(f"speculation.num_spec_tokens has {k} twice; give each value once")
        self._check_figures()
        self._check_use()
        self._check_tree()
        self._check_draft()

    @property
    def gives_acceptance(self) -> bool:
        """Whether the user gives figures or measured requests, so that nothing published is needed."""
        return not self.acceptance is self.acceptance_length is self.acceptance_file is None

    @property
    def drafter(self) -> Drafter:
        """The drafter that `method` names."""
        return drafter(self.method)

    @property
    def has_tree(self) -> bool:
        """Whether drafts form a tree: a given one, or the method's usual one."""
        if self.topk == 1:
            return False
        given = self.tree_nodes is not None or bool(self.static_levels)
        return given or self.drafter.usual_tree is not None

    @property
    def static_levels(self) -> tuple[int, ...]:
        """Nodes by level of a static tree, whichever way it is given; empty: there is none."""
        return self.tree_levels or full_levels(self.tree_branching)

    def _check_figures(self) -> None:
        for a in self.acceptance or ():
            if not 0 <= a <= 1:
                raise ScenarioError(f"speculation.acceptance must lie in 0..1, got {a!r}")
        if self.acceptance is not None and not self.acceptance:
            raise ScenarioError("speculation.acceptance is empty; give at least one probability")
        given = [name for name in _FIGURES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ScenarioError(f"speculation.{given[0]} and speculation.{given[1]} exclude each other; give one")
        if self.acceptance_length_k is not None:
            _whole("speculation.acceptance_length_k", self.acceptance_length_k, 1, 64)
            if self.acceptance_length is None:
                raise ScenarioError(
                    "speculation.acceptance_length_k says at which k acceptance_length was measured; give that too"
                )
        if self.acceptance_length is not None:
            _positive("speculation.acceptance_length", self.acceptance_length)
            if self.acceptance_length < 1:
                raise ScenarioError(
                    f"speculation.acceptance_length counts the bonus token, so it is at least 1, got "
                    f"{self.acceptance_length!r}"
                )

    def _check_use(self) -> None:
        """How figures are used, and what does nothing beside figures of the user's own."""
        figures = next((name for name in _FIGURES[:2] if getattr(self, name) is not None), None)
        for name in ("acceptance_file", "acceptance_drafter"):
            if getattr(self, name) == "":
                raise ScenarioError(f"speculation.{name} is empty; give one, or leave it out")
        if self.acceptance_drafter is not None and self.acceptance_file is None:
            raise ScenarioError("speculation.acceptance_drafter names a drafter of acceptance_file; give that too")
        if self.acceptance_model == "replay" and self.acceptance_file is None:
            raise ScenarioError("speculation.acceptance_model replay needs measured requests; give acceptance_file")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ScenarioError(f"speculation.temperature must lie in 0..2, got {self.temperature!r}")
        if self.draft_sampling is not None and self.temperature is None:
            raise ScenarioError(
                "speculation.draft_sampling matters at a sampling temperature only; give temperature too"
            )
        if figures is not None and self.task is not None:
            raise ScenarioError(
                "speculation.task picks a published acceptance, which your own replaces; give one of the two"
            )
        if figures is not None and self.acceptance_model is not None:
            raise ScenarioError(
                f"speculation.acceptance_model says how measured or published figures are used, and {figures} is "
                f"yours; leave it out"
            )
        if figures is not None and self.temperature is not None:
            raise ScenarioError(
                "speculation.temperature lowers published acceptance, and your own is taken as measured at your "
                "temperature; leave it out"
            )

    def _check_tree(self) -> None:
        deepest = max(self.num_spec_tokens)
        static = "tree_levels" if self.tree_levels else "tree_branching" if self.tree_branching else ""
        if (self.tree_nodes is not None or self.topk is not None or static) and not self.drafter.trees:
            raise ScenarioError(f"speculation: method {self.method} does not verify trees; leave out tree_nodes, topk "
                                f"and {static or 'tree_levels'}")  # fmt: skip
        if static and (self.tree_nodes is not None or self.topk is not None):
            raise ScenarioError(f"speculation.{static} is a static tree, tree_nodes and topk a grown one; give one")
        if self.tree_levels and self.tree_branching:
            raise ScenarioError("speculation.tree_levels and tree_branching are two static trees; give one")
        if self.tree_nodes is not None:
            _whole("speculation.tree_nodes", self.tree_nodes, 1, 1024)
            if self.tree_nodes < deepest:
                raise ScenarioError(
                    f"speculation.tree_nodes {self.tree_nodes} are fewer than the depth k={deepest}; give all drafts "
                    f"that are verified in a round"
                )
        if self.topk is not None:
            _whole("speculation.topk", self.topk, 1, 64)
            if self.topk > 1 and self.tree_nodes is None and self.drafter.usual_tree is None:
                raise ScenarioError(
                    f"speculation.topk {self.topk} makes a tree; say with tree_nodes how many drafts a round verifies"
                )
            if self.topk == 1 and self.tree_nodes is not None and self.tree_nodes != deepest:
                raise ScenarioError(
                    f"speculation.topk 1 is a chain of k={deepest} drafts, so tree_nodes {self.tree_nodes} does not "
                    f"fit it; leave one of the two out"
                )
        for width in (*self.tree_levels, *self.tree_branching):
            _whole(f"speculation.{static}", width, 1, 1024)
        if sum(self.static_levels) > 1024:
            raise ScenarioError(f"speculation.{static} hold {sum(self.static_levels)} drafts, more than 1024")
        if static and deepest > len(self.static_levels):
            raise ScenarioError(
                f"speculation.num_spec_tokens {deepest} is deeper than the {len(self.static_levels)} {static}; give "
                f"as many levels"
            )

    def _check_draft(self) -> None:
        if self.draft_tp is not None:
            _whole("speculation.draft_tp", self.draft_tp, 1, 1024)
        for name in ("draft_tp", "draft_weight_dtype", "draft_kv_dtype"):
            if getattr(self, name) is not None and self.drafter.loads not in ("model", "head"):
                raise ScenarioError(
                    f"speculation.{name} makes no sense with method {self.method}, which loads no model of its own; "
                    f"leave it out"
                )


@dataclass(frozen=True, slots=True)
class Slo:
    """Service objective of a request; None: not asked for."""

    ttft_s: float | None = 1.0
    """Most time to the first token; None: any."""
    tpot_s: float | None = 0.05
    """Most mean time per output token after the first; None: any."""
    share: float = 0.95
    """Share of requests that must meet all that is asked for."""
    e2e_s: float | None = None
    """Most time to the last token; None: any."""

    def __post_init__(self) -> None:
        check_types(self, "slo")
        for name in ("ttft_s", "tpot_s", "e2e_s"):
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
    lookahead_extra_tokens: int = 0
    """Slots reserved on top of those k, in rounds that may draft (block drafters: 1)."""
    tree_nodes: tuple[int, ...] = ()
    """Tokens verified beside the sampled one by number of draft levels, 0 levels first; empty: as many as drafts."""
    draft_slots: int = 0
    """Tokens of a step's budget that each of its requests takes for rows of the drafter alone, whatever its k."""
    discipline: Discipline = VLLM
    """Rules by which requests are admitted, served and thrown out."""
    asked_output_tokens: int = 0
    """max_tokens that clients ask for where it is more than what they get; 0: they ask for just that."""

    def __post_init__(self) -> None:
        check_types(self, "limits")
        for name in (
            "num_kv_blocks",
            "block_size_tokens",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
        ):
            _whole(f"limits.{name}", getattr(self, name), 1)
        _whole("limits.fixed_blocks_per_request", self.fixed_blocks_per_request, 0)
        _whole("limits.asked_output_tokens", self.asked_output_tokens, 0)
        _whole("limits.lookahead_extra_tokens", self.lookahead_extra_tokens, 0, 64)
        _whole("limits.draft_slots", self.draft_slots, 0, 64)
        if self.draft_slots >= self.max_num_batched_tokens:
            raise ScenarioError(
                f"limits.max_num_batched_tokens {self.max_num_batched_tokens} must be more than the {self.draft_slots} "
                f"rows that the drafter takes of it for a request; raise it or draft fewer tokens"
            )
        for nodes in self.tree_nodes:
            _whole("limits.tree_nodes", nodes, 0, 65536)
        if self.tree_nodes and (self.tree_nodes[0] or list(self.tree_nodes) != sorted(self.tree_nodes)):
            raise ScenarioError(f"limits.tree_nodes must begin with 0 and not fall, got {list(self.tree_nodes)}")
        is_cut = self.discipline.decode_budget == "cut"
        if self.draft_slots and not is_cut:
            raise ScenarioError(
                f"limits.draft_slots {self.draft_slots} must be 0 under discipline '{self.discipline.name}', whose "
                f"budget does not bind decoding requests"
            )
        if self.tree_nodes and is_cut and self.max_num_seqs * self._widest > self.max_num_batched_tokens:
            raise ScenarioError(
                f"limits.max_num_seqs {self.max_num_seqs} trees of {self.tree_nodes[-1]} drafts do not fit "
                f"max_num_batched_tokens {self.max_num_batched_tokens}; lower it"
            )

    @property
    def _widest(self) -> int:
        """Tokens of the budget that a request with its largest tree takes."""
        return 1 + (self.tree_nodes[-1] if self.tree_nodes else 0) + self.draft_slots

    def verified_tokens(self, draft_tokens: int, draft_requests: int) -> int:
        """Tokens that verifying `draft_tokens` drafts (levels, of trees) of `draft_requests` requests takes."""
        return verified_tokens(self.tree_nodes, draft_tokens, draft_requests)

    def lookahead_tokens(self, num_spec_tokens: int) -> int:
        """Slots that a request reserves beyond the tokens of its step, at this largest k."""
        if num_spec_tokens < 1:
            return 0
        if self.discipline.lookahead == "next_round":
            return num_spec_tokens + 1
        return (num_spec_tokens if self.lookahead_drafts else 0) + self.lookahead_extra_tokens
