"""Words of published tables: what they are taken to mean, what is refused, and the flags that take them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.published.conditions import cases_of
from scenarios.published.rows import _REAL, _WHOLE, PublishedRow
from scenarios.published.tree_words import Tree, tree_words
from scenarios.published.units import load_kind_words, unit_words
from scenarios.published.words import (
    dataset_words,
    dtype_words,
    engine_words,
    gpu_words,
    method_words,
    release_of,
    target_dtype,
    target_words,
)
from specsim.cli import cli
from specsim.errors import InputError


@pytest.mark.parametrize(
    ("words", "name", "count"),
    [
        ("H100 80GB", "H100 SXM", None),
        ("8x H100", "H100 SXM", 8),
        ("8×H200", "H200 SXM", 8),
        ("H200 x 8", "H200 SXM", 8),
        ("4 x A100-80GB", "A100-80 SXM", 4),
        ("NVIDIA A100-SXM4-40GB", "A100-40 SXM", None),
        ("RTX 4090", "RTX 4090", None),
        ("2x RTX 4090", "RTX 4090", 2),
        ("MI300X", "MI300X", None),
        ("H100 NVL 94GB", "H100 NVL", None),
        ("B200", "B200 SXM", None),
    ],
)
def test_gpus(words: str, name: str, count: int | None) -> None:
    assert gpu_words(words) == (name, count)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Llama 3.3 70B Instruct", "llama-3.3-70b"),
        ("meta-llama/Meta-Llama-3-70B", "llama-3.1-70b"),
        ("Vicuna 7B v1.3", "llama-2-7b"),
        ("DeepSeek-R1 (FP8)", "deepseek-r1"),
        ("nvidia/DeepSeek-R1-0528-FP4", "deepseek-r1"),
        ("GPT-OSS 20B", "gpt-oss-20b"),
        ("Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("QwQ-32B", "qwen2.5-32b"),
    ],
)
def test_targets(words: str, name: str) -> None:
    found, said = target_words(words)
    assert found == name
    assert "stands in" not in said


def test_an_unknown_target_gets_one_of_its_size_and_says_so() -> None:
    assert target_words("Gemma-9-31B")[0] == "gemma-3-27b"
    assert "stands in for its 31B" in target_words("Gemma-9-31B")[1]
    assert target_words("Nobody-240B-A20B")[0].startswith("qwen3-235b-a22b")
    with pytest.raises(InputError, match="its size is not stated; add target_params_b"):
        target_words("Nobody")
    for words in ("Nobody-9T", "Nobody-240B"):  # of the latter no active size is named, so that a dense one is sought
        with pytest.raises(InputError, match="no model of it is near"):
            target_words(words)


def test_a_size_in_the_name_decides_between_words_that_are_one_without_punctuation() -> None:
    """Without dashes `Qwen 27B` is `Qwen2-7B`."""
    assert target_words("Qwen 27B")[0] == "qwen3-32b"
    assert target_words("Qwen2-7B")[0] == "qwen2.5-7b"


@pytest.mark.parametrize(
    ("words", "draft", "name"),
    [
        ("EAGLE-3", "", "eagle3"),
        ("EAGLE", "NextN", "mtp"),
        ("EAGLE-2", "", "eagle2"),
        ("n-gram (prompt lookup)", "none", "ngram"),
        ("speculative decoding", "Llama-3.2-1B", "draft_model"),
        ("EAGLE-3 speculative decoding", "", "eagle3"),
        ("", "MTP drafter", "mtp"),
        ("Medusa-2", "", "medusa"),
        ("DFlash2", "", "dflash"),
    ],
)
def test_methods(words: str, draft: str, name: str) -> None:
    assert method_words(words, draft) == name


@pytest.mark.parametrize(
    ("words", "k", "method", "engine", "tree"),
    [
        ("chain", 3, "eagle", "vllm", (3, None)),
        ("chain, verify width 8", 7, "eagle", "vllm", (7, None)),
        ("", 5, "draft_model", "", (5, None)),
        ("steps 4, topk 4, draft tokens 16", 16, "eagle3", "sglang", (4, 15)),
        ("steps 2, topk 1, draft tokens 4", 4, "eagle3", "sglang", (2, None)),
        ("num_steps=5, eagle_topk=8, num_draft_tokens=64", None, "eagle3", "sglang", (5, 63)),
        ("3-1-4", None, "mtp", "sglang", (3, None)),
        ("21 nodes, depth 4", None, "eagle", "", (4, 21)),
        ("21 nodes", 4, "eagle", "", (4, 21)),
        ("engine default", None, "eagle3", "sglang", (5, 7)),
        ("engine default", None, "mtp", "sglang", (3, None)),
        ("default", None, "eagle", "vllm", (3, None)),
        ("W=15 N=5 G=15", None, "lookahead", "", (4, None)),
    ],
)  # fmt: skip
def test_trees(words: str, k: int | None, method: str, engine: str, tree: tuple[int, int | None]) -> None:
    found = tree_words(words, k=k, method=method, engine=engine)
    assert (found.depth, found.nodes) == tree


def test_what_a_tree_leaves_open_is_said() -> None:
    assert tree_words("chain", k=None, method="eagle", engine="vllm") == Tree(3, assumed="k=3 (usual for eagle)")
    assert tree_words("tree of 26 nodes", k=None, method="eagle", engine="").assumed
    assert dict(tree_words("W=10 N=5 G=7", k=None, method="lookahead", engine="").options) == {
        "window": 10,
        "guesses": 7,
    }


@pytest.mark.parametrize("words", ["steps 4, topk 4", "9 levels, 3 nodes", "a shape like a star"])
def test_trees_that_make_no_sense_are_refused(words: str) -> None:
    with pytest.raises(InputError, match="tree"):
        tree_words(words, k=None, method="eagle", engine="")


def test_dtypes_engines_loads_units_and_data_sets() -> None:
    assert [dtype_words(text) for text in ("FP8", "W4A16 AWQ", "bfloat16", "NVFP4", "")] == [
        "fp8", "int4", "bf16", "nvfp4", None]  # fmt: skip
    assert target_dtype("Gemma-4-31B (FP8)") == "fp8"
    assert target_dtype("Llama-3.1-8B") is None
    assert engine_words("vLLM v0.10.1 (some runs v0.11.1)") == ("vllm", "0.10.1")
    assert engine_words("TensorRT-LLM 0.15.0") == ("trtllm", "0.15.0")
    assert engine_words("PocketLLM") == ("", "")
    assert release_of("sglang", "SGLang (Mar 2025)") == "0.4.4"
    assert release_of("vllm", "vLLM V1 (mid 2025)") == "0.10.0"
    assert release_of("vllm", "vLLM, 2025-06") == "0.9.0"
    assert release_of("vllm", "vLLM") == ""
    assert [load_kind_words(text) for text in ("batch", "max concurrency", "QPS", "requests/s")] == [
        "closed", "closed", "rate", "rate"]  # fmt: skip
    assert unit_words("TPOT ms") == ("tpot", 1e-3, False)
    assert unit_words("output tok/s (aggregate)") == ("throughput", 1.0, False)
    assert unit_words("tok/s/user")[0] == "tpot"
    assert unit_words("output tok/s/gpu") == ("throughput", 1.0, True)
    assert unit_words("E2E latency (s)")[0] == "latency"
    assert unit_words("") == ("throughput", None, False)
    with pytest.raises(InputError, match="first token"):
        unit_words("TTFT ms")
    gsm = dataset_words("GSM8K (test)")
    assert gsm is not None
    assert (gsm["isl"], gsm["task"]) == (94.5, "math")
    assert dataset_words("something else") is None


@given(st.text(max_size=60))
def test_any_words_are_understood_or_refused_in_one_line(text: str) -> None:
    for read in (gpu_words, target_words, method_words, dtype_words, engine_words, load_kind_words, unit_words,
                 lambda words: tree_words(words, k=3, method="eagle", engine="vllm")):  # fmt: skip
        try:
            read(text)  # type: ignore[operator]
        except InputError as refusal:
            assert "\n" not in str(refusal)


ROW = PublishedRow(
    id="r", source="s", target="Llama-3.1-8B", method="EAGLE", k=3, tree="chain", hardware="H100", load_kind="batch",
    load=4.0, speedup=1.5,
)  # fmt: skip


def changed(**values: object) -> PublishedRow:
    from dataclasses import replace

    return replace(ROW, **values)  # type: ignore[arg-type]


def test_every_blank_is_filled_with_a_stated_default() -> None:
    (case,), rest = cases_of([ROW], seeds=3, seed=0)
    assert not rest
    said = " ".join(case.assumed)
    for words in (
        "isl 512",
        "osl 256",
        "dtype as the checkpoint",
        "acceptance from the catalogue",
        "tp 1",
        "vLLM assumed",
    ):
        assert words in said, words
    assert case.incomplete == ()
    (bare,), _ = cases_of([changed(hardware="", k=None)], seeds=3, seed=0)
    assert set(bare.incomplete) == {"hardware", "k"}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"load": None}, "load is blank"),
        ({"load": 2.5}, "load 2.5 is not a number of requests"),
        ({"target": ""}, "target is blank"),
        ({"speedup": None}, "nothing was measured"),
        ({"hardware": "abacus"}, "gpu 'abacus' is not among"),
        ({"method": "telepathy"}, "method 'telepathy' is not understood"),
        ({"mean_accepted_len": 4.5}, "mean acceptance length 4.5 is more than the 4 of depth 3"),
        ({"unit": "TTFT ms"}, "about the first token"),
        ({"target": "Llama-3.1-405B", "n_gpus": 1}, "does not fit H100 SXM with tp 1"),
        ({"load_kind": "moon phase"}, "load_kind 'moon phase' is not understood"),
    ],
)
def test_rows_that_cannot_be_predicted_say_why(values: dict[str, object], reason: str) -> None:
    cases, (left,) = cases_of([changed(**values)], seeds=3, seed=0)
    assert not cases
    assert reason in left.reason


@pytest.mark.parametrize(
    ("values", "length"),
    [
        ({"mean_accepted_len": 2.4}, 2.4),
        ({"mean_accepted_len": 0.9}, 1.9),
        ({"acceptance_rate": 0.5}, 2.5),
        ({"acceptance_rate": 0.5, "mean_accepted_len": 2.1}, 2.1),
    ],
)
def test_stated_acceptance_becomes_a_mean_length_bonus_included(values: dict[str, float], length: float) -> None:
    (case,), _ = cases_of([changed(**values)], seeds=3, seed=0)
    assert case.acceptance_given
    assert case.question.acceptance.expected_length(3) == pytest.approx(length)


def test_a_deployment_without_a_count_of_gpus_gets_the_smallest_that_fits() -> None:
    (case,), _ = cases_of([changed(target="Llama-3.3-70B")], seeds=3, seed=0)
    assert case.question.deployment.tp == 4
    assert "tp 4, the smallest that fits" in case.assumed


def test_engines_are_those_of_the_row_and_batches_run_whole() -> None:
    rows = [
        changed(id="a", engine="SGLang v0.5.3.post3", load=64.0),
        changed(id="b", engine="SGLang (Mar 2025)", load_kind="concurrency", load=64.0),
        changed(id="c", engine="PocketLLM"),
    ]
    cases, _ = cases_of(rows, seeds=3, seed=0)
    found = [(case.question.deployment.engine, case.question.deployment.engine_version) for case in cases]
    assert found == [("sglang", "0.5.3"), ("sglang", "0.4.4"), ("vllm", None)]
    assert cases[0].question.on.limits.max_num_seqs == 64
    assert cases[1].question.deployment.max_num_seqs is None
    assert any("0.4.4 (its release of the month" in text for text in cases[1].assumed)
    assert any("vLLM assumed (PocketLLM)" in text for text in cases[2].assumed)


def test_values_give_the_speedup_by_what_they_measure() -> None:
    for unit, base, spec in (("TPOT ms", 6.0, 4.0), ("output tok/s", 100.0, 150.0), ("latency s", 3.0, 2.0)):
        row = changed(speedup=None, unit=unit, baseline_value=base, spec_value=spec)
        (case,), _ = cases_of([row], seeds=3, seed=0)
        assert case.measured == pytest.approx(1.5)
    (odd,), _ = cases_of([changed(unit="TPOT ms", baseline_value=6.0, spec_value=3.0)], seeds=3, seed=0)
    assert odd.measured == 1.5
    assert any("its values give 2.000" in text for text in odd.assumed)


def crossover(*arguments: str) -> Result:
    common = ("crossover", "--isl", "50.4", "--osl", "40", "--seeds", "3", "--json")
    return CliRunner().invoke(cli, [*common, *arguments])


def test_crossover_takes_a_row_as_it_is_written() -> None:
    row = ("--target", "Llama-3.1-8B-Instruct", "--gpu", "2x H100 80GB", "--method", "EAGLE-3 head", "--k", "16")
    tree = ("--tree", "steps 4, topk 4, draft tokens 16", "--dtype", "FP8", "--engine", "SGLang v0.5.3",
            "--concurrency", "4")  # fmt: skip
    done = crossover(*row, *tree)
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert (data["settings"]["k"], data["settings"]["tree_nodes"], data["settings"]["verify_tokens"]) == (4, 15, 16)
    assert (data["deployment"]["tp"], data["deployment"]["weight_dtype"]) == (2, "fp8")
    assert data["speculation"]["method"] == "eagle3"
    assert (data["deployment"]["engine"], data["deployment"]["engine_version"]) == ("sglang", "0.5.3")
    said = " ".join(data["assumed"])
    assert "--isl 50.4 is rounded to 50 tokens" in said
    assert "--k 16 is taken as what it verifies" in said
    assert data["acceptance"]["solved"] is None


def test_crossover_solves_acceptance_from_a_measured_point() -> None:
    first = json.loads(crossover("--k", "3", "--concurrency", "4,16", "--acceptance-length", "2.4").stdout)
    speedup = first["points"][0]["speedup"]
    again = json.loads(crossover("--k", "3", "--concurrency", "4,16", "--speedup-at", f"4:{speedup}").stdout)
    solved = again["acceptance"]["solved"]
    assert solved["length"] == pytest.approx(2.4, rel=0.02)
    assert solved["interval"]["low"] <= solved["length"] <= solved["interval"]["high"]
    assert again["points"][1]["speedup"] == pytest.approx(first["points"][1]["speedup"], rel=0.01)
    assert "solved from a speed-up of" in again["acceptance"]["source"]


def test_k_0_is_the_machinery_alone() -> None:
    data = json.loads(crossover("--k", "0", "--concurrency", "4").stdout)
    assert data["points"][0]["tokens_per_round"] == 1
    assert data["points"][0]["speedup"] < 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--speedup-at", "4:9", "--k", "3"), "--speedup-at 4:9: no acceptance gives that; with nothing accepted"),
        (("--speedup-at", "4"), "--speedup-at '4' must be a number of requests in flight and the speed-up there"),
        (("--speedup-at", "0:1.2"), "must be a number of requests in flight"),
        (("--speedup-at", "4:nan"), "must be a number of requests in flight"),
        (
            ("--speedup-at", "4:1.2", "--acceptance-length", "2"),
            "--acceptance-length gives it; leave one of the two",
        ),
        (("--speedup-at", "4:1.2", "--k", "0"), "nothing is drafted"),
        (("--tree", "star-shaped"), "tree 'star-shaped': 'star shaped' is not understood"),
        (("--tree", "21 nodes, depth 4", "--tree-nodes", "30"), "says tree_nodes 21, --tree-nodes 30"),
        (("--gpu", "h10"), "gpu 'h10' is not in the catalogue (did you mean 'H100 SXM'?)"),
        (("--target", "Nobody-8B"), "model 'Nobody-8B' is not in the catalogue"),
    ],
)
def test_mistakes_in_words_end_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = crossover(*arguments)
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"unit": "output tok/s", "baseline_value": 1e-6, "spec_value": 1e-6}, "none lies outside"),
        ({"unit": "TPOT ms", "baseline_value": 1e9, "spec_value": 1e9}, "is the unit right?"),
        ({"unit": "output tok/s", "speedup": None, "baseline_value": 1e-3, "spec_value": 1e6}, "a speed-up of 1e+09"),
        ({"load_kind": "requests/s", "load": 1e6}, "load 1e+06 requests/s lies outside"),
        ({"load_kind": "requests/s", "load": 1e-6}, "load 1e-06 requests/s lies outside"),
        ({"temperature": 50.0}, "temperature 50 is more than the 2"),
        ({"tree": "chain of 5"}, "k 3 is not its depth 5"),
    ],
)
def test_figures_that_no_measurement_has_are_named(values: dict[str, object], reason: str) -> None:
    cases, (left,) = cases_of([changed(**values)], seeds=3, seed=0)
    assert not cases
    assert reason in left.reason


@settings(deadline=None, max_examples=60)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            **{name: st.floats(low, high) for name, (low, high) in _REAL.items()},
            **{name: st.integers(low, high) for name, (low, high) in _WHOLE.items()},
            "load_kind": st.sampled_from(["batch", "requests/s"]),
            "unit": st.sampled_from(["TPOT ms", "output tok/s", "tok/s/user", "latency s", "output tok/s/gpu"]),
            "tree": st.sampled_from(["", "chain", "4,8,8", "5-8-64", "engine default", "tree"]),
            "engine": st.sampled_from(["", "SGLang (Mar 2025)", "TensorRT-LLM 0.15.0", "llama.cpp"]),
        },
    )
)
def test_a_row_of_any_figures_in_range_is_a_case_or_has_a_reason(values: dict[str, object]) -> None:
    cases, rest = cases_of([changed(**values)], seeds=3, seed=0)
    assert len(cases) + len(rest) == 1
    assert all("\n" not in item.reason for item in rest)


def test_the_temperature_of_a_row_lowers_published_acceptance_once() -> None:
    """Acceptance that was measured at that temperature has it in it already."""

    def length(**values: object) -> float:
        (case,), _ = cases_of([changed(**values)], seeds=3, seed=0)
        return case.question.acceptance.expected_length(3)

    greedy, warm = length(), length(temperature=1.0)
    assert length(temperature=0.0) == greedy
    assert 1.0 < warm < greedy - 0.05
    stated = {"mean_accepted_len": 2.4}
    assert length(**stated, temperature=1.0) == length(**stated) == pytest.approx(2.4)
    tree = {"tree": "4-4-16", "k": 4}
    assert length(**tree, temperature=1.0) < length(**tree) - 0.05
    (borrowed,), _ = cases_of([changed(method="MTP", temperature=1.0)], seeds=3, seed=0)  # an EAGLE head stands in
    (cold,), _ = cases_of([changed(method="MTP")], seeds=3, seed=0)
    assert borrowed.question.acceptance.expected_length(3) < cold.question.acceptance.expected_length(3)


@pytest.mark.parametrize("column", ["target", "draft", "hardware"])
def test_unknown_names_cost_a_row_little(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the nearest name is for messages of one flag; tables have thousands of rows."""
    from scenarios.lookup import NameIndex

    monkeypatch.setattr(NameIndex, "suggestion", lambda self, name: pytest.fail("searched for a near name"))
    values = {column: "Nobody-Knows"} | ({"method": "draft model"} if column == "draft" else {})
    _, (left,) = cases_of([changed(**values)], seeds=3, seed=0)
    assert "Nobody-Knows" in left.reason
