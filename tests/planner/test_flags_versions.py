"""Flags by version of the engine, and that a version beyond what is known says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from plan_tables import make_question

from specsim.config import Deployment, PolicySpec
from specsim.planner.flags import ENGINES, engine_config
from specsim.planner.flags.versions import Version, version_of
from specsim.policies import parse_policy

TABLE = "num_speculative_tokens_per_batch_size"
SCHEDULE = parse_policy("schedule:1-4=3,5-8=1,9-512=0")


@pytest.mark.parametrize(
    ("older", "newer"),
    [("0.9.2", "0.10.0"), ("1.3.0rc2", "1.3.0rc27"), ("1.3.0rc27", "1.3.0"), ("1.2", "1.2.1"), ("0.33", "0.33.1"),
     ("1.3.0.dev3", "1.3"), ("2026.4", "2026.6")],
)  # fmt: skip
def test_versions_have_an_order(older: str, newer: str) -> None:
    a, b = version_of(older), version_of(newer)
    assert a is not None and b is not None and a < b


def test_versions_that_are_the_same_or_have_no_order() -> None:
    assert version_of("v0.33") == version_of("0.33.0") == version_of("0.33.0+cu129") == Version((0, 33, 0))
    assert version_of("b9123") is None
    assert version_of("latest") is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_version_that_is_not_known_says_so(engine: str) -> None:
    question = make_question()
    said = {}
    for version in (None, "0.0.1", "9999.1", "b9123"):
        said[version] = engine_config(question, PolicySpec("static", 3), engine=engine, version=version)["warnings"]
    assert not any("were checked for" in w for w in said[None])
    assert any("is older" in w for w in said["0.0.1"])
    assert any("newer than anything specsim knows of it" in w for w in said["9999.1"])
    assert any("'b9123' names or defaults differently is not known" in w for w in said["b9123"])
    for version in ("0.0.1", "9999.1", "b9123"):
        found = engine_config(question, PolicySpec("static", 3), engine=engine, version=version)
        assert found["engine_version"] == version


@pytest.mark.parametrize("engine", ENGINES)
def test_another_engine_than_that_of_the_plan_is_pointed_out(engine: str) -> None:
    warnings = engine_config(make_question(), PolicySpec("off"), engine=engine)["warnings"]
    assert any(f"specsim plan --engine {engine} plans for it" in w for w in warnings) == (engine != "vllm")


def test_vllm_by_version() -> None:
    question = make_question(profile={"captured_tokens_max": 512})

    def config(version: str | None, policy: PolicySpec = SCHEDULE) -> dict[str, object]:
        return engine_config(question, policy, version=version)

    assert TABLE in config("0.33.0")["speculative_config"]  # type: ignore[operator]
    assert TABLE in config("0.24.0")["speculative_config"]  # type: ignore[operator]
    old = config("0.23.1")
    assert TABLE not in old["speculative_config"]  # type: ignore[operator]
    assert any("drafts 3 tokens at every batch" in w for w in old["warnings"])  # type: ignore[attr-defined]
    assert "--per-request-spec-decode-metrics" in config("0.29.0")["command"]  # type: ignore[operator]
    assert "--per-request-spec-decode-metrics" not in config("0.28.0")["command"]  # type: ignore[operator]
    assert "--max-cudagraph-capture-size 512" in config("0.33.0")["command"]  # type: ignore[operator]
    assert "--cuda-graph-sizes 512" in config("0.11.0")["command"]  # type: ignore[operator]
    for version, flag in (("0.10.0", "--cuda-graph-sizes"), ("0.33.0", "--max-cudagraph-capture-size")):
        (said,) = (w for w in config(version)["warnings"] if "would let full CUDA graphs" in w)  # type: ignore[attr-defined]
        assert said.startswith(f"{flag} "), "the flag that this version has"
    above = parse_policy("off_above:3:32")
    for version, key in (("0.9.0", True), ("0.10.0", False), ("0.33.0", False)):
        found = config(version, above)["speculative_config"]
        assert ("disable_by_batch_size" in found) == key  # type: ignore[operator]
    assert config("0.9.0", above)["speculative_config"]["disable_by_batch_size"] == 32  # type: ignore[index]
    assert any("does nothing from vLLM 0.10 on" in w for w in config(None, above)["warnings"])  # type: ignore[attr-defined]


def test_keys_of_tensorrt_llm_s_schedule_follow_the_version() -> None:
    """The same rule, read back as each version reads it: k at every batch is that of the policy."""
    question = make_question()

    def k_at(version: str, batch: int) -> int:
        found = engine_config(question, SCHEDULE, engine="trtllm", version=version)
        text = yaml.safe_load(found["files"]["config.yml"])["speculative_config"]
        keys = text["draft_len_schedule"]
        if version.startswith("1.2"):
            assert min(keys) == 1, "key 1 is required"
            return keys[max(first for first in keys if first <= batch)]
        return next((keys[last] for last in sorted(keys) if batch <= last), 0)

    for version in ("1.2.0", "1.2.0rc4", "1.3.0", "1.3.0rc5", "1.4.0rc4"):
        assert [k_at(version, batch) for batch in (1, 4, 5, 8, 9, 200)] == [3, 3, 1, 1, 0, 0], version
    older = engine_config(question, SCHEDULE, engine="trtllm", version="1.1.0")
    assert "draft_len_schedule" not in older["speculative_config"]
    assert any("came with the 1.2 line" in w for w in older["warnings"])
    candidate = engine_config(question, SCHEDULE, engine="trtllm", version="1.3.0rc1")
    assert any("early ones may read lower bounds" in w for w in candidate["warnings"])


def test_gates_of_tensorrt_llm_follow_the_version() -> None:
    gate = parse_policy("trt_gate:3:0.4:100")
    for version, said in (("1.3.0rc26", True), ("1.3.0rc27", False), ("1.3.0", False), ("1.2.0", True)):
        warnings = engine_config(make_question(), gate, engine="trtllm", version=version)["warnings"]
        assert any("came with 1.3.0rc27" in w for w in warnings) == said, version
        assert any("permanent" in w for w in warnings)


def test_llama_cpp_s_old_names() -> None:
    question = make_question()
    question = replace(question, speculation=replace(question.speculation, method="draft_model"))
    new = engine_config(question, PolicySpec("static", 3), engine="llamacpp")
    assert "--spec-draft-n-max 3" in new["command"] and "--draft-max" not in new["command"]
    old = engine_config(question, PolicySpec("static", 3), engine="llamacpp", version="2025.12")
    assert "--draft-max 3" in old["command"] and "--spec" not in old["command"]
    heads = replace(question, speculation=replace(question.speculation, method="eagle3"))
    unknown = engine_config(heads, PolicySpec("static", 3), engine="llamacpp", version="2025.12")
    assert unknown["speculative_config"] is None
    assert any("is not known: the command leaves speculation out" in w for w in unknown["warnings"])


def test_replicas_are_servers_and_not_data_parallelism() -> None:
    question = replace(make_question(), deployment=Deployment(replicas=4))
    found = engine_config(question, SCHEDULE)
    assert any("4 replicas behind a router" in w for w in found["warnings"])
    assert any("data parallelism above 1" in w for w in found["warnings"])
    assert "data-parallel" not in found["command"]


def test_slots_that_do_not_fit_are_not_asked_for() -> None:
    found = engine_config(make_question(), PolicySpec("off"), engine="llamacpp")
    limits = make_question().on.limits
    fit = limits.num_kv_blocks * limits.block_size_tokens // limits.max_model_len
    words = found["command"].split()
    slots, context = int(words[words.index("-np") + 1]), int(words[words.index("-c") + 1])
    assert slots == max(1, fit) < limits.max_num_seqs
    assert context == slots * limits.max_model_len
    assert any("do not fit the cache" in w for w in found["warnings"])


def test_admission_and_graphs_are_said_for_every_engine() -> None:
    question = make_question(profile={"captured_tokens_max": 512})
    for engine in ENGINES:
        found = engine_config(question, PolicySpec("static", 3), engine=engine)
        assert found["admission"]
        assert bool(found["graphs"]) == (engine != "llamacpp")
    assert "128 requests at k=3" in engine_config(question, PolicySpec("static", 3))["graphs"]
    assert "lets 48 in" in engine_config(question, PolicySpec("static", 3), engine="sglang")["admission"]
    assert "--max-running-requests 512" in engine_config(question, PolicySpec("off"), engine="sglang")["command"]
