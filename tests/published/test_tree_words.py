"""Shapes of drafts in words: one parser for flags and tables, in which every word counts."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from scenarios.published.rows import shipped_rows
from scenarios.published.tree_words import Tree, tree_words
from specsim.cli import cli
from specsim.errors import ScenarioError


def shape(text: str, *, k: int | None = None, method: str = "eagle", engine: str = "") -> Tree:
    return tree_words(text, k=k, method=method, engine=engine)


REFUSED = [
    ("no idea", "'no idea' is not understood"),
    ("chain, roughly", "'roughly' is not understood"),
    ("chain tree", "chain and tree contradict each other"),
    ("chain default", "default and chain contradict each other"),
    ("none, 8 nodes", "none and nodes contradict each other"),
    ("engine default, topk 4", "default and topk contradict each other"),
    ("chain, topk 4", "chain and topk contradict each other"),
    ("chain of 3, 8 nodes", "a chain has one length, not 3 and 8"),
    ("chain of 3, verify width 8", "a chain has one length, not 3 and 7"),
    ("steps 4, steps 5, topk 4, draft tokens 16", "steps stands there twice"),
    ("steps 4, steps 4, topk 4, draft tokens 16", "steps stands there twice"),
    ("21 nodes, depth 4, depth 4", "depth stands there twice"),
    ("steps 4, depth 5, topk 4, draft tokens 16", "steps 4 and depth 5 contradict each other"),
    ("topk 4, steps 4, draft tokens 16, 16 nodes", "contradict each other"),
    ("steps -4, topk 4, draft tokens 16", "whole numbers without a sign"),
    ("-3", "whole numbers without a sign"),
    ("steps 4.5, topk 4, draft tokens 16", "whole numbers without a sign"),
    ("steps 0, topk 4, draft tokens 16", "0 must be a whole number of at least 1"),
    ("steps 4, topk 4", "names some of steps, topk and draft tokens"),
    ("draft tokens 16", "names some of steps, topk and draft tokens"),
    ("depth 4", "how many drafts a round verifies is not said"),
    ("9 levels, 3 nodes", "do not make a tree"),
    ("steps 99, topk 1", "outside 1..64"),
    ("steps \u0664, topk 4, draft tokens 16", "is not understood at"),
    ("4,0,2", "0 must be a whole number"),
    ("1,1000,1000", "more than 64 levels or 1024 drafts"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_flag_and_cell_refuse_the_same_words_in_one_line(words: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=f"^tree '.*': .*{re.escape(said)}"):
        shape(words)
    done = CliRunner().invoke(cli, ["crossover", "--concurrency", "1", "--seeds", "3", f"--tree={words}"])
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "k", "engine", "depth", "nodes"),
    [
        ("", None, "", 3, None),
        ("none", 4, "", 4, None),
        ("no tree", None, "", 3, None),
        ("chain of 5", None, "", 5, None),
        ("chain, verify width 8", None, "", 7, None),
        ("steps 3", None, "", 3, None),
        ("speculative_num_steps=5, speculative_eagle_topk=8, speculative_num_draft_tokens=64", None, "", 5, 63),
        ("draft tokens 16 with topk 4 and 4 steps", 16, "", 4, 15),
        ("4-4-16", 15, "", 4, 15),
        ("dynamic tree of 60 nodes, depth 6", None, "", 6, 60),
        ("tree", None, "", 6, 59),
        ("tree", 8, "", 5, 8),
        ("engine default", None, "", 3, None),
        ("engine default", None, "vllm", 3, None),
        ("engine default", None, "llamacpp", 3, None),
        ("engine default", None, "sglang", 5, 7),
        ("tree, engine doc defaults", None, "sglang", 5, 7),
    ],
)
def test_words_that_say_enough(words: str, k: int | None, engine: str, depth: int, nodes: int | None) -> None:
    found = shape(words, k=k, engine=engine)
    assert (found.depth, found.nodes) == (depth, nodes)


def test_levels_are_levels_in_a_cell_as_in_the_flag() -> None:
    assert shape("4, 8,8") == Tree(3, levels=(4, 8, 8))
    assert shape("4,8,8").drafts == 20


def test_a_tree_that_the_engine_does_not_draft_by_default_is_refused() -> None:
    with pytest.raises(ScenarioError, match="vllm verifies a chain by default"):
        shape("tree, engine default", engine="vllm")


def test_an_engine_without_a_name_is_the_one_that_is_assumed_everywhere() -> None:
    for method in ("eagle", "eagle3", "mtp", "ngram", "draft_model"):
        assert shape("engine default", method=method) == shape("engine default", method=method, engine="vllm")


@pytest.mark.parametrize("k", [2, 3, 5, 14, 17])
def test_a_k_that_is_neither_depth_nor_drafts_is_refused(k: int) -> None:
    with pytest.raises(ScenarioError, match=f"k {k} is neither its depth 4 nor its 15 drafts"):
        shape("steps 4, topk 4, draft tokens 16", k=k)


def test_sglang_verifies_steps_plus_one_at_topk_1_and_that_is_said() -> None:
    found = shape("steps 2, topk 1, draft tokens 4", k=4, engine="sglang")
    assert (found.depth, found.nodes) == (2, None)
    assert "steps + 1 = 3 tokens" in found.noted


def test_lookahead_has_words_of_its_own() -> None:
    found = shape("W=15 N=5 G=15", method="lookahead")
    assert (found.depth, dict(found.options)) == (4, {"window": 15, "guesses": 15})
    for words in ("W=15 W=15", "21 nodes", "N=1"):
        with pytest.raises(ScenarioError, match="tree '"):
            shape(words, method="lookahead")


def test_shapes_of_the_shipped_rows_are_understood() -> None:
    assert {row.tree for row in shipped_rows()} > {"chain", "engine default"}
    for row in shipped_rows():
        if row.k:
            shape(row.tree, k=row.k, engine="sglang" if "SGLang" in row.engine else "vllm")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--tree", ""), "--tree is empty"),
        (("--tree", "  "), "--tree is empty"),
        (("--tree", "chain", "--tree-nodes", "8"), "--tree 'chain' is a chain, --tree-nodes 8 makes a tree"),
        (("--tree", "chain", "--topk", "4"), "--tree 'chain' is a chain, --topk 4 makes a tree"),
        (("--tree", "4-4-16", "--topk", "2"), "says topk 4, --topk 2; give one"),
        (("--tree", "chain of 3", "--k", "4"), "k 4 is not its depth 3"),
    ],
)
def test_flags_that_contradict_the_words_are_refused(flags: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(cli, ["crossover", "--concurrency", "1", "--seeds", "3", *flags])
    assert done.exit_code == 2, done.output
    assert said in done.stderr


@given(
    st.text(alphabet="0123456789 ,-.=chaintreosdpkl", max_size=40), st.sampled_from(["eagle", "lookahead", "medusa"])
)
def test_any_words_give_a_shape_that_can_be_built_or_one_line(words: str, method: str) -> None:
    try:
        found = shape(words, method=method)
    except ScenarioError as refusal:
        assert "\n" not in str(refusal)
    else:
        assert 1 <= found.depth <= 64
        assert found.depth <= found.drafts <= 1024
