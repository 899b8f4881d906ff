"""`specsim profile transfer`, and profiles of the database by name: what is written, shown, found and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from db.store import Store
from scenarios.resolve import STAND_IN, resolve
from specsim.cli import cli
from specsim.config import Slo
from specsim.evidence import Evidence
from specsim.profiles import LatencyProfile

CROSSOVER = ("--k", "3", "--acceptance-length", "1.8", "--isl", "100", "--osl", "40", "--seeds", "3",
             "--concurrency", "1", "--json")  # fmt: skip


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    if code:
        assert len(result.stderr.strip().splitlines()) == 1
    return result.output if code else result.stdout


@pytest.fixture
def profile() -> LatencyProfile:
    found = resolve(*STAND_IN, Slo()).on.profile
    evidence = Evidence(60, ranges={"requests": (1.0, 128.0)}, intervals={"target.weights_s": (3e-3, 5e-3)})
    return replace(found, name="of the lab", kind="measured", relative_error=0.03, evidence=evidence, notes=())


@pytest.fixture
def file(profile: LatencyProfile, tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(profile.to_dict()), encoding="utf-8")
    return path


@pytest.mark.parametrize("key", ["tp", "draft_tp", "draft_layers", "draft_heads"])
@pytest.mark.parametrize("text", ["x", "", "²", "1e3", "0", "9" * 40])
def test_what_the_profile_covers_must_be_a_number(file: Path, key: str, text: str) -> None:
    data = json.loads(file.read_text("utf-8"))
    data["covers"][key] = text
    file.write_text(json.dumps(data), encoding="utf-8")
    refused = run("profile", "transfer", file, "--to", "h200-sxm", code=2)
    assert f"covers.{key} must be a whole number in 1..99999, is '{text}'" in refused


def test_it_is_written_shown_compared_and_used(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "there.json"
    shown = run("profile", "transfer", file, "--to", "h200-sxm", "-o", out)
    assert "transferred, a step is good to" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert run("profile", "show", out) == shown
    assert "Of the measurement on H100 SXM" in shown
    compared = run("profile", "compare", file, out)
    assert "measured_on" in compared
    weights = next(line.split() for line in compared.splitlines() if "weights_s" in line)
    assert float(weights[-1]) == pytest.approx(3350 / 4800, abs=0.01)
    used = json.loads(run("crossover", "--profile", out, *CROSSOVER))
    assert used["profile"]["on"]["kind"] == "transferred"
    assert used["deployment"]["gpu"] == "H200 SXM"


def test_heads_that_run_at_once_are_carried_and_used_as_many_as_they_were(file: Path, tmp_path: Path) -> None:
    deployment, speculation = STAND_IN
    asked = replace(speculation, method="medusa", options={"heads": 7})
    heads = resolve(deployment, asked, Slo()).on.profile
    covers = {**heads.covers, "draft": "7 heads of the lab", "draft_heads": "7"}
    own = replace(heads, kind="measured", relative_error=0.03, covers=covers, evidence=Evidence(60))
    file.write_text(json.dumps(own.to_dict()), encoding="utf-8")
    out = tmp_path / "there.json"
    run("profile", "transfer", file, "--to", "h200-sxm", "-o", out)
    carried = json.loads(out.read_text("utf-8"))
    assert (carried["draft_mode"], carried["covers"]["draft_heads"]) == ("heads", "7")
    for profile in (file, out):
        used = json.loads(run("crossover", "--profile", profile, "--topk", "1", "--k", "7", *CROSSOVER[2:]))
        assert used["speculation"]["options"] == {"heads": 7}, "so that k may be 7"


def test_what_makes_no_sense_is_refused(file: Path, tmp_path: Path) -> None:
    analytic = tmp_path / "analytic.json"
    analytic.write_text(json.dumps(resolve(*STAND_IN, Slo()).on.profile.to_dict()), encoding="utf-8")
    for arguments, words in (
        ((file, "--to", "h100"), "is of that already"),
        ((file, "--to", "h1oo"), "not in the catalogue"),
        ((file, "--tp", "3"), "cannot split"),
        ((file, "--to", "h200", "--force"), "--force is for -o"),
        ((file, "--to", "h200", "-o", file), "the file exists"),
        ((file, "--to", "h200", "--dtype", "fp7"), "fp7"),
        ((analytic, "--to", "h200"), "is analytic"),
        (("smollm2-135m-cpu-ngram", "--to", "h200"), "the catalogue does not list"),
        (("smollm2-135m-cpu-ngram",), "the catalogue does not list: it cannot be carried"),
        (("smollm2-135m-cpu-ngram", "--tp", "2"), "with --to GPU"),
        ((file,), "say what is to change with --to, --tp or --dtype"),
    ):
        assert words in run("profile", "transfer", *arguments, code=2)
    assert "specsim profile transfer" in run("crossover", "--profile", file, "--gpu", "h200", *CROSSOVER, code=2)


def test_a_stored_profile_goes_by_its_name_or_hash(
    file: Path, profile: LatencyProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSIM_DB", str(tmp_path / "x.db"))
    missing = run("crossover", "--profile", "of the lab", *CROSSOVER, code=2)
    assert "stored are none" in missing
    assert "smollm2-135m-cpu-ngram" in missing
    run("profile", "import", file)
    by_file = json.loads(run("crossover", "--profile", file, *CROSSOVER))
    for name in ("of the lab", profile.sha256[:8]):
        assert json.loads(run("crossover", "--profile", name, *CROSSOVER))["points"] == by_file["points"]
    assert "of the lab (" in run("crossover", "--profile", "of the la", *CROSSOVER, code=2)
    log = tmp_path / "log.csv"
    log.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(f"{i},50,9" for i in range(20)))
    planned = ("plan", "--trace", log, "--profile", "of the lab", "--k", "3", "--loads", "2", "--jobs", "1")
    assert "not read (--no-store)" in run(*planned, "--no-store", code=2)
    plan = json.loads(run(*planned, "--json"))
    assert plan["profile"]["sha256"] == profile.sha256
    assert "--speculative-config" in run("config", "latest", "--policy", "k=3"), "its flags need no file"
    with Store.open(str(tmp_path / "x.db")) as store:
        twin = replace(profile, relative_error=0.04)
        store.save_profile(twin.sha256, name=twin.name, kind=twin.kind, body=twin.to_dict())
    assert "fits 2 stored ones" in run("crossover", "--profile", "of the lab", *CROSSOVER, code=2)
