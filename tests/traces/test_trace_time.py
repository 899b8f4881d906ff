"""Units of time, mixed units, coarse grids, slices and statistics."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.errors import TraceError
from specsim.traces import ReadOptions, Trace, TraceMeta, read_trace
from specsim.traces.grid import find_grid, spread
from specsim.traces.options import parse_arrivals, parse_columns, parse_duration, parse_per_token, parse_window
from specsim.traces.slices import busiest_start, cut
from specsim.traces.stats import describe
from specsim.traces.values import DateReader, RowProblem


def make(arrival, prompt=100, output=20, **more) -> Trace:
    arrival = np.asarray(arrival, dtype=np.float64)
    n = len(arrival)
    meta = TraceMeta(source="t", format="f", time_unit="s", sha256="0", rows_read=n, rows_kept=n)
    prompts = np.broadcast_to(np.asarray(prompt, dtype=np.int32), n).copy()
    outputs = np.broadcast_to(np.asarray(output, dtype=np.int32), n).copy()
    return Trace(arrival, prompts, outputs, meta, **more)


def mooncake(tmp_path, times, more=""):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"timestamp": {t}, "input_length": 500, "output_length": 5{more}}}\n' for t in times))
    return path


def table(tmp_path, column, times):
    path = tmp_path / "log.csv"
    path.write_text(f"{column},prompt_tokens,output_tokens\n" + "".join(f"{t},9,9\n" for t in times))
    return path


# Units


@pytest.mark.parametrize(
    ("column", "unit", "step"),
    [
        ("arrival_time_ns", "ns", 1e-9),
        ("arrivalTimeMs", "ms", 1e-3),
        ("start_us", "us", 1e-6),
        ("arrival_seconds", "s", 1.0),
        ("ts (ms)", "ms", 1e-3),
    ],
)
def test_column_name_states_the_unit(tmp_path, column, unit, step):
    trace = read_trace(table(tmp_path, column, [i * 0.25 / step for i in range(40)]))
    assert trace.meta.time_unit.startswith(unit + " (")
    assert trace.rate_per_s == pytest.approx(4.0)


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
def test_epoch_numbers_show_their_unit(tmp_path, scale):
    path = table(tmp_path, "timestamp", [1_700_000_000 * scale + i * scale // 4 for i in range(0, 80, 4)])
    assert read_trace(path).rate_per_s == pytest.approx(1.0)


def test_nanoseconds_since_1970_keep_their_microseconds(tmp_path):
    path = table(tmp_path, "start", [1_700_158_546_680_590_000 + i * 1_000 for i in range(5)])
    np.testing.assert_allclose(read_trace(path).arrival_s, np.arange(5) * 1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([i // 5 for i in range(60)], "--time-unit s"),  # whole seconds under Mooncake's keys
        ([i * 300_000 for i in range(60)], "--time-unit us"),
        ([i * 300 if i < 30 else i * 300_000 for i in range(60)], "line 31"),
        ([(i * 300 + 300) * (1 if i % 2 else 1000) for i in range(60)], "mixed units"),
        ([1_700_000_000_000 + 300 * i if i != 7 else 1_700_000_002 for i in range(60)], "line 8"),
        ([1_700_000_000_000 + 300 * i if i != 7 else 0 for i in range(60)], "line 8"),
        ([f'"2023-11-16T18:15:{i:02d}Z"' if i < 50 else i * 1000 for i in range(60)], "line 51"),
    ],
)
def test_a_wrong_or_mixed_unit_is_refused(tmp_path, times, words):
    path = mooncake(tmp_path, times)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert words in str(caught.value)


def test_the_flag_overrides_the_suspicion(tmp_path):
    path = mooncake(tmp_path, [i // 5 for i in range(60)])
    assert read_trace(path, ReadOptions(time_unit="s")).span_s == pytest.approx(12.0, abs=1.0)
    fast = read_trace(path, ReadOptions(time_unit="us"))
    assert any("right?" in warning for warning in fast.meta.warnings)


@pytest.mark.parametrize("name", ["arrived_at", "arrival"])
def test_milliseconds_taken_for_seconds_are_refused(tmp_path, name):
    path = tmp_path / "log.csv"
    columns = "num_prefill_tokens,num_decode_tokens" if name == "arrived_at" else "prompt_tokens,output_tokens"
    path.write_text(f"{name},{columns}\n" + "".join(f"{i * 300},9,9\n" for i in range(50)))
    with pytest.raises(TraceError, match=r"suspected wrong time unit.*--time-unit ms"):
        read_trace(path)
    assert read_trace(path, ReadOptions(time_unit="ms")).rate_per_s == pytest.approx(1 / 0.3)


def test_relative_nanoseconds_over_an_hour_are_not_mixed(tmp_path):
    path = table(tmp_path, "arrival_time_ns", [i * 36_000_000_000 for i in range(1, 101)])
    assert read_trace(path).span_s == pytest.approx(99 * 36)


def test_a_guessed_unit_is_warned_about(tmp_path):
    trace = read_trace(table(tmp_path, "arrival", [i * 0.3 for i in range(50)]))
    assert any("guess" in warning for warning in trace.meta.warnings)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01 00:00:01", 1.0),
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01 00:00:01.5000001", 1.5000001),
        ("1970-01-01T01:00:01+01:00", 1.0),
        ("1969-12-31 19:00:01-0500", 1.0),
        ("1/1/1970, 12:00:01.250 AM", 1.25),
        ("1/1/1970 12:00:01 PM", 43201.0),
        ("1970-01-01 00:00:01 UTC", 1.0),
        ("1970-01-02", 86400.0),
        ("19700101T000001Z", 1.0),
    ],
)
def test_dates(text, seconds):
    assert DateReader().read(text) == round(seconds * 1e7)


@pytest.mark.parametrize("text", ["", "soon", "2023-13-01 00:00:00", "2023-02-30 10:00:00", "13/13/2023, 1:00:00 PM"])
def test_no_dates(text):
    with pytest.raises(RowProblem):
        DateReader().read(text)


@settings(deadline=None, derandomize=True)
@given(st.datetimes(min_value=datetime(1600, 1, 1)), st.sampled_from([" ", "T"]), st.sampled_from(["", "Z", "+00:00"]))
def test_dates_agree_with_the_standard_library(moment, between, zone):
    micros = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert DateReader().read(moment.isoformat(between) + zone) == micros * 10


# Grids


def test_mooncake_like_grid_is_found_and_spread():
    rng = np.random.default_rng(5)
    points = np.cumsum(rng.integers(2997, 3004, 400)) / 1000
    arrival = np.repeat(points, rng.integers(1, 20, 400))
    grid = find_grid(arrival)
    assert grid is not None
    assert grid.step_s == 3.0
    flat = spread(arrival, grid, seed=1)
    assert (flat >= arrival - 1e-9).all()
    assert (flat - arrival < 3.01).all()
    assert (np.diff(flat) >= 0).all()
    assert flat.tobytes() == spread(arrival, grid, seed=1).tobytes()
    assert flat.tobytes() != spread(arrival, grid, seed=2).tobytes()
    gaps = np.diff(flat)
    assert 0.9 < gaps.std() / gaps.mean() < 1.3  # it was near 3 before; uniform cells of unequal load are near 1


def test_grid_with_idle_cells_and_jitter_inside_a_cell():
    rng = np.random.default_rng(6)
    points = np.arange(300)[rng.random(300) < 0.6] * 5.0
    arrival = np.sort(np.repeat(points, 4) + rng.uniform(0, 0.004, 4 * len(points)))
    grid = find_grid(arrival)
    assert grid is not None
    assert grid.step_s == pytest.approx(5.0, abs=0.01)
    assert (spread(arrival, grid, 0) - arrival < 5.01).all()


@pytest.mark.parametrize(
    ("what", "make_arrivals"),
    [
        ("whole seconds, hardly any ties", lambda rng: np.floor(np.cumsum(rng.exponential(20.0, 500)))),
        ("milliseconds", lambda rng: np.round(np.cumsum(rng.exponential(0.2, 5000)), 3)),
        ("milliseconds, busy", lambda rng: np.round(np.cumsum(rng.exponential(0.001, 5000)), 3)),
        ("Poisson", lambda rng: np.cumsum(rng.exponential(0.2, 5000))),
        ("even", lambda rng: np.arange(500) * 0.5),
        ("bursts at random times", lambda rng: np.repeat(np.round(np.cumsum(rng.exponential(3.0, 300)), 3), 10)),
        ("few rows", lambda rng: np.zeros(5)),
    ],
)
def test_what_is_natural_is_left_alone(what, make_arrivals):
    assert find_grid(make_arrivals(np.random.default_rng(7))) is None


def test_whole_seconds_under_load_are_spread_unless_told_otherwise(tmp_path):
    rng = np.random.default_rng(8)
    path = table(tmp_path, "arrival_s", np.floor(np.cumsum(rng.exponential(0.2, 500))).astype(int).tolist())
    trace = read_trace(path, ReadOptions(seed=4))
    assert trace.meta.arrival_grid_s == 1.0
    assert any("1 s grid" in note for note in trace.meta.notes)
    kept = read_trace(path, ReadOptions(spread_grid=False))
    assert kept.meta.arrival_grid_s is None
    assert set(kept.arrival_s.tolist()) == set(np.floor(kept.arrival_s).tolist())
    assert any("were left there" in warning for warning in kept.meta.warnings)


# Slices


def test_busiest_window_is_the_best_of_all_windows():
    rng = np.random.default_rng(9)
    arrival = np.sort(rng.uniform(0, 1000, 300))
    start = busiest_start(arrival, 60.0)
    best = max(int(((arrival >= a) & (arrival < a + 60.0)).sum()) for a in arrival)
    assert int(((arrival >= start) & (arrival < start + 60.0)).sum()) == best


def test_slices_apply_in_order_and_leave_notes():
    trace = make(np.arange(100) * 1.0, prompt=np.arange(1, 101))
    part = cut(trace, ReadOptions(window=(10.0, 20.0), limit=5, rate_scale=2.0))
    assert part.prompt_tokens.tolist() == [11, 12, 13, 14, 15]
    np.testing.assert_allclose(part.arrival_s, np.arange(5) / 2)
    assert len(part.meta.notes) == 3
    assert part.meta.rows_kept == 100
    rest = cut(trace, ReadOptions(window=(90.0, math.inf)))
    assert len(rest) == 10
    assert cut(trace, ReadOptions(busiest_s=500.0)).prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    with pytest.raises(TraceError, match="runs from 0 to 99 s"):
        cut(trace, ReadOptions(window=(200.0, 300.0)))


def test_windows_keep_hashes_with_their_rows():
    ids = np.arange(6, dtype=np.int64)
    trace = make([0.0, 1.0, 2.0], prompt=32, hash_block_tokens=16, hash_ids=ids, hash_offsets=np.array([0, 1, 3, 6]))
    part = cut(trace, ReadOptions(window=(1.0, 3.0)))
    assert [part.hashes(i).tolist() for i in range(2)] == [[1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("10m", 600), ("1.5h", 5400), ("250ms", 0.25), ("2d", 172800), ("3 min", 180)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "ten", "-5", "5 parsecs", "nan", "1m30"])
def test_bad_durations(text):
    with pytest.raises(TraceError, match="duration"):
        parse_duration(text)


def test_small_languages_of_the_flags():
    assert parse_window("10m:20m") == (600.0, 1200.0)
    assert parse_window("10m:") == (600.0, math.inf)
    assert parse_columns(["arrival=ts,prompt_tokens=n"]) == {"arrival": "ts", "prompt_tokens": "n"}
    assert parse_per_token("4.8:9", "x") == (4.8, 9.0)
    assert parse_arrivals("gamma:2:3").cv == 3.0
    for call in (
        lambda: parse_window("20m:10m"),
        lambda: parse_window("5"),
        lambda: parse_columns(["arival=ts"]),
        lambda: parse_columns(["arrival"]),
        lambda: parse_per_token("0", "x"),
        lambda: parse_arrivals("poison:5"),
        lambda: parse_arrivals("poisson:0"),
        lambda: parse_arrivals("gamma:5"),
    ):
        with pytest.raises(TraceError):
            call()


# Statistics


def test_statistics_of_a_trace_done_by_hand():
    trace = make(
        [0.0, 1.0, 2.0, 3.0, 200.0],
        prompt=[32, 32, 40, 16, 15],
        output=[4, 4, 10, 10, 10],
        hash_block_tokens=16,
        hash_ids=np.array([1, 2, 1, 3, 1, 2, 9, 1, 1], dtype=np.int64),
        hash_offsets=np.array([0, 2, 4, 7, 8, 9]),
    )
    stats = describe(trace)
    assert (stats.rows, stats.span_s, stats.busiest_minute_start_s) == (5, 200.0, 0.0)
    assert stats.busiest_minute_rate_per_s == pytest.approx(4 / 60)
    assert stats.prompt.mean == 27.0
    assert stats.output.max == 10
    assert stats.short_output_share == pytest.approx(0.4)
    assert stats.prefill_token_share == pytest.approx(135 / 173)
    # full blocks: 1 2 | 1 3 | 1 2 (9 is partial) | 1 | none: 7 blocks, 3 distinct
    assert stats.prefix_reuse == pytest.approx(4 / 7)
    assert stats.cached_prompt_share == pytest.approx(4 * 16 / 135)
    gaps = np.array([1, 1, 1, 197.0])
    assert stats.gap_cv == pytest.approx(gaps.std() / gaps.mean())
    assert stats.dispersion_60s == pytest.approx(np.var([4, 0, 0], ddof=1) / np.mean([4, 0, 0]))


def test_reuse_of_scattered_ids_is_counted_exactly():
    rng = np.random.default_rng(10)
    small = rng.integers(0, 500, 4000)
    big = small.astype(np.int64) * ((1 << 50) + 12345)
    offsets = np.arange(0, 4001, 10)
    results = [
        describe(make(np.arange(400.0), 160, hash_block_tokens=16, hash_ids=ids, hash_offsets=offsets)).prefix_reuse
        for ids in (small.astype(np.int64), big)
    ]
    assert results[0] == results[1] == pytest.approx(1 - len(np.unique(small)) / 4000)


def test_poisson_arrivals_have_cv_and_dispersion_one():
    """Standard errors at 20,000 rows: CV 0.7 %, D60 2.4 % of 1; 5 of them, so a false alarm is below 1e-6."""
    rng = np.random.default_rng(11)
    stats = describe(make(np.cumsum(rng.exponential(10.0, 20_000))))
    assert stats.gap_cv == pytest.approx(1.0, abs=0.035)
    assert stats.dispersion_60s == pytest.approx(1.0, abs=0.13)


def test_warnings_that_change_the_answer():
    calm = describe(make(np.arange(200.0), prompt=100, output=100))
    assert calm.warnings == ()
    short = describe(make(np.arange(200.0), prompt=100, output=3)).warnings
    assert any("shorter than 8 tokens" in warning for warning in short)
    assert any("prompt tokens" in warning for warning in short)
    bursts = describe(make(np.sort(np.concatenate([np.arange(60) * 100.0, 3000 + np.arange(900) * 0.01])))).warnings
    assert any("bursty" in warning for warning in bursts)
    assert any("times the mean rate" in warning for warning in bursts)
    silent = describe(make(np.concatenate([np.arange(100.0), 1e6 + np.arange(100.0)]))).warnings
    assert any("silence" in warning for warning in silent)


def test_one_request_has_statistics():
    stats = describe(make([0.0]))
    assert (stats.rows, stats.gap_cv, stats.dispersion_60s, stats.rate_per_s) == (1, None, None, 0.0)
