"""`specsim crossover` as users call it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from specsim.cli import cli
from specsim.report.text import number, plus_minus

QUICK = ("--isl", "50", "--osl", "40", "--seeds", "3")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["crossover", *arguments])


def test_json_has_the_documented_keys_and_speedup_is_the_ratio() -> None:
    result = run(*QUICK, "--concurrency", "16,1", "--acceptance-length", "2.3", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["schema_version"] == 1
    assert {
        "points",
        "crossover_concurrency",
        "deployment",
        "profile",
        "acceptance",
        "warnings",
        "not_modelled",
    } <= set(data)
    assert [point["concurrency"] for point in data["points"]] == [1, 16]
    for point in data["points"]:
        ratio = point["throughput_on"] / point["throughput_off"]
        assert point["speedup"] == pytest.approx(ratio, rel=0.01)
        assert point["interval"]["low"] <= point["speedup"] <= point["interval"]["high"]
        assert point["verdict"] == "faster"
        assert point["tpot_off_ms"] > point["tpot_on_ms"] > 0
    assert data["acceptance"]["expected_length"] == pytest.approx(2.3)
    assert data["acceptance"]["source"].startswith("given: acceptance length 2.3 at k=3")
    assert data["profile"]["on"]["kind"] == "analytic"
    assert "--k was not given: 3 is assumed, for --acceptance-length too." in data["assumed"]


def test_same_call_same_bytes() -> None:
    calls = [run(*QUICK, "--concurrency", "8", "--json").stdout for _ in range(2)]
    assert calls[0] == calls[1]
    assert run(*QUICK, "--concurrency", "8", "--json", "--seed", "9").stdout != calls[0]


def test_text_fits_100_columns_and_names_what_was_assumed() -> None:
    result = run(*QUICK, "--concurrency", "1,64,1024")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "--gpu was not given: h100-sxm is assumed." in result.stdout
    assert "--k was not given: 3 is assumed." in result.stdout
    assert "analytic" in result.stdout
    assert "…" not in result.stdout


def test_the_sentence_when_it_pays_wherever_it_fits() -> None:
    said = run(*QUICK, "--concurrency", "1,8", "--max-num-seqs", "8", "--k", "3").stdout
    assert "by step times it pays at every batch that fits." in " ".join(said.split())


def test_errors_and_thousands_are_written_alike_in_every_report() -> None:
    assert [plus_minus(x) for x in (0.03, 0.25, 0.004)] == ["±3%", "±25%", "±0.4%"]
    assert [number(x, 4) for x in (2630.4, 999.96, 12345.0, 2.9844)] == ["2,630", "1,000", "12,345", "2.984"]


def test_a_tree_is_charged_for_its_nodes() -> None:
    common = (*QUICK, "--concurrency", "64", "--k", "4", "--acceptance-length", "3.2", "--json")
    chain, tree = (json.loads(run(*common, *more).stdout) for more in ((), ("--tree-nodes", "21")))
    assert tree["settings"]["verify_tokens"] == 22
    assert tree["points"][0]["speedup"] < chain["points"][0]["speedup"]
    assert tree["points"][0]["tokens_per_round"] == pytest.approx(chain["points"][0]["tokens_per_round"], rel=0.02)


def test_a_tree_accepts_more_than_the_chain_whose_published_acceptance_it_is_grown_from() -> None:
    common = (*QUICK, "--concurrency", "4", "--k", "4", "--json")
    chain, grown, static = (
        json.loads(run(*common, *more).stdout)["acceptance"]
        for more in ((), ("--tree-nodes", "21"), ("--tree", "6,6,5,4"))
    )
    assert grown["expected_length"] > static["expected_length"] > 1.15 * chain["expected_length"]
    assert "as the best tree of 21 drafts, at most 4 a node" in grown["source"]
    assert "as a static tree of 21 drafts" in static["source"]


def test_a_method_and_its_tree_are_known_by_any_spelling() -> None:
    data = json.loads(run(*QUICK, "--concurrency", "1", "--method", "EAGLE-2 (dynamic tree)", "--json").stdout)
    assert data["speculation"]["method"] == "eagle2"
    assert data["settings"]["tree_nodes"] == 60 and data["settings"]["k"] == 6
    wide = json.loads(run(*QUICK, "--concurrency", "1", "--method", "LADE", "--draft-option", "window=7",
                          "--draft-option", "guesses=7", "--json").stdout)  # fmt: skip
    assert wide["settings"]["verify_tokens"] == (7 + 7) * 4 and wide["settings"]["tree_nodes"] is None


def test_lengths_may_be_drawn() -> None:
    data = json.loads(run("--isl", "lognormal:100:250", "--osl", "lognormal:60:150", "--seeds", "3",
                          "--concurrency", "8", "--k", "3", "--json").stdout)  # fmt: skip
    assert not [text for text in data["assumed"] if "--k" in text]
    assert data["settings"]["osl"] == "lognormal mean 60 p95 150"
    assert data["points"][0]["speedup"] > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--k", "-3"), "--k must be at least 0, got -3"),
        (("--k", "1,2"), "--k takes one number here, got 1,2"),
        (("--k", "three"), "--k 'three' must be whole numbers"),
        (("--isl", "0"), "--isl '0' must be a whole number of tokens >= 1"),
        (("--osl", "nan"), "--osl 'nan' must be a whole number of tokens >= 1"),
        (("--concurrency", "0"), "--concurrency must be at least 1, got 0"),
        (("--concurrency", "1,two"), "--concurrency '1,two' must be whole numbers separated by commas"),
        (("--concurrency", ""), "--concurrency is empty"),
        (("--concurrency", "70000"), "concurrency must be whole numbers in 1..65536, got 70000"),
        (("--acceptance", "1.5"), "speculation.acceptance must lie in 0..1, got 1.5"),
        (("--acceptance", "0.5,nan"), "--acceptance '0.5,nan' must be finite numbers"),
        (("--acceptance-length", "4.5"), "acceptance length 4.5 at k=3 must lie in 1..4, bonus included"),
        (("--acceptance-length", "0.5"), "so it is at least 1, got 0.5"),
        (("--acceptance", "0.5", "--acceptance-length", "2"), "exclude each other; give one"),
        (("--gpu", "h10"), "gpu 'h10' is not in the catalogue (did you mean 'H100 SXM'?)"),
        (("--target", "llama-3.1-8"), "did you mean 'llama-3.1-8b'?"),
        (("--target", "llama-3.1-405b"), "llama-3.1-405b does not fit H100 SXM with tp 1: 80.0 GB x 0.9"),
        (("--method", "eagel"), "speculation.method 'eagel' is not one of"),
        (("--task", "chatt"), "did you mean 'chat'?"),
        (("--tp", "0"), "deployment.tp must be a whole number >= 1, got 0"),
        (("--tree-nodes", "2"), "speculation.tree_nodes 2 are fewer than the depth k=3"),
        (("--tree-nodes", "9000"), "speculation.tree_nodes must be a whole number in 1..1024, got 9000"),
        (("--tree-nodes", "900", "--max-num-batched-tokens", "500"), "900 drafts a round do not fit max_num_batched"),
        (("--tree", "4,4", "--k", "3"), "num_spec_tokens 3 is deeper than the 2 tree_levels"),
        (("--tree", "4,4", "--topk", "2"), "is a static tree, tree_nodes and topk a grown one; give one"),
        (("--topk", "4"), "topk 4 makes a tree; say with tree_nodes how many drafts"),
        (("--method", "mtp", "--target", "deepseek-v3"), "deepseek-v3 does not fit"),
        (("--method", "dflash", "--tree-nodes", "9"), "method dflash does not verify trees"),
        (("--method", "ngram", "--draft-tp", "1"), "draft_tp makes no sense with method ngram, which loads no model"),
        (
            ("--method", "lookahead", "--draft-option", "widow=7"),
            "lookahead has no such option; its options are window",
        ),
        (("--method", "medusa", "--draft-option", "heads=x"), "--draft-option 'heads=x' must be NAME=N"),
        (("--method", "medusa", "--k", "9"), "num_spec_tokens 9 is more than the 5 heads that are loaded"),
        (("--draft-tp", "2"), "draft_tp 2 must lie in 1..1, the GPUs of the target"),
        (("--seeds", "2"), "seeds must be 3..1000"),
        (("--isl", "200000"), "do not fit: the longest sequence served is 131072 tokens"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert not result.stdout
