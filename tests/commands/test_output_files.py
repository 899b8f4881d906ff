"""Files that commands write: what cannot be written is said before anything is computed, and nothing else is harmed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from specsim.cli import cli
from specsim.errors import ScenarioError
from specsim.report.files import check_file, check_folder, whole_file, write_folder

ROW = "id,target,method,k,hardware,isl,osl,load_kind,load,speedup\na,llama-3.1-8b,EAGLE,3,H100,20,8,batch,1,1.5\n"
WRITERS = {
    "published": ("validate", "published", "--rows", "rows.csv", "-o", "{}.md"),
    "acceptance": ("validate", "acceptance", "m.jsonl", "-o", "{}.md"),
    "measured": ("calibrate", "acceptance", "--target", "t", "--prompts", "p.jsonl", "-o", "{}.jsonl"),
    "convert": ("trace", "convert", "log.csv", "-o", "{}.csv"),
    "synth": ("trace", "synth", "--isl", "9", "--osl", "4", "-o", "{}.csv"),
    "requests": ("simulate", "llama-8b-h100-eagle", "--no-store", "--requests-out", "{}.csv"),
    "timeline": ("simulate", "llama-8b-h100-eagle", "--no-store", "--timeline", "{}.json"),
}
FORCE = {"measured", "convert", "synth", "requests", "timeline"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(ROW)
    Path("m.jsonl").write_text('{"eagle": [1, 2, 1]}\n' * 4)
    Path("log.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,9,4\n1,9,4\n")
    return tmp_path


def refusal(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of a command, which must come before it has read or simulated anything."""
    import specsim.cli.calibrate_acceptance
    import specsim.cli.trace
    import specsim.cli.validate
    import specsim.cli.validate_acceptance
    from specsim.traces import synth

    def too_late(*args: object, **kwargs: object) -> None:
        pytest.fail("the work began before the file was checked")

    for place, function in (
        (specsim.cli.validate, "_predicted"),
        (specsim.cli.calibrate_acceptance, "_measured"),
        (specsim.cli.validate_acceptance, "_judged"),
        (specsim.cli.trace, "load_trace_from_options"),
        (synth, "synthesise"),
    ):
        monkeypatch.setattr(place, function, too_late)
    words = [word.format(target) for word in WRITERS[name]]
    done = CliRunner().invoke(cli, [*words, *(["--force"] if name in FORCE else [])])
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1
    assert not [path for path in os.listdir() if path.endswith(".part")]
    return done.stderr


@pytest.mark.parametrize("name", WRITERS)
def test_what_cannot_be_written_is_said_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suffix = WRITERS[name][-1].removeprefix("{}")
    assert "does not exist; make it first" in refusal(name, "nowhere/x", monkeypatch)
    os.mkdir(f"folder{suffix}")
    assert "is no file name" in refusal(name, "folder", monkeypatch)
    os.mkfifo(f"pipe{suffix}")
    assert "is a pipe or a device" in refusal(name, "pipe", monkeypatch)
    assert os.path.exists(f"pipe{suffix}"), "and is left alone"
    assert "cannot be written: File name too long" in refusal(name, "x" * 300, monkeypatch)
    os.symlink(f"gone/there{suffix}", f"dangling{suffix}")
    assert "cannot be written" in refusal(name, "dangling", monkeypatch)


@pytest.mark.parametrize("name", sorted(FORCE))
def test_a_file_that_is_there_is_kept_unless_forced(name: str) -> None:
    words = [word.format("old") for word in WRITERS[name]]
    Path(words[-1]).write_text("mine")
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert "the file exists; give another name, or --force to replace it" in done.stderr
    assert Path(words[-1]).read_text() == "mine"


@pytest.mark.parametrize("name", ["synth", "timeline"])
def test_a_link_stays_a_link_to_the_new_content(name: str) -> None:
    words = [word.format("link") for word in WRITERS[name]]
    os.mkdir("store")
    real = Path("store/real")
    real.write_text("old")
    os.symlink("store/real", words[-1])
    more = ("--policy", "static:3", "--max-num-seqs", "8") if name == "timeline" else ()
    done = CliRunner().invoke(cli, [*words, "--force", *more])
    assert done.exit_code == 0, done.output
    assert os.path.islink(words[-1])
    assert real.read_text() != "old"


def test_a_failure_half_way_leaves_the_old_file(here: Path) -> None:
    path = here / "old.md"
    path.write_text("old")
    with pytest.raises(RuntimeError), whole_file("-o", str(path)) as out:
        out.write("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(here).count("old.md") == 1
    assert not [name for name in os.listdir(here) if name.endswith(".part")]


@pytest.mark.parametrize("path", ["", ".", "..", "a/..", "bad\0name.md"])
def test_what_is_no_name_is_refused(path: str) -> None:
    with pytest.raises(ScenarioError, match=r"is no file name|cannot be written"):
        check_file("-o", path, force=True)


@pytest.mark.parametrize("force", [True, False])
def test_a_folder_that_cannot_be_made_is_said_in_one_line(force: bool) -> None:
    os.mkfifo("pipe")
    os.symlink("gone", "dangling")
    Path("file").write_text("mine")
    cases = {
        "nowhere/x": "does not exist; make it first",
        "file/x": "does not exist; make it first",
        "é" * 200: "cannot be made: File name too long; give another name",
        "a\0b": "cannot be made: embedded null byte; give another name",
        "pipe": "is a file, and a folder is needed",
        "dangling": "is a file, and a folder is needed",
        "file": "is a file, and a folder is needed",
    }
    for path, said in cases.items():
        with pytest.raises(ScenarioError, match=said):
            check_folder("-o", path, force=force)
    check_folder("-o", "new", force=force)
    assert sorted(os.listdir()) == ["dangling", "file", "log.csv", "m.jsonl", "pipe", "rows.csv"]


def test_a_folder_that_has_become_impossible_is_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ScenarioError, match="cannot be made: Read-only file system; give another name"):
        write_folder("-o", "new", {"a.csv": "1"})
