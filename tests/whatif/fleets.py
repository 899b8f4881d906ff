"""Small what-ifs on GPUs that are changed in one figure only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_trace

from scenarios import resolve as resolving
from scenarios.hardware import gpu
from specsim.config import Deployment, Slo, Speculation
from specsim.planner.costs import GpuCost
from specsim.planner.question import PlanSettings, Question
from specsim.planner.whatif import POLICIES, WhatIfJob, make_group
from specsim.planner.whatif_answer import run_whatif
from specsim.shapes import Gpu, Price

__all__ = ["answer", "changed", "question", "rent", "traffic"]


def changed(name: str, *, base: str = "l40s", compute: float = 1.0, bandwidth: float = 1.0) -> Gpu:
    """The GPU `base` with its rates multiplied."""
    found = gpu(base)
    return replace(
        found,
        name=name,
        bandwidth_bytes_per_s=found.bandwidth_bytes_per_s * bandwidth,
        flops_per_s={dtype: rate * compute for dtype, rate in found.flops_per_s.items()},
    )


def question(device: Gpu, patch: pytest.MonkeyPatch, *, slo: Slo | None = None, tp: int = 1) -> Question:
    patch.setattr(resolving, "find_gpu", lambda name: device)
    speculation = Speculation(num_spec_tokens=(1, 3), acceptance=(0.7, 0.65, 0.6))
    return resolving.resolve(Deployment(gpu=device.name, tp=tp), speculation, slo or Slo())


def traffic(rate_per_s: float, *, requests: int = 120, prompt: int = 400, output: int = 60) -> Any:
    gaps = np.random.default_rng(1).exponential(1 / rate_per_s, requests)
    return make_trace(arrival_s=np.cumsum(gaps), prompt_tokens=prompt, output_tokens=output)


def rent(usd: float) -> GpuCost:
    return GpuCost(Price(usd, "someone", "a list", "2026-01"))


def answer(
    devices: Sequence[Gpu],
    patch: pytest.MonkeyPatch,
    *,
    rate_per_s: float = 20.0,
    slo: Slo | None = None,
    prices: Mapping[str, float | None] | None = None,
    kinds: Sequence[str] = POLICIES,
    growth: tuple[float, ...] = (),
    jobs: int = 1,
) -> dict[str, Any]:
    """The JSON of a what-if over these GPUs; a price of None: none is known."""
    trace = traffic(rate_per_s)
    slo = slo or Slo(tpot_s=0.04)
    groups = tuple(make_group(question(device, patch, slo=slo), trace, kinds) for device in devices)
    known = {device.name: (prices or {}).get(device.name, 1.0) for device in devices}
    costs = {name: GpuCost() if usd is None else rent(usd) for name, usd in known.items()}
    settings = PlanSettings(replications=3, jobs=jobs)
    return run_whatif(WhatIfJob(groups, (), trace, trace, slo, settings, growth, costs, None, ()))
