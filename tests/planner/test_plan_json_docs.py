"""docs/reference/plan-json.md against a real plan: no key missing, none too many."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

from plan_cli import QUICK, leaves, plan, write_log

from specsim.metrics import RunMetrics

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "plan-json.md"


def test_every_key_is_documented_and_every_documented_key_is_printed(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv")
    log.write_text(log.read_text() + "11,0,0\n")
    result = json.loads(plan("--trace", log, *QUICK, "--acceptance", "0.3,0.2,0.1", "--no-store", "--json").stdout)
    printed = {path.replace("limits_off", "limits_on").replace("memory_off", "memory_on") for path in leaves(result)}
    rows = [line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(set(rows))
    patterns = {row: re.compile(re.escape(row).replace(r"\*", r"[^.]+") + r"\Z") for row in rows}
    assert sorted(p for p in printed if not any(x.match(p) for x in patterns.values())) == []
    assert sorted(row for row, x in patterns.items() if not any(x.match(p) for p in printed)) == []


def test_the_metrics_of_a_comparison_are_those_of_a_run(tmp_path: Path) -> None:
    result = json.loads(plan("--trace", write_log(tmp_path / "log.csv"), *QUICK, "--no-store", "--json").stdout)
    known = {f.name for f in fields(RunMetrics)}
    for row in result["comparison"]:
        assert set(row["metrics"]) <= known
