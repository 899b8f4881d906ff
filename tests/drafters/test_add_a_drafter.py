"""The guide is true: one file and one registry line add a drafter, in a copy of the package and at run time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.resolve import resolve
from specsim.config import Deployment, Slo, Speculation
from specsim.drafters import Drafter, find_drafter, register, unregister
from specsim.errors import ScenarioError
from specsim.planner.concurrency import CrossoverSettings, run_point
from specsim.traces.recipe import LengthSpec

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "add-a-drafter.md").read_text(encoding="utf-8")


def block(language: str, begins: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return next(text for text in found if text.lstrip().startswith(begins))


FILE = block("python", '"""Token Recycling')
LINE = block("text", '"token_recycling"')
ENTRY = block("toml", "[[acceptance]]")


@pytest.fixture
def recycling() -> Iterator[Drafter]:
    names: dict[str, object] = {}
    exec(compile(FILE, "token_recycling.py", "exec"), names)
    drafter = names["DRAFTER"]
    assert isinstance(drafter, Drafter)
    yield register(drafter)
    unregister(drafter.name)


def test_one_file_and_one_line_add_a_drafter(tmp_path: Path) -> None:
    for package in ("specsim", "scenarios", "db", "calibrate"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "specsim" / "drafters" / "token_recycling.py").write_text(FILE, encoding="utf-8")
    registry = tmp_path / "specsim" / "drafters" / "registry.py"
    text = registry.read_text(encoding="utf-8")
    registry.write_text(text.replace('    "lookahead",\n', f'    "lookahead",\n{LINE}'), encoding="utf-8")
    assert registry.read_text(encoding="utf-8").count("\n") == text.count("\n") + 1, "one line"
    with (tmp_path / "scenarios" / "catalogue" / "acceptance.toml").open("a", encoding="utf-8") as file:
        file.write(f"\n{ENTRY}")
    command = [sys.executable, "-m", "specsim", "crossover", "--method", "Token Recycling", "--concurrency", "1",
               "--seeds", "3", "--json"]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["settings"]["tree_nodes"] == 79 and result["settings"]["k"] == 6
    assert result["acceptance"]["expected_length"] == pytest.approx(2.5, abs=1e-3)
    assert result["points"][0]["speedup"] > 1


def test_a_drafter_registered_at_run_time_is_simulated(recycling: Drafter) -> None:
    assert find_drafter("token-recycling") is recycling
    speculation = Speculation("Recycling", num_spec_tokens=(6,), acceptance_length=2.5)
    assert speculation.method == "token_recycling"
    asked = resolve(Deployment(), speculation, Slo())
    settings = CrossoverSettings((1,), LengthSpec(200), LengthSpec(100), 6, seeds=3)
    few, many = (run_point(asked, settings, c) for c in (1, 64))
    assert few.tokens_per_round == pytest.approx(2.5, rel=0.05)
    assert (few.verdict, many.verdict) == ("faster", "slower")


def test_names_that_are_taken_are_refused(recycling: Drafter) -> None:
    with pytest.raises(ScenarioError, match="'Token Recycling' already names token_recycling; choose another"):
        register(_drafter(name="again", aliases=("Token Recycling",)))
    with pytest.raises(ScenarioError, match="drafter 'eagle' was not registered at run time"):
        unregister("eagle")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "Token Recycling"}, "the name must be lower-case letters"),
        ({"mode": "serial"}, "mode serial needs a kind of model"),
        ({"kind": "model"}, "mode none has no kind of model"),
        ({"loads": "head"}, "mode none does not fit loads head"),
        ({"catches_up": True}, "mode none has no cache to catch up"),
        ({"nodes": lambda k, options: 9, "trees": True}, "nodes are its own, so that trees makes no sense"),
        ({"usual_k": 0}, "usual_k must be 1..64, got 0"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        _drafter(**changes)


def _drafter(**changes: object) -> Drafter:
    values: dict[str, object] = {"name": "new", "title": "", "source": "", "mode": "none", "loads": "nothing",
                                 "catches_up": False}  # fmt: skip
    return Drafter(**{**values, **changes})  # type: ignore[arg-type]


def test_the_guide_shows_the_line_as_it_stands_in_the_registry() -> None:
    assert textwrap.dedent(LINE) == '"token_recycling",\n'
