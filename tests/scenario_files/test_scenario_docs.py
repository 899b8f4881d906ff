"""The reference of scenario files is generated from the records, and its example is read by the loader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cogapp import Cog

from scenarios.loader import TABLES, parse_scenario
from scenarios.schema import field_docs, keys_of
from specsim.config import Slo

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "reference" / "scenario.md"


def test_generated_tables_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    code = Cog().main(["cog", "--check", str(PAGE)])
    assert code in (0, None), f"run cog -r docs/reference/scenario.md: {capsys.readouterr().out}"


def test_every_key_says_what_it_means() -> None:
    for table, record in TABLES.items():
        docs = field_docs(record)
        for key in keys_of(record):
            assert docs.get(key.field, "").endswith("."), f"[{table}] {key.name} has no sentence"


def test_the_example_is_a_scenario() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    scenario = parse_scenario(example, PAGE)
    assert scenario.slo == Slo(ttft_s=0.8, tpot_s=None)
    assert scenario.workload is not None
    assert scenario.workload.busiest == "10m"


def test_policies_of_the_page_are_read() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Policies")[1]
    texts = re.findall(r"`(policy = .*?)`", section)
    assert len(texts) >= 2, "the guard"
    for text in texts:
        assert parse_scenario(text, PAGE).policies
