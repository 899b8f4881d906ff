"""Bad input of every kind: one clear line with the way out, or a counted and explained row; never anything else."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specsim.errors import TraceError
from specsim.traces import ReadOptions, read_trace
from specsim.traces.options import parse_arrivals
from specsim.traces.stats import describe

FIXTURES = Path(__file__).parent / "fixtures"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def csv_rows(n, prompt=100, output=10):
    return HEADER + "".join(f"2023-11-16 18:{15 + i // 60:02d}:{i % 60:02d},{prompt},{output}\n" for i in range(n))


def row(timestamp="0", prompt="50", output="5", more=""):
    return f'{{"timestamp": {timestamp}, "input_length": {prompt}, "output_length": {output}{more}}}\n'


def refused(tmp_path, data, **options):
    path = tmp_path / "log"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(TraceError) as caught:
        read_trace(path, ReadOptions(**options))
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"\n \n\t\n", "nothing but blank lines"),
        (HEADER, "no data rows"),
        ("[]", "no data rows"),
        ("{}", "no arrival times"),
        ("hello world\n", "neither JSON Lines nor CSV"),
        (bytes(range(256)) * 4, "binary"),
        (b"PAR1" + bytes(40), "Parquet"),
        (b"PK\x03\x04" + bytes(40), "ZIP"),
        (b"\x28\xb5\x2f\xfd" + bytes(40), "zstd"),
        (gzip.compress(csv_rows(5000).encode())[:-30], "cut short"),
        (csv_rows(20, prompt=0), "0 prompt tokens"),
        (csv_rows(20, prompt=0, output=0), "--column prompt_tokens=NAME"),
        (HEADER + '2023-11-16 18:15:00,"100,10\n' + csv_rows(6000)[len(HEADER) :], "line 2"),
        ("timestamp,a,a\n1,2,3\n", "column 'a' twice"),
        ('{\n "a": 1,\n', "is the file complete"),
        ("".join(row("5") for _ in range(20)), "arrive at the same time"),
        ("".join(row(str(i), prompt="null") for i in range(20)), "prompt tokens missing"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_whole_files_are_refused_in_one_line(tmp_path, data, words):
    assert words in refused(tmp_path, data)


def test_missing_file_names_its_neighbour(tmp_path):
    (tmp_path / "trace.jsonl").write_text(row())
    (tmp_path / "trce.jsonlx").mkdir()
    with pytest.raises(TraceError, match=r"no such file \(did you mean 'trace.jsonl'\?\)"):
        read_trace(tmp_path / "trce.jsonl")


def test_directory_without_pairs(tmp_path):
    with pytest.raises(TraceError, match="directory without ServeGen pairs"):
        read_trace(tmp_path)


@pytest.mark.parametrize("start", [b'{"a": "', b'[{"a": "', HEADER.encode() + b"2023-11-16 18:15:00,1,1\n"])
def test_one_huge_line_is_refused_not_held(tmp_path, start):
    message = refused(tmp_path, start + b"x" * (3 << 20) + b'"}]', max_line_bytes=1 << 20)
    assert "longer than 1 MiB" in message
    assert "--max-line" in message


BAD_ROWS = [
    ("not json\n", "not valid JSON"),
    ("[1, 2]\n", "not a JSON object"),
    ("\n", "blank line"),
    (row(timestamp='"x"'), "time not a number"),
    (row(timestamp="NaN"), "time not finite"),
    (row(timestamp="-5"), "time negative"),
    (row(timestamp="null"), "time missing"),
    (row(timestamp="[1]"), "time not a number"),
    (row(timestamp="1e30"), "time out of range"),
    (row(prompt="NaN"), "prompt tokens not finite"),
    (row(prompt="-3"), "prompt tokens negative"),
    (row(prompt="2.5"), "prompt tokens not a whole number"),
    (row(prompt="true"), "prompt tokens not a number"),
    (row(prompt='"many"'), "prompt tokens not a number"),
    (row(prompt="null"), "prompt tokens missing"),
    (row(prompt="1e12"), "prompt tokens over 100,000,000"),
    (row(prompt="0"), "0 prompt tokens"),
    (row(output="0"), "0 output tokens"),
    (row(output="null"), "output tokens missing (--default-output sets them)"),
    (row(more=', "hash_ids": [1.5]'), "hash_ids not a list of ids"),
    (row(more=', "hash_ids": {}'), "hash_ids not a list of ids"),
    (row(more=', "hash_ids": 7'), "hash_ids not a list of ids"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD_ROWS, ids=[f"{i}" for i in range(len(BAD_ROWS))])
def test_bad_rows_are_counted_with_their_line(tmp_path, bad, reason):
    path = tmp_path / "log"
    good = [row(str(1000 * i)) for i in range(30)]
    path.write_text("".join(good[:7]) + bad + "".join(good[7:]))
    trace = read_trace(path)
    assert trace.meta.dropped == {reason: 1}
    assert trace.meta.dropped_examples[reason].startswith("line 8")
    assert (trace.meta.rows_kept, trace.meta.rows_read) == (30, 31)
    if reason == "blank line":
        assert read_trace(path, ReadOptions(strict=True)).meta.rows_kept == 30
        return
    with pytest.raises(TraceError) as caught:
        read_trace(path, ReadOptions(strict=True))
    assert f"line 8: {reason}" in str(caught.value)


def test_counts_as_text_or_whole_floats_are_fine(tmp_path):
    path = tmp_path / "log"
    path.write_text(row("0", '"50"', "5.0") + row("1000", "50", '" 6 "'))
    assert read_trace(path).output_tokens.tolist() == [5, 6]


def test_truncated_last_line_costs_one_row(tmp_path):
    for data, reason in (
        (csv_rows(5) + "2023-11-16 18:1", "wrong number of columns"),
        ("".join(row(str(i)) for i in range(5)) + '{"timestamp": 9, "inp', "not valid JSON"),
    ):
        path = tmp_path / "log"
        path.write_text(data)
        trace = read_trace(path)
        assert (trace.meta.rows_kept, dict(trace.meta.dropped)) == (5, {reason: 1})


def test_duplicate_ids_keep_the_first(tmp_path):
    path = tmp_path / "log"
    path.write_text(
        "".join(
            f'{{"request_id": "r{i if i != 7 else 3}", "arrival_s": {i}, "prompt_tokens": {i + 1},'
            ' "output_tokens": 5}\n'
            for i in range(30)
        )
    )
    trace = read_trace(path)
    assert trace.meta.dropped == {"duplicate request id": 1}
    assert 8 not in trace.prompt_tokens.tolist()
    assert trace.meta.rows_read == 30
    with pytest.raises(TraceError, match="line 8: duplicate request id"):
        read_trace(path, ReadOptions(strict=True))


def test_a_column_that_repeats_is_no_request_id(tmp_path):
    path = tmp_path / "log"
    path.write_text(
        "".join(
            f'{{"request_id": {i % 3}, "arrival_s": {i}, "prompt_tokens": 4, "output_tokens": 5}}\n' for i in range(30)
        )
    )
    trace = read_trace(path)
    assert len(trace) == 30
    assert any("not taken as a request id" in note for note in trace.meta.notes)


def test_unsorted_rows_are_sorted_and_said(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(row(str(1000 * i), str(i + 1), "5", f', "hash_ids": [{i}]') for i in (3, 0, 2, 1)))
    trace = read_trace(path, ReadOptions(hash_block_tokens=16))
    assert trace.prompt_tokens.tolist() == [1, 2, 3, 4]
    assert [trace.hashes(i).tolist() for i in range(4)] == [[0], [1], [2], [3]]
    assert any("not in order" in note for note in trace.meta.notes)


def test_mostly_bad_rows_are_warned_about(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(row(str(1000 * i)) + "garbage\n" for i in range(10)))
    assert any("10 of 20 rows" in warning for warning in read_trace(path).meta.warnings)


@pytest.mark.parametrize(
    "options",
    [
        {"time_unit": "msec"},
        {"columns": {"arival": "x"}},
        {"window": (5.0, 5.0)},
        {"window": (-1.0, 5.0)},
        {"window": (0.0, 5.0), "busiest_s": 5.0},
        {"busiest_s": 0.0},
        {"rate_scale": float("nan")},
        {"rate_scale": -1.0},
        {"limit": 0},
        {"seed": -1},
        {"session_rate_per_s": 0.0},
        {"default_output_tokens": 0},
        {"hash_block_tokens": 0},
        {"bytes_per_token": (0.0, 1.0)},
        {"arrivals": parse_arrivals("even:1"), "session_rate_per_s": 1.0},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(TraceError):
        ReadOptions(**options)


NAMES = sorted(path.name for path in FIXTURES.glob("*.*") if path.suffix != ".md")
TOKENS = [b"NaN", b"null", b"-5", b"1e999", b'""', b"{}", b"[]", b"true", b"0", b"9" * 30, b'"x"', b"\x00", b"\xff\xfe"]
OPTIONS = [
    ReadOptions(),
    ReadOptions(session_rate_per_s=1, bytes_per_token=(5, 9), chars_per_token=(4, 4), default_output_tokens=5),
    ReadOptions(arrivals=parse_arrivals("poisson:1"), bytes_per_token=(5, 9), chars_per_token=(4, 4)),
]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(
    name=st.sampled_from(NAMES),
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 30), st.one_of(st.sampled_from(TOKENS), st.binary(max_size=3))),
        max_size=3,
    ),
    cut=st.one_of(st.none(), st.floats(0, 1)),
    options=st.sampled_from(OPTIONS),
)
def test_damaged_files_never_raise_anything_else(tmp_path, name, edits, cut, options):
    data = bytearray((FIXTURES / name).read_bytes())
    for place, removed, inserted in edits:
        at = int(place * len(data))
        data[at : at + removed] = inserted
    if cut is not None:
        data = data[: int(cut * len(data))]
    path = tmp_path / "damaged"
    path.write_bytes(data)
    try:
        trace = read_trace(path, options)
    except TraceError as error:
        assert "\n" not in str(error)
        return
    assert trace.meta.rows_kept + sum(trace.meta.dropped.values()) == trace.meta.rows_read
    assert describe(trace).rows == len(trace) >= 1
