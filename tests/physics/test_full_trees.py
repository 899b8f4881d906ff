"""Static trees in two spellings: nodes by level, hung below the likeliest, and candidates behind each node."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from specsim.cli import cli
from specsim.cli.tree_input import parse_tree
from specsim.closed_forms import acceptance_length
from specsim.config import Speculation
from specsim.errors import ScenarioError
from specsim.trees import full_levels, full_tree, level_paths, level_tree, match_any

CHAINS = st.lists(st.floats(0.05, 0.95), min_size=1, max_size=4)
BRANCHING = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def ranks(chain: list[float], level: int, width: int) -> list[float]:
    a = chain[min(level, len(chain) - 1)]
    return [match_any(a, n + 1) - (match_any(a, n) if n else 0.0) for n in range(width)]


@given(chain=CHAINS, branching=BRANCHING)
def test_a_full_tree_accepts_what_its_paths_do_by_enumeration(chain: list[float], branching: list[int]) -> None:
    tree, by_level = full_tree(chain, branching)
    shares = [ranks(chain, level, width) for level, width in enumerate(branching)]
    length = 1.0
    for depth in range(1, len(branching) + 1):
        paths = list(itertools.product(*(range(width) for width in branching[:depth])))
        assert tree.levels[depth - 1] == len(paths)
        assert tree.expanded[depth - 1] == len(paths) // branching[depth - 1], "every node is drafted on"
        length += sum(math.prod(shares[level][rank] for level, rank in enumerate(path)) for path in paths)
    assert acceptance_length(by_level) == pytest.approx(length)


@given(chain=CHAINS, branching=BRANCHING)
def test_no_full_tree_accepts_more_than_the_likeliest_one_of_as_many_nodes(
    chain: list[float], branching: list[int]
) -> None:
    full, by_level = full_tree(chain, branching)
    best, best_by_level = level_tree(chain, full.levels)
    assert best.levels == full.levels == full_levels(branching)
    assert acceptance_length(best_by_level) >= acceptance_length(by_level) - 1e-9


def test_the_two_spellings_are_two_trees_and_one_level_is_the_same() -> None:
    chain = (0.7, 0.6, 0.5)
    full, likeliest = full_tree(chain, (4, 2, 1)), level_tree(chain, (4, 8, 8))
    assert full[0].levels == likeliest[0].levels == (4, 8, 8)
    assert acceptance_length(likeliest[1]) > acceptance_length(full[1]) + 0.05
    assert likeliest[0].expanded != full[0].expanded == (1, 4, 8)
    assert full_tree(chain, (5,))[1] == pytest.approx(level_tree(chain, (5,))[1])


@given(chain=CHAINS, widths=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_paths_by_level_are_the_nodes_of_the_likeliest_tree(chain: list[float], widths: list[int]) -> None:
    paths = level_paths(chain, widths)
    assert len(set(paths)) == len(paths)
    assert tuple(sum(len(path) == n + 1 for path in paths) for n in range(len(widths))) == tuple(widths)
    assert all(path[:-1] in paths or len(path) == 1 for path in paths)
    assert all((*path[:-1], path[-1] - 1) in paths for path in paths if path[-1])
    shares = [ranks(chain, level, width) for level, width in enumerate(widths)]
    _, by_level = level_tree(chain, widths)
    length = 1.0 + sum(math.prod(shares[level][rank] for level, rank in enumerate(path)) for path in paths)
    assert acceptance_length(by_level) == pytest.approx(length)


@pytest.mark.parametrize(
    ("text", "field", "numbers"),
    [
        ("4,8,8", "tree_levels", (4, 8, 8)),
        (" 4 , 8 ", "tree_levels", (4, 8)),
        ("4x2x1", "tree_branching", (4, 2, 1)),
        ("4 x 2", "tree_branching", (4, 2)),
        ("5", "tree_levels", (5,)),
    ],
)
def test_a_spelling_says_one_thing(text: str, field: str, numbers: tuple[int, ...]) -> None:
    assert parse_tree(text) == {field: numbers}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4,2x1", "'4,2x1' must be nodes by level, such as 4,8,8, or candidates behind each node, such as 4x2x1"),
        ("4x", "--tree '4x' must be nodes by level"),
        ("x4", "--tree 'x4' must be nodes by level"),
        ("", "--tree '' must be nodes by level"),
        ("4x0", "--tree must be at least 1, got 0"),
        (",".join("1" * 65), "--tree has 65 levels; at most 64"),
    ],
)  # fmt: skip
def test_what_is_neither_is_refused(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_tree(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tree_levels": (4, 8), "tree_branching": (4, 2)}, "two static trees; give one"),
        ({"tree_branching": (4, 2), "tree_nodes": 12}, "tree_branching is a static tree, tree_nodes and topk"),
        ({"tree_branching": (4, 0)}, "speculation.tree_branching must be a whole number >= 1, got 0"),
        ({"tree_branching": (32, 32, 2)}, "speculation.tree_branching hold 3104 drafts, more than 1024"),
        ({"tree_branching": (4,)}, "num_spec_tokens 2 is deeper than the 1 tree_branching"),
        ({"tree_branching": (4, 2), "method": "dflash"}, "leave out tree_nodes, topk and tree_branching"),
        ({"tree_branching": "4x2"}, "speculation.tree_branching must be a tuple of whole numbers"),
    ],
)  # fmt: skip
def test_full_trees_that_make_no_sense_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        Speculation(**{"num_spec_tokens": (2,), **values})  # type: ignore[arg-type]
    assert said in str(caught.value)


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def test_commands_and_scenarios_take_both_spellings(tmp_path: Path) -> None:
    quick = ("crossover", "--isl", "20", "--osl", "10", "--seeds", "3", "--concurrency", "2", "--json")
    found = {tree: json.loads(run(*quick, "--tree", tree).stdout) for tree in ("4,8,8", "4x2x1")}
    for result in found.values():
        assert result["settings"]["tree_nodes"] == 20 and result["settings"]["k"] == 3, "--k follows the tree"
        assert "as a static tree of 20 drafts" in result["acceptance"]["source"]
    lengths = {tree: result["acceptance"]["expected_length"] for tree, result in found.items()}
    assert lengths["4,8,8"] > lengths["4x2x1"] > 2
    assert found["4x2x1"]["speculation"]["tree_branching"] == [4, 2, 1]
    less = json.loads(run(*quick, "--tree", "4x2x1", "--k", "2").stdout)
    assert less["settings"]["tree_nodes"] == 12, "the first levels of a static tree are one too"
    deeper = run(*quick, "--tree", "4x2x1", "--k", "4")
    assert (deeper.exit_code, "deeper than the 3 tree_branching" in deeper.stderr) == (2, True)
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        "[speculation]\nnum_spec_tokens = [3]\ntree_branching = [4, 2, 1]\n\n[workload]\nisl = 20\nosl = 10\n"
        "rate_per_s = 4\nrequests = 20\n"
    )
    one = ("simulate", str(scenario), "--policy", "static:3", "--no-store", "--json")
    full, likeliest = json.loads(run(*one).stdout), json.loads(run(*one, "--tree", "4,8,8").stdout)
    assert full["acceptance"]["expected_length"] == pytest.approx(lengths["4x2x1"])
    assert likeliest["acceptance"]["expected_length"] == pytest.approx(lengths["4,8,8"])
    wrong = run(*one, "--tree", "4x2,1")
    assert (wrong.exit_code, len(wrong.stderr.splitlines())) == (2, 1)
    assert "nodes by level, such as 4,8,8, or candidates behind each node, such as 4x2x1" in wrong.stderr
    for command in (("simulate",), ("calibrate", "acceptance")):
        said = " ".join(run(*command, "--help").stdout.split())
        assert "4,8,8" in said and "4x2x1" in said and "nodes by level" in said and "candidates behind each" in said
