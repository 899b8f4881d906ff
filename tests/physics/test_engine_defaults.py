"""What each engine takes when nothing is said, what it refuses, and what its graphs and passes do to a step."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_cost, make_pass, make_profile

from scenarios.hardware import gpu
from scenarios.models import default_drafter, model
from scenarios.resolve import resolve
from specsim.analytic import analytic_profile
from specsim.config import Deployment, Slo, Speculation
from specsim.disciplines import DISCIPLINES, TRTLLM_MAX_UTILIZATION
from specsim.errors import CapacityError, ProfileError, ScenarioError
from specsim.latency import StepCost, StepWork
from specsim.memory import replica_limits
from specsim.planner.flags import engine_config
from specsim.planner.plan import not_modelled
from specsim.policies import PolicySpec
from specsim.profiles import LatencyProfile
from specsim.serving import ENGINES

H100, LLAMA = gpu("H100"), model("llama-3.1-8b")
EAGLE = default_drafter(LLAMA, "eagle")


def limits_of(method: str = "none", gpu_name: str = "H100", **deployment: Any) -> Any:
    draft = EAGLE if method == "eagle" else None
    return replica_limits(LLAMA, gpu(gpu_name), Deployment(**deployment), draft=draft, method=method)


def test_every_engine_has_a_discipline_that_is_held_against_the_laws() -> None:
    for engine in ENGINES.values():
        assert engine.discipline in DISCIPLINES.values()
        assert set(engine.capacity_policies.values()) <= set(DISCIPLINES.values())
    assert {d.name for d in DISCIPLINES.values()} >= set(ENGINES)


def test_sglang_admits_48_with_speculation_and_thousands_without() -> None:
    assert limits_of(engine="sglang").max_num_seqs == 2048
    assert limits_of("eagle", engine="sglang").max_num_seqs == 48
    assert limits_of("eagle", engine="sglang", max_num_seqs=200).max_num_seqs == 200
    assert ENGINES["sglang"].seats(H100, 1, speculating=False, kv_tokens=10**6, context_tokens=131072) == 3906
    assert ENGINES["sglang"].seats(H100, 1, speculating=False, kv_tokens=10**9, context_tokens=131072) == 4096


@pytest.mark.parametrize(
    ("engine", "gpu_name", "tp", "tokens", "block"),
    [("sglang", "H100", 1, 8192, 1), ("sglang", "L4", 1, 2048, 1), ("sglang", "L40S", 1, 4096, 1),
     ("sglang", "B200", 8, 16384, 1), ("trtllm", "H100", 1, 8192, 32), ("llamacpp", "H100", 1, 2048, 1)],
)  # fmt: skip
def test_budget_and_block_size(engine: str, gpu_name: str, tp: int, tokens: int, block: int) -> None:
    assert ENGINES[engine].sizes(gpu(gpu_name), tp).max_num_batched_tokens == tokens
    assert ENGINES[engine].block_size_tokens == block


def test_a_deployment_chooses_among_the_rules() -> None:
    assert limits_of(engine="trtllm").discipline == DISCIPLINES["trtllm"]
    other = limits_of(engine="trtllm", capacity_policy="max_utilization", chunked_prefill=True).discipline
    assert other.chunked_prefill
    assert other.reserve == TRTLLM_MAX_UTILIZATION.reserve == "step"
    assert limits_of(engine="trtllm", asked_output_tokens=4096).asked_output_tokens == 4096
    assert not limits_of(engine="llamacpp").enable_prefix_caching
    assert limits_of().enable_prefix_caching
    assert not limits_of(enable_prefix_caching=False).enable_prefix_caching


def test_async_scheduling_is_not_for_lookups() -> None:
    assert limits_of(async_scheduling=True).discipline.extra_step
    assert limits_of("eagle", async_scheduling=True).discipline.extra_step
    assert not limits_of("ngram", async_scheduling=True).discipline.extra_step
    assert not limits_of().discipline.extra_step
    assert analytic_profile(LLAMA, H100, is_async=True).host_overlaps
    assert not analytic_profile(LLAMA, H100, is_async=True, method="ngram").host_overlaps
    assert not analytic_profile(LLAMA, H100).host_overlaps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "vlm"}, "did you mean 'vllm'"),
        ({"engine": "tgi"}, "one of vllm, sglang, trtllm, llamacpp, static"),
        ({"capacity_policy": "max_utilization"}, "is for trtllm"),
        ({"engine": "trtllm", "capacity_policy": "guaranteed"}, "not one of guaranteed_no_evict, max_utilization"),
        ({"engine": "sglang", "async_scheduling": True}, "a choice of vllm"),
        ({"engine": "static", "chunked_prefill": True}, "makes no sense with static"),
        ({"engine": "llamacpp", "enable_prefix_caching": True}, "not modelled for llamacpp"),
        ({"engine": "llamacpp", "max_captured": 64}, "no graphs are modelled"),
        ({"chunked_prefill": 1}, "must be true or false"),
        ({"async_scheduling": None}, "must be true or false"),
        ({"max_captured": 0}, "max_captured must be a whole number"),
        ({"asked_output_tokens": 2**40}, "asked_output_tokens must be a whole number"),
        ({"block_size_tokens": True}, "block_size_tokens must be a whole number"),
        ({"engine_version": "latest"}, "is not a version"),
    ],
)  # fmt: skip
def test_what_an_engine_does_not_have_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        Deployment(**changes)


def test_versions_are_the_engines_own_unless_given() -> None:
    assert Deployment(engine="sglang").version == "0.5.23"
    assert Deployment(engine="sglang", engine_version="0.4.4").version == "0.4.4"
    assert Deployment(engine="llamacpp", engine_version="b6123").version == "b6123"


def test_slots_share_the_cache_equally() -> None:
    limits = limits_of(engine="llamacpp", max_num_seqs=16)
    assert limits.max_model_len == limits.num_kv_blocks // 16 < 131072
    assert limits_of(engine="llamacpp", max_num_seqs=16, max_model_len=8192).max_model_len == 8192
    with pytest.raises(CapacityError, match="64 slots of 16384 tokens do not fit") as caught:
        limits_of(engine="llamacpp", max_num_seqs=64, max_model_len=16384)
    assert "\n" not in str(caught.value)


def test_graphs_by_engine() -> None:
    def graphs(engine: str, *, tp: int = 1, speculating: bool = True, **more: Any) -> Any:
        return ENGINES[engine].graphs(H100, tp, speculating=speculating, **more)

    assert graphs("vllm").tokens_max == 512
    assert ENGINES["vllm"].graphs(gpu("B200"), 1, speculating=True).tokens_max == 1024
    assert graphs("vllm", largest=2048).tokens_max == 2048
    spec, plain = graphs("sglang").requests, graphs("sglang", speculating=False).requests
    assert spec[:12] == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
    assert plain[:6] == (1, 2, 4, 8, 12, 16)
    assert spec[-1] == plain[-1] == 256
    assert graphs("sglang", tp=4).requests[-1] == 512
    assert graphs("sglang", largest=48).requests[-3:] == (40, 44, 48)
    assert graphs("sglang", largest=300).requests[-2:] == (296, 300)
    assert graphs("trtllm").exactly
    assert graphs("trtllm", largest=256).requests[-3:] == (64, 128, 256)
    assert ENGINES["llamacpp"].graphs(H100, 1, speculating=True) == ENGINES["static"].graphs(H100, 1, speculating=True)


def step(decode: int, drafts: int = 0, **more: int) -> StepWork:
    return StepWork(decode_requests=decode, draft_tokens=drafts, kv_tokens=100 * decode, machinery=True, **more)


def test_steps_are_padded_to_captured_requests_each_as_wide_as_the_others() -> None:
    bare, cost = make_cost(), make_cost(captured_requests=(1, 4, 8), uncaptured_s=1e-3)
    token_s = bare.profile.target.token_s
    for decode, drafts, padded in ((1, 3, 4), (3, 9, 16), (4, 12, 16), (5, 15, 32), (5, 10, 24)):
        graph = cost.parts(step(decode, drafts))["graph"]
        assert graph == pytest.approx((padded - decode - drafts) * token_s, abs=1e-12)
        assert cost.step_s(step(decode, drafts)) == pytest.approx(bare.step_s(step(decode, drafts)) + graph)
    assert cost.parts(step(9, 27))["graph"] == 1e-3, "beyond the largest: eager"


def test_exact_graphs_pad_nothing_and_miss_much() -> None:
    cost = make_cost(captured_requests=(1, 2, 4), captured_exactly=True, uncaptured_s=1e-3)
    assert [cost.parts(step(n))["graph"] for n in range(1, 6)] == [0.0, 0.0, 1e-3, 0.0, 1e-3]


def test_a_large_step_takes_several_passes_and_reads_the_weights_in_each() -> None:
    target = make_pass(kv_pair_s=0.0)
    whole, split = (make_cost(target=target, pass_tokens_max=most) for most in (0, 512))
    prompt = StepWork(prefill_tokens=1300, prefill_rows=1, prefill_pairs=1300 * 1301 // 2)
    again = 2 * (target.weights_s + target.fixed_s)
    assert split.step_s(prompt) - whole.step_s(prompt) == pytest.approx(again)
    assert sum(split.parts(prompt).values()) == pytest.approx(split.step_s(prompt))
    assert split.parts(prompt)["weights"] - whole.parts(prompt)["weights"] == pytest.approx(2 * target.weights_s)
    assert split.step_s(step(16)) == whole.step_s(step(16))


@pytest.mark.parametrize("host_s", [1e-3, 1.0])
def test_host_time_shows_only_where_it_is_longer_than_the_rest(host_s: float) -> None:
    apart = make_cost(host_s=host_s, host_request_s=1e-5)
    beside = make_cost(host_s=host_s, host_request_s=1e-5, host_overlaps=True)
    chunk = step(3, 9, prefill_tokens=100, prefill_rows=1, prefill_pairs=5050, next_num_spec_tokens=3)
    for work in (step(3, 9, next_num_spec_tokens=3), chunk):
        host = host_s + 3e-5
        rest = apart.step_s(work) - host
        assert beside.step_s(work) == pytest.approx(max(rest, host))
        assert sum(beside.parts(work).values()) == pytest.approx(beside.step_s(work))
        assert beside.parts(work)["host"] == pytest.approx(max(0.0, host - rest), abs=1e-12)
    steady = beside.decode_step_s(3, 100.0, 3)
    assert steady == pytest.approx(beside.step_s(step(3, 9, next_num_spec_tokens=3)))


def test_profiles_with_graphs_and_passes_survive_their_file_and_refuse_nonsense() -> None:
    profile = make_profile(captured_requests=(1, 2, 8), captured_exactly=True, pass_tokens_max=512, host_overlaps=True)
    assert LatencyProfile.from_dict(profile.to_dict()) == profile
    assert StepCost(profile).step_s(step(2)) > 0
    for changes, message in (
        ({"captured_requests": (4, 2)}, "rising whole numbers"),
        ({"captured_requests": (0, 2)}, "rising whole numbers"),
        ({"captured_requests": (1,), "captured_tokens_max": 512}, "by tokens or by requests"),
        ({"pass_tokens_max": -1}, "pass_tokens_max must be finite"),
    ):
        with pytest.raises(ProfileError, match=message):
            make_profile(**changes)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_plan_says_what_is_followed_and_left_out(engine: str) -> None:
    question = resolve(Deployment(engine=engine), Speculation(num_spec_tokens=(3,)), Slo())
    told = [text for text in question.assumed if text.startswith("Followed is")]
    assert len(told) == (engine != "vllm")
    assert set(ENGINES[engine].leaves_out) < set(not_modelled(question.deployment))
    config = engine_config(question, PolicySpec("static", 3))
    assert config["engine"] == engine
    assert bool(config["command"]) == (engine != "static")
    assert not any("were checked for" in w for w in config["warnings"]), "the version that was read is the one checked"
