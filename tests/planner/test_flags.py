"""Ready flags: what a shell and the engine would read, and what the engine cannot do."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from builders import make_limits
from plan_tables import make_question

from scenarios.resolve import resolve
from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.drafters import drafter, method_names
from specsim.errors import ScenarioError
from specsim.planner.flags import ENGINES, engine_config
from specsim.planner.question import Question
from specsim.policies import parse_policy
from specsim.report.config import config_files

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
    config = engine_config(make_question(), policy)
    parsed = json.loads(options(config["command"])["--speculative-config"])
    assert parsed == config["speculative_config"]
    assert parsed["num_speculative_tokens"] == policy.num_spec_tokens


def test_a_schedule_becomes_the_table_of_the_engine() -> None:
    config = engine_config(make_question(), SCHEDULE)
    assert config["speculative_config"]["num_speculative_tokens_per_batch_size"] == [list(r) for r in SCHEDULE.table]
    above = engine_config(
        make_question(limits=make_limits(max_num_seqs=128)), PolicySpec("off_above", 3, batch_limit=32)
    )
    assert above["speculative_config"]["num_speculative_tokens_per_batch_size"] == [[1, 32, 3], [33, 128, 0]]


def test_off_says_nothing_of_speculation() -> None:
    config = engine_config(make_question(), PolicySpec("off"))
    assert config["speculative_config"] is None
    assert "spec" not in config["command"]


def test_ngram_names_no_model() -> None:
    config = engine_config(make_question(proposal_rate=0.5), PolicySpec("static", 3))
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
    assert shlex.split(engine_config(question, PolicySpec("off"))["command"])[2] == served


def test_a_drafter_that_only_the_catalogue_knows_is_pointed_out() -> None:
    question = resolve(Deployment(), Speculation(), Slo())
    config = engine_config(question, PolicySpec("static", 3))
    assert any("is specsim's name" in warning for warning in config["warnings"])
    named = resolve(Deployment(), Speculation(method="draft_model", draft="meta-llama/Llama-3.2-1B-Instruct"), Slo())
    config = engine_config(named, PolicySpec("static", 3))
    assert config["speculative_config"]["model"] == "meta-llama/Llama-3.2-1B-Instruct"
    assert not any("is specsim's name" in warning for warning in config["warnings"])


def test_flags_follow_the_deployment() -> None:
    deployment = Deployment(target="qwen3-32b", gpu="h200-sxm", tp=2, weight_dtype="fp8", kv_dtype="fp8",
                            max_num_seqs=96, max_num_batched_tokens=4096, enable_prefix_caching=False)  # fmt: skip
    question = resolve(deployment, Speculation(method="eagle3", num_spec_tokens=(3,)), Slo())
    config = engine_config(question, PolicySpec("static", 3))
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
        w.startswith("--max-cudagraph-capture-size 2048 would let full CUDA graphs cover all 512 ")
        for w in engine_config(question, PolicySpec("static", 3))["warnings"]
    )
    assert not any("graphs" in w for w in engine_config(small, PolicySpec("static", 3))["warnings"])


def test_an_unbounded_limit_is_one_row() -> None:
    config = engine_config(
        make_question(limits=make_limits(max_num_seqs=128)), PolicySpec("off_above", 3, batch_limit=128)
    )
    assert config["speculative_config"]["num_speculative_tokens_per_batch_size"] == [[1, 128, 3]]


def test_a_verification_budget_is_adaptive_verification() -> None:
    config = engine_config(make_question(), parse_policy("budget:5"))
    assert config["speculative_config"]["enable_adaptive_verification"] is True
    assert any("PROFILE_CONTEXT_LEN" in warning for warning in config["warnings"])


def test_what_vllm_does_not_have_is_said() -> None:
    for text in ("goodput:3", "ema:3", "gate:3:0.4", "context:0/1-9=3"):
        policy = parse_policy(text)
        said = [w for w in engine_config(make_question(), policy)["warnings"] if "cannot be told" in w]
        assert said == [f"vLLM cannot be told to follow '{policy.label}'; use a schedule instead."]


def asked(method: str, **changes: object) -> Question:
    place = Deployment("glm-4.5-air", "h200-sxm", tp=4) if method == "mtp" else Deployment("llama-3.1-8b", tp=4)
    k = drafter(method).usual_k
    return resolve(place, Speculation(method, num_spec_tokens=(k,), **changes), Slo())  # type: ignore[arg-type]


def static(question: Question) -> PolicySpec:
    return PolicySpec("static", question.max_k)


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("method", method_names())
def test_every_engine_is_told_its_own_name_or_that_it_has_none(method: str, engine: str) -> None:
    question = asked(method)
    config = engine_config(question, static(question), engine=engine)
    offered = drafter(method).engines.get(engine)
    text = config["command"] + "".join(config["files"].values())
    if offered is None:
        assert config["speculative_config"] is None
        assert any(f"does not offer {method}" in warning for warning in config["warnings"])
        assert "specul" not in text and "spec-type" not in text
        return
    assert offered.name in config["speculative_config"].values()
    assert offered.name in text
    assert (not offered.remark) or offered.remark in config["warnings"]
    named = {"vllm": "model", "sglang": "speculative_draft_model_path", "trtllm": "speculative_model",
             "llamacpp": "--spec-draft-model"}[engine]  # fmt: skip
    assert (named in config["speculative_config"]) == offered.takes_model


def test_parallel_drafters_are_told_so_to_vllm() -> None:
    for method, name in (("p_eagle", "eagle3"), ("pard", "draft_model")):
        question = asked(method)
        config = engine_config(question, static(question))["speculative_config"]
        assert config["method"] == name and config["parallel_drafting"] is True


def test_vllm_s_drafter_has_its_own_split_and_formats() -> None:
    question = asked("eagle3", draft_tp=1, draft_weight_dtype="fp8", draft_kv_dtype="bf16")
    config = engine_config(question, static(question))["speculative_config"]
    assert config["draft_tensor_parallel_size"] == 1
    assert (config["quantization"], config["kv_cache_dtype"]) == ("fp8", "bfloat16")


def test_trees_are_written_as_each_engine_counts_them() -> None:
    question = asked("eagle", tree_nodes=15, topk=4)
    policy = static(question)
    sglang = engine_config(question, policy, engine="sglang")["speculative_config"]
    assert [sglang[f"speculative_{key}"] for key in ("num_steps", "eagle_topk", "num_draft_tokens")] == [3, 4, 16]
    chain = engine_config(asked("eagle"), policy, engine="sglang")["speculative_config"]
    assert [chain[f"speculative_{key}"] for key in ("num_steps", "eagle_topk", "num_draft_tokens")] == [3, 1, 4]
    third = engine_config(asked("eagle3", tree_nodes=15, topk=4), policy, engine="trtllm")
    assert third["speculative_config"]["max_total_draft_tokens"] == 15
    assert "  dynamic_tree_max_topK: 4\n" in third["files"]["config.yml"]
    for engine in ("vllm", "llamacpp"):
        warnings = engine_config(asked("eagle3", tree_nodes=15, topk=4), policy, engine=engine)["warnings"]
        assert any("verifies chains only" in warning for warning in warnings)


def test_policies_are_written_where_the_engine_has_them() -> None:
    question = asked("eagle3")
    schedule = parse_policy("schedule:1-4=3,5-8=2,9-999=0")
    trt = engine_config(question, schedule, engine="trtllm")
    assert trt["speculative_config"]["draft_len_schedule"] == {4: 3, 8: 2}
    assert "  draft_len_schedule:\n    4: 3\n    8: 2\n" in trt["files"]["config.yml"]
    off_above = engine_config(question, parse_policy("off_above:3:32"), engine="trtllm")["speculative_config"]
    assert off_above["max_concurrency"] == 32
    gate = engine_config(question, parse_policy("trt_gate:3:0.4:100"), engine="trtllm")["speculative_config"]
    assert (gate["acceptance_rate_window_size"], gate["acceptance_rate_threshold"]) == (100, 0.4)
    ema = engine_config(question, parse_policy("ema:3"), engine="sglang")
    assert "--speculative-adaptive-config adaptive.json" in ema["command"]
    assert json.loads(ema["files"]["adaptive.json"])["8"]["candidate_steps"] == [0, 1, 3]
    for engine in ("vllm", "trtllm", "llamacpp"):
        warnings = engine_config(question, parse_policy("ema:3"), engine=engine)["warnings"]
        assert any("cannot be told to follow 'ema<=3'" in warning for warning in warnings)


def test_flags_of_an_unknown_engine_are_refused() -> None:
    with pytest.raises(ScenarioError, match="no flags are known for engine 'exllama'; there are some for vllm, sglang"):
        engine_config(asked("eagle"), PolicySpec("off"), engine="exllama")


@pytest.mark.parametrize("engine", ENGINES)
def test_drafts_by_probability_are_asked_for_or_said_to_be_missing(engine: str) -> None:
    speculation = Speculation(method="draft_model", temperature=1.0, draft_sampling="probabilistic")
    found = engine_config(resolve(Deployment(), speculation, Slo()), PolicySpec("static", 3), engine=engine)
    assert ('"draft_sample_method":"probabilistic"' in found["command"]) == (engine == "vllm")
    assert any("by probability" in warning for warning in found["warnings"]) == (engine != "vllm")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_prefill_and_decode_servers_have_commands_of_their_own(engine: str) -> None:
    """The prefill side loads the drafter and asks it for one token, since its cache is sent along."""
    deployment = Deployment(engine=engine, prefill_replicas=2, decode_replicas=1)
    question = resolve(deployment, Speculation(num_spec_tokens=(3,)), Slo())
    config = engine_config(question, PolicySpec("static", 3))
    before, after = config["prefill_command"], config["command"]
    assert before != after
    scripts = config_files(config | {"plan_id": "plan-1"})
    assert scripts["serve-prefill.sh"].endswith(f"exec {before}\n")
    assert scripts["serve.sh"].endswith(f"exec {after}\n")
    files = config["files"]
    if engine == "vllm":
        assert json.loads(options(before)["--kv-transfer-config"])["kv_role"] == "kv_producer"
        assert json.loads(options(after)["--kv-transfer-config"])["kv_role"] == "kv_consumer"
        assert json.loads(options(before)["--speculative-config"])["num_speculative_tokens"] == 1
        assert json.loads(options(after)["--speculative-config"])["num_speculative_tokens"] == 3
    elif engine == "sglang":
        assert "--disaggregation-mode prefill" in before and "--speculative-num-steps 1" in before
        assert "--disaggregation-mode decode" in after and "--speculative-num-steps 3" in after
    else:
        assert set(files) == {name for command in (before, after) for name in command.split() if name in files}
        assert len(files) == 2 and all("cache_transceiver_config" in text for text in files.values())
    plain = engine_config(question, PolicySpec("off"))
    assert "spec" not in plain["prefill_command"].replace("specsim", "")
    lookup = resolve(deployment, Speculation(method="ngram", num_spec_tokens=(3,)), Slo())
    assert "spec" not in engine_config(lookup, PolicySpec("static", 3))["prefill_command"], "it has no cache to fill"
    assert (
        engine_config(resolve(Deployment(engine=engine), Speculation(), Slo()), PolicySpec("off"))["prefill_command"]
        is None
    )
