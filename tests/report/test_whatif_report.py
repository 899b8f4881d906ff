"""`specsim report` of a what-if: page, Markdown and tables hold what its JSON says."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from conftest import StoredPlan
from plan_cli import plan

from specsim.report.charts.fleets import Bar, fleet_chart
from specsim.report.charts.scatter import Choice, front_chart
from specsim.report.whatif_tables import whatif_tables


def report(*arguments: object) -> Any:
    done = plan(*arguments, command="report")
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def page(stored_whatif: StoredPlan, tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("page") / "whatif.html"
    report("latest", "--db", stored_whatif.db, "-o", target)
    return target.read_text(encoding="utf-8")


def table(folder: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / f"{name}.csv").read_text(encoding="utf-8"))))


def test_the_page_has_the_verdict_the_proofs_and_the_provenance(page: str, stored_whatif: StoredPlan) -> None:
    result = stored_whatif.result
    text = unescape(re.sub(r"<[^>]+>", "", page))
    first = re.search(r'<section id="s1".*?</section>', page, re.DOTALL)
    assert first is not None
    shown = re.findall(r'<p class="verdict">(.*?)</p>', first[0])
    assert [unescape(sentence) for sentence in shown] == result["verdict"]["text"][:2]
    assert all(sentence in text for sentence in result["verdict"]["text"])
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert {"Least number of GPUs", "Cost against time per token", "Costs", "Headroom and growth", "Proofs",
            "Assumptions", "Not modelled"} <= set(headings)  # fmt: skip
    assert headings[-1] == "Provenance"
    for row in result["options"]:
        if row["policy_kind"] == "off" and row["proof"]["at"] is not None:
            assert all(run in text for run in row["proof"]["at"]["runs"])
        assert row["profile_sha256"] in text
    for word in (result["plan_id"], result["trace"]["sha256"], result["command"], result["prices"][0]["source"]):
        assert word in text
    assert "<script" not in page
    assert len(page.encode()) < 5_000_000
    assert page.count("<svg") == page.count("<figure>") == 3


def test_markdown_and_json_hold_the_same(page: str, stored_whatif: StoredPlan, tmp_path: Path) -> None:
    text = report("latest", "--db", stored_whatif.db, "--markdown").stdout
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == re.findall(r"<h2>(.*?)</h2>", page)
    rows = re.findall(r"^\|.*\|$", text, re.MULTILINE)
    assert len(rows) == page.count("<tr>") + page.count("<table>")
    report("latest", "--db", stored_whatif.db, "-o", tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == stored_whatif.result


def test_csv_tables_are_the_numbers_of_the_what_if(stored_whatif: StoredPlan, tmp_path: Path) -> None:
    result, folder = stored_whatif.result, tmp_path / "tables"
    report("latest", "--db", stored_whatif.db, "--csv", "-o", folder)
    assert {path.stem for path in folder.iterdir()} == set(whatif_tables(result))
    rows = table(folder, "options")
    assert len(rows) == len(result["options"])
    for row, wanted in zip(rows, result["options"], strict=True):
        assert row["gpus"] == ("" if wanted["gpus"] is None else str(wanted["gpus"]))
        at = wanted["proof"]["at"]
        assert row["slo_share_mean"] == ("" if at is None else repr(at["metrics"]["slo_share"]["mean"]))
    assert any(wanted["verdict"] == "holds" and int(wanted["replicas"]) > 1 for wanted in result["options"])
    proofs = table(folder, "proofs")
    for wanted in result["options"]:
        for side in ("at", "below"):
            if wanted["proof"][side] is not None:
                assert any(
                    row["side"] == side
                    and (row["gpu"], row["policy_kind"]) == (wanted["gpu"], wanted["policy_kind"])
                    and row["replicas"] == str(wanted["proof"][side]["replicas"])
                    and row["runs"].split() == wanted["proof"][side]["runs"]
                    for row in proofs
                )
    costs = {(row["gpu"], row["policy_kind"]): row for row in table(folder, "costs")}
    for wanted in result["options"]:
        if wanted["cost"] is not None:
            row = costs[wanted["gpu"], wanted["policy_kind"]]
            assert float(row["owned_usd"]) == wanted["cost"]["owned_usd"]
    front = table(folder, "front")
    assert [row["number"] for row in front] == [str(n + 1) for n in range(len(result["pareto"]))]
    assert len(table(folder, "growth")) == sum(len((row["beyond"] or {"growth": []})["growth"])
                                               for row in result["options"])  # fmt: skip
    arrivals = table(folder, "arrivals")
    assert any(row["sized_for"] == "true" for row in arrivals)


def test_the_same_what_if_gives_the_same_bytes(page: str, stored_whatif: StoredPlan, tmp_path: Path) -> None:
    report("latest", "--db", stored_whatif.db, "-o", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_one_option_and_options_that_hold_nothing_have_pages_too(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(f"{i},50,9" for i in range(40)))
    call = ("--trace", log, "--policies", "off", "--k", "3", "--jobs", 1, "--db", tmp_path / "x.db")
    for more in (("--gpu", "h100"), ("--gpu", "l40s,h100", "--tpot", "0.1"), ("--gpu", "rtx-5090")):
        assert plan(*call, *more, command="whatif").exit_code == 0
        report("latest", "--db", tmp_path / "x.db", "-o", tmp_path / "x.html", "--force")
        text = (tmp_path / "x.html").read_text(encoding="utf-8")
        assert text.count("<figure>") == 2, "a front of one option says nothing"


def test_options_are_told_apart_without_colour() -> None:
    choices = [
        Choice(series, filled, x, x * 0.9, x * 1.1, y, y, y * 1.2, n)
        for n, (series, filled, x, y) in enumerate((("A", True, 5, 9), ("A", False, 9, 9), ("B", True, 20, 2)), start=1)
    ]
    drawn = front_chart("f", "F", choices, x_label="ms", y_label="$", description="d", limit=(25.0, "objective"))
    assert "hollow: without speculation" in drawn
    assert [n for n in ("1", "2", "3") if f">{n}</text>" in drawn] == ["1", "2", "3"]
    bars = [Bar("A tp 1", False, 4.0, 3.0, 6.0, "4 GPUs"), Bar("A tp 1", True, None, 0.0, 0.0, "never, k=3")]
    chart = fleet_chart("g", "G", bars, label="$", description="d")
    assert ">never, k=3</text>" in chart
    assert "<pattern" in chart, "bars with speculation are hatched"
