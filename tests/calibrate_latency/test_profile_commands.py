"""`specsim profile` and `specsim calibrate fit`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from calibrate.latency.grid import Grid
from calibrate.points import PointFile
from specsim.cli import cli
from specsim.profiles import LatencyProfile
from tests.calibrate_latency.machines import make_points, make_setup, measured, true_pass, true_profile

GRID = Grid(requests=8, width=4, context_tokens=512, chunk_tokens=256)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, result.output
    return result.output if code else result.stdout


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "mine.points.jsonl"
    with PointFile(path, make_setup()) as file:
        for point in measured(make_points(GRID), true_profile()):
            file.add(point)
    return path


def test_fit_show_and_draw(points: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    said = run("calibrate", "fit", str(points), "-o", str(out))
    assert "held out" in said
    shown = run("profile", "show", str(out))
    assert "weights_s" in shown
    assert "held out)" in shown, "the points beside it are found"
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(" o" in line or "o " in line for line in lines if "|" in line), "the plot has held-out points"
    assert len(run("profile", "show", str(out), "--full").splitlines()) > len(lines)
    assert json.loads(run("profile", "show", str(out), "--json")) == json.loads(out.read_text("utf-8"))
    pytest.importorskip("matplotlib")
    for name in ("x.svg", "x.png"):
        run("profile", "show", str(out), "-o", str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 5000
    first = (tmp_path / "x.svg").read_bytes()
    run("profile", "show", str(out), "-o", str(tmp_path / "x.svg"), "--force")
    assert (tmp_path / "x.svg").read_bytes() == first


def test_an_existing_file_is_replaced_by_force_only(points: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    out.write_text("precious", encoding="utf-8")
    assert "the file exists" in run("calibrate", "fit", str(points), "-o", str(out), code=2)
    assert out.read_text("utf-8") == "precious"
    run("calibrate", "fit", str(points), "-o", str(out), "--force")


def test_compare_says_what_differs(points: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow.points.jsonl"
    with PointFile(slow, make_setup(device="a slower machine")) as file:
        for point in measured(make_points(GRID), true_profile(true_pass(weights_s=90e-3))):
            file.add(point)
    for path in (points, slow):
        run("calibrate", "fit", str(path), "-o", str(path).replace(".points.jsonl", ".json"))
    text = run("profile", "compare", str(tmp_path / "mine.json"), str(tmp_path / "slow.json"))
    assert "a slower machine" in text
    one = next(line.split() for line in text.splitlines() if line.split()[:1] == ["1"])
    assert float(one[3]) == pytest.approx(float(one[2]) / float(one[1]), rel=0.02)
    assert float(one[3]) > 1.8
    same = run("profile", "compare", str(tmp_path / "mine.json"), str(tmp_path / "mine.json"))
    assert " 1.00" in same
    assert "differs in" not in same


def test_import_stores_and_export_gives_back(points: Path, tmp_path: Path) -> None:
    out, db = tmp_path / "mine.json", str(tmp_path / "x.db")
    run("calibrate", "fit", str(points), "-o", str(out))
    sha256 = LatencyProfile.from_dict(json.loads(out.read_text("utf-8"))).sha256
    assert sha256[:12] in run("profile", "import", str(out), "--db", db)
    assert sha256[:12] in run("profile", "list", "--db", db)
    run("profile", "export", sha256[:12], "-o", str(tmp_path / "again.json"), "--db", db)
    assert json.loads((tmp_path / "again.json").read_text("utf-8")) == json.loads(out.read_text("utf-8"))
    for flag, value in (("--target", "qwen3-8b"), ("--gpu", "h200"), ("--tp", "1"), ("--dtype", "fp8"),
                        ("--method", "none"), ("--attention-backend", "foo"), ("--engine-version", "1")):  # fmt: skip
        refused = run("profile", "import", str(out), flag, value, "--db", db, code=2)
        assert f"says itself what it is for; leave out {flag}" in refused


def forward_cases() -> list[dict[str, Any]]:
    """What `vllm bench forward --output-json` writes, for a law: 6 ms, 20 us a token, 0.04 us a cached token."""
    cases = []
    for batch in (1, 2, 4, 8, 16, 32):
        for width in (1, 2, 4):
            for cached in (256, 1024, 4096):
                seconds = 6e-3 + 2e-5 * batch * width + 4e-8 * batch * cached
                request = {"query_len": width, "kv_len": cached + width, "num_draft_tokens": width - 1}
                cases.append({"case": f"verify={batch}*{width}@{cached}", "requests": [request] * batch,
                              "median_us": seconds * 1e6, "ranks": []})  # fmt: skip
    for chunk in (256, 1024, 2048):
        request = {"query_len": chunk, "kv_len": chunk, "num_draft_tokens": 0}
        pairs = chunk * (chunk + 1) / 2
        cases.append({"case": f"prefill={chunk}", "requests": [request], "ranks": [],
                      "median_us": (6e-3 + 2e-5 * chunk + 1e-9 * pairs) * 1e6})  # fmt: skip
    return cases


@pytest.mark.parametrize("wrapped", [False, True])
def test_exact_batches_of_vllm_become_a_profile(tmp_path: Path, wrapped: bool) -> None:
    file, out = tmp_path / "forward.json", tmp_path / "p.json"
    cases = forward_cases()
    file.write_text(json.dumps({"results": cases} if wrapped else cases), encoding="utf-8")
    db = str(tmp_path / "x.db")
    run("profile", "import", str(file), "--target", "llama-3.1-8b", "--gpu", "h100-sxm", "--engine-version", "0.33.0",
        "-o", str(out), "--db", db)  # fmt: skip
    profile = LatencyProfile.from_dict(json.loads(out.read_text("utf-8")))
    assert profile.kind == "imported"
    assert profile.covers["engine"] == "vllm 0.33.0"
    assert profile.evidence is not None
    assert profile.evidence.holdout_points >= 10
    assert profile.evidence.holdout_median < 0.02
    assert profile.evidence.ranges["context_tokens"][1] == 4096 + 4
    assert profile.target.token_s == pytest.approx(2e-5, rel=0.15)
    assert profile.target.kv_token_s == pytest.approx(4e-8, rel=0.15)
    used = json.loads(
        run("crossover", "--profile", str(out), "--k", "3", "--acceptance-length", "2", "--json", "--concurrency", "8")
    )
    assert used["profile"]["on"]["kind"] == "imported"


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("[]", (), "expected a list of cases"),
        ('[{"median_us": 5}]', (), "case 1: has no requests"),
        ('[{"requests": [{"query_len": 1, "kv_len": 9}], "median_us": -1}]', (), "median_us must be a number > 0"),
        ('[{"requests": [{"query_len": 4, "kv_len": 2}], "median_us": 1}]', (), "kv_len counts the query's tokens"),
        ('[{"requests": [{"query": 4}], "median_us": 1}]', (), "needs query_len and kv_len"),
        ("[3]", (), "case 1: expected an object"),
        ("[]", ("--method", "eagle3"), "runs a model"),
    ],
)
def test_a_malformed_benchmark_is_refused_with_its_case(
    tmp_path: Path, content: str, flags: tuple[str, ...], message: str
) -> None:
    file = tmp_path / "forward.json"
    file.write_text(content, encoding="utf-8")
    arguments = ("--target", "llama-3.1-8b", "--gpu", "h100-sxm", "--db", str(tmp_path / "x.db"))
    assert message in run("profile", "import", str(file), *arguments, *flags, code=2)


def test_a_benchmark_needs_to_be_told_what_was_served(tmp_path: Path) -> None:
    file = tmp_path / "forward.json"
    file.write_text(json.dumps(forward_cases()), encoding="utf-8")
    assert "give --target" in run("profile", "import", str(file), "--db", str(tmp_path / "x.db"), code=2)


def test_an_unknown_name_is_refused_with_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("show", "export"):
        more = ("-o", str(tmp_path / "x.json")) if command == "export" else ()
        assert "none that ships and none that is stored" in run("profile", command, "nothing", *more, code=2)
