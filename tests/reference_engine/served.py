"""Small real runs: tiny models, random prompts, and the same text by transformers alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from builders import make_cost, make_limits, make_trace

from calibrate.drafters import Drafter
from calibrate.drafters.draft_model import DraftModelDrafter
from calibrate.drafters.layer_skip import LayerSkipDrafter
from calibrate.drafters.ngram import NgramDrafter
from calibrate.drafters.suffix import SuffixDrafter
from calibrate.engine import ModelRunner, Sampling, Served, VirtualClock, serve
from calibrate.models import FlatModel
from specsim.config import PolicySpec, ReplicaLimits
from specsim.workload import Workload

sys.path.insert(0, str(Path(__file__).parent.parent / "calibrate_models"))

from tiny import VOCAB, causal_lm, reference_logits

__all__ = ["DRAFTERS", "greedy_text", "prompts_of", "run_model", "target"]


@cache
def target() -> FlatModel:
    """Three layers whose text neither repeats at once nor is noise to a smaller model."""
    return FlatModel(causal_lm(), name="target")


def near_target(noise: float) -> FlatModel:
    """The target with its weights disturbed: a drafter that is often right and often wrong."""
    import torch

    other = causal_lm()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(7)
        for weight in other.parameters():
            if weight.ndim > 1:
                weight += noise * torch.randn_like(weight)
    return FlatModel(other, name="disturbed target")


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: NgramDrafter(min_tokens=1, max_tokens=3),
    "suffix": lambda: SuffixDrafter(depth=8, max_responses=2, min_probability=0.2),
    "draft_model": lambda: DraftModelDrafter(near_target(0.02)),
    "synced_draft_model": lambda: DraftModelDrafter(near_target(0.02), syncs_at_zero=True),
    "layer_skip": lambda: LayerSkipDrafter(num_layers=2),
    "itself": lambda: DraftModelDrafter(near_target(0.0)),
}


def prompts_of(lengths: Sequence[int], seed: int = 3) -> list[list[int]]:
    """Random tokens, each prompt with a stretch that occurs twice."""
    rng = np.random.default_rng(seed)
    prompts = []
    for length in lengths:
        tokens = rng.integers(3, VOCAB, length)
        tokens[length // 2 : length // 2 * 2] = tokens[: length // 2]
        prompts.append(tokens.tolist())
    return prompts


_TEXTS: dict[tuple[int, ...], list[int]] = {}


def greedy_text(prompt: Sequence[int], length: int) -> list[int]:
    """What transformers alone writes behind a prompt, one token after another, without a cache.

    The two likeliest tokens must differ by far more than passes of different shapes do.
    """
    known = _TEXTS.setdefault(tuple(prompt), [])
    alone = _plain()
    while len(known) < length:
        top = reference_logits(alone, [*prompt, *known])[-1].topk(2)
        assert float(top.values[0] - top.values[1]) > 1e-4, "choose another seed: a tie would be decided by rounding"
        known.append(int(top.indices[0]))
    return known[:length]


@cache
def _plain() -> Any:
    return causal_lm()


def run_model(
    *,
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    drafter: str | None = None,
    policy: PolicySpec | None = None,
    limits: ReplicaLimits | None = None,
    arrival_s: Sequence[float] | None = None,
    sampling: Sampling | None = None,
    model: FlatModel | None = None,
    drafts_by: Drafter | None = None,
    prompts: list[list[int]] | None = None,
) -> tuple[Served, ModelRunner]:
    """Serve for real with a virtual clock; every argument that is left out is plain."""
    policy = policy or (PolicySpec("static", 3) if drafter or drafts_by else PolicySpec("off"))
    limits = limits or make_limits()
    trace = make_trace(
        arrival_s=arrival_s or [0.0] * len(prompt_tokens), prompt_tokens=prompt_tokens, output_tokens=output_tokens
    )
    workload, cost = Workload(trace, None, seed=0), make_cost()
    runner = ModelRunner(
        model or target(),
        prompts or prompts_of(prompt_tokens),
        workload,
        limits,
        drafter=drafts_by or (DRAFTERS[drafter]() if drafter else None),
        num_spec_tokens=policy.num_spec_tokens,
        sampling=sampling,
    )
    return serve(workload, runner, VirtualClock(cost), limits=limits, policy=policy, cost=cost), runner
