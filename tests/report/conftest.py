"""A stored plan and a stored what-if of small logs with a hostile name, made once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from plan_cli import QUICK, plan, write_log

HOSTILE = "<script>alert(1)<"
"""Folder of the log; with the name in it, a whole script element."""


@dataclass(frozen=True)
class StoredPlan:
    """Where an answer lies, and what it says."""

    db: str
    result: dict[str, Any]


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredPlan]:
    home = tmp_path_factory.mktemp("stored")
    (home / HOSTILE).mkdir()
    log = write_log(home / HOSTILE / 'script> & "x" $y$.csv')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        name = Path(HOSTILE) / log.name
        done = plan("--trace", name, *QUICK, "--policy", "off_above:3:8", "--db", home / "x.db", "--json")
    assert done.exit_code == 0, done.output
    yield StoredPlan(str(home / "x.db"), json.loads(done.stdout))


@pytest.fixture(scope="session")
def stored_whatif(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredPlan]:
    home = tmp_path_factory.mktemp("whatif")
    (home / HOSTILE).mkdir()
    log = write_log(home / HOSTILE / 'script> & "x" $y$.csv', requests=200, gap_s=0.05, output=40)
    own = ("--purchase", "h100=30000", "--purchase", "l40s=9000", "--purchase", "a100-80-sxm=15000",
           "--years", 3, "--pue", 1.3, "--usd-per-kwh", 0.1)  # fmt: skip
    flags = ("--peak", "1m", "--gpu", "l40s,a100-80-sxm,h100", "--tpot", 22, "--ttft", 300, "--growth", 2, "--k", "1,3",
             "--policies", "off,static,schedule", "--price", "l40s=1.1", *own, "--jobs", 1)  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        done = plan("--trace", Path(HOSTILE) / log.name, *flags, "--db", home / "x.db", "--json", command="whatif")
    assert done.exit_code == 0, done.output
    yield StoredPlan(str(home / "x.db"), json.loads(done.stdout))
