"""Fields of benchmark files that cannot be: each kind is refused in one line with its place, and none stops a read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_files import aiperf_export, guidellm_report, sglang_line, vllm_result

from specsim.benchmarks import read_benchmarks
from specsim.errors import ScenarioError

HUGE = 10**399
SERVER = {"tp_size": 1, "model_path": "m", "speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4}


def refused(tmp_path: Path, data: Any) -> str:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ScenarioError) as error:
        read_benchmarks(str(path))
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


def aiperf_of(**config: Any) -> dict[str, Any]:
    data = aiperf_export()
    return data | {"input_config": data["input_config"] | config}


def histogram(steps: Any) -> dict[str, Any]:
    return aiperf_export(pooled_spec_decode_acceptance_histogram=steps)


def guidellm_of(name: str, value: Any) -> dict[str, Any]:
    data = guidellm_report(each=False)
    data["benchmarks"][0]["metrics"]["request_totals"][name] = value
    return data


def vllm_rates(*rates: float) -> dict[str, Any]:
    return vllm_result(marginals=rates)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (vllm_result(duration=1, output_throughput=HUGE), "output_throughput must be at most 1e+15, is 1000"),
        (vllm_result(mean_ttft_ms=-HUGE), "mean_ttft_ms must be a finite number >= 0"),
        (vllm_result(ttfts=[0.1, HUGE, 0.1, 0.1]), "ttfts must be an array of finite numbers >= 0; entry 2 is 1000"),
        (sglang_line(server=SERVER | {"tp_size": HUGE}), "server_info: tp_size must be at most"),
        (aiperf_export(output_token_throughput={"unit": "tokens/sec", "avg": HUGE}), "avg must be at most"),
        (guidellm_of("errored", HUGE), "errored must be at most"),
    ],
)
def test_whole_numbers_beyond_every_float(tmp_path: Path, data: Any, said: str) -> None:
    assert said in refused(tmp_path, data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (aiperf_export(request_count={"avg": 1e300}), "request_count: avg must be at most 10000000, is 1e+300"),
        (aiperf_export(request_count={"avg": 10_000_001}), "request_count: avg must be at most 10000000"),
        (guidellm_of("successful", 10**12), "request_totals: successful must be at most 10000000"),
        (vllm_result(detailed=False, completed=10**12), "completed must be at most 10000000"),
        (aiperf_export(output_sequence_length={"avg": 1e12}), "output_sequence_length: avg must be at most 2147483647"),
        (vllm_result(detailed=False, total_output_tokens=1e15), "output tokens; lengths must lie in 1..2147483647"),
    ],
)
def test_counts_that_no_run_has(tmp_path: Path, data: Any, said: str) -> None:
    assert said in refused(tmp_path, data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (aiperf_of(models={"items": 5}), "models: items must be an array, is 5"),
        (aiperf_of(models={"items": True}), "models: items must be an array, is True"),
        (aiperf_of(models={"items": [5]}), "models: items: must be an object, is 5"),
        (aiperf_of(models={"items": [{"name": "a"}, {"name": "b"}]}), "with the models a, b in turn; measure one"),
        (aiperf_of(phases=[3]), "phases: must be an object, is 3"),
        (aiperf_of(phases=[{"type": "concurrency", "concurrency": 0}]), "concurrency must be a finite number >= 1"),
        (aiperf_of(phases=[{"type": "poisson", "rate": 0}]), "rate must be a finite number >= 1e-06"),
        (aiperf_export(input_config={"loadgen": {"concurrency": 0}}), "0 requests in flight; must be 1..65536"),
        (aiperf_export(input_config={"loadgen": {"request_rate": 1, "arrival_pattern": "foo"}}), "pattern 'foo'"),
        (guidellm_report(strategies=({"type_": "concurrent", "streams": 0},)), "streams must be a finite number >= 1"),
    ],
)
def test_models_and_loads_that_are_none(tmp_path: Path, data: Any, said: str) -> None:
    assert said in refused(tmp_path, data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (histogram({"0": 10, "100000000": 20}), "accepted drafts in 0..64, is '100000000'"),
        (histogram({"0": 10, "65": 20}), "in 0..64, is '65'"),
        (histogram({"0": 10, "-1": 20}), "in 0..64, is '-1'"),
        (histogram({"0": 10, "1.5": 20}), "in 0..64, is '1.5'"),
        (histogram({"0": 1e308, "1": 1e308}), "histogram: 0 must be at most"),
        (vllm_rates(0.5, 0.7), "entry 2 is 0.7 after 0.5"),
        (vllm_rates(1.5, 0.2), "entry 1 is 1.5 after 1"),
        (vllm_rates(0.7, -0.1), "rates must be an array of finite numbers >= 0; entry 2 is -0.1"),
        (vllm_result(spec_decode_acceptance_length=0.5), "acceptance_length must be a finite number >= 1"),
        (sglang_line(server=SERVER | {"speculative_num_draft_tokens": 1}), "draft_tokens must be a finite number >= 2"),
    ],
)
def test_acceptance_that_no_drafter_has(tmp_path: Path, data: Any, said: str) -> None:
    assert said in refused(tmp_path, data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (vllm_result(max_concurrency=None, start_times=[1.0, 2.0]), "start_times has 2 entries for 4 requests"),
        (vllm_result(itls="x"), "itls must be an array, is 'x'"),
        (vllm_result(itls=-1), "itls must be an array, is -1"),
        (vllm_result(itls={}), "itls must be an array, is {}"),
        (vllm_result(itls=[[0.1]]), "itls has 1 entries for 4 requests"),
        (vllm_result(input_lens=[100, 200, 300.5, 400]), "input_lens must be an array of whole numbers up to "),
        (vllm_result(input_lens=[]), "output_lens has 4 entries for 0 requests"),
        (vllm_result(backend=5), "backend must be a text, is 5"),
        (vllm_result(backend=[]), "backend must be a text, is []"),
        (vllm_result(output_throughput=0), "output_throughput must be a finite number >= 0.001, is 0"),
        (sglang_line(output_throughput=1e-300), "output_throughput must be a finite number >= 0.001, is 1e-300"),
        (vllm_result(mean_tpot_ms=1e-300), "tpot_mean_s must be at least 1e-09"),
    ],
)
def test_what_stands_beside_the_requests(tmp_path: Path, data: Any, said: str) -> None:
    assert said in refused(tmp_path, data)
