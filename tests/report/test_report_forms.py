"""`specsim report` in every form: what is written, what is refused, and that no text becomes markup."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import StoredPlan
from plan_cli import plan

from db.store import Store
from specsim.report.document import Code, Document, Facts, Items, Paragraph, Section, TableBlock
from specsim.report.html import html_text
from specsim.report.markdown import markdown_text
from specsim.report.plan_tables import plan_tables
from specsim.report.table import Column, Table, csv_text

ROOT = Path(__file__).resolve().parents[2]


def report(*arguments: object) -> Any:
    return plan(*arguments, command="report")


class Page(HTMLParser):
    """Tags, attributes and text of a page; what is not closed in order is a fault."""

    VOID = ("meta", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page(stored: StoredPlan, tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("page") / "report.html"
    done = report("latest", "--db", stored.db, "-o", target)
    assert done.exit_code == 0, done.output
    assert done.stdout == "" and f"wrote {target}" in done.stderr
    return target.read_text(encoding="utf-8")


def test_the_page_needs_nothing_else_and_forbids_it(page: str) -> None:
    found = Page(page)
    names = {tag for tag, _ in found.tags}
    assert {"script", "iframe", "object", "embed", "img", "form", "base"}.isdisjoint(names)
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)""", page)
    assert not re.search(r"@import|url\((?!#)", page)
    assert not [key for _, attributes in found.tags for key in attributes if key.startswith("on")]
    policy = next(a["content"] for tag, a in found.tags if tag == "meta" and "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none'")
    assert len(page.encode()) < 5_000_000


def test_the_verdict_comes_first_and_every_part_is_there(page: str, stored: StoredPlan) -> None:
    found = Page(page)
    answer = stored.result["recommendation"]["text"]
    first = re.search(r'<section id="s1".*?</section>', page, re.DOTALL)
    assert first is not None
    shown = re.findall(r'<p class="verdict">(.*?)</p>', first[0])
    assert len(shown) == len(answer) >= 2
    for sentence in answer[:2]:
        assert sentence in Page(first[0]).text
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[0] == "Over load" and headings[-1] == "Provenance"
    assert {"Assumptions", "Not modelled", "What would settle it", "When it is worth it"} <= set(headings)
    assert [a["id"] for tag, a in found.tags if tag == "section"] == [f"s{i}" for i in range(1, len(headings) + 2)]


def test_the_provenance_is_whole(page: str, stored: StoredPlan) -> None:
    text = Page(page).text
    result = stored.result
    with Store.open(stored.db, mode="read") as store:
        item = store.get("latest")
    for word in (
        result["plan_id"], result["trace"]["sha256"], result["profile"]["sha256"], result["profile"]["sha256_off"],
        result["profile"]["acceptance"]["source"], result["command"], item["code_version"], item["updated_utc"],
        "seeds", "0 to 2, one a replication",
    ):  # fmt: skip
        assert word in text, word
    assert result["command"].startswith("specsim plan --trace ") and "--jobs" not in result["command"]


def test_hostile_names_stay_text(page: str, stored: StoredPlan) -> None:
    source = stored.result["trace"]["source"]
    assert "<script>" in source
    assert "<script" not in page
    assert source in Page(page).text


def test_every_chart_has_an_alternative_and_its_figures(page: str, stored: StoredPlan) -> None:
    found = Page(page)
    charts = [a for tag, a in found.tags if tag == "svg"]
    ks = len(stored.result["deployment"]["speculation"]["num_spec_tokens"])
    assert len(charts) == 6 + ks + 3
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for chart in charts:
        assert chart["role"] == "img"
        assert set((chart["aria-labelledby"] or "").split()) <= set(ids)
    figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    assert len(figures) == len(charts)
    for figure in figures:
        assert figure.count("<table>") == 1
        description = re.search(r"<desc [^>]*>(.*?)</desc>", figure)
        caption = re.search(r"<figcaption>(.*?)</figcaption>", figure)
        assert description is not None and caption is not None
        assert Page(description[0]).text == Page(caption[0]).text != ""
    used = set(re.findall(r'(?:href="#|url\(#)([\w-]+)', page))
    assert used <= set(ids)


def test_the_same_plan_gives_the_same_bytes(page: str, stored: StoredPlan, tmp_path: Path) -> None:
    """In another process with another order of sets and another home, too."""
    target = tmp_path / "again.html"
    done = subprocess.run(
        [sys.executable, "-m", "specsim", "report", "latest", "--db", stored.db, "-o", target],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert target.read_text(encoding="utf-8") == page


def test_markdown_has_the_same_sections_and_figures(page: str, stored: StoredPlan, tmp_path: Path) -> None:
    text = report("latest", "--db", stored.db, "--markdown").stdout
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        heading.replace("=", "=") for heading in re.findall(r"<h2>(.*?)</h2>", page)
    ]
    assert "<script" not in text.replace("\\<script", "")
    rows = re.findall(r"^\|.*\|$", text, re.MULTILINE)
    assert len(rows) == page.count("<tr>") + page.count("<table>")
    assert report("latest", "--db", stored.db, "-o", tmp_path / "x.md").exit_code == 0
    assert (tmp_path / "x.md").read_text(encoding="utf-8") == text


def test_csv_tables_are_the_numbers_of_the_plan(stored: StoredPlan, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    done = report("latest", "--db", stored.db, "--csv", "-o", folder)
    assert done.exit_code == 0, done.output
    tables = plan_tables(stored.result)
    assert {path.name for path in folder.iterdir()} == {f"{name}.csv" for name in tables}
    rows = list(csv.DictReader(io.StringIO((folder / "comparison.csv").read_text(encoding="utf-8"))))
    assert len(rows) == len(stored.result["comparison"])
    by = {(row["policy"], float(row["load_per_s"])): row for row in rows}
    for wanted in stored.result["comparison"]:
        row = by[wanted["policy"], wanted["load_per_s"]]
        for name, interval in wanted["metrics"].items():
            for part in ("mean", "low", "high"):
                assert row[f"{name}_{part}"] == ("" if interval[part] is None else repr(interval[part]))
    costs = list(csv.DictReader(io.StringIO((folder / "costs.csv").read_text(encoding="utf-8"))))
    output = stored.result["trace"]["statistics"]["output"]["mean"]
    capacity = {row["policy"]: row["load_per_s"] for row in stored.result["capacity"]}
    for row in costs:
        assert int(row["gpus"]) == 1
        if capacity[row["policy"]] is not None:
            tokens_an_hour = capacity[row["policy"]] * output * 3600
            assert float(row["gpu_hours_per_million_output_tokens"]) == pytest.approx(1e6 / tokens_an_hour)
    cells = list(csv.DictReader(io.StringIO((folder / "surface.csv").read_text(encoding="utf-8"))))
    for row, even in zip(cells, stored.result["break_even"], strict=True):
        assert float(row["speedup"]) == pytest.approx(
            even["assumed_acceptance_length"] / even["break_even_acceptance_length"]
        )


def test_what_a_token_takes_is_the_ratio_of_the_capacities(stored: StoredPlan) -> None:
    def capacity(policy: str, high: float | None, ratio: tuple[float, float, float] | None, vs: str | None) -> Any:
        named = None if ratio is None else dict(zip(("mean", "low", "high"), ratio, strict=True))
        verdict = "beyond the loads simulated" if high is None else "bracketed"
        nothing = {"mean": None, "low": None, "high": None}
        return {"policy": policy, "load_per_s": 8.0, "low_per_s": 8.0, "high_per_s": high, "interval": nothing,
                "ratio_to_off": named, "vs_off": vs, "verdict": verdict}  # fmt: skip

    def shown(*rows: Any) -> dict[str, tuple[str, ...]]:
        table = plan_tables({**stored.result, "capacity": rows})["costs"]
        return {row[0]: (row[3], row[5], *row[6:8]) for row in table.shown()}

    others = (capacity("k=1", 9.0, (2.0, 1.6, 2.5), "more"), capacity("k=3", 9.0, (0.8, 0.5, 1.25), "tie"),
              capacity("k=5", None, (2.0, 1.6, 2.5), "more"))  # fmt: skip
    found = shown(capacity("off", 9.0, None, None), *others)
    assert found["off"] == ("-", "-", "-", "-")
    assert found["k=1"] == ("-", "-", "0.50x (0.40x–0.62x)", "less")
    assert found["k=3"] == ("-", "-", "1.25x (0.80x–2.00x)", "tie")
    assert found["k=5"] == ("at least", "at most", "-", "-"), "a bound is no figure"
    assert shown(capacity("off", None, None, None), *others)["k=1"][2] == "-", "nor a base"


def test_json_is_the_plan(stored: StoredPlan, tmp_path: Path) -> None:
    assert report("latest", "--db", stored.db, "-o", tmp_path / "x.json").exit_code == 0
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == stored.result
    text = report("latest", "--db", stored.db, "-o", tmp_path / "x.txt")
    assert text.exit_code == 0
    assert (tmp_path / "x.txt").read_text(encoding="utf-8") == report("latest", "--db", stored.db).stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--markdown", "--json"), "exclude each other"),
        (("--csv",), "give a folder for them with -o"),
        (("--force",), "--force is for -o"),
        (("--full", "--json"), "--full is for text"),
        (("--full", "-o", "x.html"), "--full is for text"),
        (("-o", "x.pdf"), "must end in .html, .md, .json or .txt"),
        (("--markdown", "-o", "x.html"), "must end in .md"),
        (("-o", "missing/x.html"), "folder missing does not exist"),
        (("-o", "there.html"), "the file exists"),
        (("--csv", "-o", "there.html"), "is a file, and a folder is needed"),
        (("--csv", "-o", "folder"), "the folder exists"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    flags: tuple[str, ...], said: str, stored: StoredPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.html").write_text("old", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    done = report("latest", "--db", stored.db, *flags)
    assert done.exit_code == 2
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "there.html"]
    assert (tmp_path / "there.html").read_text(encoding="utf-8") == "old"


def test_a_run_has_no_page(stored: StoredPlan, tmp_path: Path) -> None:
    with Store.open(stored.db, mode="read") as store:
        run = store.get("latest")["run_ids"][0]
    done = report(run, "--db", stored.db, "-o", tmp_path / "x.html")
    assert done.exit_code == 2 and "is a run" in done.stderr
    assert report(run, "--db", stored.db, "--json").exit_code == 0


def test_a_plan_stored_before_arrivals_were_has_no_strip(stored: StoredPlan) -> None:
    trace = {key: value for key, value in stored.result["trace"].items() if key != "arrivals"}
    old = {key: value for key, value in stored.result.items() if key not in ("command", "settings")}
    assert plan_tables({**old, "trace": trace})["traffic"].rows == ()


_WITHOUT = "import sys; sys.modules['matplotlib'] = None; from specsim.cli import cli; cli(sys.argv[1:])"
"""A process of its own, in which no part of matplotlib was imported before it was hidden."""


@pytest.mark.parametrize("what", ["stored", "stored_whatif"])
def test_without_matplotlib_the_way_out_is_said(what: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    db = request.getfixturevalue(what).db
    call = [sys.executable, "-c", _WITHOUT, "report", "latest", "--db", db]
    done = subprocess.run([*call, "-o", tmp_path / "x.html"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "pip install '.[report]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
    assert report("latest", "--db", db, "--markdown").exit_code == 0


NASTY = "</p><script>x</script>& \"'` | [a](b) *c*\n\u202ed\x00\x1b[0m"


def test_every_kind_of_block_escapes_its_text() -> None:
    column = Column(NASTY, NASTY)
    table = Table("t", NASTY, (column, column), ((NASTY, NASTY),))
    blocks = (Paragraph(NASTY), Paragraph(NASTY, "warning"), Items((NASTY,)), Items((NASTY,), NASTY),
              Facts(((NASTY, NASTY), ("", NASTY))), Code(NASTY, NASTY), TableBlock(table))  # fmt: skip
    document = Document(NASTY, NASTY, (Section(NASTY, blocks), Section(NASTY, blocks)))
    page = html_text(document)
    found = Page(page)
    assert "script" not in {tag for tag, _ in found.tags}
    for hidden in "\u202e\x00\x1b":
        assert hidden not in page
    text = markdown_text(document)
    assert not re.search(r"(?<!\\)<", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert "[a](b)" not in re.sub(r"````.*?````|```.*?```", "", text, flags=re.DOTALL)


def test_a_table_writes_whole_numbers_and_intervals() -> None:
    third = {"mean": 1 / 3, "low": None, "high": None}
    table = Table("t", "T", (Column("a", "A"), Column("b_s", "B", "{:.2f}".format, "", True), Column("c", "C")),
                  ((1, third, True), (None, None, False)))  # fmt: skip
    assert csv_text(table) == f"a,b_s_mean,b_s_low,b_s_high,c\n1,{1 / 3!r},,,true\n,,,,false\n"
    assert table.shown() == [["1", "0.33", "True"], ["-", "-", "False"]]
