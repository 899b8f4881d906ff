"""Files of benchmark clients: every client's own fields become the same record, and what is none is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_files import FIGURES, OUTPUTS, PROMPTS, aiperf_export, guidellm_report, sglang_line, vllm_result, write

from specsim.benchmarks import read_benchmarks
from specsim.errors import ScenarioError

GAPS = {name: value for name, value in FIGURES.items() if name.startswith("itl")}
REST = {name: value for name, value in FIGURES.items() if name not in GAPS}


def test_every_client_is_recognised_by_its_fields_and_read_in_seconds(tmp_path: Path) -> None:
    files = {
        "vllm bench serve": (vllm_result(), FIGURES),
        "sglang bench_serving": (sglang_line(), REST),  # its gaps are spread over tokens
        "aiperf": (aiperf_export(), FIGURES),
        "guidellm": (guidellm_report(), REST),
    }
    for n, (client, (data, figures)) in enumerate(files.items()):
        (run,) = read_benchmarks(write(tmp_path / f"{n}.json", data))
        assert (run.client, run.concurrency, run.rate_per_s, run.load) == (client, 2, None, "2 in flight")
        assert run.figures == pytest.approx(figures), client
        assert sum(run.prompt_tokens) == pytest.approx(sum(PROMPTS), rel=0.01)
        assert sum(run.output_tokens) == pytest.approx(sum(OUTPUTS), rel=0.02)
        if client != "aiperf":
            assert (run.prompt_tokens, run.output_tokens) == (PROMPTS, OUTPUTS)
        assert run.model == (None if n == 1 else "meta-llama/Llama-3.1-8B-Instruct")
        assert run.speculates is None


def test_several_runs_lie_in_one_file_with_or_without_lines(tmp_path: Path) -> None:
    for lines in (True, False):
        runs = read_benchmarks(write(tmp_path / "a.jsonl", sglang_line(), sglang_line(), lines=lines))
        assert [run.source for run in runs] == [f"{tmp_path / 'a.jsonl'}: run {n}" for n in (1, 2)]
        assert runs[0].repeats(runs[1])
    sweep = guidellm_report(strategies=({"type_": "synchronous"}, {"type_": "constant", "rate": 3.0},
                                        {"type_": "throughput"}))  # fmt: skip
    one, two, three = read_benchmarks(write(tmp_path / "g.json", sweep))
    assert (one.load, two.load, two.arrival_cv, three.load) == ("1 in flight", "3/s", 0.0, "all at once")
    assert not one.repeats(two)


def test_without_details_lengths_are_means_and_say_so(tmp_path: Path) -> None:
    (run,) = read_benchmarks(write(tmp_path / "a.json", vllm_result(detailed=False)))
    assert sum(run.prompt_tokens) == sum(PROMPTS)
    assert set(run.output_tokens) == {50}
    assert "--save-detailed keeps each" in run.notes[0]
    (drawn,) = read_benchmarks(write(tmp_path / "b.json", guidellm_report(each=False, of_old=True)))
    assert min(drawn.prompt_tokens) < 200 < 300 < max(drawn.prompt_tokens)
    assert "drawn along its quantiles" in drawn.notes[0]
    assert "1 incomplete requests are not simulated" in drawn.notes[1]


def test_percentiles_that_a_summary_lacks_come_from_each_request(tmp_path: Path) -> None:
    data = vllm_result()
    for name in ("p95_tpot_ms", "p95_ttft_ms", "p95_itl_ms"):
        del data[name]
    data["ttfts"] = [0.1, 0.2, 0.3, 0.4]
    (run,) = read_benchmarks(write(tmp_path / "a.json", data))
    assert run.figures["ttft_p95_s"] == pytest.approx(np.percentile([0.1, 0.2, 0.3, 0.4], 95))
    assert run.figures["tpot_p95_s"] == pytest.approx(0.02)
    assert run.figures["itl_chunk_p95_s"] == pytest.approx(0.02)
    assert run.figures["tpot_p99_s"] == FIGURES["tpot_p99_s"]


def test_requests_that_failed_are_left_out_and_counted(tmp_path: Path) -> None:
    data = vllm_result(completed=3, failed=1, output_lens=[20, 0, 60, 80])
    (run,) = read_benchmarks(write(tmp_path / "a.json", data))
    assert (run.prompt_tokens, run.output_tokens) == ((100, 300, 400), (20, 60, 80))
    assert run.notes[0].startswith("1 requests failed")


def test_an_open_loop_keeps_when_the_client_sent(tmp_path: Path) -> None:
    data = vllm_result(request_rate=4.0, max_concurrency=None, start_times=[7.0, 5.0, 6.0, 9.0], burstiness=0.25)
    (run,) = read_benchmarks(write(tmp_path / "a.json", data))
    assert (run.load, run.rate_per_s, run.arrival_cv) == ("4/s", 4.0, 2.0)
    assert run.starts_s == (0.0, 1.0, 2.0, 4.0)
    assert run.prompt_tokens == (200, 300, 100, 400), "in the order of sending"
    (capped,) = read_benchmarks(write(tmp_path / "b.json", data | {"max_concurrency": 3}))
    assert (capped.load, capped.starts_s) == ("4/s, at most 3 in flight", ()), "the engine decided when to send"
    poisson = aiperf_export(load={"type": "poisson", "rate": 2.5})
    assert read_benchmarks(write(tmp_path / "c.json", poisson))[0].load == "2.5/s"
    old = aiperf_export(input_config={"loadgen": {"request_rate": 5.0, "arrival_pattern": "constant"}})
    (run,) = read_benchmarks(write(tmp_path / "d.json", old))
    assert (run.rate_per_s, run.concurrency, run.arrival_cv) == (5.0, None, 0.0)


def test_acceptance_as_the_engine_counted_it(tmp_path: Path) -> None:
    (run,) = read_benchmarks(write(tmp_path / "v.json", vllm_result(marginals=(0.8, 0.6, 0.3))))
    assert run.speculates
    assert run.acceptance is not None
    assert run.acceptance.length == pytest.approx(2.7)
    assert run.acceptance.conditional == pytest.approx((0.8, 0.75, 0.5))
    assert run.acceptance.num_spec_tokens == 3
    wrong = vllm_result(marginals=(0.8, 0.6, 0.3), spec_decode_acceptance_length=3.9)
    (run,) = read_benchmarks(write(tmp_path / "w.json", wrong))
    assert run.acceptance is not None
    assert (run.acceptance.length, run.acceptance.conditional) == (3.9, ()), "rates that do not add up are not used"
    server = {"tp_size": 2, "model_path": "Qwen/Qwen3-8B", "speculative_algorithm": "EAGLE3",
              "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}  # fmt: skip
    (run,) = read_benchmarks(write(tmp_path / "s.json", sglang_line(server=server, accept_length=2.5)))
    assert run.says == {"tp": "2", "method": "EAGLE3", "num_spec_tokens": "3"}, "the root counts as a draft there"
    assert run.acceptance is not None
    assert (run.acceptance.length, run.acceptance.num_spec_tokens, run.model) == (2.5, 3, "Qwen/Qwen3-8B")
    (run,) = read_benchmarks(write(tmp_path / "o.json", sglang_line(server=server | {"speculative_algorithm": None})))
    assert run.speculates is False
    pooled = aiperf_export(pooled_spec_decode_acceptance_histogram={"0": 20, "1": 30, "2": 50})
    (run,) = read_benchmarks(write(tmp_path / "h.json", pooled))
    assert run.acceptance is not None
    assert run.acceptance.length == pytest.approx(2.3)
    assert run.acceptance.conditional == pytest.approx((0.8, 0.625))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("{", "line 1: not JSON, or cut off"),
        (json.dumps(sglang_line()) + "\n{", "line 2: not JSON"),
        ("[1]", "holds a list where a result is an object"),
        ("null", "holds a NoneType"),
        ("{}", "no result of vllm bench serve"),
        (json.dumps({"avg_latency": 1.0, "latencies": [1.0], "percentiles": {}}), "is of vllm bench latency"),
        (json.dumps({"metadata": {}, "metrics": {}}), "aiperf's file of single requests"),
        (json.dumps({"timestamp": 0, "input_length": 5, "output_length": 3}), "is a trace; give it to plan"),
        (json.dumps(vllm_result(completed=0)), "no request of this run succeeded"),
        (json.dumps(vllm_result(output_throughput=float("nan"))), "output_throughput must be a finite number >= 0"),
        (json.dumps(vllm_result(mean_ttft_ms="fast")), "mean_ttft_ms must be a finite number >= 0, is 'fast'"),
        (json.dumps(vllm_result(max_concurrency=True)), "max_concurrency must be a finite number"),
        (json.dumps(vllm_result(max_concurrency=0)), "max_concurrency must be at least 1"),
        (json.dumps(vllm_result(request_rate=-1)), "request_rate must be a finite number"),
        (json.dumps(vllm_result(input_lens=[1, 2])), "output_lens has 4 entries for 2 requests"),
        (json.dumps(vllm_result(input_lens=[1, 2, "x", 4])), "input_lens must be an array of finite numbers"),
        (json.dumps(vllm_result(spec_decode_acceptance_length=99)), "acceptance_length must be at most 65, is 99"),
        (json.dumps(vllm_result(completed=2)), "2 requests completed, and output_lens has 4"),
        (json.dumps(vllm_result(detailed=False, ramp_up_strategy="linear")), "its rate was ramped up"),
        (json.dumps(sglang_line(request_rate="trace")), "at the times of a trace"),
        (json.dumps(aiperf_export(input_config={})), "does not say at which load"),
        (json.dumps(aiperf_export(load={"type": "fixed_schedule"})), "load of type 'fixed_schedule' is not simulated"),
        (json.dumps(aiperf_export(request_count=None)), "request_count is missing"),
        (json.dumps(aiperf_export(time_to_first_token={"unit": "parsec", "avg": 1})), "unit must be one of ms"),
        (json.dumps(guidellm_report(strategies=({"type_": "trace"},))), "strategy trace is not simulated"),
        (json.dumps(guidellm_report(strategies=({},))), "has no strategy"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_with_its_place(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ScenarioError) as refused:
        read_benchmarks(str(path))
    text = str(refused.value)
    assert said in text
    assert text.startswith(str(path))
    assert "\n" not in text


@pytest.mark.parametrize("name", ["nowhere.json", "."])
def test_what_is_no_file_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError, match=r"cannot be read: "):
        read_benchmarks(name)


@pytest.mark.parametrize("make", [vllm_result, sglang_line, aiperf_export, guidellm_report])
def test_any_field_of_another_type_is_refused_or_ignored_but_never_a_crash(make: Any, tmp_path: Path) -> None:
    whole = make()
    for name in whole:
        for value in (None, "x", -1, [], {}, [None], {"unit": 3}, 1e400, True, ["a", {}]):
            path = write(tmp_path / "a.json", whole | {name: value})
            try:
                read_benchmarks(path)
            except ScenarioError as refused:
                assert str(refused).startswith(path)
