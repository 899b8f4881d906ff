"""What a log or a path is called cannot steer the terminal that a report is printed on."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from specsim.cli import cli
from specsim.report.text import Page, milliseconds, near, number, percent, spread, times

WAYS = {
    "line": lambda page, text: page.line(text),
    "facts": lambda page, text: page.facts([("file", text)]),
    "table": lambda page, text: page.table(["a", "b"], [[text, text]]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "steers", ["\x1b[2J", "\x1b]0;title\x07", "\u202e", "\u200b", "\x00", "\x9b1m", "\r", "\n"], ids=ascii
)
def test_nothing_in_a_name_steers_the_terminal(way: str, steers: str) -> None:
    page = Page()
    WAYS[way](page, f"log{steers}name.csv")
    said = page.text()
    assert all(char.isprintable() for char in said.replace("\n", ""))
    assert "log" in said
    assert len(said.splitlines()) == (2 if way == "table" else 1), "and it stays on its line"


@pytest.mark.parametrize(
    "command", [("trace", "inspect"), ("simulate", "llama-8b-h100-eagle", "--no-store", "--trace")], ids=" ".join
)
def test_no_command_prints_a_file_name_that_steers(tmp_path: Path, command: tuple[str, ...]) -> None:
    log = tmp_path / "log\x1b[2J\u202e\nname.csv"
    log.write_text("arrival_s,prompt_tokens,output_tokens\n0,9,4\n1,9,4\n")
    done = CliRunner().invoke(cli, [*command, str(log)])
    assert done.exit_code == 0, done.output
    assert all(char.isprintable() for char in done.output.replace("\n", ""))


@pytest.mark.parametrize(
    ("mean", "low", "high", "show", "said"),
    [
        (0.97, 0.866, 1.0, percent, "97% (87..100)"),
        (0.25, 0.0, 0.97, percent, "25% (0..97)"),
        (0.986, 0.946, 1.0, percent, "98.6% (95..100)"),
        (0.5, 0.38, 0.62, percent, "50% ±12%"),
        (1.8, 1.3, 2.6, times, "1.80x (1.30..2.60)"),
        (1.04, 1.03, 1.05, times, "1.04x ±0.01x"),
        (0.0228, 0.0116, 0.034, milliseconds, "22.8 ±11.2"),
        (10.0, 9.99, 10.01, number, "10"),
        (10.0, None, None, number, "10"),
        (None, None, None, number, "-"),
    ],
    ids=str,
)
def test_an_interval_is_plus_minus_only_where_it_is_as_wide_on_both_sides(mean, low, high, show, said) -> None:
    assert spread({"mean": mean, "low": low, "high": high}, show) == said


@pytest.mark.parametrize(
    ("share", "said"), [(0.948, "94.8%"), (0.955, "95.5%"), (0.95, "95%"), (0.9, "90%"), (1.0, "100%"), (None, "-")]
)
def test_a_share_near_the_one_asked_for_shows_which_side_it_is_on(share: float | None, said: str) -> None:
    assert near(share, 0.95) == said
