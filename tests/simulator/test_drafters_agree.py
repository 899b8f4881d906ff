"""Every registered drafter on both schedulers: the same decisions, and what a = 0 and a = 1 must give."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from builders import FixedLuck, make_trace
from test_fast_equals_plain import assert_same

from scenarios.resolve import resolve
from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.drafters import drafter, method_names
from specsim.engine.simulator import simulate
from specsim.latency import StepCost, StepWork
from specsim.planner.question import Question
from specsim.records import RunResult
from specsim.workload import Workload

METHODS = pytest.mark.parametrize("method", method_names())


@cache
def question(method: str) -> Question:
    target = "deepseek-v3" if method == "mtp" else "llama-3.1-8b"
    place = Deployment(target, "h200-sxm", tp=8, max_model_len=4096, max_num_batched_tokens=512, max_num_seqs=6)
    return resolve(place, Speculation(method, num_spec_tokens=(drafter(method).usual_k,)), Slo())


def run(asked: Question, k: int, *, plain: bool, luck: object = None, n: int = 24) -> RunResult:
    trace = make_trace(
        arrival_s=[0.0] * n,
        prompt_tokens=[50 + 37 * (i % 7) for i in range(n)],
        output_tokens=[5 + 11 * (i % 5) for i in range(n)],
    )
    workload = Workload(trace, asked.acceptance if luck is None else luck, seed=3)  # type: ignore[arg-type]
    return simulate(
        workload,
        asked.on.cost,
        limits=asked.on.limits,
        policy=PolicySpec("static", k),
        plain=plain,
    )


@METHODS
def test_fast_equals_plain(method: str) -> None:
    asked, k = question(method), drafter(method).usual_k
    fast, plain = (run(asked, k, plain=plain) for plain in (False, True))
    assert_same(fast, plain)
    assert fast.totals.rounds > 100


@METHODS
def test_when_nothing_matches_a_round_emits_one_token_and_costs_drafting_and_the_wider_pass(method: str) -> None:
    asked, k = question(method), drafter(method).usual_k
    result = run(asked, k, plain=False, luck=FixedLuck(constant=0), n=1)
    prompt, output = 50, 5
    assert result.totals.rounds == output - 1
    seconds = result.requests.finish_s[0] - result.requests.first_token_s[0]
    cost = asked.on.cost
    window = cost.window_tokens
    steps = [
        StepWork(decode_requests=1, draft_tokens=k, draft_requests=1, kv_tokens=prompt + i, next_num_spec_tokens=k,
                 windowed_kv_tokens=min(prompt + i, window), machinery=True)
        for i in range(output - 1)
    ]  # fmt: skip
    assert seconds == pytest.approx(sum(map(cost.step_s, steps)), rel=1e-9)
    drafting = sum(cost.parts(step)["draft"] + cost.parts(step)["lookup"] for step in steps)
    for step in steps:
        step.next_num_spec_tokens = 0
    no_drafter = replace(cost.profile, draft=None, draft_mode="none", lookup_request_s=0.0)
    verifying = sum(map(StepCost(no_drafter, cost.trees).step_s, steps))
    assert seconds == pytest.approx(verifying + drafting, rel=1e-9)


@METHODS
def test_when_everything_matches_a_round_emits_k_plus_one(method: str) -> None:
    asked, k = question(method), drafter(method).usual_k
    result = run(asked, k, plain=False, luck=FixedLuck(constant=64))
    outputs = result.requests.output_tokens
    assert result.totals.rounds == int(np.ceil((outputs - 1) / (k + 1)).sum())
