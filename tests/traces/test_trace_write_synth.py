"""Synthetic traces follow their recipe; whatever is written reads back as it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specsim.errors import TraceError
from specsim.traces import ReadOptions, Trace, TraceMeta, read_trace
from specsim.traces.options import ArrivalProcess
from specsim.traces.recipe import (
    LengthSpec,
    PrefixPool,
    RateProfile,
    SynthSpec,
    parse_lengths,
    parse_pool,
    parse_profile,
    spec_from_text,
)
from specsim.traces.stats import describe
from specsim.traces.synth import synthesise
from specsim.traces.write import fingerprint, write_trace

FIXED = {"prompt": LengthSpec(100), "output": LengthSpec(20)}
POISSON = ArrivalProcess(kind="poisson", rate_per_s=10.0)


@st.composite
def traces(draw):
    n = draw(st.integers(1, 25))
    gaps = draw(st.lists(st.floats(0, 1e4, allow_nan=False), min_size=n, max_size=n))
    start = draw(st.floats(0, 100))
    count = st.integers(1, 5000)
    ids = offsets = block = None
    if draw(st.booleans()):
        lengths = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        big = st.integers(-(2**62) + 1, 2**62 - 1)
        total = int(offsets[-1])
        ids = np.array(draw(st.lists(big, min_size=total, max_size=total)), dtype=np.int64)
        block = draw(st.integers(1, 4096)) if total else None
        ids, offsets = (ids, offsets) if total else (None, None)
    codes = draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n)) if draw(st.booleans()) else None
    tasks = draw(st.lists(st.integers(-1, 1), min_size=n, max_size=n)) if draw(st.booleans()) else None
    return Trace(
        arrival_s=start + np.cumsum(np.array(gaps)),
        prompt_tokens=np.array(draw(st.lists(count, min_size=n, max_size=n)), dtype=np.int32),
        output_tokens=np.array(draw(st.lists(count, min_size=n, max_size=n)), dtype=np.int32),
        meta=TraceMeta(source="made up", format="f", time_unit="s", sha256="0", rows_read=n, rows_kept=n),
        hash_block_tokens=block,
        hash_ids=ids,
        hash_offsets=offsets,
        session=None if codes is None else np.array(codes, dtype=np.int32),
        task=None if tasks is None else np.array(tasks, dtype=np.int16),
        task_names=("chat", 'code, "quoted"') if tasks is not None else (),
    )


def same_partition(a, b) -> bool:
    """Whether two code columns group the rows in the same way, -1 meaning none in both."""
    pairs = set(zip(a.tolist(), b.tolist(), strict=True))
    return all((x == -1) == (y == -1) for x, y in pairs) and len({x for x, _ in pairs}) == len(pairs) == len(
        {y for _, y in pairs}
    )


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(trace=traces())
def test_written_traces_read_back(tmp_path, form, trace):
    path = tmp_path / "out"
    write_trace(trace, path, form, force=True)
    back = read_trace(path, ReadOptions(spread_grid=False, time_unit="ms" if form == "jsonl" else "s"))
    np.testing.assert_allclose(back.arrival_s, trace.arrival_s, atol=1e-6, rtol=1e-12)
    assert back.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert back.output_tokens.tolist() == trace.output_tokens.tolist()
    assert back.hash_block_tokens == trace.hash_block_tokens
    for i in range(len(trace)):
        assert back.hashes(i).tolist() == trace.hashes(i).tolist()
    if trace.session is not None and (trace.session >= 0).any():
        assert back.session is not None
        assert same_partition(back.session, trace.session)
    if trace.task is not None and (trace.task >= 0).any():
        assert back.task is not None
        names = [None if code < 0 else back.task_names[code] for code in back.task]
        assert names == [None if code < 0 else trace.task_names[code] for code in trace.task]
    assert not back.meta.dropped


def test_own_files_need_no_flag_and_say_where_they_come_from(tmp_path):
    spec = SynthSpec(process=POISSON, requests=500, pool=PrefixPool(2, 64), hash_block_tokens=32, seed=1, **FIXED)
    trace = synthesise(spec)
    for name in ("t.jsonl", "t.csv", "t.jsonl.gz"):
        write_trace(trace, tmp_path / name, "csv" if ".csv" in name else "jsonl")
        back = read_trace(tmp_path / name)
        np.testing.assert_allclose(back.arrival_s, trace.arrival_s, atol=1e-6)
        assert back.hash_block_tokens == 32
    assert any("converted by specsim from synthetic" in note for note in read_trace(tmp_path / "t.jsonl").meta.notes)
    first, second = ((tmp_path / name).read_bytes() for name in ("t.jsonl.gz", "t.jsonl"))
    write_trace(trace, tmp_path / "again.jsonl.gz")
    assert (tmp_path / "again.jsonl.gz").read_bytes() == first != second  # no time stamp in the archive


def test_writing_never_replaces_and_never_leaves_half_a_file(tmp_path):
    trace = synthesise(SynthSpec(process=POISSON, requests=3, **FIXED))
    path = tmp_path / "t.jsonl"
    path.write_text("precious")
    with pytest.raises(TraceError, match="--force"):
        write_trace(trace, path)
    assert path.read_text() == "precious"
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(trace, tmp_path / "no" / "such" / "place.jsonl")
    assert [item.name for item in tmp_path.iterdir()] == ["t.jsonl"]


def test_fingerprint_tells_slices_apart():
    trace = synthesise(SynthSpec(process=POISSON, requests=30, **FIXED))
    marks = {fingerprint(item) for item in (trace, trace.rows(0, 29), trace.scaled(2.0))}
    assert len(marks) == 3
    assert fingerprint(trace) == fingerprint(synthesise(SynthSpec(process=POISSON, requests=30, **FIXED)))


@pytest.mark.parametrize(("kind", "cv"), [("poisson", 1.0), ("gamma", 3.0), ("gamma", 0.5), ("even", 0.0)])
def test_renewal_processes_have_their_rate_and_cv(kind, cv):
    """Standard errors at 40,000 gaps: below 2 % (rate, CV 3) and about 2 % (CV, CV 3); 6 of them are allowed."""
    process = ArrivalProcess(kind=kind, rate_per_s=5.0, cv=cv)
    trace = synthesise(SynthSpec(process=process, requests=40_000, seed=2, **FIXED))
    assert trace.arrival_s[0] == 0.0
    assert trace.rate_per_s == pytest.approx(5.0, rel=0.03 * cv + 1e-9)
    assert describe(trace).gap_cv == pytest.approx(cv, abs=0.12 * cv + 1e-9)


def test_duration_bounds_the_arrivals_and_keeps_the_rate():
    """40,000 expected, standard deviation 200; 6 of them are allowed."""
    trace = synthesise(SynthSpec(process=POISSON, duration_s=4000.0, seed=3, **FIXED))
    assert trace.arrival_s[-1] < 4000.0
    assert abs(len(trace) - 40_000) < 1200


def test_steps_and_sines_change_the_rate():
    """Counts of 2,000 and 16,000 by steps (6 standard deviations allowed), and peak over trough of a sine."""
    spec = spec_from_text(duration="2000", rate_profile="0=2,1000=16", isl="9", osl="9", seed=4)
    counts = np.histogram(synthesise(spec).arrival_s, bins=2, range=(0, 2000))[0]
    assert abs(counts[0] - 2000) < 270
    assert abs(counts[1] - 16000) < 760
    wave = SynthSpec(process=POISSON, duration_s=4000.0, profile=RateProfile(amplitude=0.8, period_s=4000.0), **FIXED)
    quarters = np.histogram(synthesise(wave).arrival_s, bins=4, range=(0, 4000))[0]
    expected = 10_000 * (1 + 0.8 * 2 / np.pi * np.array([1, 1, -1, -1]))
    assert (np.abs(quarters - expected) < 6 * np.sqrt(expected)).all()


def test_lognormal_lengths_have_their_mean_and_p95():
    """Standard errors at 50,000 draws: 0.6 % and 1 %; 6 of them are allowed."""
    trace = synthesise(
        SynthSpec(process=POISSON, requests=50_000, prompt=LengthSpec(1200, 4000), output=LengthSpec(200, 400), seed=5)
    )
    stats = describe(trace)
    assert stats.prompt.mean == pytest.approx(1200, rel=0.04)
    assert stats.prompt.p95 == pytest.approx(4000, rel=0.06)
    assert stats.output.mean == pytest.approx(200, rel=0.03)


def test_lengths_from_another_trace_keep_their_pairs():
    source = synthesise(SynthSpec(process=POISSON, requests=50, prompt=LengthSpec(90, 200), output=LengthSpec(9, 20)))
    drawn = synthesise(SynthSpec(process=POISSON, requests=400, seed=6), source)
    pairs = set(zip(source.prompt_tokens.tolist(), source.output_tokens.tolist(), strict=True))
    assert set(zip(drawn.prompt_tokens.tolist(), drawn.output_tokens.tolist(), strict=True)) <= pairs


def test_prefix_pool_makes_the_reuse_it_should():
    pool = PrefixPool(prefixes=3, tokens=160, share=1.0)
    spec = SynthSpec(
        process=POISSON, requests=200, prompt=LengthSpec(320), output=LengthSpec(5), pool=pool, hash_block_tokens=16
    )
    trace = synthesise(spec)
    assert [len(trace.hashes(i)) for i in (0, 199)] == [20, 20]
    assert len({tuple(trace.hashes(i)[:10].tolist()) for i in range(200)}) == 3
    assert describe(trace).prefix_reuse == pytest.approx((200 * 10 - 3 * 10) / (200 * 20))


@pytest.mark.parametrize(
    "call",
    [
        lambda: SynthSpec(process=POISSON),
        lambda: SynthSpec(process=POISSON, requests=5, duration_s=5.0),
        lambda: SynthSpec(process=POISSON, requests=0),
        lambda: SynthSpec(process=POISSON, duration_s=float("inf")),
        lambda: SynthSpec(process=POISSON, duration_s=1e9),
        lambda: synthesise(SynthSpec(process=POISSON, requests=5)),
        lambda: parse_lengths("0", "--isl"),
        lambda: parse_lengths("1.5", "--isl"),
        lambda: parse_lengths("lognormal:100:90", "--isl"),
        lambda: parse_lengths("lognormal:100:900", "--isl"),
        lambda: parse_pool("4"),
        lambda: parse_pool("4:100:2"),
        lambda: parse_profile("5=2"),
        lambda: parse_profile("0=2,0=3"),
        lambda: parse_profile("0=-1"),
        lambda: spec_from_text(arrivals="poisson:5", diurnal="2", duration="5m", isl="5", osl="5"),
        lambda: spec_from_text(arrivals="poisson:5", diurnal="0.5", isl="5", osl="5"),
        lambda: synthesise(SynthSpec(process=POISSON, requests=5, pool=PrefixPool(1, 5), **FIXED)),
    ],
)
def test_impossible_recipes_are_refused(call):
    with pytest.raises(TraceError):
        call()
