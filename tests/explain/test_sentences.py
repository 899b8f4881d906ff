"""The sentences follow from the figures: each regime is named, by number, and what would help is its own cure."""

from __future__ import annotations

from typing import Any

import pytest
from builders import FixedLuck, make_limits, make_pass, make_profile, make_trace

from specsim.config import PolicySpec
from specsim.engine.simulator import simulate
from specsim.explain.breakdown import BreakdownObserver
from specsim.explain.explanation import side_of
from specsim.explain.sentences import sentences
from specsim.latency import StepCost
from specsim.profiles import LatencyProfile
from specsim.workload import Workload


def side(
    profile: LatencyProfile,
    *,
    k: int | None,
    accepted: int = 2,
    requests: int = 8,
    prompt: int = 10,
    output: int = 61,
    gap_s: float = 0.0,
    **limits: Any,
) -> dict[str, Any]:
    """One simulated side; `k` None is speculation off."""
    trace = make_trace(arrival_s=[i * gap_s for i in range(requests)], prompt_tokens=prompt, output_tokens=output)
    cost = StepCost(profile)
    observer = BreakdownObserver(cost)
    policy = PolicySpec("off") if k is None else PolicySpec("static", k)
    workload = Workload(trace, FixedLuck(constant=accepted), seed=0)
    return side_of(
        simulate(workload, cost, limits=make_limits(**limits), policy=policy, observers=[observer]), observer.breakdown
    )


def both(profile: LatencyProfile, **changes: Any) -> list[str]:
    return sentences(side(profile, k=None, **changes), side(profile, k=3, **changes))


def test_a_gain_names_its_size_and_where_it_would_end() -> None:
    profile = make_profile()
    off, on = side(profile, k=None), side(profile, k=3)
    said = sentences(off, on)
    ratio = off["token_total_s"] / on["token_total_s"]
    assert said[0].startswith("Speculation helps") and f"{ratio:.2f}x as fast" in said[0]
    assert "The target computes 4.0 tokens a request and round instead of 1.0." in said[1]
    assert "gives a request 3.00 tokens instead of 1" in said[1]
    assert said[2].startswith(f"It breaks even at {on['round_total_s'] / off['round_total_s']:.2f} tokens a round.")
    assert "Most of a round is weights" in said[2]


def test_the_break_even_is_where_the_sign_turns() -> None:
    """At as many tokens a round as it says, both sides take the same time a token."""
    profile = make_profile()
    off, on = side(profile, k=None), side(profile, k=3)
    needed = on["round_total_s"] / off["round_total_s"]
    assert on["round_total_s"] / needed == pytest.approx(off["token_total_s"], rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"target": make_pass(token_s=1e-3)}, "compute"),
        ({"draft": make_pass(weights_s=8e-3), "draft_mode": "serial"}, "draft"),
        ({"speculation_host_s": 2e-2}, "speculation"),
        ({"verify_unsplit_requests": 5000.0}, "kv"),
        ({"target": make_pass(experts_s=0.2, num_experts=256, experts_per_token=1)}, "weights"),
    ],
)
def test_a_loss_names_what_adds_most_and_what_would_help(changes: dict[str, Any], cause: str) -> None:
    said = both(make_profile(**changes), accepted=0)
    assert said[0].startswith("Speculation hurts")
    assert f"Most is added by {cause}:" in said[2]
    assert f"({cause} +" in said[1]


def test_a_tie_is_called_little() -> None:
    profile = make_profile()
    off, on = side(profile, k=None), side(profile, k=0)
    assert off["token_total_s"] == on["token_total_s"]
    assert sentences(off, on)[0].startswith("Speculation changes little")


def test_prompts_queues_and_a_full_cache_are_named_when_they_matter() -> None:
    quiet = both(make_profile(), requests=4, output=400)
    assert not any("Prompts take" in s or "wait for the engine" in s or "cache ran out" in s for s in quiet)
    prompts = both(make_profile(), prompt=1800, output=5, requests=20)
    assert any(s.startswith(("Prompts take 8", "Prompts take 9")) for s in prompts)
    queue = both(make_profile(), requests=40, max_num_seqs=4)
    assert any("Requests wait for the engine" in s and "of TTFT" in s for s in queue)
    long = both(make_profile(), requests=300, output=400, max_num_seqs=2)
    assert any("Requests wait for the engine: " in s and " s with off" in s for s in long)
    full = both(make_profile(), requests=20, num_kv_blocks=60)
    assert any(s.startswith("The cache ran out") for s in full)


def test_requests_left_out_of_steps_stall() -> None:
    profile = make_profile()
    crowded = side(profile, k=3, requests=20, num_kv_blocks=60)
    assert crowded["token_s"]["stalled"] > 0
    assert side(profile, k=3, requests=20)["token_s"]["stalled"] == 0


def test_a_faster_side_with_fewer_requests_says_so() -> None:
    said = both(make_profile(), requests=60, output=80, gap_s=0.05)
    assert any("requests decode in a step instead of" in s and "since requests leave sooner" in s for s in said)
