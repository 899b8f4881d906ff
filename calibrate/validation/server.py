"""A model ready to be served for a validation: prompts out of given texts, drafters by name, the clock of a profile.

Texts are cut into blocks: prompts that are served come out of the even ones, those that acceptance is measured on out
of the odd ones, so that no token is in both and both are of the same kind.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibrate.acceptance.methods import HEADS, WITHIN_TARGET, build_method
from calibrate.drafters.base import Drafter
from calibrate.drafters.medusa import MedusaHeads
from calibrate.engine.clock import Clock, ProcessorClock, RealClock
from calibrate.engine.prompts import cut_prompts, tokens_of
from calibrate.engine.real import serve_real
from calibrate.engine.records import Served
from calibrate.latency.device import Device
from calibrate.latency.job import DTYPES, Model, check_vocabularies
from calibrate.latency.passes import Passes
from calibrate.models import FlatModel, load_model, load_tokenizer
from calibrate.validation.reference import reference_of
from calibrate.validation.watching import watched_acceptance
from calibrate.validation.world import Trial, World
from specsim.acceptance import Empirical
from specsim.config import ReplicaLimits
from specsim.errors import ScenarioError
from specsim.profiles import LatencyProfile
from specsim.rng import Purpose, stream
from specsim.traces.model import Trace
from specsim.workload import Workload

__all__ = ["Server", "open_server"]

_BLOCK = 1024
"""Tokens of a block of text."""
_DRAWN_TOKENS = 65_536
"""Tokens that are drawn where there is no text."""
_FIRST_TOKEN = 3
"""Below it are, in most vocabularies, marks of beginning and end."""


@dataclass
class Server:
    """A target, what drafts for it, and the tokens that prompts are cut out of."""

    model: FlatModel
    make_drafter: Callable[[], Drafter] | None
    tokens: Sequence[int]
    clock: Callable[[], Clock] = RealClock
    seed: int = 0

    def prompts(self, trace: Trace, repeat: int = 0) -> list[list[int]]:
        """Prompts of the lengths of a trace, out of the even blocks; each repeat has its own."""
        first = repeat * len(trace)
        return cut_prompts(self._blocks(0), trace.prompt_tokens.tolist(), seed=self.seed, first=first)

    def _blocks(self, first: int) -> list[int]:
        size = max(1, min(_BLOCK, len(self.tokens) // 2))
        starts = range(first * size, len(self.tokens), 2 * size)
        return [token for start in starts for token in self.tokens[start : start + size]]

    def acceptance(self, trace: Trace, count: int, num_spec_tokens: int, limits: ReplicaLimits) -> Empirical:
        """Measured on `count` prompts out of the odd blocks, with lengths as in the trace.

        Raises:
            ScenarioError: the method loads nothing that drafts.
        """
        if self.make_drafter is None:
            raise ScenarioError("nothing is loaded that drafts, so that no acceptance can be measured")
        which = np.arange(count) % len(trace)
        other = Trace(
            arrival_s=np.zeros(count),
            prompt_tokens=trace.prompt_tokens[which],
            output_tokens=trace.output_tokens[which],
            meta=replace(trace.meta, source=f"lengths of {trace.meta.source}"),
        )
        prompts = cut_prompts(self._blocks(1), other.prompt_tokens.tolist(), seed=self.seed + 1)
        return watched_acceptance(
            self.model, self.make_drafter(), prompts, other,
            num_spec_tokens=num_spec_tokens, limits=limits, concurrency=min(count, 16), clock=self.clock,
        )  # fmt: skip

    def reference(self, device: Device, profile: LatencyProfile) -> Callable[[], float] | None:
        """What times the point that a profile was calibrated beside: seconds of one call, on this clock; None where
        that point is not known.

        It is launched as the profile's passes were.
        """
        point = reference_of(profile)
        if point is None:
            return None
        slots, slot_tokens = len(point.parts), max(n + context for n, context in point.parts)
        captured = profile.covers.get("launch") != "eager"
        passes = Passes(self.model, device, slots=slots, slot_tokens=slot_tokens, graphs=captured)
        work = passes.work(point)
        work()
        return lambda: device.time_s(work)

    def serving(
        self, world: World, reference: Callable[[], float] | None = None
    ) -> Callable[[Trial, np.ndarray], Served]:
        """What serves the requests of a world for real, with `reference` timed now and then during each run."""

        def serve(trial: Trial, arrival_s: np.ndarray) -> Served:
            load, policy = trial.load, trial.policy
            side = world.side(policy)
            drafts = policy.kind != "off"
            if drafts and self.make_drafter is None:
                raise ScenarioError(f"policy {policy.label} drafts, and nothing is loaded that does")
            gc.collect()
            served, _ = serve_real(
                self.model,
                self.prompts(world.trace, trial.repeat),
                Workload(world.trace, world.acceptance, seed=world.seed),
                limits=side.limits,
                policy=policy,
                drafter=self.make_drafter() if drafts and self.make_drafter else None,
                cost=side.cost,
                arrival_s=arrival_s,
                concurrency=load.concurrency,
                warmup_share=world.warmup_share,
                clock=self.clock(),
                forced=world.forced and drafts,
                reference=reference,
            )
            return served

        return serve


def open_server(
    target: Model,
    device: Device,
    *,
    dtype: str,
    method: str = "none",
    draft: Model | Path | None = None,
    options: Mapping[str, float] | None = None,
    heads: int | None = None,
    texts: Sequence[str] = (),
    syncs_at_zero: bool = False,
    seed: int = 0,
) -> Server:
    """Load everything.

    Args:
        method: one of `calibrate.acceptance.methods.METHODS`, or none.
        draft: the draft model, or the folder of the heads of a method that has such; None: none, or the target's own.
        options: of the method.
        heads: number of heads that `draft` must hold, of a method whose heads run at once.
        texts: what prompts are cut out of; none: tokens are drawn.
        syncs_at_zero: a draft model keeps up in rounds without drafts.

    Raises:
        ScenarioError: a method that cannot be run, a drafter of another vocabulary, or texts without a tokenizer.
    """
    if texts and not target.has_tokenizer:
        raise ScenarioError(f"{target.name} has no tokenizer to read texts with; leave them out, and tokens are drawn")
    if isinstance(draft, Model):
        check_vocabularies(target, draft)
    if method == "layer_skip" and not (options or {}).get("layers"):
        raise ScenarioError("layer_skip needs the number of its layers; give --draft-option layers=N")
    place, number = device.torch_device, DTYPES[dtype]
    model = load_model(target.source, device=place, dtype=number, seed=seed)
    made = None
    if draft is None and method in WITHIN_TARGET and isinstance(target.source, str | Path):
        draft = Path(target.source)
    if method != "none":
        weights = (
            load_model(draft.source, device=place, dtype=number, seed=seed)
            if isinstance(draft, Model)
            else None
            if draft is None
            else HEADS[method](draft, model)
        )
        if heads is not None and isinstance(weights, MedusaHeads) and len(weights) != heads:
            raise ScenarioError(
                f"--draft {draft}: has {len(weights)} heads, and the profile was measured with {heads}; give the "
                f"folder that it was measured with, or a profile of this one"
            )
        made = build_method(method, model, weights, options or {}, syncs_at_zero=syncs_at_zero)
    return Server(
        model=model,
        make_drafter=None if made is None else made.drafter,
        tokens=tokens_of(load_tokenizer(str(target.source)), texts) if texts else _drawn(model.vocab_size, seed),
        clock=ProcessorClock if device.clock == "cpu" else RealClock,
        seed=seed,
    )


def _drawn(vocab_size: int, seed: int) -> list[int]:
    drawn: list[int] = stream(seed, Purpose.PROMPTS).integers(_FIRST_TOKEN, vocab_size, _DRAWN_TOKENS).tolist()
    return drawn
