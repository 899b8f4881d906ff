"""Odd names, numbers and flags: one line and exit code 2, or a note or warning; never a traceback, never silence."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time

import pytest
from click.testing import CliRunner

from specsim.cli import cli
from specsim.errors import TraceError
from specsim.traces import ReadOptions, opening, read_trace
from specsim.traces.options import parse_arrivals


def rows(n, first=None, step_ms=1000):
    out = []
    for i in range(n):
        row = {"timestamp": step_ms * i + 1, "input_length": 50, "output_length": 5}
        out.append(json.dumps(row | (first or {}) if i == 0 else row))
    return "\n".join(out) + "\n"


def written(tmp_path, text):
    path = tmp_path / "log.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def one_line(*args, **kwargs):
    """The error of a command that must refuse in one line."""
    result = CliRunner().invoke(cli, list(args), **kwargs)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert result.stderr.endswith(errors[0] + "\n")
    return errors[0]


@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", "-16", "0", "2.5", '"x"', "[]", "{}", "true", "1" * 400])
@pytest.mark.parametrize("key", ["hash_block_tokens", "arrival_grid_s"])
def test_unusable_stated_figures_are_warned_of(tmp_path, key, value):
    text = rows(20, {"specsim": {key: 0}}).replace(f'"{key}": 0', f'"{key}": {value}')
    trace = read_trace(written(tmp_path, text))
    found = [warning for warning in trace.meta.warnings if key in warning]
    if (key, value) == ("arrival_grid_s", "2.5"):
        assert found == []
        assert "arrivals had been spread over a 2.5 s grid" in trace.meta.notes
        return
    assert len(found) == 1
    assert "not used" in found[0]
    assert not any("grid" in note for note in trace.meta.notes if "had been" in note)


def test_a_stated_head_that_is_no_object_is_warned_of(tmp_path):
    trace = read_trace(written(tmp_path, rows(20, {"specsim": [1]})))
    assert any("not an object" in warning for warning in trace.meta.warnings)


@pytest.mark.parametrize("name", ["", "x" * 300, "x" * 5000, "a\nb", "a/" * 3000, "a\x1b[31m"])
@pytest.mark.parametrize("command", [["trace", "inspect"], ["trace", "convert"]])
def test_odd_names_are_one_line(command, name):
    message = one_line(*command, name)
    assert len(message) < 400
    assert message.isprintable()


@pytest.mark.parametrize("name", ["", ".", "..", "/", "x" * 300, "no\0good"])
def test_odd_output_names_are_one_line(tmp_path, name):
    path = written(tmp_path, rows(5))
    assert len(one_line("trace", "convert", str(path), "-o", name, "--force")) < 600


def test_a_pipe_without_a_writer_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "_PIPE_WAIT_S", 0.2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    begin = time.monotonic()
    with pytest.raises(TraceError, match=r"nothing was written into this pipe for 0.2 s; .* specsim \.\.\. -"):
        read_trace(pipe)
    assert time.monotonic() - begin < 5


def test_a_pipe_with_a_slow_writer_is_read_whole(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = rows(5000).encode()

    def write():
        time.sleep(0.2)
        with open(pipe, "wb") as out:
            for at in range(0, len(data), 50_000):
                out.write(data[at : at + 50_000])
                out.flush()
                time.sleep(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    trace = read_trace(pipe)
    writer.join()
    assert len(trace) == 5000


def test_the_pipe_of_a_shell_is_read(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, rows(20).encode())
    os.close(writer)
    try:
        assert len(read_trace(f"/dev/fd/{reader}")) == 20
    finally:
        os.close(reader)


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \t \n"])
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_blank_stretches_are_counted_in_bulk_with_right_lines(tmp_path, blank, form):
    if form == "jsonl":
        record, bad, head = rows(1).encode(), b"{broken\n", rows(40).encode()
    else:
        head = b"arrival_s,prompt_tokens,output_tokens\n" + b"".join(b"%d,5,5\n" % i for i in range(39))
        record, bad = b"50,5,5\n", b"1,2\n"
    n = 300_000
    trace = read_trace(written(tmp_path, head + blank * n + bad + record + blank * 3))
    reason = "not valid JSON" if form == "jsonl" else "wrong number of columns"
    assert trace.meta.dropped == {"blank line": n + 3, reason: 1}
    assert trace.meta.dropped_examples[reason].startswith(f"line {40 + n + 1}:")
    assert trace.meta.rows_read == len(trace) + n + 4


def test_many_blank_lines_are_quick(tmp_path):
    path = written(tmp_path, gzip.compress(rows(20).encode() + b"\n" * (64 << 20), 1))
    begin = time.monotonic()
    assert read_trace(path).meta.dropped == {"blank line": 64 << 20}
    assert time.monotonic() - begin < 8  # one by one they take over 30 s


def test_blanks_between_array_elements_are_quick(tmp_path):
    path = written(tmp_path, "[" + rows(20).strip().replace("\n", ",\n" + "\n" * (1 << 20)) + "]")
    begin = time.monotonic()
    assert len(read_trace(path)) == 20
    assert time.monotonic() - begin < 8


@pytest.mark.parametrize("text", ["gamma:1:1e-300", "gamma:1:1e4", "poisson:1e-7", "poisson:1e300", "even:2e6"])
def test_processes_out_of_range_are_refused(text):
    with pytest.raises(TraceError, match=r"must be 1e-0. to 1\S+, got|must be 0.001 to 1000, got"):
        parse_arrivals(text)


@pytest.mark.parametrize("name", ["rate_scale", "session_rate_per_s"])
@pytest.mark.parametrize("value", [1e-300, 1e-7, 1.1e6, 1e300])
def test_rates_out_of_range_are_refused(name, value):
    with pytest.raises(TraceError, match="must be 1e-06 to 1e"):
        ReadOptions(**{name: value})


@pytest.mark.parametrize(
    "args",
    [
        ["--arrivals", "poisson:1e-6"],
        ["--arrivals", "even:20000"],
        ["--arrivals", "gamma:1:1000"],
        ["--rate-scale", "1e-6"],
        ["--rate-scale", "1e5"],
    ],
)
def test_absurd_loads_after_drawing_and_scaling_are_refused(tmp_path, args):
    message = one_line("trace", "inspect", str(written(tmp_path, rows(50))), *args)
    assert args[0] in message


@pytest.mark.parametrize(
    "args",
    [
        ["--session-rate", "1"],
        ["--hash-block", "16"],
        ["--default-output", "9"],
        ["--chars-per-token", "4"],
        ["--bytes-per-token", "4"],
        ["--arrivals", "poisson:1", "--time-unit", "s"],
    ],
)
def test_flags_that_do_nothing_leave_a_note(tmp_path, args):
    result = CliRunner().invoke(cli, ["trace", "inspect", str(written(tmp_path, rows(20))), *args, "--json"])
    assert result.exit_code == 0, result.output
    assert any(args[-2] in note and "not used" in note for note in json.loads(result.stdout)["meta"]["notes"])


def test_flags_that_do_something_leave_no_such_note(tmp_path):
    text = "".join(json.dumps({"timestamp": i, "input_length": 40, "hash_ids": [i, -i, 9]}) + "\n" for i in range(20))
    options = ReadOptions(default_output_tokens=7, hash_block_tokens=16, time_unit="s")
    assert not any("not used" in note for note in read_trace(written(tmp_path, text), options).meta.notes)


@pytest.mark.parametrize(
    "args",
    [
        ["--trace-format", ""],
        ["--chars-per-token", "1e-320"],
        ["--bytes-per-token", "4:1e-320"],
        ["--bytes-per-token", "1e7"],
        ["--hash-block", "1" + "0" * 30],
        ["--default-output", "3000000000"],
        ["--max-line", "1" + "0" * 30],
    ],
)
def test_read_flags_out_of_range_are_one_line(tmp_path, args):
    assert args[0] in one_line("trace", "inspect", str(written(tmp_path, rows(20))), *args)


@pytest.mark.parametrize(
    "args",
    [
        ["--isl", "9", "--osl", "9", "--rate-profile", "0=1", "--duration", "1m", "--arrivals", "poisson:2"],
        ["--lengths-from", "x.jsonl", "--isl", "9"],
        ["--lengths-from", "x.jsonl", "--osl", "9"],
        ["--isl", "9", "--osl", "9", "--hash-block", "16"],
        ["--isl", "9", "--osl", "9", "--arrivals", "poisson:1e-6"],
        ["--isl", "9", "--osl", "9", "--arrivals", "even:20000"],
        ["--lengths-from", ""],
    ],
)
def test_contradicting_recipes_are_refused(args):
    assert any(word in one_line("trace", "synth", *args) for word in args if word.startswith("--"))


@pytest.mark.parametrize("cell", ["1_000", "١٢", "１２", "1__0"])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_only_plain_digits_are_numbers(tmp_path, column, cell):
    lines = [[str(i), "50", "5"] for i in range(30)]
    lines[7][column] = cell
    text = "arrival_s,prompt_tokens,output_tokens\n" + "".join(",".join(line) + "\n" for line in lines)
    trace = read_trace(written(tmp_path, text))
    assert sum(trace.meta.dropped.values()) == 1
    assert len(trace) == 29


def test_only_plain_digits_are_dates_and_hashes(tmp_path):
    lines = [f"2023-11-16 18:15:{i:02d},50,5,1 2 3 {i}" for i in range(30)]
    lines[7] = lines[7].replace("18:15", "１８:15")
    lines[9] = lines[9].replace("1 2 3", "1 2 3_0")
    text = "arrival,prompt_tokens,output_tokens,hash_ids\n" + "\n".join(lines)
    trace = read_trace(written(tmp_path, text), ReadOptions(hash_block_tokens=16))
    assert sum(trace.meta.dropped.values()) == 1
    assert 30 not in trace.hashes(8).tolist()


def servegen(tmp_path, histogram="{100: 1, 200: 1}", key="0", row="0,1,1,Gamma,0.5,1"):
    (tmp_path / "c-trace.csv").write_text(row + "\n")
    lengths = {key: {"input_tokens": histogram, "output_tokens": "{5: 1}"}}
    (tmp_path / "c-dataset.json").write_text(json.dumps(lengths))
    return tmp_path


@pytest.mark.parametrize(
    "histogram", ["{nan: 1}", "{-5: 1}", "{1e300: 1}", "{inf: 1}", "{5: nan}", "{5: inf}", "{5: -1}", "{5}", "{x: 1}"]
)
def test_histograms_of_impossible_tokens_are_refused(tmp_path, histogram):
    assert "is not a histogram of tokens" in one_line("trace", "inspect", str(servegen(tmp_path, histogram)))


@pytest.mark.parametrize("key", ["²", "١", "x", "1.2.3"])
def test_windows_that_are_no_number_are_refused(tmp_path, key):
    assert "not a ServeGen data set" in one_line("trace", "inspect", str(servegen(tmp_path, key=key)))


def test_flags_that_servegen_has_no_use_for_leave_a_note(tmp_path):
    options = ReadOptions(
        columns={"arrival": "x"}, time_unit="s", session_rate_per_s=1.0, hash_block_tokens=16, default_output_tokens=5,
        chars_per_token=(4.0, 4.0), bytes_per_token=(4.0, 4.0), spread_grid=False, strict=True,
    )  # fmt: skip
    assert sum("not used" in note for note in read_trace(servegen(tmp_path), options).meta.notes) == 9
    drawn = read_trace(tmp_path, ReadOptions(arrivals=parse_arrivals("poisson:1")))
    assert any("--arrivals was given" in note for note in drawn.meta.notes)


@pytest.mark.parametrize(
    "args",
    [
        ["--diurnal", "0.5:1ns", "--duration", "30m"],
        ["--prefix-pool", "9999999999:9999999999"],
        ["--prefix-pool", "4:64", "--hash-block", "100000001"],
        ["--rate-profile", "0=1e300", "--duration", "1m"],
        ["--requests", "20000001"],
    ],
)
def test_recipes_beyond_what_can_be_drawn_are_refused(args):
    message = one_line("trace", "synth", "--isl", "9", "--osl", "9", *args)
    assert args[0].strip("-").split("-")[0] in message or args[2] in message


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_separators_of_unicode_do_not_end_a_line_of_a_log(tmp_path, mark):
    """They may stand in a text, quoted or not."""
    rows = [f'{{"timestamp": {n}, "input_length": 9, "output_length": 4, "model": "a{mark}b"}}' for n in range(4)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    table = ["timestamp,input_tokens,output_tokens,model"] + [f"{n},9,4,a{mark}b" for n in range(4)]
    (tmp_path / "a.csv").write_text("\n".join(table) + "\n", encoding="utf-8")
    for name in ("a.jsonl", "a.csv"):
        assert len(read_trace(tmp_path / name, ReadOptions(time_unit="s"))) == 4


def test_a_servegen_window_is_a_line_of_csv(tmp_path):
    two = "0,1,1,Gamma,0.5,1\u2028600,1,1,Gamma,0.5,1"
    assert "line 1: not a ServeGen window" in one_line("trace", "inspect", str(servegen(tmp_path, row=two)))
    (tmp_path / "c-trace.csv").write_text("0,1,1," + "G" * 200_000 + ",0.5,1\n")
    assert "not a CSV file" in one_line("trace", "inspect", str(tmp_path))
