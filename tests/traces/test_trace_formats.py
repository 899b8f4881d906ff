"""Every log format is told from its content, read to the same requests, and its unused rows are explained."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specsim.errors import TraceError
from specsim.traces import ReadOptions, read_trace
from specsim.traces.formats import format_names
from specsim.traces.options import parse_arrivals

FIXTURES = Path(__file__).parent / "fixtures"
EXAMPLES = Path(__file__).parents[2] / "examples"

ARRIVALS = [0.0, 4.314579, 4.541877, 4.710427, 5.31941, 6.31, 7.2, 8.33]
PROMPTS = [374, 396, 879, 91, 91, 381, 1313, 388]
OUTPUTS = [44, 109, 55, 16, 16, 84, 142, 84]

DATE, MS_EPOCH = "date", "size of the numbers since 1970"
FILES = [
    # file, format, kept, dropped, unit contains
    ("azure_2023.csv", "azure", 8, 0, DATE),
    ("azure_2024.csv", "azure", 8, 0, DATE),
    ("azure_multimodal.csv", "azure", 8, 0, DATE),
    ("azure_us_locale.csv", "generic", 8, 0, DATE),
    ("vidur.csv", "vidur", 8, 0, "s (fixed"),
    ("splitwise_sim.csv", "splitwise-sim", 8, 0, "s (fixed"),
    ("mooncake.jsonl", "mooncake", 8, 0, "ms (Mooncake"),
    ("timed_trace_seconds.jsonl", "mooncake", 8, 0, "s (fractions"),
    ("bailian.jsonl", "bailian", 8, 0, "s (fixed"),
    ("llmservingsim.jsonl", "llmservingsim", 8, 0, "ns (fixed"),
    ("aibrix.jsonl", "aibrix", 8, 1, "ms (fixed"),
    ("litellm.jsonl", "litellm", 8, 3, DATE),
    ("litellm.csv", "litellm", 8, 3, DATE),
    ("otlp.jsonl", "otlp", 8, 2, "ns"),
    ("span_list.json", "otel-list", 8, 0, DATE),
    ("agent_spans.jsonl", "otel-flat", 8, 1, MS_EPOCH),
    ("langfuse.jsonl", "langfuse", 8, 1, DATE),
    ("sglang_log.jsonl", "sglang-log", 8, 8, DATE),
    ("generic.csv", "generic", 8, 0, MS_EPOCH),
    ("generic_array.json", "generic", 8, 0, MS_EPOCH),
]


def adds_up(trace) -> bool:
    meta = trace.meta
    return meta.rows_kept + sum(meta.dropped.values()) == meta.rows_read and set(meta.dropped) == set(
        meta.dropped_examples
    )


@pytest.mark.parametrize(("name", "form", "kept", "dropped", "unit"), FILES, ids=[row[0] for row in FILES])
def test_format_is_detected_and_read(name, form, kept, dropped, unit):
    trace = read_trace(FIXTURES / name)
    assert trace.meta.format == form
    assert (trace.meta.rows_kept, sum(trace.meta.dropped.values())) == (kept, dropped)
    assert adds_up(trace)
    assert unit in trace.meta.time_unit
    assert trace.prompt_tokens.tolist() == PROMPTS
    assert trace.output_tokens.tolist() == OUTPUTS
    np.testing.assert_allclose(trace.arrival_s, ARRIVALS, atol=1.1e-3)


def test_seven_digit_dates_keep_their_tenth_of_a_microsecond():
    trace = read_trace(FIXTURES / "azure_2023.csv")
    np.testing.assert_allclose(trace.arrival_s, ARRIVALS, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "options", "kept", "reasons"),
    [
        ("burstgpt.csv", {}, 8, {"failed request (0 tokens)"}),
        ("burstgpt_sessions.csv", {}, 8, set()),
        ("dsdsim.jsonl", {}, 8, set()),
        (
            "helicone.jsonl",
            {},
            6,
            {"failed request (status 429)", "output tokens missing (--default-output sets them)"},
        ),
        ("sglang_metrics.jsonl", {}, 3, set()),
        ("weka.jsonl", {"session_rate_per_s": 0.1}, 3, {"nested agent, whose own times are not used"}),
        ("cc_traces.jsonl", {"session_rate_per_s": 0.1}, 8, set()),
        ("vidur_lengths.csv", {"arrivals": parse_arrivals("poisson:2")}, 8, set()),
        ("openai_batch.jsonl", {"arrivals": parse_arrivals("even:2")}, 8, {"failed request (batch_expired)"}),
        ("bench_details.jsonl", {"arrivals": parse_arrivals("gamma:2:2")}, 7, {"failed request"}),
        ("envoy.log", {"bytes_per_token": (5, 180)}, 8, set()),
        ("azure_diagnostics.jsonl", {"bytes_per_token": (5, 10)}, 7, {"failed request (status 429)"}),
        (
            "nginx.jsonl",
            {"bytes_per_token": (5, 180)},
            7,
            {"failed request (status 499)", "GET request, not a generation"},
        ),
        ("span_list_texts.json", {"chars_per_token": (4, 4)}, 2, set()),
        (
            "sharegpt.json",
            {"chars_per_token": (4, 4), "arrivals": parse_arrivals("even:1")},
            8,
            {"conversation without a question followed by an answer"},
        ),
        (
            "vllm_custom.jsonl",
            {"chars_per_token": (4, 4), "arrivals": parse_arrivals("even:1"), "default_output_tokens": 9},
            8,
            set(),
        ),
    ],
)
def test_rows_that_need_a_flag_or_are_left_out(name, options, kept, reasons):
    trace = read_trace(FIXTURES / name, ReadOptions(**options))
    assert trace.meta.rows_kept == len(trace) == kept
    assert set(trace.meta.dropped) == reasons
    assert adds_up(trace)


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("weka.jsonl", "--session-rate"),
        ("cc_traces.jsonl", "--session-rate"),
        ("vidur_lengths.csv", "--arrivals"),
        ("openai_batch.jsonl", "--arrivals"),
        ("bench_details.jsonl", "--arrivals poisson:4"),
        ("openai_usage.json", "specsim trace synth --arrivals poisson:0.4 --duration 60s --isl 500 --osl 100"),
        ("envoy.log", "--bytes-per-token"),
        ("nginx.jsonl", "--bytes-per-token"),
        ("azure_diagnostics.jsonl", "--bytes-per-token"),
        ("span_list_texts.json", "--chars-per-token"),
        ("sharegpt.json", "--chars-per-token"),
        ("vllm_custom.jsonl", "--arrivals"),
    ],
)
def test_logs_that_lack_something_are_refused_with_the_way_out(name, way_out):
    with pytest.raises(TraceError) as caught:
        read_trace(FIXTURES / name)
    assert way_out in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_and_ends_give_tokens_and_starts():
    for name, per_token in (("nginx.jsonl", (5, 180)), ("envoy.log", (5, 180)), ("azure_diagnostics.jsonl", (5, 10))):
        trace = read_trace(FIXTURES / name, ReadOptions(bytes_per_token=per_token))
        assert set(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)) <= set(
            zip(PROMPTS, OUTPUTS, strict=True)
        )
        np.testing.assert_allclose(trace.arrival_s[:2], ARRIVALS[:2], atol=2e-3)
        assert any("estimated from bytes" in warning for warning in trace.meta.warnings)


def test_aiperf_turns_wait_for_their_delay_or_for_a_session_rate():
    plain = read_trace(FIXTURES / "aiperf.jsonl")
    assert plain.arrival_s.tolist() == [0.0, 1.5]  # the session that has a start, and its later turn
    assert sum(plain.meta.dropped.values()) == 4
    options = ReadOptions(session_rate_per_s=1.0, default_output_tokens=7, chars_per_token=(4.0, 4.0))
    everything = read_trace(FIXTURES / "aiperf.jsonl", options)
    assert everything.meta.rows_kept == 6
    assert not everything.meta.dropped
    assert 7 in everything.output_tokens.tolist()
    assert 25 in everything.prompt_tokens.tolist()  # 100 characters at 4 a token


def test_sessions_and_local_hashes():
    trace = read_trace(FIXTURES / "weka.jsonl", ReadOptions(session_rate_per_s=0.001, seed=3))
    assert trace.hash_block_tokens == 64
    first, second, third = (set(trace.hashes(i).tolist()) for i in range(3))
    assert first < second  # the second turn extends the first
    assert not first & third  # the same ids in another session are other blocks
    assert trace.arrival_s[1] - trace.arrival_s[0] == pytest.approx(12.5)
    assert trace.session is not None
    assert trace.session.tolist() == [0, 0, 1]


def test_chains_of_chats_become_sessions():
    trace = read_trace(FIXTURES / "bailian.jsonl")
    assert trace.session is not None
    session = trace.session.tolist()
    assert session[1] == session[3] == session[5]
    assert len(set(session)) == 6
    assert trace.task_names == ("text", "search")
    assert trace.hash_block_tokens == 16


def test_servegen_pairs_are_sampled_and_superposed():
    one = read_trace(FIXTURES / "servegen" / "client-trace.csv")
    again = read_trace(FIXTURES / "servegen" / "client-dataset.json.gz")
    assert one.arrival_s.tolist() == again.arrival_s.tolist()
    assert len(one) in (1200, 1201)  # the busiest window: 2.0 requests/s for 600 s
    assert any("busiest 600 s, from 1200 s" in note for note in one.meta.notes)
    assert set(one.prompt_tokens.tolist()) == {100, 300}
    both = read_trace(FIXTURES / "servegen", ReadOptions(window=(1200.0, 1800.0)))
    assert len(both) in range(1799, 1803)
    assert 50 in both.prompt_tokens
    with pytest.raises(TraceError, match="no client sends anything"):
        read_trace(FIXTURES / "servegen" / "client-trace.csv", ReadOptions(window=(0.0, 600.0)))


def test_servegen_without_its_other_half(tmp_path):
    path = tmp_path / "lonely-trace.csv"
    path.write_text("0,1.0,1.0,Gamma,1.0,1.0\n")
    with pytest.raises(TraceError, match=r"lonely-dataset\.json"):
        read_trace(path)


@pytest.mark.parametrize("suffix", ["", ".txt", ".json"])
@pytest.mark.parametrize(
    "encode",
    [
        lambda data: data,
        gzip.compress,
        bz2.compress,
        lzma.compress,
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.decode().encode("utf-16"),
        lambda data: data.decode().encode("utf-16-be"),
        lambda data: data.replace(b"\r\n", b"\n"),
        lambda data: data.replace(b"\r\n", b"\r"),
        lambda data: data.replace(b",", b"\t"),
    ],
    ids=["plain", "gzip", "bzip2", "xz", "bom", "utf-16", "utf-16-be", "lf", "cr", "tabs"],
)
def test_packing_and_names_do_not_matter(tmp_path, encode, suffix):
    path = tmp_path / f"log{suffix}"
    path.write_bytes(encode((FIXTURES / "azure_2023.csv").read_bytes()))
    trace = read_trace(path)
    assert trace.meta.format == "azure"
    assert trace.prompt_tokens.tolist() == PROMPTS


def test_pretty_printed_array_and_one_line_array_agree(tmp_path):
    records = json.loads((FIXTURES / "generic_array.json").read_text())
    path = tmp_path / "pretty"
    path.write_text(json.dumps(records, indent=2))
    pretty, flat = read_trace(path), read_trace(FIXTURES / "generic_array.json")
    assert pretty.arrival_s.tolist() == flat.arrival_s.tolist()


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_columns_called_input_and_output_are_counts_only_when_they_hold_numbers(tmp_path, kind: str):
    path = tmp_path / f"log.{kind}"

    def write(column: str, values: list) -> None:
        rows = [{"time": t, column: v, "output": o} for t, v, o in zip(ARRIVALS, values, OUTPUTS, strict=True)]
        if kind == "csv":
            lines = [f"time,{column},output", *(",".join(map(str, row.values())) for row in rows)]
        else:
            lines = [json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) + "\n")

    write("input", list(PROMPTS))
    trace = read_trace(path)
    assert trace.prompt_tokens.tolist() == list(PROMPTS)
    assert trace.output_tokens.tolist() == list(OUTPUTS)
    assert trace.meta.notes[0] == "detected as columns by well-known names"
    write("input", ["a question"] * len(PROMPTS))
    with pytest.raises(TraceError, match="--chars-per-token"):
        read_trace(path)
    estimated = read_trace(path, ReadOptions(chars_per_token=(2.0, 2.0)))
    assert set(estimated.prompt_tokens.tolist()) == {5}


def test_flags_overrule_detection(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "when,a,b,who\n"
        + "".join(f"{t},{p},{o},x{i % 2}\n" for i, (t, p, o) in enumerate(zip(ARRIVALS, PROMPTS, OUTPUTS, strict=True)))
    )
    with pytest.raises(TraceError, match="--column arrival=NAME"):
        read_trace(path)
    columns = {"arrival": "when", "prompt_tokens": "a", "output_tokens": "b", "session": "who"}
    trace = read_trace(path, ReadOptions(columns=columns, time_unit="ms"))
    np.testing.assert_allclose(trace.arrival_s, np.array(ARRIVALS) / 1000)
    assert trace.meta.time_unit == "ms (given)"
    assert trace.meta.notes[0] == "columns as given"
    assert trace.session is not None
    with pytest.raises(TraceError, match="did you mean 'when'"):
        read_trace(path, ReadOptions(columns={**columns, "arrival": "wen"}))


def test_columns_without_a_header_go_by_number(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("".join(f"2023-11-16 18:15:{i:02d},{i + 1},5\n" for i in range(12)))
    columns = {"arrival": "#1", "prompt_tokens": "#2", "output_tokens": "#3"}
    assert read_trace(path, ReadOptions(columns=columns)).prompt_tokens.tolist() == list(range(1, 13))


def test_end_and_duration_give_the_arrival(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "done,took_ms,prompt_tokens,output_tokens\n" + "".join(f"{1700000010 + i},{500 * i},9,9\n" for i in range(5))
    )
    trace = read_trace(path, ReadOptions(columns={"end": "done", "duration": "took_ms"}))
    np.testing.assert_allclose(trace.arrival_s, [0.0, 0.5, 1.0, 1.5, 2.0])


def test_unknown_format_name_lists_the_known_ones():
    with pytest.raises(TraceError, match=r"did you mean 'azure'.*mooncake"):
        read_trace(FIXTURES / "azure_2023.csv", ReadOptions(trace_format="azur"))
    assert len(set(format_names())) == len(format_names())


def test_forced_format_reads_what_detection_would_not():
    trace = read_trace(FIXTURES / "mooncake.jsonl", ReadOptions(trace_format="generic", time_unit="ms"))
    assert trace.meta.format == "generic"
    np.testing.assert_allclose(trace.arrival_s, ARRIVALS, atol=1e-3)


def test_string_and_huge_hashes_keep_equality(tmp_path):
    path = tmp_path / "log.jsonl"
    rows = ["[1, 2, 3]", f'["x", "y", {1 << 90}]', f'["x", "z", {1 << 90}]', "[1, 2, 4]"]
    path.write_text(
        "".join(
            f'{{"timestamp": {i}, "input_length": 1500, "output_length": 5, "hash_ids": {ids}}}\n'
            for i, ids in enumerate(rows)
        )
    )
    trace = read_trace(path)
    a, b, c, d = (trace.hashes(i).tolist() for i in range(4))
    assert (a[:2] == d[:2]) and a[2] != d[2]
    assert (b[0], b[2]) == (c[0], c[2]) and b[1] != c[1]
    assert not set(a) & set(b)


def test_the_shipped_examples_read_as_they_should():
    azure = read_trace(EXAMPLES / "azure_llm_2023_conv_rows1-10000.csv")
    assert (azure.meta.format, len(azure), azure.meta.arrival_grid_s) == ("azure", 10_000, None)
    assert azure.rate_per_s == pytest.approx(5.594, abs=0.001)
    mooncake = read_trace(EXAMPLES / "mooncake_conversation_first30min.jsonl.gz")
    assert (mooncake.meta.format, len(mooncake), mooncake.hash_block_tokens) == ("mooncake", 5719, 512)
    assert mooncake.meta.arrival_grid_s == 3.0
    same = read_trace(EXAMPLES / "mooncake_conversation_first30min.jsonl.gz")
    assert same.arrival_s.tobytes() == mooncake.arrival_s.tobytes()
    assert replace(same.meta) == mooncake.meta


def test_the_reference_page_names_every_format():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "traces.md").read_text()
    assert [name for name in format_names() if f"`{name}`" not in page] == []
