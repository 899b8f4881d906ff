"""The prepared session, dry-run: every part for real at shrunken shapes, then parts that fail, hang and go on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

import calibrate.gpu_session as session
from specsim.cli import cli
from specsim.profiles import LatencyProfile

PARTS = [part.name for part in session.PARTS]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The parts set the threads of the whole process."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class InProcess:
    """Stands in for starting a process, which costs ten seconds of imports each."""

    def __init__(self, fate: dict[str, str] | None = None) -> None:
        self.fate = fate or {}
        self.ran: list[str] = []

    def __call__(self, words: Sequence[str], **given: object) -> subprocess.CompletedProcess[str]:
        said = list(words[words.index("specsim") + 1 :])
        fate = next((fate for name, fate in self.fate.items() if any(f"/{name}.json" in word for word in said)), "")
        self.ran.append(said[said.index("-o") + 1] if "-o" in said else said[0])
        if fate == "hangs":
            raise subprocess.TimeoutExpired(words, 1.0)
        if fate == "fails":
            given["stderr"].write("Error: out of luck\n")  # type: ignore[attr-defined]
            return subprocess.CompletedProcess(list(words), 2)
        done = CliRunner().invoke(cli, said)
        given["stdout"].write(done.stdout)  # type: ignore[attr-defined]
        given["stderr"].write(done.stderr)  # type: ignore[attr-defined]
        return subprocess.CompletedProcess(list(words), done.exit_code)


def run(folder: Path, *flags: str, code: int = 0) -> dict:
    done = CliRunner().invoke(cli, ["calibrate", "session", "-o", str(folder), "--dry-run", "--budget", "8s", *flags])
    assert done.exit_code == code, done.output + done.stderr
    return json.loads((folder / "summary.json").read_text("utf-8"))


@pytest.mark.slow
def test_every_part_runs_at_shrunken_shapes_and_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = InProcess({"llama-3.1-70b-tp4": "fails"})
    monkeypatch.setattr(session.subprocess, "run", process)
    monkeypatch.setattr(session, "_left_s", lambda ends, now: 8.0)
    summary = run(tmp_path, code=2)
    status = {row["part"]: row["status"] for row in summary["parts"]}
    assert status == {name: "failed" if "70b" in name else "done" for name in PARTS}
    failed = next(row for row in summary["parts"] if row["status"] == "failed")
    assert failed["last_line"] == "Error: out of luck"
    for row in summary["parts"]:
        for method, facts in row["profiles"].items():
            profile = LatencyProfile.from_dict(json.loads((tmp_path / facts["file"]).read_text("utf-8")))
            assert profile.covers["method"] == method
            assert profile.covers["launch"] == "eager"
            assert "random" in profile.covers["weights"]
    assert summary["machine"]["torch"]
    assert summary["machine"]["device"]
    first = len(process.ran)

    process.fate.clear()
    summary = run(tmp_path)
    assert [row["status"] for row in summary["parts"] if "70b" not in row["part"]] == ["was done already"] * (
        len(PARTS) - 1
    )
    assert len(process.ran) == first + 1
    shard = json.loads((tmp_path / "llama-3.1-70b-tp4.json").read_text("utf-8"))
    assert shard["covers"]["tp"] == "4"
    assert any("Measured by layer: 2 of 8" in note for note in shard["notes"])


def test_a_part_that_hangs_is_stopped_and_what_it_measured_becomes_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "qwen3-30b-a3b"
    process = InProcess()
    monkeypatch.setattr(session.subprocess, "run", process)
    run(tmp_path, "--only", name)
    (tmp_path / f"{name}.json").unlink()
    process.fate[name] = "hangs"
    summary = run(tmp_path, "--only", name, code=2)
    (row,) = summary["parts"]
    assert row["status"] == "stopped at the end of its time"
    assert row["partial_profiles"] == [f"{name}.partial.json"]
    partial = LatencyProfile.from_dict(json.loads((tmp_path / f"{name}.partial.json").read_text("utf-8")))
    assert partial.target.num_experts == 8


def test_the_engines_own_profile_is_held_against_serving_with_forced_acceptance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.subprocess, "run", InProcess())
    monkeypatch.setattr(session, "_left_s", lambda ends, now: 4.0)
    names = ("--only", "llama-3.1-8b-eager", "--only", "llama-3.1-8b-served")
    done = CliRunner().invoke(
        cli, ["calibrate", "session", "-o", str(tmp_path), "--dry-run", "--budget", "6s", *names, "--json"]
    )
    assert done.exit_code == 0, done.output
    said = done.stderr.splitlines()
    assert said[0].startswith("plan: llama-3.1-8b-eager: 0 s to 3 s of 6 s"), "the plan of the time comes first"
    assert said[1].startswith("plan: llama-3.1-8b-served: 3 s to 6 s of 6 s")
    (check,) = json.loads(done.stdout)["checks"]
    assert (check["status"], check["runs"] >= 1) == ("done", True)
    assert any("Acceptance was forced, 2.19 tokens a round at k = 2" in sentence for sentence in check["checks"])
    result = json.loads((tmp_path / "llama-3.1-8b-served.jsonl").read_text("utf-8"))
    assert result["weights"] == "random, seed 0"
    assert result["replay"]["unmatched_steps"] == 0
    for row in result["rows"]:
        figure = row["figures"]["tokens_per_round"]
        assert figure["predicted"] == pytest.approx(figure["measured"]), "the very same rounds"
        assert figure["measured"] > 1 or row["policy"] == "off"
    again = CliRunner().invoke(cli, ["calibrate", "session", "-o", str(tmp_path), "--dry-run", *names])
    assert again.exit_code == 0
    assert "llama-3.1-8b-served: was done already" in again.stdout
    assert "mean TPOTs within 5 % or the noise" in again.stdout


def test_a_check_without_its_profile_says_what_it_needs(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli, ["calibrate", "session", "-o", str(tmp_path), "--dry-run", "--only", "llama-3.1-8b-served"]
    )
    assert done.exit_code == 2
    assert "llama-3.1-8b-served: needs the profile of llama-3.1-8b-eager" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "needs a folder"),
        (("-o", "x", "--only", "lama"), "--only lama: no such part"),
        (("-o", "x", "--link-gpu", "no-gpu"), "no-gpu"),
        (("-o", "x", "--budget", "never"), "--budget 'never'"),
    ],
)
def test_wrong_flags_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["calibrate", "session", "--dry-run", *flags])
    assert done.exit_code == 2
    assert message in done.stderr
    assert not list(tmp_path.glob("*/*.points.jsonl"))


def test_on_the_device_the_catalogue_itself_is_measured(tmp_path: Path) -> None:
    from scenarios.models import load_models

    for part in session.PARTS:
        words = session.command(part, tmp_path, session.DEVICE_SIZES, 60.0, "h100-sxm")
        given = [words[n + 1] for n, word in enumerate(words) if word in ("--target", "--draft")]
        assert set(given) <= set(load_models())
        assert words[words.index("--device") + 1] == "cuda"
    for check in session.CHECKS:
        words = session.check_command(check, tmp_path, session.DEVICE_SIZES, 58.0)
        given = [words[n + 1] for n, word in enumerate(words) if word in ("--target", "--draft")]
        assert given == ["llama-3.1-8b", "llama-3.2-1b"]
        assert words[words.index("--budget") + 1] == "38s", "the rest is for loading"
    assert sum(part.share for part in (*session.PARTS, *session.CHECKS)) == pytest.approx(1.0)
