"""Seconds of a step: parts add up, fast and slow path agree, and each cause moves what it should."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.latency import StepCost, StepWork, captured_sizes
from specsim.profiles import LatencyProfile, PassCost
from specsim.trees import cut, grown_tree


def pass_cost(**changes: float) -> PassCost:
    terms = {"weights_s": 5e-3, "token_s": 2e-5, "head_weights_s": 4e-4, "head_row_s": 2e-6, "kv_token_s": 4e-8,
             "kv_pair_s": 1e-9, "fixed_s": 5e-4, "knee": 1.2}  # fmt: skip
    return PassCost(**{**terms, **changes})  # type: ignore[arg-type]


def profile(**changes: object) -> LatencyProfile:
    terms: dict = {"name": "test", "kind": "analytic", "target": pass_cost(), "host_s": 1e-3,
                   "draft": pass_cost(weights_s=2e-4, token_s=1e-6, kv_token_s=1e-9, fixed_s=1e-4),
                   "draft_mode": "serial", "speculation_host_s": 2e-4, "loaded_host_s": 3e-4,
                   "loaded_request_s": 1e-6, "captured_tokens_max": 512, "uncaptured_s": 3e-4,
                   "mixed_s": 1e-4}  # fmt: skip
    return LatencyProfile(**{**terms, **changes})


WINDOWED = pass_cost(windowed_kv_token_s=2e-8, windowed_kv_pair_s=5e-10, window_tokens=128)
MOE = pass_cost(experts_s=2e-2, num_experts=64, experts_per_token=4)
PROFILES = {
    "serial": profile(),
    "parallel": profile(draft_mode="parallel", draft_rows_fixed=-1, draft_rows_per_draft=1),
    "block": profile(draft_mode="block", draft_catch_up_share=0.2),
    "heads": profile(draft_mode="heads", draft_catches_up=False),
    "first layers": profile(draft_catches_up=False, verify_skip_share=0.25),
    "lookup": profile(draft=None, draft_mode="none", lookup_request_s=1e-6),
    "windowed": profile(target=WINDOWED),
    "moe, no sharing, unsplit": profile(target=MOE, verify_reads_kv_once=False, verify_unsplit_requests=13.5),
}


@st.composite
def works(draw: st.DrawFn) -> StepWork:
    decode = draw(st.integers(0, 300))
    kv = draw(st.integers(0, 1 << 20)) if decode else 0
    prefill = draw(st.sampled_from([0, 0, 1, 17, 500, 8192]))
    prefix = draw(st.integers(0, 5000)) if prefill else 0
    return StepWork(
        decode_requests=decode,
        draft_tokens=draw(st.integers(0, decode * 8)),
        kv_tokens=kv,
        windowed_kv_tokens=min(kv, decode * 128),
        prefill_tokens=prefill,
        prefill_rows=draw(st.integers(0, 3)) if prefill else 0,
        prefill_kv_tokens=prefix,
        prefill_pairs=prefill * prefix + prefill * (prefill + 1) // 2,
        prefill_windowed_pairs=prefill * 128,
        next_num_spec_tokens=draw(st.integers(0, 8)),
        machinery=True,
    )


@pytest.mark.parametrize("name", PROFILES)
@settings(max_examples=60, deadline=None)
@given(work=works())
def test_parts_add_up_to_the_step(name: str, work: StepWork) -> None:
    cost = StepCost(PROFILES[name])
    parts = cost.parts(work)
    assert math.fsum(parts.values()) == pytest.approx(cost.step_s(work), rel=1e-12)
    assert cost.step_s(work) == cost.step_s(work)  # remembered or not
    assert all(seconds >= -1e-15 for seconds in parts.values()), parts


@pytest.mark.parametrize("name", ["serial", "parallel", "windowed", "moe, no sharing, unsplit"])
@settings(max_examples=40, deadline=None)
@given(work=works(), nodes=st.integers(4, 30), drafting=st.integers(0, 300), levels=st.integers(0, 4))
def test_parts_of_a_step_with_trees_add_up(name: str, work: StepWork, nodes: int, drafting: int, levels: int) -> None:
    cost = StepCost(PROFILES[name], cut(grown_tree((0.7,), nodes=nodes, topk=4, depth=4)[0]))
    work.draft_requests = min(drafting, work.decode_requests)
    work.draft_tokens = work.draft_requests * levels
    work.next_num_spec_tokens = min(work.next_num_spec_tokens, 4)
    parts = cost.parts(work)
    assert math.fsum(parts.values()) == pytest.approx(cost.step_s(work), rel=1e-9)
    assert all(seconds >= -1e-15 for seconds in parts.values()), parts
    assert cost.drafts_verified(work) >= work.draft_tokens


@settings(max_examples=60, deadline=None)
@given(work=works(), field=st.sampled_from(["kv_tokens", "prefill_tokens", "prefill_pairs", "next_num_spec_tokens"]))
def test_more_work_never_costs_less(work: StepWork, field: str) -> None:
    cost = StepCost(profile(mixed_s=0.0, captured_tokens_max=0))
    more = dataclasses.replace(work, **{field: getattr(work, field) + 5})
    assert cost.step_s(more) >= cost.step_s(work)


def test_step_by_hand() -> None:
    flat = profile(target=pass_cost(knee=1.0), draft=pass_cost(knee=1.0, weights_s=1e-4), captured_tokens_max=0)
    work = StepWork(decode_requests=10, draft_tokens=30, kv_tokens=1000, next_num_spec_tokens=3, machinery=True)
    target = 5e-3 + 40 * 2e-5 + 5e-4 + 4e-4 + 40 * 2e-6 + 1000 * max(4e-8, 4 * 1e-9)
    host = 1e-3 + 2e-4 + 3e-4 + 10 * 1e-6
    first = 1e-4 + 40 * 2e-5 + 5e-4 + 4e-4 + 10 * 2e-6
    later = 2 * (1e-4 + 10 * 2e-5 + 5e-4 + 4e-4 + 10 * 2e-6)
    assert StepCost(flat).step_s(work) == pytest.approx(target + host + first + later + 3 * 1000 * 4e-8, rel=1e-12)


def test_machinery_at_k_0_costs_more_than_off_and_no_machinery_is_off() -> None:
    cost = StepCost(profile())
    off = cost.decode_step_s(32, 1000)
    assert cost.decode_step_s(32, 1000, 0, machinery=True) - off == pytest.approx(3e-4 + 32e-6)
    assert StepCost(profile(loaded_host_s=0.0, loaded_request_s=0.0)).decode_step_s(32, 1000, 0, machinery=True) == off


def test_a_drafter_that_stays_in_sync_runs_its_first_pass_at_k_0() -> None:
    """Over decoding and prompt tokens, without logits; nothing where it has no cache, or is not loaded."""
    flat = pass_cost(knee=1.0)
    free = {"loaded_host_s": 0.0, "loaded_request_s": 0.0, "captured_tokens_max": 0}
    plain, synced = (
        StepCost(profile(draft=flat, **free)),
        StepCost(profile(draft=flat, at_zero_drafts="synced", **free)),
    )
    for more in ({}, {"prefill_tokens": 70, "prefill_rows": 1, "prefill_kv_tokens": 300, "prefill_pairs": 23_485}):
        work = StepWork(decode_requests=8, draft_tokens=16, kv_tokens=5000, machinery=True, **more)
        tokens = 8 + 16 + more.get("prefill_tokens", 0)
        attention = 5000 * 4e-8 + max(more.get("prefill_kv_tokens", 0) * 4e-8, more.get("prefill_pairs", 0) * 1e-9)
        first_pass = 5e-3 + tokens * 2e-5 + 5e-4 + attention
        assert synced.step_s(work) - plain.step_s(work) == pytest.approx(first_pass, rel=1e-9)
        assert sum(synced.parts(work).values()) == pytest.approx(synced.step_s(work), rel=1e-12)
        off = dataclasses.replace(work, machinery=False)
        assert synced.step_s(off) == plain.step_s(off)
        three = dataclasses.replace(work, next_num_spec_tokens=3)
        assert synced.step_s(three) == plain.step_s(three)
    for changes in ({"draft_catches_up": False}, {"draft_mode": "heads"}):
        own = StepCost(profile(draft=flat, **free, **changes))
        work = StepWork(decode_requests=8, kv_tokens=5000, machinery=True)
        assert own.step_s(work) == plain.step_s(work)
    block = StepCost(
        profile(draft=flat, at_zero_drafts="synced", draft_mode="block", draft_catch_up_share=0.25, **free)
    )
    assert block.step_s(work) - plain.step_s(work) == pytest.approx(8 * 0.25 * 2e-5)


@pytest.mark.parametrize("prefill_tokens", [0, 30])
def test_going_over_to_another_k_costs_once(prefill_tokens: int) -> None:
    cost = StepCost(profile(switch_s=0.125))
    work = StepWork(decode_requests=4, draft_tokens=8, kv_tokens=100, prefill_tokens=prefill_tokens,
                    next_num_spec_tokens=1, machinery=True)  # fmt: skip
    over = dataclasses.replace(work, switches=True)
    assert cost.step_s(over) - cost.step_s(work) == pytest.approx(0.125)
    assert sum(cost.parts(over).values()) == pytest.approx(cost.step_s(over))
    assert cost.parts(over)["graph"] - cost.parts(work)["graph"] == pytest.approx(0.125)


def test_captured_sizes_as_vllm_lists_them() -> None:
    sizes = captured_sizes(512)
    assert sizes[:6] == [1, 2, 4, 8, 16, 24]
    assert sizes[-3:] == [480, 496, 512]
    assert 248 in sizes and 264 not in sizes


def test_padding_and_the_mode_beyond_captured_sizes() -> None:
    cost = StepCost(profile())

    def graph(decode: int, drafts: int = 0) -> float:
        return cost.parts(StepWork(decode_requests=decode, draft_tokens=drafts))["graph"]

    assert graph(16) == 0.0
    assert graph(17) > 0.0 and graph(17) > graph(23) > 0.0  # padded to 24
    assert graph(17, 51) == 0.0  # multiples of 1 + k are captured themselves
    assert graph(17, 50) > 0.0
    assert graph(128, 384) == 0.0
    assert graph(129, 387) == pytest.approx(3e-4)


def test_serial_drafting_grows_with_k_and_parallel_hardly() -> None:
    serial, parallel = StepCost(PROFILES["serial"]), StepCost(PROFILES["parallel"])

    def growth(cost: StepCost) -> float:
        drafts = [cost.parts(StepWork(8, 0, 8000, next_num_spec_tokens=k, machinery=True))["draft"] for k in (1, 6)]
        return drafts[1] - drafts[0]

    assert growth(serial) > 10 * growth(parallel) > 0


def test_experts_touched_follow_the_coverage_formula() -> None:
    cost = StepCost(profile(target=MOE, draft=None, draft_mode="none"))
    one, many = (cost.parts(StepWork(decode_requests=n))["weights"] for n in (1, 100_000))
    assert one - 5.4e-3 == pytest.approx(2e-2 * 4 / 64)
    assert many - 5.4e-3 == pytest.approx(2e-2)
    four = cost.parts(StepWork(1, 3))["weights"]
    assert four - 5.4e-3 == pytest.approx(2e-2 * (1 - (1 - 4 / 64) ** 4))


def test_neighbouring_tokens_share_experts_as_published() -> None:
    """Cohere 2026-04, 8 of 128 experts: the second token shares 38 % with the first, four touch 31 % fewer."""
    target = dataclasses.replace(MOE, num_experts=128, experts_per_token=8, expert_sharing=0.7)
    cost = StepCost(profile(target=target, draft=None, draft_mode="none"))
    one, two, four = (cost.parts(StepWork(1, drafts))["weights"] - 5.4e-3 for drafts in (0, 1, 3))
    assert one == pytest.approx(2e-2 * 8 / 128)
    assert two / one == pytest.approx(2 - 0.38, rel=0.05)
    strangers = (1 - (1 - 8 / 128) ** 4) * 128 / 8
    assert four / one == pytest.approx(strangers * (1 - 0.31), rel=0.03)
    requests = cost.parts(StepWork(4, 0))["weights"] - 5.4e-3
    assert requests / one == pytest.approx(strangers)


def test_padding_touches_no_experts() -> None:
    cost = StepCost(profile(target=MOE, draft=None, draft_mode="none", captured_tokens_max=512))
    nine, sixteen = StepWork(9, 0), StepWork(16, 0)
    padding = cost.parts(nine)["graph"]
    assert 0 < padding < cost.parts(sixteen)["weights"] - cost.parts(nine)["weights"]


def test_host_time_grows_with_the_requests_and_not_with_their_drafts() -> None:
    plain, heavy = (StepCost(profile(host_request_s=seconds)) for seconds in (0.0, 1e-5))
    for work in (StepWork(40, 0), StepWork(40, 120, machinery=True), StepWork(40, 0, 4000, prefill_tokens=512)):
        assert heavy.step_s(work) - plain.step_s(work) == pytest.approx(40e-5)


def test_an_unsplit_kernel_hurts_verify_at_small_batch_only() -> None:
    cost = StepCost(profile(verify_unsplit_requests=13.5))

    def per_kv(decode: int, drafts: int) -> float:
        return cost.parts(StepWork(decode, drafts, 1000))["kv"] / 1000

    assert per_kv(1, 0) == pytest.approx(4e-8)
    assert per_kv(1, 3) == pytest.approx(13.5 * 4e-8)
    assert per_kv(27, 81) == pytest.approx(4e-8)


def test_a_lookup_that_proposes_seldom_is_between_none_and_all() -> None:
    cost = StepCost(PROFILES["lookup"])
    low, mid, high = (cost.decode_step_s(64, 500, 3, drafts_per_request=d) for d in (0.0, 0.45, 3.0))
    assert low < mid < high
    assert cost.decode_step_s(1, 500, 3, drafts_per_request=0.4) == pytest.approx(
        0.6 * cost.decode_step_s(1, 500, 3, drafts_per_request=0.0)
        + 0.4 * cost.decode_step_s(1, 500, 3, drafts_per_request=1.0)
    )


def test_a_tree_of_one_node_a_level_costs_the_chain() -> None:
    chain = StepCost(profile()).decode_step_s(16, 500, 4)
    one, wide = (
        StepCost(profile(), cut(grown_tree((0.7,), nodes=nodes, topk=topk, depth=4)[0])).decode_step_s(16, 500, 4)
        for nodes, topk in ((4, 1), (21, 4))
    )
    assert one == pytest.approx(chain, rel=1e-9)
    assert wide > chain


def test_profile_survives_json() -> None:
    for each in PROFILES.values():
        again = LatencyProfile.from_dict(each.to_dict())
        assert again == each and again.sha256 == each.sha256
