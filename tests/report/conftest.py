"""A stored plan of a small log with a hostile name, made once."""

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
    """Where a plan lies, and what it says."""

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
