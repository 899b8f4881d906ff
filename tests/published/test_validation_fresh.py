"""docs/validation.md says what specsim says now: a sample of its rows and all of its theory, computed again.

`make validation` writes the page again when numbers have changed on purpose.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from scenarios.published.conditions import cases_of
from scenarios.published.misses import known_misses
from scenarios.published.rows import shipped_rows
from scenarios.published.served import shipped_served
from scenarios.resolve import STAND_IN, resolve
from specsim.cli.validate import laws_of
from specsim.config import Slo
from specsim.planner.published import predict
from specsim.planner.published_result import published_result
from specsim.planner.theory import closed_forms, little, queues
from specsim.report.served import served_section
from specsim.report.validation_page import validation_page

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"
SAMPLE = (
    "SDB1-001", "SDB1-005", "GPUS-001", "GPUS-017", "V20780-001", "V16937-001", "SGLDOC-001", "ASDOC-001", "E3T5-001",
)  # fmt: skip
"""One of every large group, of many kinds: a lookup, chains, trees, engine defaults, given and published acceptance."""
SWEEP = ("E3T5-001", "E3T5-003")
"""Rows that differ in load alone, the lowest of their sweep among them: an anchor and what follows from it."""
STALE = "run `make validation`, read what has changed, and commit docs/validation.md"


@functools.cache
def page() -> tuple[str, ...]:
    return tuple(PAGE.read_text(encoding="utf-8").split("\n"))


def fresh_lines(*ids: str) -> list[str]:
    """Table lines of these rows, as the page would have them now."""
    rows = [row for row in shipped_rows() if row.id in ids]
    assert len(rows) == len(ids), "the guard"
    cases, rest = cases_of(rows, seeds=3, seed=0)
    assert not rest
    predictions, refused = predict(cases, processes=1)
    assert not refused
    result = published_result(cases, predictions, [], rows_from="", settings={"seeds": 3, "seed": 0})
    return [
        line
        for line in validation_page(result, [], [], []).split("\n")
        if line.startswith(tuple(f"| {i} |" for i in ids))
    ]


@pytest.mark.parametrize("id", SAMPLE)
def test_a_row_is_as_printed(id: str) -> None:
    for line in fresh_lines(id):
        assert line in page(), STALE


def test_a_sweep_is_as_printed() -> None:
    lines = fresh_lines(*SWEEP)
    assert [" sweep over load " in line or " anchor of a sweep " in line for line in lines].count(True) == 2, (
        "the guard"
    )
    for line in lines:
        assert line in page(), STALE


def test_theory_is_as_printed() -> None:
    side = resolve(*STAND_IN, Slo()).on
    theory = [("Theory", [*closed_forms(), *queues(), *little(side.profile, side.limits)])]
    made = validation_page(published_result([], [], [], rows_from="", settings={"seeds": 3, "seed": 0}), theory, [], [])
    lines = [
        line for line in made.partition("## Theory")[2].partition("## Laws")[0].split("\n") if line.startswith("| ")
    ]
    assert len(lines) > 10, "the guard"
    for line in lines:
        assert line in page(), STALE


def test_the_page_has_every_row_and_every_reason_that_is_known() -> None:
    text = "\n".join(page())
    printed = set(re.findall(r"^\| ([A-Z0-9]+-\d+) \|", text, re.MULTILINE))
    assert printed == {row.id for row in shipped_rows()}, STALE
    wrong = text.partition("### What comes out wrong, and why")[2]
    reasons = [line.partition("): ")[2] for line in wrong.split("\n") if line.startswith("- **")]
    assert reasons
    assert set(reasons) <= {group["why"] for group in known_misses()}, "a miss without a reason, or " + STALE
    used = [group["why"] for group in known_misses() if group["why"] in reasons]
    assert reasons == used, "in the order of the file"


def test_the_page_has_the_laws_of_their_page() -> None:
    laws = laws_of(PAGE.parent / "laws.md")
    assert len(laws) > 40, "the guard"
    table = "\n".join(page()).partition("## Laws")[2].partition("## Served")[0]
    assert f"The {len(laws)} of them" in table, STALE
    assert [f"| {law} | {test} |" for law, test in laws] == table.strip().split("\n")[4:], STALE


def test_what_was_served_for_real_is_as_printed() -> None:
    section = served_section(shipped_served())
    assert section.count("\n### ") == len(shipped_served()) > 0
    assert f"\n{section}\n\n## Published measurements\n" in "\n".join(page()), STALE


def test_a_change_of_physics_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard: steps that take a little longer are another figure on the page."""
    from specsim.latency import StepCost

    names = [name for name in vars(StepCost) if name.endswith("_s") and callable(getattr(StepCost, name))]
    assert names, "the guard"
    for name in names:
        real = getattr(StepCost, name)

        def slower(self: StepCost, *args: object, real: object = real, **kwargs: object) -> object:
            found = real(self, *args, **kwargs)  # type: ignore[operator]
            return found * 1.01 if isinstance(found, float) else found

        monkeypatch.setattr(StepCost, name, slower)
    lines = fresh_lines("V20780-001")
    assert lines
    assert any(line not in page() for line in lines)
