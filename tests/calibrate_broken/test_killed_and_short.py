"""Measuring that is killed without a word, short of memory, or on a machine without torch."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

sys.path.insert(0, str(Path(__file__).parent.parent / "calibrate_acceptance"))

from tiny_acceptance import save_model, write_jsonl  # noqa: E402

from calibrate.engine.real import serve_real  # noqa: E402
from calibrate.latency.passes import Passes  # noqa: E402
from calibrate.points import read_points  # noqa: E402
from specsim.cli import cli  # noqa: E402

SMALL = ("--device", "cpu", "--threads", "1")
LATENCY = ("--clock", "cpu", "--max-batch", "4", "--max-context", "32", "--max-chunk", "16", "--k-max", "2",
           "--budget", "1s", "-o", "p.json")  # fmt: skip
PROMPTS = [{"prompt": " ".join(f"w{6 + (n * 7 + i) % 50}" for i in range(6))} for n in range(6)]
ACCEPTANCE = ("--prompts", "prompts.jsonl", "--method", "ngram", "--method", "layer_skip", "--max-tokens", "40",
              "-o", "a.jsonl")  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "prompts.jsonl", PROMPTS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def specsim(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def killed(words: list[str], file: Path, lines: int) -> None:
    """Runs a command in a process of its own, and kills it for good once `file` has so many lines."""
    process = os.fork()
    if not process:
        try:
            CliRunner().invoke(cli, words)
        finally:
            os._exit(0)
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if os.waitpid(process, os.WNOHANG)[0]:
            pytest.fail(f"{file} never had {lines} lines before the command ended")
        if file.exists() and file.read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL


def test_latency_killed_for_good_goes_on_and_repeats_nothing(target: Path) -> None:
    words = ["calibrate", "latency", "--target", str(target), *SMALL, *LATENCY]
    killed(words, Path("p.points.jsonl"), 9)
    assert not Path("p.json").exists()
    kept = read_points("p.points.jsonl")[1]
    assert kept
    done = specsim(*words)
    assert done.exit_code == 0, done.output
    assert "points are there already and are not measured again" in done.output
    points = read_points("p.points.jsonl")[1]
    assert points[: len(kept)] == kept
    again = {point.key for point in points[len(kept) :]} & {point.key for point in kept}
    assert {key.split()[0] for key in again} <= {"head"}, "heads are timed twice, at different times"
    assert Path("p.json").exists()


def test_acceptance_killed_for_good_goes_on_to_the_same_bytes(target: Path) -> None:
    words = ["calibrate", "acceptance", "--target", str(target), *SMALL, "--batch", "1", *ACCEPTANCE]
    whole = specsim(*words[:-1], "whole.jsonl")
    assert whole.exit_code == 0, whole.output
    killed(words, Path("a.jsonl.unfinished"), 3)
    assert not Path("a.jsonl").exists()
    done = specsim(*words)
    assert done.exit_code == 0, done.output
    assert "going on where it stopped" in done.stderr
    assert Path("a.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert not Path("a.jsonl.unfinished").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("calibrate", "latency", "--target", "x", "-o", "p.json"),
        ("calibrate", "acceptance", "--target", "x", *ACCEPTANCE),
        ("calibrate", "draft", "--target", "x", "-o", "d"),
        ("calibrate", "session", "-o", "s"),
        ("validate", "serve", "--profile", "p", "--target", "x", "--isl", "9", "--osl", "9", "--concurrency", "2"),
    ],
)
@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_torch_one_line_says_how_to_get_it(
    words: tuple[str, ...], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    done = specsim(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"needs {missing}: pip install '.[calibrate]' in the folder of specsim" in done.stderr
    assert [path.name for path in Path().iterdir()] == ["prompts.jsonl"]


def test_out_of_memory_while_timing_shrinks_the_grid_and_says_so(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Passes.work

    def limited(self: Passes, point: Any) -> Any:
        if len(point.parts) > 4:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return work(self, point)

    monkeypatch.setattr(Passes, "work", limited)
    more = ["8" if word == "4" else word for word in LATENCY]
    done = specsim("calibrate", "latency", "--target", str(target), *SMALL, *more)
    assert done.exit_code == 0, done.output
    assert "out of memory; the grid shrinks from 8 to 4 requests" in done.output
    profile = json.loads(Path("p.json").read_text("utf-8"))
    assert 1 <= profile["evidence"]["ranges"]["requests"][1] <= 4


def test_out_of_memory_while_loading_names_the_way_out(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **values: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("calibrate.latency.job.load_model", full)
    done = specsim("calibrate", "latency", "--target", str(target), *SMALL, *LATENCY)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith("Error: out of memory on the device; give fewer --layers")


def test_acceptance_out_of_memory_goes_on_with_fewer_requests_to_the_same_bytes(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calibrate.models import SlotCache

    words = ["calibrate", "acceptance", "--target", str(target), *SMALL, *ACCEPTANCE]
    whole = specsim(*words[:-1], "whole.jsonl")
    assert whole.exit_code == 0, whole.output
    make = SlotCache.__init__
    room = 2

    def limited(self: SlotCache, num_slots: int, *arguments: Any) -> None:
        if num_slots > room:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        make(self, num_slots, *arguments)

    monkeypatch.setattr(SlotCache, "__init__", limited)
    done = specsim(*words, "--batch", "5")
    assert done.exit_code == 0, done.output
    assert "out of memory; goes on with 2 requests at a time" in done.stderr
    assert Path("a.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    room = 0
    none = specsim(*words, "--force")
    assert none.exit_code == 2
    assert "out of memory with one request at a time" in none.stderr.splitlines()[-1]


def test_serving_out_of_memory_keeps_what_is_finished(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert specsim("calibrate", "latency", "--target", str(target), *SMALL, *LATENCY).exit_code == 0
    served = []

    def limited(*arguments: Any, **values: Any) -> Any:
        if values.get("concurrency") == 7:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        served.append(values.get("concurrency"))
        return serve_real(*arguments, **values)

    monkeypatch.setattr("calibrate.validation.server.serve_real", limited)
    words = ("validate", "serve", "--profile", "p.json", "--target", str(target), "--isl", "9", "--osl", "6",
             "--requests", "7", "--k", "2", "--repeats", "1", "--acceptance-prompts", "2", "--no-store", "--json",
             "--policy", "off", "--clock", "cpu", *SMALL)  # fmt: skip
    done = specsim(*words, "--concurrency", "6,7")
    assert done.exit_code == 0, done.output
    assert "out of memory on the device at 7 in flight, off; what is finished is compared" in done.stderr
    result = json.loads(done.stdout)
    assert (result["status"], result["runs"], result["runs_asked"]) == ("partial", 1, 2)
    refused = specsim(*words, "--concurrency", "7")
    assert refused.exit_code == 2
    assert "out of memory on the device at 7 in flight, off; give a lower --concurrency" in refused.stderr
