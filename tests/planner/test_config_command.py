"""`specsim config`: every snippet is read back as a shell, JSON or YAML reader and the engine's flags would."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from plan_cli import QUICK, plan, write_log

from db.store import Store
from scenarios.resolve import resolve
from scenarios.stored import stored_policies, stored_question
from specsim.config import Deployment, Slo, Speculation
from specsim.drafters import drafter, method_names
from specsim.planner.flags import ENGINES, engine_config
from specsim.planner.flags.base import yaml_text
from specsim.policies import parse_policy
from specsim.report.config import config_files, config_text

KNOWN = {
    "vllm": {
        "--tensor-parallel-size", "--quantization", "--kv-cache-dtype", "--max-num-seqs", "--max-num-batched-tokens",
        "--max-model-len", "--gpu-memory-utilization", "--no-enable-prefix-caching", "--block-size",
        "--no-enable-chunked-prefill", "--max-cudagraph-capture-size", "--speculative-config",
        "--per-request-spec-decode-metrics",
    },
    "sglang": {
        "--model-path", "--tp", "--quantization", "--kv-cache-dtype", "--max-running-requests", "--cuda-graph-max-bs",
        "--chunked-prefill-size", "--context-length", "--disable-radix-cache", "--speculative-algorithm",
        "--speculative-draft-model-path", "--speculative-num-steps", "--speculative-eagle-topk",
        "--speculative-num-draft-tokens", "--speculative-draft-model-quantization", "--speculative-adaptive",
        "--speculative-adaptive-config",
    },
    "trtllm": {"--tp_size", "--max_batch_size", "--max_num_tokens", "--max_seq_len", "--config"},
    "llamacpp": {
        "-m", "-np", "-c", "-b", "--cache-type-k", "--cache-type-v", "--split-mode", "--spec-type",
        "--spec-draft-model", "--spec-draft-n-max", "--spec-draft-p-min",
    },
}  # fmt: skip
"""Flags of vLLM 0.33.0, SGLang 0.5.23, TensorRT-LLM 1.3 and llama.cpp of mid-2026 that may be written."""
VALUELESS = {"--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--disable-radix-cache",
             "--speculative-adaptive"}  # fmt: skip
VLLM_KEYS = {
    "method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size", "parallel_drafting",
    "draft_sample_method", "draft_tensor_parallel_size", "quantization", "kv_cache_dtype",
    "enable_adaptive_verification", "prompt_lookup_max", "prompt_lookup_min",
}  # fmt: skip
START = {"vllm": ["vllm", "serve"], "sglang": ["python", "-m", "sglang.launch_server"], "trtllm": ["trtllm-serve"],
         "llamacpp": ["llama-server"]}  # fmt: skip


def options(engine: str, command: str) -> dict[str, str]:
    """Flag -> value of a command, each of them known, none twice."""
    words = shlex.split(command)
    start = START[engine]
    assert words[: len(start)] == start
    rest = words[len(start) :]
    if engine in ("vllm", "trtllm"):
        assert not rest.pop(0).startswith("-"), "the model comes first"
    found: dict[str, str] = {}
    while rest:
        flag = rest.pop(0)
        assert flag in KNOWN[engine], flag
        assert flag not in found, f"{flag} twice"
        found[flag] = "" if flag in VALUELESS else rest.pop(0)
    return found


def check(engine: str, config: dict[str, Any]) -> None:
    """Every snippet of a configuration, read back."""
    found = options(engine, config["command"])
    speculative = config["speculative_config"]
    if engine == "vllm":
        assert (speculative is None) == ("--speculative-config" not in found)
        if speculative is not None:
            assert json.loads(found["--speculative-config"]) == speculative
            assert set(speculative) <= VLLM_KEYS
    if engine == "sglang":
        given = {key.replace("_", "-"): str(value) for key, value in (speculative or {}).items()}
        assert {key: found[f"--{key}"] for key in given} == given
        if "--speculative-adaptive" in found:
            table = json.loads(config["files"][found["--speculative-adaptive-config"]])
            assert all(row["candidate_steps"] for row in table.values()) and "1" in table
    if engine == "trtllm":
        text = yaml.safe_load(config["files"][found["--config"]])
        assert json.loads(json.dumps(text.get("speculative_config"))) == json.loads(json.dumps(speculative))
    if engine == "llamacpp":
        assert {flag: str(value) for flag, value in (speculative or {}).items()}.items() <= found.items()


POLICIES = ("off", "static:2", "schedule:1-8=2,9-64=1,65-4096=0", "off_above:2:16", "ema:2", "trt_gate:2:0.4:100",
            "budget:2", "goodput:2", "context:0/1-9=2")  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", method_names())
def test_every_snippet_can_be_read_back(method: str, engine: str) -> None:
    place = {"target": "glm-4.5-air", "gpu": "h200-sxm"} if method == "mtp" else {"target": "llama-3.1-8b"}
    deployment = Deployment(tp=4, kv_dtype="fp8", max_num_seqs=64, max_model_len=8192, **place)  # type: ignore[arg-type]
    k = max(2, min(drafter(method).usual_k, 5))
    question = resolve(deployment, Speculation(method, num_spec_tokens=(k,)), Slo())
    for text in POLICIES:
        check(engine, engine_config(question, parse_policy(text), engine=engine))


@pytest.mark.parametrize(
    "name", ["a: b", "x #1", "yes", "null", "1e3", "'q\"", "./plain/Path-1.0", "é", "{a}", "- a", ""]
)
def test_yaml_gives_back_any_text(name: str) -> None:
    values = {"a": {"name": name, "flag": True, "n": 3, "x": 0.4}, "z": {1: 2}}
    assert yaml.safe_load(yaml_text(values)) == values


@pytest.mark.parametrize("engine", ENGINES)
def test_names_with_marks_of_a_shell_stay_one_word(engine: str, tmp_path: Path) -> None:
    target = resolve(Deployment(), Speculation(num_spec_tokens=(3,)), Slo())
    name = "/models/a b'; rm -rf $HOME #\"x"
    question = replace(target, names={**target.names, "target_repo": name, "draft_repo": name})
    found = engine_config(question, parse_policy("static:3"), engine=engine)
    check(engine, found)
    assert name in shlex.split(found["command"])
    files = config_files({"plan_id": "plan-1", **found})
    (tmp_path / "serve.sh").write_text(files["serve.sh"], encoding="utf-8")
    subprocess.run(["sh", "-n", tmp_path / "serve.sh"], check=True)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("config")
    where = str(home / "x.db")
    flags = ("--policy", "ema:3", "--engine-version", "0.33.1", "--db", where)
    done = plan("--trace", write_log(home / "log.csv"), *QUICK, *flags)
    assert done.exit_code == 0, done.output
    return where


def config(db: str, *arguments: object) -> Any:
    return plan("latest", "--db", db, *arguments, command="config")


def test_it_says_again_what_the_plan_said(db: str) -> None:
    with Store.open(db, mode="read") as store:
        item = store.get("latest")
    shown = json.loads(config(db, "--json").stdout)
    wanted = dict(item["result"]["config"])
    wanted.pop("alternatives")
    assert shown == {"schema_version": 1, "plan_id": item["id"], **wanted}
    assert shown["engine_version"] == "0.33.1"
    text = config(db).stdout
    for said in (shown["command"], shown["graphs"][:60], shown["admission"][:60]):
        assert said in text


def test_the_question_is_that_of_the_plan(db: str) -> None:
    with Store.open(db, mode="read") as store:
        item = store.get("latest")
    question = stored_question(item["inputs"], item["result"])
    for name in ("deployment", "speculation", "slo", "limits", "profiles", "trees"):
        assert json.loads(json.dumps(question.identity()[name])) == item["inputs"][name], name
    assert list(stored_policies(item["inputs"], item["id"])) == item["result"]["loads"]["policies"]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_and_every_policy_of_the_plan(db: str, engine: str) -> None:
    with Store.open(db, mode="read") as store:
        labels = store.get("latest")["result"]["loads"]["policies"]
    assert "ema<=3" in labels
    for policy in (*labels, "off_above:3:8", "schedule:1-4=3,5-16=0"):
        found = json.loads(config(db, "--engine", engine, "--policy", policy, "--json").stdout)
        assert found["engine"] == engine
        check(engine, found)


def test_files_are_written_and_the_script_is_one(db: str, tmp_path: Path) -> None:
    folder = tmp_path / "deploy"
    done = config(db, "--engine", "trtllm", "--policy", "schedule:1-4=3,5-16=1", "-o", folder)
    assert done.exit_code == 0, done.output
    assert done.stdout == "" and "warning: " in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["config.yml", "serve.sh"]
    assert yaml.safe_load((folder / "config.yml").read_text())["speculative_config"]["draft_len_schedule"] == {
        4: 3,
        16: 1,
    }
    script = (folder / "serve.sh").read_text(encoding="utf-8")
    subprocess.run(["sh", "-n", folder / "serve.sh"], check=True)
    lines = script.splitlines()
    assert lines[0] == "#!/bin/sh"
    assert [line for line in lines if not line.startswith("#")] == [lines[-1]]
    options("trtllm", lines[-1].removeprefix("exec "))
    again = config(db, "-o", folder)
    assert again.exit_code == 2 and "the folder exists" in again.stderr
    assert config(db, "--engine", "sglang", "--policy", "ema<=3", "-o", folder, "--force").exit_code == 0
    assert json.loads((folder / "adaptive.json").read_text())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--engine", "exllama"), "--engine 'exllama' is not modelled"),
        (("--engine-version", "new one"), "--engine-version 'new one' is not a version"),
        (("--policy", "k=9"), "or a label of the plan: 'off', 'k="),
        (("--policy", "static:40"), "is more than the acceptance model"),
        (("--engine", "static", "-o", "x"), "nothing to write"),
        (("--force",), "--force is for -o"),
        (("-o", "missing/x"), "does not exist; make it first"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    db: str, flags: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = config(db, *flags)
    assert done.exit_code == 2
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == "" and not list(tmp_path.iterdir())


def test_a_run_has_no_flags(db: str) -> None:
    with Store.open(db, mode="read") as store:
        run = store.get("latest")["run_ids"][0]
    done = plan(run, "--db", db, command="config")
    assert done.exit_code == 2 and "is a run; flags are of plans" in done.stderr


def test_a_plan_of_another_version_says_to_run_it_again(db: str) -> None:
    with Store.open(db, mode="read") as store:
        item = store.get("latest")
    inputs = {**item["inputs"], "deployment": {**item["inputs"]["deployment"], "pipeline": 2}}
    with pytest.raises(Exception, match=r"deployment.pipeline is not known to this version of specsim; run the plan"):
        stored_question(inputs, item["result"])


def test_the_heading_says_where_the_command_leaves_speculation_out() -> None:
    question = resolve(Deployment(target="llama-3.1-8b"), Speculation("eagle", num_spec_tokens=(2,)), Slo())
    said = {
        engine: config_text(engine_config(question, parse_policy("static:2"), engine=engine) | {"plan_id": "plan-1"})
        for engine in ("vllm", "llamacpp")
    }
    assert said["vllm"].startswith("vLLM 0.33.0: k=2, of plan-1")
    assert "no speculation, instead of k=2, of plan-1" in said["llamacpp"].splitlines()[0]
    off = config_text(engine_config(question, parse_policy("off"), engine="llamacpp") | {"plan_id": "plan-1"})
    assert "off, of plan-1" in off.splitlines()[0]
