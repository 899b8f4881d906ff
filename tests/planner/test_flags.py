"""Ready flags: what a shell and vLLM would read, and what vLLM cannot do."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from builders import make_limits
from plan_tables import make_question

from scenarios.resolve import resolve
from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.planner.flags import vllm_config
from specsim.policies import parse_policy

SCHEDULE = PolicySpec("schedule", 5, table=((1, 8, 5), (9, 64, 2), (65, 512, 0)))


def options(command: str) -> dict[str, str]:
    """Flag -> value of a command line, as a shell splits it."""
    words = shlex.split(command)
    assert words[:2] == ["vllm", "serve"]
    found = {}
    for i, word in enumerate(words):
        if word.startswith("--"):
            found[word] = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else ""
    return found


@pytest.mark.parametrize("policy", [PolicySpec("static", 3), SCHEDULE, PolicySpec("off_above", 3, batch_limit=32)])
def test_the_speculative_config_survives_the_shell(policy: PolicySpec) -> None:
    config = vllm_config(make_question(), policy)
    parsed = json.loads(options(config["command"])["--speculative-config"])
    assert parsed == config["speculative_config"]
    assert parsed["num_speculative_tokens"] == policy.num_spec_tokens


def test_a_schedule_becomes_the_table_of_the_engine() -> None:
    config = vllm_config(make_question(), SCHEDULE)
    assert config["speculative_config"]["num_speculative_tokens_per_batch_size"] == [list(r) for r in SCHEDULE.table]
    above = vllm_config(make_question(limits=make_limits(max_num_seqs=128)), PolicySpec("off_above", 3, batch_limit=32))
    assert above["speculative_config"]["num_speculative_tokens_per_batch_size"] == [[1, 32, 3], [33, 128, 0]]


def test_off_says_nothing_of_speculation() -> None:
    config = vllm_config(make_question(), PolicySpec("off"))
    assert config["speculative_config"] is None
    assert "spec" not in config["command"]


def test_ngram_names_no_model() -> None:
    config = vllm_config(make_question(proposal_rate=0.5), PolicySpec("static", 3))
    assert config["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("target", "served"),
    [
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("somebody/Llama-3.1-8B-Instruct", "somebody/Llama-3.1-8B-Instruct"),
    ],
)
def test_the_engine_is_told_a_repository(target: str, served: str) -> None:
    question = resolve(Deployment(target=target), Speculation(), Slo())
    assert shlex.split(vllm_config(question, PolicySpec("off"))["command"])[2] == served


def test_a_drafter_that_only_the_catalogue_knows_is_pointed_out() -> None:
    question = resolve(Deployment(), Speculation(), Slo())
    config = vllm_config(question, PolicySpec("static", 3))
    assert any("is specsim's name" in warning for warning in config["warnings"])
    named = resolve(Deployment(), Speculation(method="draft_model", draft="meta-llama/Llama-3.2-1B-Instruct"), Slo())
    config = vllm_config(named, PolicySpec("static", 3))
    assert config["speculative_config"]["model"] == "meta-llama/Llama-3.2-1B-Instruct"
    assert not any("is specsim's name" in warning for warning in config["warnings"])


def test_flags_follow_the_deployment() -> None:
    deployment = Deployment(target="qwen3-32b", gpu="h200-sxm", tp=2, weight_dtype="fp8", kv_dtype="fp8",
                            max_num_seqs=96, max_num_batched_tokens=4096, enable_prefix_caching=False)  # fmt: skip
    question = resolve(deployment, Speculation(method="eagle3", num_spec_tokens=(3,)), Slo())
    config = vllm_config(question, PolicySpec("static", 3))
    found = options(config["command"])
    assert found["--tensor-parallel-size"] == "2"
    assert found["--quantization"] == found["--kv-cache-dtype"] == "fp8"
    assert (found["--max-num-seqs"], found["--max-num-batched-tokens"]) == ("96", "4096")
    assert "--no-enable-prefix-caching" in found
    assert any("8192" in warning for warning in config["warnings"])


def test_graphs_that_do_not_cover_the_batch_are_a_warning() -> None:
    question = make_question(profile={"captured_tokens_max": 512})
    small = replace(question, on=replace(question.on, limits=make_limits(max_num_seqs=128)))
    assert any(
        "graphs cover 512 tokens, 128 requests" in w for w in vllm_config(question, PolicySpec("static", 3))["warnings"]
    )
    assert not any("graphs" in w for w in vllm_config(small, PolicySpec("static", 3))["warnings"])


def test_an_unbounded_limit_is_one_row() -> None:
    config = vllm_config(
        make_question(limits=make_limits(max_num_seqs=128)), PolicySpec("off_above", 3, batch_limit=128)
    )
    assert config["speculative_config"]["num_speculative_tokens_per_batch_size"] == [[1, 128, 3]]


def test_a_verification_budget_is_adaptive_verification() -> None:
    config = vllm_config(make_question(), parse_policy("budget:5"))
    assert config["speculative_config"]["enable_adaptive_verification"] is True
    assert any("PROFILE_CONTEXT_LEN" in warning for warning in config["warnings"])


def test_what_vllm_does_not_have_is_said() -> None:
    for text in ("goodput:3", "ema:3", "gate:3:0.4", "context:0/1-9=3"):
        policy = parse_policy(text)
        said = [w for w in vllm_config(make_question(), policy)["warnings"] if "cannot be told" in w]
        assert said == [f"vLLM cannot be told to follow '{policy.label}'; use a schedule instead."]
