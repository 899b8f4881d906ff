"""The example of docs/reference/reference-engine.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "reference-engine.md"


def test_the_example_serves(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    names: dict = {}
    exec(compile(blocks[0], str(PAGE), "exec"), names)
    tokens, accepted = capsys.readouterr().out.splitlines()
    assert len(tokens.split(",")) == 30
    assert re.fullmatch(r"\d+ of \d+ drafts accepted", accepted)
    assert names["served"].result.totals.drafted_tokens > 0
