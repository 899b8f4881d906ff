"""What a log or a path is called cannot steer the terminal that a report is printed on."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from specsim.cli import cli
from specsim.report.text import Page

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
