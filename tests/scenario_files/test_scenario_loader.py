"""Scenario files: every record survives writing and reading, every mistake ends in one line with the way out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.loader import TABLES, ScenarioFile, dump_scenario, load_scenario, parse_scenario
from scenarios.schema import field_docs, keys_of
from scenarios.workload import WorkloadSpec, load_workload, read_options
from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.drafters import method_names
from specsim.errors import InputError, ScenarioError, TraceError
from specsim.planner.question import PlanSettings
from specsim.policies import KINDS, parse_policy

HERE = Path("case.toml")
WORDS = st.text(st.characters(codec="utf-8"), max_size=12)
COUNTS = st.integers(1, 1024)
RATES = st.floats(1e-6, 1e6)
SECONDS = st.floats(1e-9, 1e9, allow_nan=False)
SHARES = st.floats(0, 1, exclude_min=True)


def optional(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


DEPLOYMENTS = st.builds(
    Deployment,
    target=WORDS,
    gpu=WORDS,
    tp=COUNTS,
    replicas=COUNTS,
    router=st.sampled_from(["round_robin", "least_outstanding"]),
    weight_dtype=optional(WORDS),
    gpu_memory_utilization=SHARES,
    max_num_seqs=optional(COUNTS),
    max_model_len=optional(COUNTS),
    enable_prefix_caching=st.booleans(),
)
SPECULATIONS = st.sampled_from([0, 1, 2]).flatmap(  # a task, one's own vector, or one's own length
    lambda kind: st.builds(
        Speculation,
        method=st.sampled_from(method_names()),
        draft=optional(WORDS),
        num_spec_tokens=st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True).map(tuple),
        task=optional(WORDS) if kind == 0 else st.none(),
        acceptance=st.lists(st.floats(0, 1), min_size=1, max_size=3).map(tuple) if kind == 1 else st.none(),
        acceptance_length=st.floats(1, 9) if kind == 2 else st.none(),
        acceptance_length_k=optional(st.integers(1, 64)) if kind == 2 else st.none(),
    )
)
POLICIES = st.one_of(
    st.just(PolicySpec("off")),
    st.builds(PolicySpec, st.sampled_from(["static", "goodput"]), st.integers(0, 9)),
    st.builds(PolicySpec, st.just("off_above"), st.integers(0, 9), batch_limit=st.integers(0, 99)),
    st.just(PolicySpec("schedule", 5, table=((1, 16, 5), (17, 64, 2), (65, 512, 0)))),
    st.sampled_from([kind.example for kind in KINDS.values()]).map(parse_policy),
    st.sampled_from(
        [
            "ema:7:candidates=1=0/7,9=1:initial_k=7:ema_alpha=0.3:update_interval=2:down_hysteresis=-0.5/0/1",
            "trt_gate:2:1.25:9:over=requests",
            "gate:2:1:window=3:reprobe_steps=4",
        ]
    ).map(parse_policy),
)
SLOS = st.builds(Slo, ttft_s=optional(SECONDS), tpot_s=optional(SECONDS), share=SHARES)
PLANS = st.builds(
    PlanSettings,
    seed=st.integers(0, 2**63 - 1),
    replications=st.integers(2, 99),
    loads_per_s=st.lists(RATES, max_size=3).map(tuple),
    warmup_share=st.floats(0, 0.9),
)
WORKLOADS = st.one_of(
    st.builds(
        WorkloadSpec,
        trace=WORDS.filter(bool),
        columns=st.dictionaries(st.sampled_from(["arrival", "task"]), st.sampled_from(["a b", 'say "x"', "é"])),
        strict=st.booleans(),
        window=st.sampled_from([None, "10m:20m"]),
        limit=optional(COUNTS),
        rate_scale=optional(RATES),
        bytes_per_token=st.sampled_from([None, "4.8:9.5", 4.5]),
        concurrency=optional(COUNTS),
    ),
    st.builds(WorkloadSpec, isl=COUNTS, osl=st.just("lognormal:200:500"), rate_per_s=RATES, requests=optional(COUNTS)),
    st.builds(WorkloadSpec, isl=COUNTS, osl=COUNTS, concurrency=COUNTS),
)


@settings(deadline=None)
@given(
    scenario=st.builds(
        ScenarioFile,
        st.just(HERE),
        optional(WORKLOADS),
        DEPLOYMENTS,
        SPECULATIONS,
        st.lists(POLICIES, max_size=3, unique_by=lambda policy: policy.label).map(tuple),
        SLOS,
        PLANS,
    )
)  # fmt: skip
def test_what_is_written_is_read_back(scenario: ScenarioFile) -> None:
    assert parse_scenario(dump_scenario(scenario), HERE) == scenario


def test_every_field_of_every_record_is_a_key() -> None:
    """A record whose every field differs from its default survives, so no field is forgotten by the file format."""
    for record in TABLES.values():
        flat = ["settings"] if record is PolicySpec else []
        assert [key.field for key in keys_of(record)] + flat == list(record.__dataclass_fields__)


def test_milliseconds_of_the_file_are_exact_seconds() -> None:
    scenario = parse_scenario("[slo]\nttft_ms = 200.1\ntpot_ms = 'none'\n", HERE)
    assert scenario.slo == Slo(ttft_s=0.2001, tpot_s=None)


def test_tables_left_out_are_at_their_defaults() -> None:
    scenario = parse_scenario("[slo]\nshare = 0.9\n", HERE)
    assert scenario == ScenarioFile(HERE, slo=Slo(share=0.9))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[deployment]\ntp = 0", "case.toml: deployment.tp must be a whole number >= 1, got 0"),
        ("[deployment]\ntp = true", "case.toml: deployment.tp: true is not a whole number"),
        ("[deployment]\ntp = 2.0", "case.toml: deployment.tp: 2.0 is not a whole number"),
        ("[deployment]\ntp = '2'", "case.toml: deployment.tp: '2' is not a whole number"),
        ("[deployment]\ntp = [2]", "case.toml: deployment.tp: [2] is not a whole number"),
        ("[deployment]\ntp = 99999999999999999999", "deployment.tp: 99999999999999999999 is not a whole number"),
        ("[deployment]\ngpu_memory_utilization = nan", "deployment.gpu_memory_utilization: NaN is not a finite number"),
        ("[deployment]\ngpu_memory_utilization = inf", "gpu_memory_utilization: Infinity is not a finite number"),
        ("[deployment]\ngpu_memory_utilization = 1e999", "gpu_memory_utilization: 1E+999 is not a finite number"),
        ("[deployment]\ngpu_memory_utilization = 1.5", "deployment.gpu_memory_utilization must be <= 1, got 1.5"),
        ("[deployment]\ngpus = 'h100'", "case.toml: deployment.gpus: unknown key (did you mean 'gpu'?); keys are targ"),
        ("[deployment]\nmethod = 'eagle'", "deployment.method: unknown key; 'method' belongs to [speculation]"),
        ("[deployment]\nrouter = 'random'", "deployment.router: 'random' is not one of round_robin, least_outstanding"),
        ("[deployment]\nenable_prefix_caching = 1", "enable_prefix_caching: 1 is not true or false"),
        ("[deployment]\ngpu = 2020-01-01", "deployment.gpu: 2020-01-01 is not text"),
        ("[deploymnt]\ntp = 1", "case.toml: unknown table 'deploymnt' (did you mean 'deployment'?); tables are [workl"),
        ("tp = 1", "case.toml: key 'tp' stands outside of any table; move it below [deployment]"),
        ("title = 'x'", "case.toml: unknown key 'title'"),
        ("[[deployment]]\ntp = 1", "case.toml: deployment must be a table of keys, got [a table]"),
        ("deployment = 3", "case.toml: deployment must be a table of keys, got 3"),
        ("", "case.toml: says nothing; give at least one of the tables [workload]"),
        ("# only a comment\n", "case.toml: says nothing"),
        ("[slo]\ntpot_ms = 5\n\n[slo\n", "case.toml: not valid TOML: "),
        ("[slo]\ntpot_ms = = 5", "(at line 2, column 11)"),
        ("[slo]\nshare = 1\nshare = 1", "case.toml: not valid TOML: "),
        ("[slo]\nttft_ms = 0", "case.toml: slo.ttft_ms must be a finite number > 0, got 0.0 seconds"),
        ("[slo]\nttft_ms = 'soon'", "slo.ttft_ms: 'soon' is not a finite number, or 'none'"),
        ("[slo]\nttft_s = 1", "case.toml: slo.ttft_s: unknown key (did you mean 'ttft_ms'?)"),
        ("[slo]\nshare = 'none'", "slo.share: 'none' is not a finite number"),
        ("[speculation]\nnum_spec_tokens = 3", "speculation.num_spec_tokens: 3 is not a list of whole numbers"),
        ("[speculation]\nnum_spec_tokens = []", "speculation.num_spec_tokens is empty"),
        ("[speculation]\nacceptance = [0.5, 1.5]", "speculation.acceptance must lie in 0..1, got 1.5"),
        ("[speculation]\nmethod = 'eagel'", "speculation.method 'eagel' is not one of draft_model, ngram"),
        ("[policy]\nnum_spec_tokens = 3", "case.toml: policy.kind is missing; give one of off, static"),
        ("[policy]\nkind = 'schedule'\ntable = [[1, 2]]", "policy.table: [[1, 2]] is not a list of rows, each a list"),
        ("[policy]\nkind = 'statik'", "case.toml: policy.kind: 'statik' is not one of off, static"),
        ("[policy]\nkind = 3", "case.toml: policy.kind: 3 is not one of off, static"),
        ("[policy]\nkind = 'off'\nbatch_limit = 0", "policy.batch_limit: kind 'off' has no such key; its keys are"),
        ("[policy]\nkind = 'static'\nnum_spec_tokens = 99", "num_spec_tokens must be a whole number in 0..64, got 99"),
        ("[policy]\nkind = 'ema'\nalpha = 1", "policy.alpha: kind 'ema' has no such key (did you mean 'ema_alpha'?)"),
        ("[policy]\nkind = 'ema'\nnum_spec_tokens = 3\nema_alpha = 2", "policy.ema_alpha must be a number in 0..1"),
        ("[policy]\nkind = 'ema'\nema_alpha = 'x'", "case.toml: policy.ema_alpha: 'x' is not a finite number"),
        ("[[policy]]\nkind = 'off'\n[[policy]]\nkind = 'gat'", "case.toml: policy 2.kind: 'gat' is not one of off"),
        ("[deployment]\nema_alpha = 0.1", "deployment.ema_alpha: unknown key; 'ema_alpha' belongs to [policy]"),
        ("policy = 'statik:3'", "case.toml: policy: policy 'statik:3': unknown kind (did you mean 'static'?)"),
        ("policy = ['static:3', 'statik:3']", "case.toml: policy 2: policy 'statik:3': unknown kind"),
        ("policy = ['static:3', 'static:3']", "case.toml: policy 'k=3' stands there twice; leave one out"),
        ("policy = []", "case.toml: policy is an empty list"),
        ("policy = 3", "case.toml: policy must be a table of keys or a text such as 'static:3'"),
        ("[plan]\nreplications = 1", "plan.replications must be a whole number in 2..1000, got 1"),
        ("[plan]\nwarmup_share = -0.1", "plan.warmup_share must lie in 0..0.9, got -0.1"),
        ("[workload]\nisl = 5", "case.toml: workload.osl is missing; give a trace"),
        ("[workload]\nisl = 5\nosl = 5", "takes one of rate_per_s, arrivals and concurrency, got nothing"),
        ("[workload]\nisl = 0\nosl = 5\nconcurrency = 1", "workload.isl '0' must be a whole number of tokens >= 1"),
        ("[workload]\nisl = 5\nosl = 5\nconcurrency = 0", "workload.concurrency must be a whole number in 1..65536"),
        ("[workload]\nisl = 5\nosl = 5\nconcurrency = 1\nrate_per_s = 2.0", "workload.rate_per_s and workload.concurr"),
        ("[workload]\nisl = 5\nosl = 5\nrate_per_s = -2.0", "rate_per_s must be a number > 0, 1e-06 to 1e+06"),
        ("[workload]\nisl = 5\nosl = 5\nrate_per_s = 1.0\nlimit = 5", "workload.limit is about reading a log, but"),
        ("[workload]\ntrace = 'a'\nisl = 5", "workload.isl and workload.trace exclude each other; leave one out"),
        ("[workload]\ntrace = 'a'\nwindow = '20m:10m'", "window '20m:10m' is empty"),
        ("[workload]\ntrace = 'a'\nlimit = 0", "--limit must be a whole number >= 1, got 0"),
        ("[workload]\ntrace = 'a'\narrivals = 'poison:5'", "unknown process (did you mean 'poisson'?)"),
        ("[workload]\ntrace = 'a'\ncolumns = {arival = 'x'}", "unknown field 'arival' (did you mean 'arrival'?)"),
        ("[workload]\ntrace = 'a'\ncolumns = {arrival = 3}", "workload.columns: a table is not a table of texts"),
    ],
)  # fmt: skip
def test_mistakes_end_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, HERE)
    message = str(caught.value)
    assert said in message
    assert message.startswith("case.toml: ")
    assert "\n" not in message


@given(st.text(max_size=200))
def test_no_text_at_all_raises_anything_else(text: str) -> None:
    try:
        parse_scenario(text, HERE)
    except InputError as error:
        assert "\n" not in str(error)


@given(
    table=st.sampled_from(list(TABLES)),
    value=st.sampled_from(["nan", "-inf", "-1", "0", "1e400", "''", "'none'", "[]", "[[]]", "{}", "true", "1979-05-27",
                           "99999999999999999999999", "[nan]", "[[1, 2, 3]]", "-0.0"]),
    pick=st.integers(0, 99),
)  # fmt: skip
def test_any_value_under_any_key_is_taken_or_refused_in_one_line(table: str, value: str, pick: int) -> None:
    keys = keys_of(TABLES[table], milliseconds=table == "slo")
    key = keys[pick % len(keys)].name
    try:
        parse_scenario(f"[{table}]\n{key} = {value}\n", HERE)
    except InputError as error:
        assert "\n" not in str(error)
        assert str(error).startswith(f"case.toml: {table}")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ScenarioError, match="not valid TOML"):
        parse_scenario("[slo]\nshare = " + "[" * 100_000, HERE)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("[slo]\nshare = 0.9\n".encode("utf-16"), "is UTF-16; save it as UTF-8"),
        (b"\x7fELF\0\0", "is binary, not a TOML file"),
        (b"[slo]\nshare = 0.9\n# caf\xe9\n", "line 3 is not UTF-8"),
        (b"#" * (1 << 21), "larger than 1 MiB"),
        (b"[slo]\nsha", "not valid TOML"),
    ],
)
def test_files_that_are_no_scenario_are_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    with pytest.raises(ScenarioError, match=said) as caught:
        load_scenario(path)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_crlf_are_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf[slo]\r\nshare = 0.9\r\n")
    assert load_scenario(path).slo.share == 0.9


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no/such.toml", "no/such.toml: no such file, and no ready scenario"),
        ("lama-8b-h100-eagle", r"did you mean 'llama-8b-h100-eagle'\?"),
        (".", "is a directory"),
        ("a\0b", "cannot be read"),
        ("x" * 5000, "cannot be read"),
    ],
)
def test_paths_that_lead_nowhere_are_refused(name: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as caught:
        load_scenario(name)
    assert "\n" not in str(caught.value)


def test_a_relative_trace_starts_at_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("arrival,prompt_tokens,output_tokens\n0,5,7\n1,6,8\n", encoding="utf-8")
    path = tmp_path / "case.toml"
    path.write_text("[workload]\ntrace = 'log.csv'\nrate_scale = 2.0\n", encoding="utf-8")
    scenario = load_scenario(path)
    assert scenario.workload is not None
    trace = load_workload(scenario.workload, folder=scenario.folder, seed=0)
    assert trace.output_tokens.tolist() == [7, 8]
    assert trace.span_s == pytest.approx(0.5)


def test_reading_keys_reach_the_reader() -> None:
    spec = WorkloadSpec(trace="x", window="1m:2m", time_unit="ms", spread_grid=False, max_line=2, default_output=9)
    options = read_options(spec, seed=4)
    assert (options.window, options.time_unit, options.spread_grid) == ((60.0, 120.0), "ms", False)
    assert (options.max_line_bytes, options.default_output_tokens, options.seed) == (2 << 20, 9, 4)


def test_synthetic_workloads_are_drawn_by_seed() -> None:
    spec = WorkloadSpec(isl="lognormal:300:900", osl=20, rate_per_s=5.0, requests=400)
    one, same, other = (load_workload(spec, folder=Path(), seed=seed) for seed in (1, 1, 2))
    assert (one.arrival_s == same.arrival_s).all()
    assert not (one.arrival_s == other.arrival_s).all()
    assert len(one) == 400
    closed = load_workload(replace(spec, rate_per_s=None, concurrency=16), folder=Path(), seed=1)
    assert len(closed) == 400
    assert closed.span_s == 0


def test_sentences_of_fields_are_found_for_the_reference() -> None:
    docs = field_docs(WorkloadSpec)
    assert set(docs) == set(WorkloadSpec.__dataclass_fields__)
    assert docs["busiest"] == 'Keep the window of this length with most arrivals, e.g. "10m".'


def test_a_pipe_is_no_scenario_and_does_not_hang(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        with pytest.raises(ScenarioError, match="is a pipe or a device; give a scenario file on the disk"):
            load_scenario(path)


@pytest.mark.parametrize("name", ["", "x" * 300, "x" * 5000, "~nobody-of-that-name/x.toml", "a\nb", "a\0b"])
def test_odd_names_of_scenarios_are_one_line(name: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(name)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ("trace = ''", "workload.trace is empty"),
        ("isl = 5\nosl = 5\nconcurrency = 65537", "workload.concurrency must be a whole number in 1..65536"),
        ("isl = 5\nosl = 5\nconcurrency = 1000000000000", "workload.concurrency must be a whole number in 1..65536"),
        ("isl = 5\nosl = 5\nconcurrency = 4\nrequests = 20000001", "workload.requests must be a whole number in 1.."),
        ("isl = 5\nosl = 5\nrate_per_s = 1\nrequests = 20000001", "workload.requests must be a whole number in 1.."),
        ("isl = 5\nosl = 5\nrate_per_s = 1e6\nduration = '1h'", "workload.duration '1h' at 1e+06 requests/s"),
        ("isl = 5\nosl = 5\narrivals = 'gamma:5e5:2'\nduration = '1h'", "workload.duration '1h' at 500000 requests/s"),
        ("isl = 5\nosl = 5\nrate_per_s = 1e-300", "workload.rate_per_s must be"),
        ("isl = 5\nosl = 5\nrate_per_s = 1\nhash_block = 16", "workload.hash_block does nothing without"),
    ],
)
def test_workloads_beyond_what_can_be_drawn_are_refused_by_key(keys: str, word: str) -> None:
    with pytest.raises(ScenarioError, match=r"^case\.toml: ") as caught:
        parse_scenario(f"[workload]\n{keys}", Path("case.toml"))
    assert word in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-of-that-name/x.csv", "a\nb.csv"])
def test_odd_names_of_traces_are_one_line(tmp_path: Path, name: str) -> None:
    from specsim.cli.scenario_input import read_workload

    with pytest.raises(TraceError) as caught:
        read_workload(WorkloadSpec(trace=name), folder=tmp_path, seed=0)
    assert len(str(caught.value).splitlines()) == 1
