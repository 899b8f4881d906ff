"""Small worlds to hold the laws against: random ones, one that reaches every mechanism, and how to watch them run.

Models: all that decides a run, as one frozen record, and what each replica did, call by call.
Leaves out: any opinion on what is right; that belongs to the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import pytest
from builders import FixedLuck, make_limits, make_pass, make_profile, make_trace
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specsim.config import PolicySpec, ReplicaLimits, RouterName
from specsim.disaggregation import Disaggregation
from specsim.disciplines import DISCIPLINES, SGLANG, TRTLLM, VLLM, Discipline
from specsim.drafters import all_drafters
from specsim.drafters.base import Drafter
from specsim.engine import decode_kernels, simulator
from specsim.engine.fast_pools import FastDecode, FastPrefill
from specsim.engine.fast_replica import FastReplica
from specsim.engine.observe import Observer
from specsim.engine.plain_pools import PlainDecode, PlainPrefill
from specsim.engine.plain_replica import PlainReplica
from specsim.latency import StepCost
from specsim.memory import tree_limits
from specsim.policies import KINDS as ALL_KINDS
from specsim.policies import parse_policy
from specsim.profiles import LatencyProfile
from specsim.records import RunResult
from specsim.traces.model import Trace
from specsim.trees import Tree, cut, grown_tree
from specsim.workload import Workload

__all__ = [
    "CROWDED",
    "KINDS",
    "POLICIES",
    "POLICY_LIST",
    "RULES",
    "TWO_POOL_RULES",
    "ListedLuck",
    "Step",
    "Watch",
    "World",
    "law",
    "limits_under",
    "pool_of",
    "pools",
    "profile_of",
    "queues_of",
    "run",
    "served",
    "worlds",
]

Replica: TypeAlias = PlainReplica | FastReplica


@dataclass(frozen=True)
class World:
    """Everything that decides a run, the kind of replica apart."""

    trace: Trace
    luck: Any = field(default_factory=FixedLuck)
    limits: ReplicaLimits = field(default_factory=make_limits)
    policy: PolicySpec = field(default_factory=lambda: PolicySpec("off"))
    profile: LatencyProfile = field(default_factory=make_profile)
    replicas: int = 1
    disaggregation: Disaggregation | None = None
    router: RouterName = "round_robin"
    concurrency: int | None = None
    seed: int = 0
    warmup_share: float = 0.0
    trees: tuple[Tree, ...] = ()
    """What k levels of drafts look like, one a k; none: chains."""

    @property
    def cost(self) -> StepCost:
        return StepCost(self.profile, self.trees)


@dataclass(frozen=True)
class ListedLuck:
    """Luck given outright: one sequence of runs a request, by request number; a shorter output takes its beginning."""

    runs: Sequence[Any]
    name: str = "listed"
    max_spec_tokens: int = 64

    def luck(self, seed: int, first_request_id: int, output_tokens: np.ndarray, tasks: np.ndarray | None) -> Any:
        rows = [self.runs[first_request_id + n][:length] for n, length in enumerate(output_tokens.tolist())]
        run = np.array([r for row in rows for r in row], dtype=np.int8)
        return SimpleNamespace(run=run, drafts=None)

    def expected_length(self, num_spec_tokens: int) -> float:
        return 1.0 + 0.6 * num_spec_tokens  # what a planner was told, not what comes

    def expected_drafts(self, num_spec_tokens: int) -> float:
        return float(num_spec_tokens)


@dataclass(frozen=True)
class Step:
    """One step of one replica as seen from outside."""

    replica: int
    began_s: float
    seconds: float
    decode_requests: int
    draft_tokens: int
    prefill_tokens: int
    prefill_rows: int
    kv_tokens: int
    next_k: int
    waiting: tuple[int, ...]
    """After admission, in order."""
    running: tuple[int, ...]
    """After admission, in order."""
    used_blocks: int
    finished: tuple[int, ...]
    ended_s: float


class Watch:
    """What the replicas of a run did, in order. `after` is called behind every call with (call, replica, time)."""

    def __init__(self, after: Callable[[str, Replica, float], None] | None = None) -> None:
        self.steps: list[Step] = []
        self.submitted: list[tuple[int, int, float, bool]] = []
        """(request, replica, time, accepted)."""
        self.idle: list[tuple[int, float, int]] = []
        """(replica, time, requests waiting there) whenever a replica had nothing to do."""
        self.replicas: dict[int, Replica] = {}
        self.after = after
        self._pending: dict[int, dict[str, Any]] = {}

    def saw_submit(self, replica: Replica, request: int, now_s: float, accepted: bool) -> None:
        self.replicas[replica.index] = replica
        self.submitted.append((request, replica.index, now_s, accepted))
        self._call("submit", replica, now_s)

    def saw_begin(self, replica: Replica, now_s: float, seconds: float | None) -> None:
        waiting, running = queues_of(replica)
        if seconds is None:
            self.idle.append((replica.index, now_s, len(waiting) + len(running)))
        else:
            work = replica.work if isinstance(replica, PlainReplica) else replica._work
            self._pending[replica.index] = {
                "replica": replica.index, "began_s": now_s, "seconds": seconds,
                "decode_requests": work.decode_requests, "draft_tokens": work.draft_tokens,
                "prefill_tokens": work.prefill_tokens, "prefill_rows": work.prefill_rows,
                "kv_tokens": work.kv_tokens, "next_k": work.next_num_spec_tokens,
                "waiting": tuple(waiting), "running": tuple(running), "used_blocks": pool_of(replica).used,
            }  # fmt: skip
        self._call("begin", replica, now_s)

    def saw_end(self, replica: Replica, now_s: float, finished: list[int]) -> None:
        seen = self._pending.pop(replica.index)
        self.steps.append(Step(**seen, finished=tuple(finished), ended_s=now_s))
        self._call("end", replica, now_s)

    def _call(self, call: str, replica: Replica, now_s: float) -> None:
        if self.after is not None:
            self.after(call, replica, now_s)


def queues_of(replica: Replica) -> tuple[list[int], list[int]]:
    """Requests that (wait, run) on a replica, each in order."""
    if isinstance(replica, PlainReplica):
        scheduler = replica.scheduler
        return [r.request_id for r in scheduler.waiting], [r.request_id for r in scheduler.running]
    decoding = replica._batch.rows[: replica._batch.count, decode_kernels.REQUEST].tolist()
    unfinished = [] if replica._partial is None else [replica._partial]
    return list(replica._waiting), [*decoding, *replica._completing, *unfinished]


def pool_of(replica: Replica) -> Any:
    """The block pool of a replica."""
    return replica.scheduler.kv.pool if isinstance(replica, PlainReplica) else replica._kv.pool


def run(world: World, *, plain: bool, watch: Watch | None = None, observers: Sequence[Observer] = ()) -> RunResult:
    """Run a world on one kind of replica, watched if asked."""
    workload = Workload(world.trace, world.luck, seed=world.seed)
    with _watched(watch):
        return simulator.simulate(
            workload,
            world.cost,
            limits=world.limits,
            policy=world.policy,
            replicas=world.replicas,
            disaggregation=world.disaggregation,
            router=world.router,
            concurrency=world.concurrency,
            warmup_share=world.warmup_share,
            plain=plain,
            observers=observers,
        )


@contextmanager
def _watched(watch: Watch | None) -> Iterator[None]:
    if watch is None:
        yield
        return
    kinds = (PlainReplica, FastReplica, PlainPrefill, FastPrefill, PlainDecode, FastDecode)
    with mock.patch.multiple(simulator, **{kind.__name__: _watching(kind, watch) for kind in kinds}):
        yield


def _watching(kind: Any, watch: Watch) -> Any:
    class Watched(kind):
        def submit(self, request: int, now_s: float) -> bool:
            accepted = super().submit(request, now_s)
            watch.saw_submit(self, request, now_s, accepted)  # type: ignore[arg-type]
            return accepted

        def begin_step(self, now_s: float, until_s: float = 0.0) -> float | None:
            seconds = super().begin_step(now_s)
            watch.saw_begin(self, now_s, seconds)  # type: ignore[arg-type]
            return seconds

        def end_step(self, now_s: float) -> list[int]:
            finished = super().end_step(now_s)
            watch.saw_end(self, now_s, finished)  # type: ignore[arg-type]
            return finished

    return Watched


_MOVING = (
    PolicySpec("off"),
    PolicySpec("static", 0),
    PolicySpec("static", 1),
    PolicySpec("static", 4),
    PolicySpec("schedule", 5, table=((1, 2, 5), (3, 4, 2), (6, 9, 0))),
    PolicySpec("off_above", 3, batch_limit=2),
    PolicySpec("goodput", 4),
    parse_policy("context:0/1-2=4,3-9=1;24/1-3=0,4-9=3;50/1-9=2"),
    parse_policy("budget:5"),
    parse_policy("budget:4:budget_tokens=5:memory_steps=3:request_memory_rounds=2:request_prior_tokens=0.5"),
    parse_policy("ema:5:candidates=1=0/1/3/5,3=0/2,6=0:update_interval=1:warmup_batches=0:ema_alpha=0.5"),
    parse_policy("ema:4:candidates=1=1/2/4:update_interval=2:warmup_batches=1:ceiling_coeff=1.5"),
    parse_policy("gate:3:0.5:window=2:reprobe_steps=3"),
    parse_policy("trt_gate:4:0.4:3"),
    parse_policy("trt_gate:4:1.2:2:over=requests"),
)
"""Settings that make a policy move within a few steps."""

POLICY_LIST = tuple(
    {
        policy.label: policy for policy in (*_MOVING, *(parse_policy(kind.example) for kind in ALL_KINDS.values()))
    }.values()
)
"""Those, and the example of every kind in the registry."""

POLICIES = st.sampled_from(POLICY_LIST)


RULES: tuple[Discipline, ...] = (
    *DISCIPLINES.values(),
    replace(VLLM, extra_step=True),
    replace(VLLM, first_round_placeholders=True),
    replace(VLLM, admission="chunk"),
    replace(TRTLLM, chunked_prefill=True),
    replace(SGLANG, extra_step=False, chunked_prefill=False),
    replace(SGLANG, order="mixed", victim="last", first_round_placeholders=True),
)
"""Every discipline, and some whose rules are mixed, so that each rule occurs in more than one company."""


TWO_POOL_RULES: tuple[Discipline, ...] = tuple(
    replace(rules, kept_for_decode_tokens=min(rules.kept_for_decode_tokens, 3))
    for rules in RULES
    if rules.order != "batch" and rules.reserve != "slot"
)
"""Those that prefill and decode replicas can follow, with a little room kept, as the worlds are small."""


@st.composite
def pools(draw: st.DrawFn) -> Disaggregation:
    """One to three replicas of each kind, and a link that costs nothing, little, or more than the prompts."""
    return Disaggregation(
        prefill_replicas=draw(st.sampled_from([1, 1, 2, 3])),
        decode_replicas=draw(st.sampled_from([1, 1, 2, 3])),
        block_bytes=1e6,
        link_bytes_per_s=draw(st.sampled_from([1e12, 1e9, 5e7])),
        link_latency_s=draw(st.sampled_from([0.0, 0.001, 0.1])),
    )


def limits_under(draw: st.DrawFn, rules: Discipline, *, need: int, block: int, lengths: Sequence[int]) -> ReplicaLimits:
    """Limits that bind in one way or another; `need`: tokens of the longest request with all its drafts."""
    chunks, length = [7, 16, 40, 2048], draw(st.sampled_from(lengths))
    if not rules.chunked_prefill:
        chunks = [60, 100, 2048]
    if rules.reserve == "slot":
        need = length * draw(st.integers(1, 3))
    # Below `need` the longest request may not fit at all.
    tokens = max(block, need + draw(st.integers(-8, 60))) if draw(st.booleans()) else 10_000 * block
    return make_limits(
        discipline=rules,
        num_kv_blocks=-(-tokens // block),
        block_size_tokens=block,
        max_num_seqs=draw(st.sampled_from([1, 3, 8, 64])),
        max_num_batched_tokens=draw(st.sampled_from(chunks)),
        max_model_len=length,
        fixed_blocks_per_request=draw(st.sampled_from([0, 0, 2])),
        lookahead_drafts=draw(st.booleans()),
        lookahead_extra_tokens=draw(st.sampled_from([0, 0, 1])),
        draft_slots=draw(st.sampled_from([0, 0, 1, 5])) if rules.decode_budget == "cut" else 0,
        asked_output_tokens=draw(st.sampled_from([0, 0, 35])),
    )


def profile_of(drafter: Drafter, **changes: object) -> LatencyProfile:
    """A test profile whose drafting runs as a registered drafter says: passes, rows, lookup, work that verify saves."""
    terms = {
        "draft_catches_up": drafter.catches_up,
        "draft_rows_fixed": drafter.extra_rows.fixed,
        "draft_rows_per_draft": drafter.extra_rows.each,
        "draft_catch_up_share": 0.5 if drafter.mode == "block" else 1.0,
        "verify_skip_share": 0.25 if drafter.verify_skip is not None else 0.0,
        "lookup_request_s": 1e-5 if drafter.looks_up else 0.0,
        "draft_mode": drafter.mode,
    }
    return make_profile(lookup=not drafter.runs_model, **{**terms, **changes})


@st.composite
def drafted(draw: st.DrawFn, drafter: Drafter, limits: ReplicaLimits) -> tuple[ReplicaLimits, tuple[Tree, ...]]:
    """(limits, trees) under which a drafter verifies a chain or, where it can, a tree of up to six levels."""
    if not drafter.trees or not draw(st.booleans()):
        return limits, ()
    trees = cut(grown_tree((0.6,), nodes=draw(st.integers(6, 12)), topk=3, depth=6)[0])
    is_narrow = 1 + trees[-1].nodes + limits.draft_slots > limits.max_num_batched_tokens
    return (limits, ()) if is_narrow else (tree_limits(limits, trees), trees)


@st.composite
def worlds(
    draw: st.DrawFn, *, replicas: Sequence[int] = (1, 1, 2), closed: bool = True, rules: Sequence[Discipline] = RULES
) -> World:
    """Up to 14 requests, some refused; limits that bind in one way or another; arrivals that leave gaps; any drafter of
    the registry, in chains or trees; any policy."""
    n = draw(st.integers(1, 14))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0009765625, 0.015625, 0.5]), min_size=n, max_size=n))
    prompts = draw(st.lists(st.integers(1, 70), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 30), min_size=n, max_size=n))
    block = draw(st.sampled_from([1, 4, 16]))
    hash_block = draw(st.sampled_from([None, 8, 16]))
    hashes = None
    if hash_block is not None:
        hashes = [[1000 * draw(st.integers(0, 2)) + b for b in range(-(-p // hash_block))] for p in prompts]
    spec_room = 2 * 5 + 4
    need = max(p + o + spec_room for p, o in zip(prompts, outputs, strict=True))
    drafter = draw(st.sampled_from(list(all_drafters().values())))
    limits = limits_under(draw, draw(st.sampled_from(rules)), need=need, block=block, lengths=[60, 90, 4096])
    limits, trees = draw(drafted(drafter, limits))
    return World(
        trace=make_trace(
            arrival_s=np.cumsum(gaps).tolist(),
            prompt_tokens=prompts,
            output_tokens=outputs,
            hashes=hashes,
            hash_block_tokens=hash_block,
        ),
        luck=FixedLuck(
            max_run=draw(st.integers(0, 5)), proposal_rate=draw(st.sampled_from([1.0, 0.4])), varied=draw(st.booleans())
        ),
        limits=limits,
        policy=draw(POLICIES),
        trees=trees,
        profile=profile_of(
            drafter,
            loaded_host_s=draw(st.sampled_from([0.0, 1e-4])),
            at_zero_drafts=draw(st.sampled_from(["skipped", "synced", "stale"])),
        ),
        replicas=draw(st.sampled_from(list(replicas))),
        router=draw(st.sampled_from(["round_robin", "least_outstanding", *["prefix_affinity"] * bool(hash_block)])),
        concurrency=draw(st.sampled_from([None, None, 1, 5])) if closed else None,
        seed=draw(st.integers(0, 5)),
    )


CROWDED = World(
    trace=make_trace(
        arrival_s=[0.0] * 9 + [0.001, 0.02, 0.02, 100.0, 100.0],
        prompt_tokens=[64] * 11 + [300, 64, 64],
        output_tokens=[30] * 14,
        hashes=[[7, 8, 9, 10]] * 10 + [[1, 2, 3, 4], list(range(20, 39)), [7, 8, 9, 10], [1, 2, 3, 5]],
        hash_block_tokens=16,
    ),
    limits=make_limits(
        num_kv_blocks=44, block_size_tokens=4, max_num_seqs=8, max_num_batched_tokens=13, max_model_len=110
    ),
    policy=PolicySpec("schedule", 5, table=((1, 2, 5), (3, 9, 4))),
    profile=make_profile(target=make_pass(windowed_kv_token_s=1e-8, window_tokens=20)),
    replicas=2,
    seed=1,
)
"""Two replicas with preemption, prefix hits, a refused request, a cut budget, two values of k and an idle gap."""


KINDS = pytest.mark.parametrize("plain", [True, False], ids=["plain", "fast"])


def law(examples: int = 40, **limits: Any) -> Callable[[Callable], Callable]:
    """Hold a test of `world` over random worlds and CROWDED, on both kinds of replica."""

    def wrap(test: Callable) -> Callable:
        held = given(world=worlds(**limits))(example(world=CROWDED)(test))
        return KINDS(settings(max_examples=examples, deadline=None)(held))

    return wrap


def served(result: RunResult) -> np.ndarray:
    return ~result.requests.rejected
