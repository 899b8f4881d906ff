"""Everything that a plan is asked about, resolved to what the simulator understands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np

from specsim.acceptance import AcceptanceModel
from specsim.config import Deployment, PolicySpec, ReplicaLimits, Slo, Speculation
from specsim.disaggregation import Disaggregation
from specsim.errors import InvariantError, ScenarioError
from specsim.evidence import outside
from specsim.latency import StepCost
from specsim.policies import kind_of
from specsim.profiles import LatencyProfile
from specsim.trees import Tree
from specsim.type_checks import check_types

__all__ = ["PlanSettings", "Question", "Side", "TaskAcceptance", "acceptance_fingerprint"]


@dataclass(frozen=True)
class Side:
    """A deployment with or without speculation: what a step costs, and what fits."""

    profile: LatencyProfile
    limits: ReplicaLimits
    memory: Mapping[str, float] = field(default_factory=dict)
    """Bytes by purpose, for the report."""
    trees: tuple[Tree, ...] = ()
    """What a round with 1, 2, ... levels of drafts verifies; empty: chains."""
    notes: tuple[str, ...] = ()
    """What the memory plan had to change."""
    disaggregation: Disaggregation | None = None
    """How prefill and decode replicas hand over, where they are apart."""

    @cached_property
    def cost(self) -> StepCost:
        return StepCost(self.profile, self.trees)

    def extrapolated(
        self, *, requests: float, context_tokens: float, prompt_tokens: float, width: int = 1
    ) -> tuple[str, ...]:
        """A sentence when a run asked the profile for more than it measured; `requests` is the most that ran at once,
        `context_tokens` the longest sequence, `prompt_tokens` the longest prompt, `width` the tokens verified a
        request."""
        step = min(float(self.limits.max_num_batched_tokens), requests * width + prompt_tokens)
        return outside(
            self.profile.evidence, requests=requests, width=width, context_tokens=context_tokens, step_tokens=step
        )


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """How much is simulated."""

    seed: int = 0
    """First seed of luck and of drawn arrivals; replications count on from it."""
    replications: int = 5
    """Stretches of the trace with luck of their own; policies are compared within each."""
    max_requests: int = 10_000
    """Most consecutive requests of the log that are simulated, its busiest; replications are cut from them."""
    loads_per_s: tuple[float, ...] = ()
    """Requests per second to compare at; empty: chosen around the deployment's capacity."""
    load_points: int = 7
    """Loads between idle and overload when `loads_per_s` is empty; the trace's own comes on top."""
    warmup_share: float = 0.1
    """Share of the requests, from the start, that is simulated but not measured."""
    jobs: int = 0
    """Processes; 0: one per core. Never changes a result."""

    def __post_init__(self) -> None:
        check_types(self, "plan")
        for name, low, high in (
            ("replications", 2, 1000),
            ("max_requests", 2, 10_000_000),
            ("load_points", 2, 100),
            ("seed", 0, 2**63 - 1),
            ("jobs", 0, 1024),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ScenarioError(f"plan.{name} must be a whole number in {low}..{high}, got {value!r}")
        if not (np.isfinite(self.warmup_share) and 0 <= self.warmup_share <= 0.9):
            raise ScenarioError(f"plan.warmup_share must lie in 0..0.9, got {self.warmup_share!r}")
        for load in self.loads_per_s:
            if not (np.isfinite(load) and 1e-6 <= load <= 1e6):
                raise ScenarioError(f"plan.loads_per_s must be in 1e-6..1e6 requests per second, got {load!r}")


@dataclass(frozen=True, slots=True)
class TaskAcceptance:
    """What one content class of the log got."""

    task: str
    share: float
    """Of all output tokens of the log."""
    known: bool
    """Whether there are figures for it; otherwise it got the default."""
    source: str
    lengths: Mapping[int, float]
    """Mean acceptance length by k."""


@dataclass(frozen=True)
class Question:
    """A fleet, with speculation off and on, and what its users are promised."""

    deployment: Deployment
    speculation: Speculation
    slo: Slo
    off: Side
    on: Side
    acceptance: AcceptanceModel
    acceptance_source: str
    acceptance_error: float
    """One-sigma relative error of the mean acceptance length."""
    acceptance_by_task: tuple[TaskAcceptance, ...] = ()
    """By content class of the log, when it names any and they are told apart."""
    names: Mapping[str, str] = field(default_factory=dict)
    """target, draft, gpu as the catalogue spells them."""
    assumed: tuple[str, ...] = ()
    """Sentences on what the user did not say and specsim chose."""
    doubts: tuple[str, ...] = ()
    """Those of them on measured requests that may be of something else than is asked about; also said as warnings."""

    def side(self, policy: PolicySpec) -> Side:
        """The side that a policy runs on."""
        return self.off if policy.kind == "off" else self.on

    def offers(self, policy: PolicySpec) -> bool:
        """Whether the engine of the deployment can be told to follow it."""
        return self.deployment.engine in kind_of(policy.kind).engines

    def check_policy(self, policy: PolicySpec) -> None:
        """Refuse a policy that drafts more than the acceptance model knows.

        Raises:
            ScenarioError: the policy, its k, and what is known.
        """
        known = self.acceptance.max_spec_tokens
        if policy.num_spec_tokens > known:
            raise ScenarioError(
                f"policy {policy.label}: k {policy.num_spec_tokens} is more than the acceptance model "
                f"'{self.acceptance.name}' knows ({known}); lower it"
            )
        trees = self.side(policy).trees
        if trees and kind_of(policy.kind).chains_only:
            raise ScenarioError(
                f"policy {policy.label} trims chains of drafts, and drafts form a tree here; choose another policy "
                f"or a drafter without a tree"
            )
        if trees and policy.num_spec_tokens > len(trees):
            raise ScenarioError(
                f"policy {policy.label}: k {policy.num_spec_tokens} is deeper than the {len(trees)} levels that "
                f"speculation.num_spec_tokens asks for; raise that"
            )

    @property
    def max_k(self) -> int:
        """Largest k that the planner tries."""
        return max(self.speculation.num_spec_tokens)

    def verified_drafts(self, num_spec_tokens: int) -> int:
        """Tokens that a round of so many drafts, or levels of drafts, verifies beside the sampled one."""
        trees = self.on.trees
        return trees[num_spec_tokens - 1].nodes if trees and num_spec_tokens else num_spec_tokens

    def tree_nodes(self, num_spec_tokens: int) -> int | None:
        """Drafts verified a round where they form a tree, None where they do not."""
        is_tree = self.speculation.has_tree and num_spec_tokens > 0
        return self.verified_drafts(num_spec_tokens) if is_tree else None

    def identity(self) -> dict[str, Any]:
        """What makes two questions the same, for ids and cached runs."""
        return {
            # a profile is known by its hash, wherever its file lies
            "deployment": {name: value for name, value in asdict(self.deployment).items() if name != "profile"},
            # the fingerprint says what is in a measured file, wherever that lies
            "speculation": asdict(self.speculation) | {"acceptance_file": None},
            "slo": asdict(self.slo),
            "profiles": [self.off.profile.sha256, self.on.profile.sha256],
            "limits": [asdict(self.off.limits), asdict(self.on.limits)],
            "trees": [asdict(tree) for tree in self.on.trees],
            "disaggregation": [
                None if side.disaggregation is None else asdict(side.disaggregation) for side in (self.off, self.on)
            ],
            "acceptance": acceptance_fingerprint(self.acceptance),
        }


def acceptance_fingerprint(model: AcceptanceModel) -> str:
    """Hash of everything that a model is made of, its name apart: the same fingerprint, the same luck."""
    digest = hashlib.sha256()
    _feed(digest, model)
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, value: Any) -> None:
    if is_dataclass(value):
        digest.update(f"{type(value).__name__}(".encode())
        for part in fields(value):
            if part.name != "name":
                digest.update(f"{part.name}=".encode())
                _feed(digest, getattr(value, part.name))
        digest.update(b")")
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    elif isinstance(value, tuple | list):
        digest.update(f"[{len(value)}:".encode())
        for part in value:
            _feed(digest, part)
    elif isinstance(value, str | int | float | None):
        digest.update(f"{value!r};".encode())
    else:
        raise InvariantError(f"an acceptance model holds a {type(value).__name__}, which has no fingerprint")
