"""The open road: its seconds are those of the cost model, policies keep to what they said ahead, and it is taken."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from builders import FixedLuck, make_cost, make_limits, make_pass, make_profile, make_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import POLICY_LIST

from specsim.config import PolicySpec
from specsim.engine import road_kernels as road
from specsim.engine.fast_replica import FastReplica
from specsim.engine.open_road import OpenRoad
from specsim.engine.setup import engine_view
from specsim.engine.simulator import simulate
from specsim.engine.step_terms import StepTerms
from specsim.latency import StepCost, StepWork
from specsim.policies import Observed, make_policy, parse_policy
from specsim.trees import cut, grown_tree
from specsim.workload import Workload

TREES = cut(grown_tree((0.6,), nodes=12, topk=3, depth=6)[0])


@st.composite
def costs(draw: st.DrawFn) -> StepCost:
    """Every way to draft, with and without experts, windows, trees and a cache that is caught up on."""

    def one(**terms: float) -> dict[str, float]:
        if draw(st.booleans()):
            sharing = draw(st.sampled_from([1.0, 0.7]))
            terms |= {"experts_s": 4e-3, "num_experts": 32, "experts_per_token": 4, "expert_sharing": sharing}
        if draw(st.booleans()):
            terms |= {"windowed_kv_token_s": 3e-8, "windowed_kv_pair_s": 2e-10, "window_tokens": 20}
        knee, request_s = draw(st.sampled_from([1.0, 2.0])), draw(st.sampled_from([0.0, 1e-6]))
        return terms | {"knee": knee, "request_s": request_s}

    mode = draw(st.sampled_from(["none", "serial", "parallel", "block", "heads"]))
    small = {"weights_s": 6e-4, "token_s": 2e-6, "head_weights_s": 2e-4, "kv_token_s": 2e-9, "fixed_s": 2e-5}
    profile = make_profile(
        target=make_pass(**one()),
        draft=None if mode == "none" else make_pass(**one(**small)),
        lookup=mode == "none",
        draft_mode=mode,
        draft_catches_up=draw(st.booleans()),
        draft_rows_fixed=draw(st.sampled_from([0, -1])) if mode in ("serial", "parallel") else 0,
        draft_rows_per_draft=draw(st.sampled_from([0, 1])) if mode in ("serial", "parallel") else 0,
        draft_catch_up_share=0.4,
        mixed_s=2e-4,
        pass_tokens_max=draw(st.sampled_from([0, 64])),
        verify_skip_share=draw(st.sampled_from([0.0, 0.3])),
    )
    return StepCost(profile, TREES if draw(st.booleans()) and mode in ("none", "serial") else ())


@settings(max_examples=200, deadline=None)
@given(
    cost=costs(), decode=st.integers(0, 40), k=st.integers(0, 6), levels=st.integers(0, 6), kv=st.integers(0, 9000),
    tokens=st.integers(1, 300), ending=st.integers(0, 3), cached=st.sampled_from([0, 0, 37]), loaded=st.booleans(),
)  # fmt: skip
def test_seconds_of_steps_with_prompts_are_those_of_the_cost(
    cost: StepCost, decode: int, k: int, levels: int, kv: int, tokens: int, ending: int, cached: int, loaded: bool
) -> None:
    drafts, kv, k = decode * min(levels, k), kv if decode else 0, k if loaded else 0
    pairs = tokens * cached + tokens * (tokens + 1) // 2
    windowed = road._in_window(cached, tokens, cost.window_tokens) if cost.window_tokens else 0
    work = StepWork(
        decode_requests=decode, draft_tokens=drafts, draft_requests=decode if drafts else 0, kv_tokens=kv,
        windowed_kv_tokens=min(kv, decode * cost.window_tokens), prefill_tokens=tokens, prefill_rows=ending,
        prefill_kv_tokens=cached, prefill_pairs=pairs, prefill_windowed_pairs=windowed, next_num_spec_tokens=k,
        machinery=loaded,
    )  # fmt: skip
    table = StepTerms(cost, machinery=loaded)
    make_up = (decode, drafts, cost.drafts_verified(work), k)
    asked = (*make_up, kv, work.windowed_kv_tokens, (tokens, ending, cached, pairs, windowed))
    assert road._mixed_s(table.terms, table.prices, table.drafting, *asked) < 0.0, "nothing is known yet"
    table.learn_prompts(make_up, tokens, ending)
    assert road._mixed_s(table.terms, table.prices, table.drafting, *asked) == cost.step_s(work)


@pytest.mark.parametrize("policy", POLICY_LIST, ids=lambda policy: policy.label)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_policy_answers_as_it_said_ahead(policy: PolicySpec, data: st.DataObject) -> None:
    """In steps of any requests, as long as no group of them has had as many as were left."""
    view = engine_view(FixedLuck(), make_cost(), make_limits(), policy.num_spec_tokens)  # type: ignore[arg-type]
    rule = make_policy(policy, view)
    if rule.ahead(9) is None or rule.trims:
        return
    for _ in range(data.draw(st.integers(1, 6))):
        ahead = rule.ahead(9)
        assert ahead is not None
        left = ahead.left.copy()
        for _ in range(12):
            batch, kv_tokens = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 30_000))
            rounds = data.draw(st.integers(0, batch))
            kv_tokens = kv_tokens if rounds else 0
            said = int(road._answer(ahead.contexts, ahead.ks, batch, kv_tokens, rounds))
            assert said < 0 or said == rule.next_k(batch, kv_tokens, rounds)
            if len(left):
                drafts = np.full(rounds, said)
                accepted = np.array([data.draw(st.integers(0, said)) for _ in range(rounds)], dtype=np.int64)
                rule.observe(Observed(batch, rounds, rounds if said else 0, int(drafts.sum()), int(accepted.sum())))
                left[ahead.groups[rounds]] -= rounds > 0
                if not left.all():
                    break


@pytest.mark.parametrize("text", ["off", "static:3", "schedule:1-4=3,5-64=1", "goodput:3", "gate:3:0.1", "budget:3"])
def test_the_road_is_taken(text: str) -> None:
    """Guard: a plain stretch of arrivals is left to the compiled walk, prompts in parts included."""
    trace = make_trace(
        arrival_s=np.arange(200) * 0.02, prompt_tokens=[40, 500] * 100, output_tokens=[1, 30, 7, 50] * 50
    )
    workload = Workload(trace, FixedLuck(), seed=0)  # type: ignore[arg-type]
    decided = 0
    begin = OpenRoad._begin

    def counted(replica: OpenRoad, now_s: float) -> float | None:
        nonlocal decided
        decided += 1
        return begin(replica, now_s)

    with patch.object(FastReplica, "_begin", counted):
        limits = make_limits(max_num_batched_tokens=256, enable_prefix_caching=False)
        result = simulate(workload, make_cost(), limits=limits, policy=parse_policy(text))
    assert result.totals.steps > 200
    assert decided < 10
