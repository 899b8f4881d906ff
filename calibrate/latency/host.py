"""What a step of the reference engine takes beyond its passes: scheduling, preparing input, sampling, bookkeeping, and
what drafting adds on the host.

A closed loop of short requests is served for real, without speculation and with each method; the model tells how long
its own passes took, and what is left of a step is the host's.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from calibrate.drafters import Drafter
from calibrate.drafters.medusa import MedusaHeads
from calibrate.engine import ModelRunner, Outcome, Sampling, StepRecord, serve
from calibrate.latency.device import Device
from calibrate.latency.timing import median_interval
from calibrate.models import FlatModel
from calibrate.models.attention import AttentionPlan
from calibrate.points import Point
from specsim.config import PolicySpec, ReplicaLimits
from specsim.latency import StepWork
from specsim.request import Request
from specsim.scheduler import StepPlan
from specsim.traces.model import Trace, TraceMeta
from specsim.workload import Workload

__all__ = ["Maker", "Wrap", "host_points"]

_Result = TypeVar("_Result")

_PROMPT_TOKENS = 24
_OUTPUT_TOKENS = 48
_LEAST_STEPS = 5
_BLOCK_TOKENS = 16


@dataclass
class _Spent:
    """Seconds in passes and heads, target's and drafter's."""

    now: Callable[[], float]
    seconds: float = 0.0

    def timed(self, work: Callable[[], _Result]) -> _Result:
        start = self.now()
        result = work()
        self.seconds += self.now() - start
        return result


class _TimedModel(FlatModel):
    """A model that tells how long its passes took. Its first layers do so too."""

    spent: _Spent

    @classmethod
    def around(cls, model: FlatModel, spent: _Spent) -> _TimedModel:
        """The same model, same weights."""
        timed = copy.copy(model)
        timed.__class__ = cls
        assert isinstance(timed, _TimedModel)
        timed.spent = spent
        return timed

    def run(self, token_ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        whole = super().run
        return self.spent.timed(lambda: whole(token_ids, positions, plan))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        whole = super().logits
        return self.spent.timed(lambda: whole(hidden))


class _TimedHeads(MedusaHeads):
    """Heads that tell how long their rounds took."""

    spent: _Spent

    @classmethod
    def around(cls, heads: MedusaHeads, spent: _Spent) -> _TimedHeads:
        """The same heads, same weights."""
        timed = copy.copy(heads)
        timed.__class__ = cls
        assert isinstance(timed, _TimedHeads)
        timed.spent = spent
        return timed

    def logits(self, hidden: torch.Tensor, head: int) -> torch.Tensor:
        whole = super().logits
        return self.spent.timed(lambda: whole(hidden, head))

    def at_once(self, hidden: torch.Tensor, count: int) -> list[torch.Tensor]:
        whole = super().at_once
        return self.spent.timed(lambda: whole(hidden, count))


@dataclass(frozen=True)
class Wrap:
    """Makes a drafter's weights tell how long their passes took."""

    spent: _Spent

    def model(self, model: FlatModel) -> FlatModel:
        """The same model, same weights."""
        return _TimedModel.around(model, self.spent)

    def heads(self, heads: MedusaHeads) -> MedusaHeads:
        """The same heads, same weights."""
        return _TimedHeads.around(heads, self.spent)


Maker = Callable[[Wrap], Drafter]
"""Makes a drafter, handed what to wrap its weights in."""


@dataclass
class _TimedRunner:
    """A runner that keeps the passes' seconds of each step."""

    inner: ModelRunner
    spent: _Spent
    passes_s: list[float] = field(default_factory=list)

    def run(self, plan: StepPlan, next_k: int, held: frozenset[int]) -> Outcome:
        before = self.spent.seconds
        outcome = self.inner.run(plan, next_k, held)
        self.passes_s.append(self.spent.seconds - before)
        return outcome

    def drafts(self, request: Request) -> int:
        return self.inner.drafts(request)


class _Clock:
    """The device's clock, from the start of a run."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._read = now
        self._start = now()

    def now(self) -> float:
        return self._read() - self._start

    def wait_until(self, time_s: float) -> None:
        """All requests are there from the start."""

    def carried_out(self, work: StepWork) -> None:
        """Time has passed by itself."""


def host_points(
    model: FlatModel,
    device: Device,
    drafters: Mapping[str, tuple[Maker, int]],
    *,
    requests: Sequence[int],
    temperature: float,
    seed: int,
    known: set[tuple[str, int]],
) -> list[Point]:
    """Points of kind host, one for each number of requests without speculation and with each method.

    Args:
        drafters: method -> (a maker of its drafter, drafts a round).
        requests: numbers of requests in flight.
        known: (method, requests) of points that need not be measured again.
    """
    read = time.process_time if device.clock == "cpu" else time.perf_counter

    def now() -> float:
        device.synchronise()
        return read()

    points = []
    for count in requests:
        for method in ("", *drafters):
            if (method, count) in known:
                continue
            maker, drafts = drafters.get(method, (None, 0))
            wanted = Point("host", "engine", ((1, _PROMPT_TOKENS),) * count, drafts=drafts, method=method)
            spent = _Spent(now)
            drafter = None if maker is None else maker(Wrap(spent))
            steps, passes = _served(
                _TimedModel.around(model, spent), spent, count, drafter, drafts, temperature, seed, _Clock(now)
            )
            point = _point(wanted, steps, passes)
            if point is not None:
                points.append(point)
    return points


def _served(
    model: FlatModel,
    spent: _Spent,
    count: int,
    drafter: Drafter | None,
    drafts: int,
    temperature: float,
    seed: int,
    clock: _Clock,
) -> tuple[list[StepRecord], list[float]]:
    """(steps, seconds of their passes) of `count` requests, all there from the start, with prompts that repeat."""
    rng = np.random.default_rng(seed)
    prompts = [np.tile(rng.integers(0, model.vocab_size, 6), _PROMPT_TOKENS // 6).tolist() for _ in range(count)]
    meta = TraceMeta("host", "made", "s", "0" * 64, count, count)
    lengths = np.full(count, _PROMPT_TOKENS, np.int32), np.full(count, _OUTPUT_TOKENS, np.int32)
    workload = Workload(Trace(np.zeros(count), *lengths, meta), None, seed=seed)
    room = _PROMPT_TOKENS + _OUTPUT_TOKENS + 2 * drafts + 2
    limits = ReplicaLimits(
        num_kv_blocks=2 * count * (room // _BLOCK_TOKENS + 1),
        block_size_tokens=_BLOCK_TOKENS,
        max_num_seqs=count,
        max_num_batched_tokens=max(512, count * (_PROMPT_TOKENS + drafts + 1)),
        max_model_len=room,
        enable_prefix_caching=False,
    )
    inner = ModelRunner(
        model, prompts, workload, limits, drafter=drafter, num_spec_tokens=drafts,
        sampling=Sampling(temperature=temperature, seed=seed),
    )  # fmt: skip
    runner = _TimedRunner(inner, spent)
    policy = PolicySpec("static", drafts) if drafts else PolicySpec("off")
    served = serve(workload, runner, clock, limits=limits, policy=policy)
    return served.steps, runner.passes_s


def _point(wanted: Point, steps: Sequence[StepRecord], passes_s: Sequence[float]) -> Point | None:
    """The median over steps in which all requests decode; None when there are too few."""
    count = len(wanted.parts)
    whole = [
        (step, step.seconds - own)
        for step, own in zip(steps, passes_s, strict=True)
        if step.work.decode_requests == count and not step.work.prefill_tokens
    ][1:]
    if len(whole) < _LEAST_STEPS:
        return None
    middle, low, high = median_interval([seconds for _, seconds in whole])
    verified = round(float(np.median([step.work.draft_tokens for step, _ in whole])))
    context = round(float(np.median([step.work.kv_tokens for step, _ in whole])) / count)
    share, more = divmod(verified, count)
    parts = tuple((1 + share + (n < more), context) for n in range(count))
    return Point(
        "host", "engine", parts, rows=count + verified, drafts=wanted.drafts, method=wanted.method, seconds=middle,
        low_s=low, high_s=high, repeats=len(whole),
    )  # fmt: skip
