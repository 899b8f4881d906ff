"""Compiled loops compute what Python computes, and a cache of them that is damaged, full or old costs no run."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numba.core.caching import IndexDataCacheFile

ROOT = Path(__file__).resolve().parents[2]
NUMBER = itertools.count()
SOURCE = """
from specsim.compiled import kernel

@kernel
def grown(x):
    return x + {by}
"""


def told(*arguments: str, jit: bool) -> str:
    """What a command prints as JSON, its loops compiled or not."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0" if jit else "1", "PYTHONWARNINGS": "error::RuntimeWarning"}
    done = subprocess.run(
        [sys.executable, "-m", "specsim", *arguments, "--json"],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# More requests at once, and more drafts, than one byte counts; a byte is what a round's luck is kept in.
@pytest.mark.parametrize(
    "arguments",
    [
        ("--concurrency", "300", "--k", "5"),
        ("--concurrency", "150", "--method", "eagle3", "--tree-nodes", "60", "--k", "6"),
        ("--concurrency", "150", "--method", "ngram", "--k", "16", "--engine", "sglang"),
    ],
    ids=" ".join,
)
def test_batches_beyond_a_byte_are_the_same_without_the_compiler(arguments: tuple[str, ...]) -> None:
    asked = ("crossover", *arguments, "--isl", "16", "--osl", "6", "--seeds", "3")
    assert told(*asked, jit=True) == told(*asked, jit=False)


def test_the_budget_is_the_same_without_the_compiler() -> None:
    asked = ("simulate", "llama-8b-h100-eagle", "--policy", "budget:5", "--concurrency", "140", "--limit", "200")
    trace = ("--trace", "examples/azure_llm_2023_conv_rows1-10000.csv", "--no-store")
    assert told(*asked, *trace, jit=True) == told(*asked, *trace, jit=False)


def load(path: Path) -> Callable[[int], int]:
    """The kernel of a file, as a new process would see it."""
    spec = importlib.util.spec_from_file_location(f"loops_{next(NUMBER)}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[int], int] = module.grown
    return found


def hits(kernel: Any) -> int:
    return sum(kernel.stats.cache_hits.values())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "loops.py"
    path.write_text(SOURCE.format(by=1))
    assert load(path)(1) == 2
    return path


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0, 1, 40, -1], ids="{} bytes left".format)
def test_a_damaged_cache_is_replaced(file: Path, suffix: str, left: int) -> None:
    damaged = list(file.parent.rglob(f"*.{suffix}"))
    assert len(damaged) == 1
    damaged[0].write_bytes(damaged[0].read_bytes()[:left])
    assert load(file)(1) == 2
    healed = load(file)
    assert healed(1) == 2
    assert hits(healed) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_cache_that_takes_nothing_more_is_gone_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(IndexDataCacheFile, "_save_data", refuse)
    path = tmp_path / "loops.py"
    path.write_text(SOURCE.format(by=1))
    assert load(path)(1) == 2
    assert load(path)(1) == 2


def test_what_was_compiled_of_an_older_source_never_runs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that ends between index and code, as when it is interrupted, leaves an index that names no code."""
    file.write_text(SOURCE.format(by=2))
    with monkeypatch.context() as patch:
        patch.setattr(IndexDataCacheFile, "_save_data", lambda *_: None)
        assert load(file)(1) == 3
    assert load(file)(1) == 3


def test_a_cache_is_used(file: Path) -> None:
    found: Any = load(file)
    assert found(1) == 2
    assert hits(found) == 1
