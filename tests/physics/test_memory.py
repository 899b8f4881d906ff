"""Memory of a replica: bytes by hand, vLLM's defaults, and refusals that name the way out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.hardware import gpu
from scenarios.models import default_drafter, load_models, model
from specsim.analytic import divides
from specsim.config import Deployment
from specsim.errors import CapacityError
from specsim.memory import plan_memory, replica_limits, weight_bytes_per_gpu
from specsim.serving import ENGINES

LLAMA = model("llama-3.1-8b")
H100 = gpu("H100")


def test_llama_8b_on_one_h100_by_hand() -> None:
    plan = plan_memory(LLAMA, H100, Deployment())
    assert plan.weight_bytes == pytest.approx(2 * 8.03e9, rel=0.001)
    assert plan.kv_bytes_per_token == 32 * 2 * 8 * 128 * 2
    assert plan.draft_weight_bytes == 0 and plan.fixed_blocks_per_request == 0
    free = 0.9 * 80e9 - plan.weight_bytes - plan.reserve_bytes
    assert plan.num_kv_blocks == int(free // (16 * 131072))
    assert 2.5e9 < plan.reserve_bytes < 3.7e9  # aiconfigurator reserves 3.5 GB
    assert plan.max_concurrent_requests(1000) == plan.num_kv_blocks // 63  # 1001 tokens in blocks of 16


def test_the_drafter_takes_weights_and_cache() -> None:
    off = plan_memory(LLAMA, H100, Deployment())
    eagle = plan_memory(LLAMA, H100, Deployment(), draft=default_drafter(LLAMA, "eagle"), method="eagle")
    small = plan_memory(LLAMA, H100, Deployment(), draft=model("llama-3.2-1b"), method="draft_model")
    ngram = plan_memory(LLAMA, H100, Deployment(), method="ngram")
    assert eagle.kv_bytes_per_token == off.kv_bytes_per_token * 33 / 32
    assert eagle.draft_kv_bytes_per_token == off.kv_bytes_per_token / 32
    assert small.kv_bytes_per_token == off.kv_bytes_per_token + 16 * 2 * 8 * 64 * 2
    assert small.draft_weight_bytes == pytest.approx(2 * 1.236e9, rel=0.01)
    assert ngram == off
    assert small.num_kv_blocks < eagle.num_kv_blocks < off.num_kv_blocks


def test_tensor_parallel_ranks_share_weights_and_replicate_kv_heads() -> None:
    shape = model("qwen3-30b-a3b")  # 4 KV heads
    four, eight = (plan_memory(shape, H100, Deployment(tp=tp)) for tp in (4, 8))
    assert eight.weight_bytes == pytest.approx(four.weight_bytes / 2)
    assert eight.kv_bytes_per_token == four.kv_bytes_per_token
    latent = [plan_memory(model("deepseek-v3"), gpu("B300"), Deployment(tp=tp)).kv_bytes_per_token for tp in (4, 8)]
    assert latent[0] == latent[1] == 61 * 576 * 2


def test_windowed_layers_are_fixed_blocks() -> None:
    shape = model("gemma-3-27b")
    plan = plan_memory(shape, H100, Deployment())
    layer = 2 * shape.num_kv_heads * shape.head_dim * 2
    assert plan.kv_bytes_per_token == (shape.num_layers - shape.windowed_layers) * layer
    assert plan.windowed_bytes_per_request == shape.windowed_layers * layer * (shape.window_tokens + 16)
    assert plan.fixed_blocks_per_request * 16 * plan.kv_bytes_per_token >= plan.windowed_bytes_per_request


def test_quantised_weights_keep_embedding_and_head_at_16_bits() -> None:
    ends = 2 * 4096 * 128256
    assert weight_bytes_per_gpu(LLAMA, 1, "fp8") == pytest.approx(ends * 2 + (LLAMA.total_parameters - ends))
    oss = weight_bytes_per_gpu(model("gpt-oss-120b"), 1, None)
    assert oss == pytest.approx(65e9, rel=0.05)  # published checkpoint: 65 GB


@pytest.mark.parametrize(
    ("name", "expected"),
    [("H100", (8192, 1024)), ("H200", (8192, 1024)), ("MI300X", (16384, 1024)), ("B200", (16384, 1024)),
     ("A100", (2048, 256)), ("L4", (2048, 256)), ("L40S", (2048, 256))],
)  # fmt: skip
def test_vllm_server_defaults(name: str, expected: tuple[int, int]) -> None:
    sizes = ENGINES["vllm"].sizes(gpu(name), 1)
    assert (sizes.max_num_batched_tokens, sizes.max_num_seqs) == expected


def test_limits_take_the_users_values_first() -> None:
    default = replica_limits(LLAMA, H100, Deployment())
    assert (default.max_num_batched_tokens, default.max_num_seqs) == (8192, 1024)
    assert default.max_model_len == 131072 and not default.lookahead_drafts
    given_ = replica_limits(
        LLAMA, H100, Deployment(max_num_seqs=64, max_num_batched_tokens=4096, max_model_len=9000),
        draft=default_drafter(LLAMA, "eagle"), method="eagle",
    )  # fmt: skip
    assert (given_.max_num_batched_tokens, given_.max_num_seqs, given_.max_model_len) == (4096, 64, 9000)
    assert given_.lookahead_drafts
    assert not replica_limits(LLAMA, H100, Deployment(), method="ngram").lookahead_drafts


def refusal(name: str, gpu_name: str, **changes: object) -> str:
    with pytest.raises(CapacityError) as caught:
        plan_memory(model(name), gpu(gpu_name), Deployment(**changes))  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_does_not_fit_is_refused_with_numbers_and_the_way_out() -> None:
    message = refusal("llama-3.1-70b", "H100")
    for words in ("80.0 GB x 0.9 = 72.0 GB", "weights 141.1 GB", "drafter 0.0 GB", "reserve", "tp 4"):
        assert words in message, message
    assert message.endswith("tp 4 or tp 2 with weight dtype fp8 fits"), "what works together is tried together"
    # what it recommends does fit
    plan_memory(model("llama-3.1-70b"), H100, Deployment(tp=4))
    plan_memory(model("llama-3.1-70b"), H100, Deployment(tp=2, weight_dtype="fp8"))
    with pytest.raises(CapacityError):
        plan_memory(model("llama-3.1-70b"), H100, Deployment(tp=2))
    assert "smaller model" in refusal("llama-3.1-405b", "L4")


def test_a_model_length_that_does_not_fit_is_cut_or_refused() -> None:
    plan = plan_memory(LLAMA, gpu("L4"), Deployment(weight_dtype="fp8"))
    assert plan.max_model_len == plan.num_kv_blocks * 16 < 131072
    assert "max_model_len cut from 131072" in plan.notes[0]
    message = refusal("llama-3.1-8b", "L4", weight_dtype="fp8", max_model_len=131072)
    assert "131072" in message and str(plan.max_model_len) in message


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from([n for n, s in load_models().items() if s.kind == "model"]),
    gpu_name=st.sampled_from(["H100", "L4", "B200", "MI300X"]),
    tp=st.sampled_from([1, 2, 4, 8]),
    kv=st.sampled_from(["bf16", "fp8"]),
)
def test_bytes_never_exceed_what_is_usable(name: str, gpu_name: str, tp: int, kv: str) -> None:
    shape = model(name)
    if not divides(shape, tp):
        return
    try:
        plan = plan_memory(shape, gpu(gpu_name), Deployment(tp=tp, kv_dtype=kv))
    except CapacityError as error:
        assert "\n" not in str(error)
        return
    cache = plan.num_kv_blocks * plan.block_size_tokens * plan.kv_bytes_per_token
    block = plan.block_size_tokens * plan.kv_bytes_per_token
    used = plan.weight_bytes + plan.reserve_bytes + cache
    assert plan.usable_bytes - block < used <= plan.usable_bytes * (1 + 1e-12)
    assert plan.max_concurrent_requests(plan.max_model_len - 1) >= 1
