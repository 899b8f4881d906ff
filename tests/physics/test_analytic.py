"""Analytic profiles: finite and ordered for the whole catalogue, and each physical cause shows."""

from __future__ import annotations

import dataclasses

import pytest

from scenarios.hardware import gpu, load_gpus
from scenarios.models import default_drafter, load_models, model
from specsim.analytic import analytic_profile, divides, kv_values_per_rank
from specsim.drafters import method_names
from specsim.efficiency import FACTORS, Factors, factor_sources, factors_for
from specsim.errors import CatalogueError, InputError, ProfileError
from specsim.latency import StepCost, StepWork
from specsim.profiles import LatencyProfile

LLAMA = "llama-3.1-8b"


def step(name: str, gpu_name: str, batch: int = 1, context: int = 1000, **options: object) -> float:
    return StepCost(analytic_profile(model(name), gpu(gpu_name), **options)).decode_step_s(batch, context)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu_name", list(load_gpus()))
def test_every_model_dtype_and_tp_gives_sane_times(gpu_name: str) -> None:
    checked = 0
    for shape in load_models().values():
        if shape.kind != "model":
            continue
        for dtype in (None, "bf16", "fp8", "int4", "nvfp4"):
            for tp in (1, 2, 8):
                if not divides(shape, tp):
                    continue
                cost = StepCost(analytic_profile(shape, gpu(gpu_name), tp=tp, weight_dtype=dtype))
                one, many = cost.decode_step_s(1, 1000), cost.decode_step_s(64, 1000)
                prompt = cost.step_s(StepWork(prefill_tokens=2048, prefill_rows=1, prefill_pairs=2048 * 2049 // 2))
                assert 1e-3 < one <= many < 60, (shape.name, dtype, tp)
                assert 1e-3 < prompt < 60, (shape.name, dtype, tp)
                checked += 1
    assert checked > 300


def test_every_usual_drafter_gives_a_profile_that_costs_more_than_off() -> None:
    checked = 0
    for shape in load_models().values():
        if shape.kind != "model":
            continue
        for method in method_names():
            try:
                drafter = default_drafter(shape, method)
            except CatalogueError:
                continue
            off, on = (
                StepCost(analytic_profile(shape, gpu("H200"), draft=drafter, method=chosen))
                for chosen in ("none", method)
            )
            assert off.decode_step_s(8, 2000) < on.decode_step_s(8, 2000, 3) < 100, (shape.name, method)
            checked += 1
    assert checked > 100


def test_kind_band_and_sources_are_stated() -> None:
    profile = analytic_profile(model(LLAMA), gpu("H100"), draft=model("eagle-llama-3.1-8b"), method="eagle")
    assert profile.kind == "analytic"
    assert profile.relative_error >= 0.2
    assert profile.covers["gpu"] == "H100 SXM" and profile.covers["draft"] == "eagle-llama-3.1-8b"
    assert {"weight_bandwidth", "compute", "host_s", "gpu", "target"} <= set(profile.sources)
    assert LatencyProfile.from_dict(profile.to_dict()) == profile


def test_an_engine_has_one_set_of_factors_and_an_unknown_one_that_of_vllm() -> None:
    assert factors_for() == factors_for("vllm", "0.33.0") == factors_for("another") == FACTORS
    assert factors_for("vllm", "0.10.1").eagle3_pass_s > factors_for("vllm", "0.11").eagle3_pass_s == 0.0
    early, late = factors_for("sglang", "0.4.4"), factors_for("sglang", "0.5.23")
    assert early.loaded_request_s > late.loaded_request_s and early.host_s == late.host_s
    for engine in ("sglang", "trtllm", "llamacpp"):
        assert factors_for(engine, "1.2").host_s < FACTORS.host_s


def test_every_factor_has_a_source() -> None:
    named = {f.name for f in dataclasses.fields(Factors)}
    assert named | {"compute"} == set(factor_sources())


def test_memory_and_compute_bounds_by_hand() -> None:
    cost = analytic_profile(model(LLAMA), gpu("H100")).target
    body = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert cost.weights_s == pytest.approx(body * 2 / (3.35e12 * 0.87))
    assert cost.head_weights_s == pytest.approx(4096 * 128256 * 2 / (3.35e12 * 0.87))
    assert cost.kv_token_s == pytest.approx(32 * 2 * 8 * 128 * 2 / (3.35e12 * 0.95))
    assert cost.token_s > 2 * body / 989e12  # never above the datasheet rate


def test_tensor_parallelism_divides_work_and_pays_collectives() -> None:
    one, two, eight = (analytic_profile(model("llama-3.1-70b"), gpu("H100"), tp=tp).target for tp in (1, 2, 8))
    assert two.weights_s == pytest.approx(one.weights_s / 2)
    assert eight.kv_token_s == pytest.approx(one.kv_token_s / 8)
    assert one.collective_token_s == 0 < two.collective_token_s < eight.collective_token_s
    assert step("llama-3.1-70b", "H100", tp=8) < step("llama-3.1-70b", "H100", tp=4) < step("llama-3.1-70b", "H100")
    pcie = analytic_profile(model("llama-3.1-70b"), gpu("H100 PCIe"), tp=2).target
    assert pcie.collective_token_s > 4 * two.collective_token_s


def test_kv_heads_are_replicated_and_latents_are_not_divided() -> None:
    qwen, deepseek = model("qwen3-30b-a3b"), model("deepseek-v3")
    assert qwen.num_kv_heads == 4
    assert kv_values_per_rank(qwen, 8) == kv_values_per_rank(qwen, 4) == 2 * qwen.head_dim
    assert kv_values_per_rank(deepseek, 8) == kv_values_per_rank(deepseek, 1) == 576


def test_verify_is_compute_bound_in_latent_attention() -> None:
    cost = StepCost(analytic_profile(model("deepseek-v3"), gpu("H200"), tp=1))
    narrow, wide = (cost.parts(StepWork(8, drafts, 800_000))["kv"] for drafts in (0, 24))
    assert wide > 2 * narrow
    grouped = StepCost(analytic_profile(model(LLAMA), gpu("H200")))
    assert grouped.parts(StepWork(8, 24, 80_000))["kv"] == grouped.parts(StepWork(8, 0, 80_000))["kv"]


def test_weight_only_dtypes_save_reading_but_not_computing() -> None:
    a100, h100 = gpu("A100"), gpu("H100")
    plain, quantised = (analytic_profile(model(LLAMA), a100, weight_dtype=d) for d in ("bf16", "fp8"))
    assert quantised.target.weights_s < plain.target.weights_s
    assert quantised.target.token_s > plain.target.token_s
    assert any("dequantised" in note for note in quantised.notes)
    native = analytic_profile(model(LLAMA), h100, weight_dtype="fp8")
    assert native.target.token_s < analytic_profile(model(LLAMA), h100).target.token_s
    assert not any("dequantised" in note for note in native.notes)
    assert quantised.target.head_weights_s == plain.target.head_weights_s  # the head stays at 16 bits
    four_bit = analytic_profile(model(LLAMA), gpu("B200"), weight_dtype="nvfp4").target
    assert four_bit.token_s < analytic_profile(model(LLAMA), gpu("B200"), weight_dtype="fp8").target.token_s


def test_older_gpus_do_not_split_the_cache_at_verify() -> None:
    long_context = {}
    for name in ("A100", "H100"):
        cost = StepCost(analytic_profile(model(LLAMA), gpu(name)))
        wide, narrow = (cost.parts(StepWork(1, drafts, 31_000))["kv"] for drafts in (3, 0))
        long_context[name] = wide / narrow
    assert 7 < long_context["A100"] < 23  # flash-attention issues 176 and 190, one request at 31K
    assert long_context["H100"] == pytest.approx(1.0)


def test_doubtful_figures_and_wide_groups_are_said() -> None:
    notes = analytic_profile(model("llama-3.1-70b"), gpu("H100 NVL"), tp=4).notes
    assert any("Doubtful" in note for note in notes)
    assert any("larger than the 2" in note for note in notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tp": 3}, ("tp 3", "use one of 1, 2, 4, 8")),
        ({"weight_dtype": "fp6"}, ("fp6", "fp8")),
        ({"kv_dtype": "fp7"}, ("fp7",)),
        ({"method": "eagle"}, ("needs a drafter",)),
        ({"method": "eagel"}, ("did you mean 'eagle'",)),
    ],
)
def test_impossible_deployments_are_refused_in_one_line(options: dict, words: tuple[str, ...]) -> None:
    with pytest.raises((CatalogueError, ProfileError)) as caught:
        analytic_profile(model(LLAMA), gpu("H100"), **options)
    assert isinstance(caught.value, InputError)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_faster_gpu_is_never_slower() -> None:
    slow = gpu("H100")
    fast = dataclasses.replace(slow, bandwidth_bytes_per_s=2 * slow.bandwidth_bytes_per_s)
    for batch in (1, 64, 512):
        a, b = (StepCost(analytic_profile(model(LLAMA), g)).decode_step_s(batch, 1000) for g in (fast, slow))
        assert a < b
