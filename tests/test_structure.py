"""House rules that can be read off the sources: docstrings, public names, module names, sizes."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("specsim", "scenarios", "db", "calibrate")
LONGEST = 500
"""Lines of a file. The aim for a module is 300; above this it is two."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
NEEDS = {"calibrate": "torch"}
"""Package -> what must be installed to import its modules."""


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_the_sources_are_found() -> None:
    assert len(MODULES) > 80
    assert len(TESTS) > 30


@pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").strip()


@pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=name_of)
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


def declared(tree: ast.Module) -> list[str] | None:
    """`__all__` as written, None without one; starred parts are left to the import."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            assert isinstance(node.value, ast.List | ast.Tuple)
            return [item.value for item in node.value.elts if isinstance(item, ast.Constant)]
    return None


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_public_names_are_declared_and_exist(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = declared(tree)
    if names is None:
        defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert all(node.name.startswith("_") for node in defined), "has public names but no __all__"
        return
    assert len(names) == len(set(names)), "a name twice"
    needs = NEEDS.get(dotted(path).split(".")[0])
    if needs is not None:
        pytest.importorskip(needs)
    module = importlib.import_module(dotted(path))
    for name in module.__all__:
        assert hasattr(module, name), name


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_hides_one_of_the_standard_library(path: Path) -> None:
    """A script started as a file has its own folder first on the path, so `specsim/profile.py` would break cProfile.

    Only folders in which a script may be started count: the root and the packages in it. Deeper modules have dotted
    names and hide nothing.
    """
    name = path.parent.name if path.name == "__init__.py" else path.stem
    if name.startswith("__") or len(path.relative_to(ROOT).parts) > 2:
        return
    assert name not in sys.stdlib_module_names
