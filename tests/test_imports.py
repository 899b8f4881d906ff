"""Imports run one way, each library has one home, and the light entries stay light. Read from the sources with ast."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("specsim", "scenarios", "db", "calibrate")

LEVELS: dict[str, int] = {
    **dict.fromkeys(
        ("specsim.errors", "specsim.checks", "specsim.code_version", "specsim.compiled", "specsim.type_checks"), 0
    ),
    **dict.fromkeys(
        (
            "specsim.benchmarks", "specsim.config", "specsim.disciplines", "specsim.drafters", "specsim.evidence",
            "specsim.policies", "specsim.profiles", "specsim.records", "specsim.rng", "specsim.rng_kernels",
            "specsim.serving", "specsim.shapes", "specsim.traces", "specsim.trees",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "specsim.request", "specsim.kv_cache", "specsim.latency", "specsim.passes", "specsim.draft_passes",
            "specsim.acceptance", "specsim.closed_forms", "specsim.analytic", "specsim.efficiency", "specsim.memory",
            "specsim.workload", "specsim.admission", "specsim.disaggregation", "specsim.transfer",
        ),
        2,
    ),
    "specsim.executors": 3,
    "specsim.scheduler": 3,
    "specsim.engine": 4,
    **dict.fromkeys(("specsim.stats", "specsim.metrics", "specsim.planner", "specsim.explain"), 5),
    **dict.fromkeys(("scenarios", "calibrate", "db"), 6),
    **dict.fromkeys(("specsim.cli", "specsim.report", "specsim.__main__"), 7),
}  # fmt: skip
"""Level of every unit: a package of the root, or a module or package directly in specsim."""

HOMES: dict[str, tuple[str, ...]] = {
    "torch": ("calibrate",),
    "transformers": ("calibrate",),
    "safetensors": ("calibrate",),
    "sqlalchemy": ("db",),
    "alembic": ("db",),
    "simpy": ("specsim.engine",),
    "numba": ("specsim.compiled",),
    "ray": ("specsim.executors",),
    "click": ("specsim.cli",),
    "rich": ("specsim.cli", "specsim.report"),
    "matplotlib": ("specsim.report",),
    "scipy": ("specsim.stats", "specsim.planner", "calibrate"),
}
"""Library -> the only units that may import it."""

DB_SEES = {"db", "specsim", "specsim.records", "specsim.errors", "specsim.checks"}


@dataclass(frozen=True)
class Import:
    """One imported module, by absolute name, and how it is reached."""

    importer: str
    imported: str
    line: int
    on_load: bool
    """False inside a function, or only for type checkers."""


def unit_of(module: str) -> str:
    """The unit that a module belongs to; specsim itself is a unit that holds nothing but names."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "specsim" and len(parts) > 1 else parts[0]


def sources() -> dict[str, Path]:
    """Module name -> file, of all four packages."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, source: str, known: set[str]) -> Iterator[Import]:
    """All imports of a module, `from package import module` resolved to the module."""

    def walk(node: ast.AST, on_load: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, child.lineno, on_load)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module}:{child.lineno} imports relatively"
                base = child.module or ""
                for alias in child.names:
                    whole = f"{base}.{alias.name}"
                    yield Import(module, whole if whole in known else base, child.lineno, on_load)
            else:
                later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                unseen = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from walk(child, on_load and not later and not unseen)

    return walk(ast.parse(source), True)


def all_imports() -> list[Import]:
    files = sources()
    known = set(files)
    return [found for name, path in files.items() for found in imports_of(name, path.read_text("utf-8"), known)]


def faults(imports: list[Import]) -> list[str]:
    """What breaks the order of levels, the separation of siblings, or the home of a library."""
    found = []
    for item in imports:
        here, there = unit_of(item.importer), unit_of(item.imported)
        place = f"{item.importer}:{item.line} imports {item.imported}"
        top = item.imported.split(".")[0]
        if top in HOMES and here not in HOMES[top]:
            found.append(f"{place}, which belongs in {' or '.join(HOMES[top])}")
        if top not in PACKAGES or here == there or here == "specsim" or there == "specsim":
            continue
        if here not in LEVELS or there not in LEVELS:
            found.append(f"{place}: give both a level in tests/test_imports.py")
        elif LEVELS[there] > LEVELS[here]:
            found.append(f"{place}: level {LEVELS[here]} must not know level {LEVELS[there]}")
        elif LEVELS[here] == LEVELS[there] == 6:
            found.append(f"{place}: siblings never import one another")
        elif here == "db" and there not in DB_SEES:
            found.append(f"{place}: db sees only records, errors and checks")
    return found


def test_every_module_is_found_and_has_a_level() -> None:
    files = sources()
    assert len(files) > 50
    assert {unit_of(name) for name in files} - {"specsim"} <= set(LEVELS)


def test_imports_run_one_way_and_libraries_stay_at_home() -> None:
    imports = all_imports()
    assert len(imports) > 300, "the guard: imports are seen"
    used = {item.imported.split(".")[0] for item in imports}
    assert {"simpy", "sqlalchemy", "click", "scipy", "numpy"} <= used, "the guard: the libraries are seen"
    assert faults(imports) == []


@pytest.mark.parametrize(
    ("module", "line", "fault"),
    [
        ("specsim.scheduler", "import simpy", "belongs in specsim.engine"),
        ("specsim.metrics", "import scipy.stats", "belongs in specsim.stats or"),
        ("specsim.planner.plan", "def f():\n    import torch", "belongs in calibrate"),
        ("specsim.kv_cache", "from specsim.engine.router import OpenLoop", "level 2 must not know level 4"),
        ("specsim.engine.router", "from specsim.scheduler import Scheduler\nfrom db import store", "not know level 6"),
        ("scenarios.loader", "from db.store import Store", "siblings never import"),
        ("db.store", "from specsim.config import Slo", "db sees only records, errors and checks"),
        ("specsim.new_thing", "from specsim.config import Slo", "give both a level"),
        ("specsim.traces.read", "if TYPE_CHECKING:\n    import specsim.planner", "level 1"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(module: str, line: str, fault: str) -> None:
    found = faults(list(imports_of(module, line, set(sources()))))
    assert len(found) == 1
    assert fault in found[0]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """On load, that is; what a function imports when called, or a type checker reads, closes no circle."""
    files = sources()
    edges: dict[str, set[str]] = {name: set() for name in files}
    for item in all_imports():
        if item.on_load and item.imported in files and item.imported != item.importer:
            edges[item.importer].add(item.imported)
    assert sum(map(len, edges.values())) > 150, "the guard"
    done: set[str] = set()
    while ready := [name for name, needs in edges.items() if name not in done and needs <= done]:
        done.update(ready)
    assert set(edges) - done == set()


def loaded_by(statement: str) -> set[str]:
    program = f"{statement}\nimport json, sys; print(json.dumps(sorted(m.split('.')[0] for m in sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


HEAVY = {"torch", "transformers", "sqlalchemy", "scipy", "numpy", "simpy", "numba", "rich", "matplotlib"}


@pytest.mark.parametrize("statement", ["import specsim", "import specsim.cli", "import specsim.errors"])
def test_light_entries_load_nothing_heavy(statement: str) -> None:
    loaded = loaded_by(statement)
    assert "specsim" in loaded
    assert loaded & HEAVY == set()
    assert ("click" in loaded) == (statement == "import specsim.cli")


def test_the_core_runs_without_the_outer_packages() -> None:
    """scipy is not looked for: numba asks its version where it is installed."""
    loaded = loaded_by("import specsim.engine.simulator")
    assert {"numpy", "simpy", "numba"} <= loaded
    assert loaded & {"scenarios", "db", "calibrate", "torch", "sqlalchemy", "click", "rich"} == set()
