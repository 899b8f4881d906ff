"""Serving for real with dealt acceptance: the simulator's rounds, token for token, on a model whose drafts mean
nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from calibrate.drafters import Drafter
from calibrate.drafters.base import Planted
from calibrate.drafters.draft_model import DraftModelDrafter
from calibrate.drafters.lookahead import LookaheadDrafter
from calibrate.drafters.medusa import MedusaDrafter, MedusaHeads
from calibrate.drafters.ngram import NgramDrafter
from calibrate.drafters.planting import DynamicTree, full_tree
from calibrate.engine import VirtualClock, serve
from calibrate.engine.forced import ForcedRunner
from calibrate.models import load_model
from specsim.acceptance import PerPosition
from specsim.config import PolicySpec, ReplicaLimits
from specsim.engine.simulator import simulate
from specsim.latency import StepCost
from specsim.memory import tree_limits
from specsim.profiles import LatencyProfile, PassCost
from specsim.traces.model import Trace, TraceMeta
from specsim.workload import Workload

CONFIG = {
    "model_type": "llama", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
K = 3
COST = {"weights_s": 0.01, "token_s": 1e-3, "head_weights_s": 2e-3, "head_row_s": 1e-4, "kv_token_s": 1e-6,
        "kv_pair_s": 1e-7, "fixed_s": 1e-3}  # fmt: skip


def medusa(planting: Any) -> Callable[[], MedusaDrafter]:
    """Heads that guess at random."""
    draws = torch.Generator().manual_seed(2)
    heads = MedusaHeads([([], torch.randn(97, 32, generator=draws, dtype=torch.float32)) for _ in range(K)])
    return lambda: MedusaDrafter(heads, planting)


def a_workload(rates: tuple[float, ...]) -> Workload:
    count = 5
    meta = TraceMeta("five requests", "", "s", "", count, count)
    prompts, outputs = np.array([9, 14, 5, 20, 7], np.int32), np.array([12, 20, 8, 15, 25], np.int32)
    return Workload(Trace(np.arange(count) * 0.05, prompts, outputs, meta), PerPosition(rates), seed=3)


@pytest.mark.parametrize(
    "make",
    [
        NgramDrafter,
        lambda: DraftModelDrafter(load_model(CONFIG, seed=9)),
        medusa(full_tree([3, 2, 1])),
        medusa(DynamicTree(6, 3)),
        lambda: LookaheadDrafter(window=3, guesses=2),
    ],
    ids=["ngram", "draft model", "medusa tree", "medusa grown", "lookahead"],
)
@pytest.mark.parametrize("rates", [(1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (0.8, 0.6, 0.4)])
def test_rounds_are_those_of_the_simulator(make: Callable[[], Drafter], rates: tuple[float, ...]) -> None:
    workload, drafter = a_workload(rates), make()
    trees = drafter.trees(K) if isinstance(drafter, Planted) else ()
    cost = StepCost(LatencyProfile("law", "analytic", PassCost(**COST), draft=None, draft_mode="none"), trees)
    limits = ReplicaLimits(num_kv_blocks=200, max_num_seqs=3, max_num_batched_tokens=48, enable_prefix_caching=False)
    limits = tree_limits(limits, trees)
    policy = PolicySpec("static", K)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 97, n).tolist() for n in workload.prompt_tokens]
    runner = ForcedRunner(load_model(CONFIG, seed=1), prompts, workload, limits, drafter=drafter, num_spec_tokens=K)
    served = serve(workload, runner, VirtualClock(cost), limits=limits, policy=policy, cost=cost)
    simulated = simulate(workload, cost, limits=limits, policy=policy)
    ours, theirs = asdict(served.result.totals), asdict(simulated.totals)
    assert ours.pop("k_steps") == theirs.pop("k_steps")
    assert ours == pytest.approx(theirs, abs=1e-6)
    for name in ("first_token_s", "finish_s"):
        times = [getattr(result.requests, name) for result in (served.result, simulated)]
        np.testing.assert_allclose(*times, rtol=0, atol=1e-9, err_msg=name)
    assert [len(runner.output(n)) for n in range(5)] == workload.output_tokens
    totals = served.result.totals
    if rates[0] in (0.0, 1.0):  # the guard: acceptance is what was forced
        levels = sum(r.drafted for r in served.rounds)
        assert totals.accepted_tokens == pytest.approx(levels * rates[0], abs=2 * 5 * K)
    assert totals.drafted_tokens == (trees[-1].nodes if trees else K) * totals.draft_rounds
