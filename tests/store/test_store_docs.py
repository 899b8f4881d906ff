"""The reference page says what the schema says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from db import describe, schema

ROOT = Path(describe.__file__).parents[1]


def test_the_reference_is_up_to_date() -> None:
    page = ROOT / "docs" / "reference" / "database.md"
    done = subprocess.run(
        [sys.executable, "-m", "cogapp", "--check", "-I", str(ROOT), str(page)],
        capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, f"run: python -m cogapp -r {page.relative_to(ROOT)}\n{done.stdout}{done.stderr}"


def test_every_column_is_described() -> None:
    said = describe.markdown()
    for table in schema.metadata.tables.values():
        assert f"### {table.name}\n" in said
        for column in table.columns:
            assert f"`{column.name}`" in said
            assert column.comment, f"{table.name}.{column.name} has no comment"
