"""Files of measurements that are none: said in one line, without waiting for a pipe and without a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from calibrate.acceptance.journal import Journal
from specsim.cli import cli
from specsim.errors import SpecsimError

BAD: dict[str, Callable[[str], None]] = {
    "empty": lambda path: Path(path).write_bytes(b""),
    "no text": lambda path: Path(path).write_bytes(b"\x00\xff\xfe\n"),
    "zeros": lambda path: Path(path).write_bytes(bytes(5000) + b"\n"),
    "nested without end": lambda path: Path(path).write_text("[" * 100_000 + "\n"),
    "a number without end": lambda path: Path(path).write_text("1" * 100_000 + "\n"),
    "a list": lambda path: Path(path).write_text("[1, 2]\n"),
    "a folder": os.mkdir,
    "a pipe": os.mkfifo,
}
READERS = {
    "profile import": ("profile", "import"),
    "profile import of a benchmark": ("profile", "import", "--target", "llama-3.1-8b", "--gpu", "h100-sxm"),
    "profile show": ("profile", "show"),
    "calibrate fit": ("calibrate", "fit"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_no_measurement_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, bad: str
) -> None:
    monkeypatch.chdir(tmp_path)
    BAD[bad]("./bad.jsonl")
    done = CliRunner().invoke(cli, [*READERS[reader], "./bad.jsonl"])
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1
    assert "bad.jsonl" in done.stderr


@pytest.mark.parametrize("bad", sorted(BAD.keys() - {"empty", "a pipe"}))
def test_a_file_that_is_no_unfinished_measurement_is_refused_and_kept(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "bad.jsonl"
    BAD[bad](str(path))
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(SpecsimError, match="delete it"):
        Journal(path, {"drafter": "eagle"})
    assert before is None or path.read_bytes() == before
