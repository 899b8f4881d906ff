"""Acceptance of a drafter at every output position of some prompts: it drafts after every token and is never obeyed.

A greedy target writes the same text whatever is drafted, so that a plain run with the drafter looking on shows what a
round would have accepted wherever one may begin; any k up to the one watched can be replayed from that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from calibrate.drafters.base import NOTHING, Draftee, Drafter, Law, Proposal
from calibrate.engine.clock import Clock, RealClock
from calibrate.engine.real import serve_real
from calibrate.models import FlatModel, SlotCache
from specsim.acceptance import Empirical
from specsim.config import PolicySpec, ReplicaLimits
from specsim.traces.model import Trace
from specsim.workload import Workload

__all__ = ["Watched", "watched_acceptance"]


class Watched:
    """A drafter whose drafts are kept, and withheld from the engine. See `calibrate.drafters.base.Drafter`."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.seen: dict[tuple[int, int], tuple[int, ...]] = {}
        """(request, tokens known) -> drafts for what follows."""

    @property
    def name(self) -> str:
        return self._drafter.name

    @property
    def hidden_layers(self) -> tuple[int, ...] | None:
        return self._drafter.hidden_layers

    def start(self, target: FlatModel, cache: SlotCache) -> None:
        self._drafter.start(target, cache)

    def propose(self, draftees: Sequence[Draftee], k: int, law: Law | None) -> list[Proposal]:
        for draftee, proposal in zip(draftees, self._drafter.propose(draftees, k, law), strict=True):
            if draftee.drafts:
                self.seen[draftee.request, len(draftee.tokens)] = proposal.tokens
        return [NOTHING] * len(draftees)

    def release(self, request: int, finished: Sequence[int] | None) -> None:
        self._drafter.release(request, finished)


def watched_acceptance(
    model: FlatModel,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    trace: Trace,
    *,
    num_spec_tokens: int,
    limits: ReplicaLimits,
    concurrency: int,
    clock: Callable[[], Clock] = RealClock,
) -> Empirical:
    """Measured acceptance of prompts, `concurrency` at a time, greedily decoded to the lengths of `trace`."""
    watched = Watched(drafter)
    workload = Workload(trace, None, seed=0)
    _, runner = serve_real(
        model,
        prompts,
        workload,
        limits=limits,
        policy=PolicySpec("static", num_spec_tokens),
        drafter=watched,
        concurrency=concurrency,
        clock=clock(),
    )
    runs, drafts = [], []
    for request, length in enumerate(workload.output_tokens):
        text, prompt = runner.output(request), workload.prompt_tokens[request]
        # of the first token nothing is drafted: it comes with the prompt
        offered = [watched.seen.get((request, prompt + position), ()) for position in range(length)]
        drafts.append(np.array([len(tokens) for tokens in offered], dtype=np.int8))
        runs.append(np.array([_matches(tokens, text[n:]) for n, tokens in enumerate(offered)], dtype=np.int8))
    return Empirical(tuple(runs), num_spec_tokens, f"{drafter.name} watched on {len(prompts)} prompts",
                     drafts=tuple(drafts))  # fmt: skip


def _matches(drafts: Sequence[int], text: Sequence[int]) -> int:
    """Leading drafts that agree with the text."""
    for n, (draft, token) in enumerate(zip(drafts, text, strict=False)):
        if draft != token:
            return n
    return min(len(drafts), len(text))
