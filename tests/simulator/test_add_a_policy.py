"""The guide is true: one file and one registry line add a policy, in a copy of the package and at run time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import pytest
from builders import FixedLuck, make_trace
from hypothesis import given, settings
from strategies import Watch, World, run, worlds

from scenarios.loader import dump_scenario, parse_scenario
from specsim.errors import ScenarioError
from specsim.policies import KINDS, PolicyKind, PolicySpec, make_policy, parse_policy, register, unregister

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "add-a-policy.md").read_text(encoding="utf-8")


def block(language: str, begins: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return next(text for text in found if text.lstrip().startswith(begins))


FILE = block("python", '"""Two drafts more')
LINE = block("text", '"hf_heuristic"')
TABLE = block("toml", "[policy]")


@pytest.fixture(scope="module")
def heuristic() -> Iterator[PolicyKind]:
    module = sys.modules["hf_heuristic"] = ModuleType("hf_heuristic")  # where type hints look names up
    exec(compile(FILE, "hf_heuristic.py", "exec"), module.__dict__)
    kind = module.KIND
    assert isinstance(kind, PolicyKind)
    yield register(kind)
    unregister(kind.name)
    del sys.modules["hf_heuristic"]


def test_one_file_and_one_line_add_a_policy(tmp_path: Path) -> None:
    for package in ("specsim", "scenarios", "db", "calibrate"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "specsim" / "policies" / "hf_heuristic.py").write_text(FILE, encoding="utf-8")
    registry = tmp_path / "specsim" / "policies" / "registry.py"
    text = registry.read_text(encoding="utf-8")
    registry.write_text(text.replace('    "trt_gate",\n', f'    "trt_gate",\n{LINE}'), encoding="utf-8")
    assert registry.read_text(encoding="utf-8").count("\n") == text.count("\n") + 1, "one line"
    command = re.findall(r"`specsim (simulate llama.*?)`", GUIDE)[0].split()
    done = subprocess.run(
        [sys.executable, "-m", "specsim", *command, "--no-store", "--json"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["policy"]["label"] == "heuristic<=5 start=3"
    assert result["policy"]["settings"] == {"start": 3}
    assert 1.0 <= result["metrics"]["mean_k"] < 5.0


def test_a_table_says_the_same_as_the_command_line(heuristic: PolicyKind) -> None:
    scenario = parse_scenario(TABLE, Path("case.toml"))
    (spelling,) = re.findall(r"--policy (hf_heuristic\S*?)`", GUIDE)
    assert scenario.policies == (parse_policy(spelling),)
    assert parse_scenario(dump_scenario(scenario), Path("case.toml")) == scenario
    with pytest.raises(ScenarioError, match=r"case\.toml: policy\.start must be a whole number >= 1, got 0"):
        parse_scenario(TABLE.replace("start = 3", "start = 0"), Path("case.toml"))


def test_the_rule_is_that_of_transformers(heuristic: PolicyKind) -> None:
    watch = Watch()
    world = World(
        trace=make_trace(arrival_s=[0.0], output_tokens=60),
        luck=FixedLuck(constant=4),
        policy=parse_policy("hf_heuristic:7:start=2"),
    )
    run(world, plain=True, watch=watch)
    # Drafts are verified in the step behind, and what came of them counts for the one after: 2 + 2 and + 2 again, then
    # the first four all match, 7 is the most, and from there 6, 7, 6 and 5 drafts are too many for runs of four.
    assert [step.next_k for step in watch.steps[:9]] == [2, 2, 4, 6, 7, 6, 5, 4, 3]


@settings(max_examples=20, deadline=None)
@given(world=worlds())
def test_both_replicas_run_it_alike(heuristic: PolicyKind, world: World) -> None:
    world = replace(world, policy=parse_policy("hf_heuristic:5"))
    fast, plain = Watch(), Watch()
    first, second = run(world, plain=False, watch=fast), run(world, plain=True, watch=plain)
    assert fast.steps == plain.steps
    assert asdict(first.totals) == asdict(second.totals)


def test_what_contradicts_itself_is_not_registered() -> None:
    static = KINDS["static"]
    with pytest.raises(ScenarioError, match="policy kind 'static' is there already; choose another name"):
        register(static)
    with pytest.raises(ScenarioError, match="policy kind 'max_concurrency' is there already"):
        register(replace(static, name="max_concurrency"))
    with pytest.raises(ScenarioError, match="a name is lower-case letters"):
        register(replace(static, name="Always Three"))
    with pytest.raises(ScenarioError, match="its example 'static:3' is a policy static"):
        register(replace(static, name="always"))
    assert "always" not in KINDS
    with pytest.raises(ScenarioError, match="policy kind 'static' was not registered at run time"):
        unregister("static")


def test_a_kind_made_at_run_time_makes_rules(heuristic: PolicyKind) -> None:
    assert make_policy(PolicySpec("hf_heuristic", 3)).next_k(1, 0, 1) == 3


def test_the_guide_shows_the_line_as_it_stands_in_the_registry() -> None:
    assert textwrap.dedent(LINE) == '"hf_heuristic",\n'
