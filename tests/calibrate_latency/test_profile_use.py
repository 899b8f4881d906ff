"""A measured profile in plan, crossover and simulate: it must fit the question, and its range is not left silently."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from calibrate.fit.assemble import fit_profile
from calibrate.latency.grid import Grid
from specsim.cli import cli
from specsim.errors import ProfileError
from specsim.evidence import Evidence, outside
from specsim.profiles import LatencyProfile
from tests.calibrate_latency.machines import make_points, make_setup, measured, true_profile

GRID = Grid(requests=8, width=4, context_tokens=512, chunk_tokens=256)


@pytest.fixture(scope="module")
def profile() -> LatencyProfile:
    """A profile of SmolLM2-135M on a device that no catalogue lists, with n-gram."""
    points = measured(make_points(GRID), true_profile())
    fitted = fit_profile(make_setup(), points, method="ngram", name="a measured profile").profile
    assert fitted.evidence is not None
    ceilings = {"memory_bytes": 8e9, "copy_bytes_per_s": 2e10, "matrix_flops_per_s": 1e11}
    return replace(fitted, evidence=replace(fitted.evidence, ceilings=ceilings))


@pytest.fixture
def file(profile: LatencyProfile, tmp_path: Path) -> str:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(profile.to_dict()), encoding="utf-8")
    return str(path)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, result.output
    return result.output if code else result.stdout


CROSSOVER = ("--k", "3", "--acceptance-length", "1.8", "--isl", "100", "--osl", "40", "--seeds", "3", "--json")


def test_crossover_takes_everything_from_the_profile(file: str, profile: LatencyProfile) -> None:
    result = json.loads(run("crossover", "--profile", file, *CROSSOVER, "--concurrency", "1,4"))
    assert result["profile"]["on"]["kind"] == "measured"
    assert result["profile"]["on"]["sha256"] == profile.sha256
    assert result["deployment"]["target"] == "smollm2-135m"
    assert result["speculation"]["method"] == "ngram"
    assert result["assumed"] == []
    assert not any("extrapolated" in warning for warning in result["warnings"])
    alone = result["points"][0]
    assert alone["tpot_off_ms"] == pytest.approx(40, rel=0.25), "30 ms of weights, 7 ms of head, 2 ms a token"


def test_what_lies_beyond_the_measured_range_is_said(file: str) -> None:
    result = json.loads(run("crossover", "--profile", file, *CROSSOVER, "--concurrency", "32"))
    (warning,) = [w for w in result["warnings"] if "extrapolated" in w]
    assert "requests in a step up to 32, measured up to 8" in warning
    assert "extrapolated" in run("crossover", "--profile", file, *CROSSOVER[:-1], "--concurrency", "32")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--target", "qwen3-8b"), "deployment.target 'qwen3-8b': the profile was measured for 'smollm2-135m'"),
        (("--method", "suffix"), "speculation.method 'suffix': the profile was measured for 'ngram'"),
        (("--gpu", "h100-sxm"), "the profile was measured on 'a machine of known law'"),
        (("--tp", "2"), "deployment.tp '2'"),
        (("--dtype", "bf16"), "deployment.weight_dtype 'bf16'"),
        (("--max-captured", "64"), "deployment.max_captured is part of what was measured"),
    ],
)
def test_a_question_that_was_not_measured_is_refused(file: str, flags: tuple[str, ...], message: str) -> None:
    assert message in run("crossover", "--profile", file, *flags, *CROSSOVER, code=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nothing", "not JSON"),
        ("{}", "profile_version is None"),
        ('{"profile_version": 1, "nam": "x"}', "unknown key 'nam'"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content, encoding="utf-8")
    assert message in run("crossover", "--profile", str(path), *CROSSOVER, code=2)
    assert "no such file, none that ships" in run("crossover", "--profile", "./none.json", *CROSSOVER, code=2)


@pytest.mark.parametrize("command", [("crossover", *CROSSOVER), ("profile", "show")])
def test_a_profile_of_another_version_cut_off_or_not_finite_is_refused_with_its_file(
    file: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "bad.json"
    good = json.loads(Path(file).read_text("utf-8"))
    bad = {
        "profile_version is 2, this specsim reads 1": json.dumps(good | {"profile_version": 2}),
        "not JSON": json.dumps(good)[:900],
        "profile term.weights_s must be a finite number": json.dumps(
            good | {"target": good["target"] | {"weights_s": float("nan")}}
        ),
        "profile.host_s must be a finite number": json.dumps(good | {"host_s": float("inf")}),
        "evidence.holdout_median must be": json.dumps(
            good | {"evidence": (good["evidence"] or {"points": 1}) | {"holdout_median": float("nan")}}
        ),
        "key 'target' is missing": json.dumps({name: value for name, value in good.items() if name != "target"}),
    }
    for said, content in bad.items():
        path.write_text(content, encoding="utf-8")
        where = (*command, str(path)) if command[0] == "profile" else (*command, "--profile", str(path))
        done = CliRunner().invoke(cli, where)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"Error: {path}: "), done.stderr
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def scenario(folder: Path, **deployment: str) -> Path:
    lines = ["[workload]", "rate_per_s = 1.0", "duration = '30s'", "isl = '60'", "osl = '20'", "[deployment]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in deployment.items()]
    lines += ["[speculation]", "method = 'ngram'", "num_spec_tokens = [3]", "acceptance = [0.5]"]
    path = folder / "s.toml"
    path.write_text("\n".join(lines).replace("[0.5]", "[0.5, 0.5, 0.5]") + "\n", encoding="utf-8")
    return path


def test_a_scenario_names_a_profile_beside_it(file: str, tmp_path: Path, profile: LatencyProfile) -> None:
    path = scenario(tmp_path, target="smollm2-135m", gpu="a machine of known law", weight_dtype="fp32", kv_dtype="fp32",
                    profile="mine.json")  # fmt: skip
    result = json.loads(run("simulate", str(path), "--no-store", "--json"))
    assert result["profile"]["sha256"] == profile.sha256
    off = json.loads(run("simulate", str(path), "--no-store", "--json", "--policy", "off"))
    assert off["profile"]["name"].endswith(", off")
    assert off["metrics"]["tpot_mean_s"] > result["metrics"]["tpot_mean_s"] * 0.5
    by_flag = scenario(tmp_path / ".", target="smollm2-135m", gpu="a machine of known law")
    again = json.loads(run("simulate", str(by_flag), "--no-store", "--json", "--profile", file))
    assert again["metrics"] == result["metrics"]


def test_plan_uses_it_and_stores_it(file: str, tmp_path: Path, profile: LatencyProfile) -> None:
    path = scenario(tmp_path, target="smollm2-135m", gpu="a machine of known law")
    db = str(tmp_path / "x.db")
    result = json.loads(
        run("plan", "--scenario", str(path), "--profile", file, "--json", "--db", db, "--replications", "2", "--loads",
            "0.5,3", "--max-requests", "40", "--jobs", "1")
    )  # fmt: skip
    assert result["profile"]["kind"] == "measured"
    assert result["profile"]["sha256"] == profile.sha256
    assert any("extrapolated" in warning for warning in result["warnings"]), "4 requests a second queue up beyond 8"
    listed = json.loads(run("profile", "list", "--db", db, "--json"))["profiles"]
    assert profile.sha256 in {row["sha256"] for row in listed}
    assert run("profile", "show", profile.sha256[:10], "--db", db).startswith("Latency profile: a measured profile")


def test_a_profile_of_a_catalogue_gpu_by_any_spelling(profile: LatencyProfile, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    on_gpu = replace(profile, covers={**profile.covers, "gpu": "h100-sxm"})
    path.write_text(json.dumps(on_gpu.to_dict()), encoding="utf-8")
    for flags in ((), ("--gpu", "H100 SXM")):
        result = json.loads(run("crossover", "--profile", str(path), *flags, *CROSSOVER, "--concurrency", "2"))
        assert result["deployment"]["names"]["gpu"] == "H100 SXM"


def test_old_profiles_are_read(profile: LatencyProfile) -> None:
    """What came later has a default that changes nothing."""
    data = profile.to_dict()
    later = ("evidence", "speculation_request_s")
    terms = ("request_s", "sample_row_s", "size_factors", "head_factors", "attention_knee")
    old = {name: value for name, value in data.items() if name not in later}
    old["target"] = {name: value for name, value in data["target"].items() if name not in terms}
    read = LatencyProfile.from_dict(old)
    assert read.evidence is None
    assert read.target.size_factors == ()
    assert read.target.weights_s == profile.target.weights_s


def test_a_profile_is_read_back_as_it_was(profile: LatencyProfile) -> None:
    again = LatencyProfile.from_dict(json.loads(json.dumps(profile.to_dict())))
    assert again == profile
    assert again.sha256 == profile.sha256


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": -1}, "points must be finite and >= 0"),
        ({"ranges": {"batch": [1, 2]}}, "unknown quantity 'batch'"),
        ({"ranges": {"width": [3, 2]}}, "width runs from 3.0 to 2.0"),
        ({"ranges": {"width": 3}}, "ranges must hold two numbers each"),
        ({"holdout": 1}, "unknown key 'holdout'"),
        *(({"flagged": bad}, "evidence: flagged must be an array, got") for bad in (None, 3, True, "x")),
        *(
            ({name: {"width": [bad, 10**18]}}, f"{name} must hold two numbers each, got .* for width")
            for name in ("ranges", "intervals", "references")
            for bad in (10**399, "1", True, None)
        ),
        ({"ranges": {"width": "12"}}, "ranges must hold two numbers each"),
        ({"intervals": 5}, "intervals must hold two numbers each, got 5"),
    ],
)
def test_evidence_that_makes_no_sense_is_refused(
    profile: LatencyProfile, change: dict[str, object], message: str
) -> None:
    data = profile.to_dict()
    data["evidence"] = {**data["evidence"], **change}
    with pytest.raises(ProfileError, match=message):
        LatencyProfile.from_dict(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({name: bad}, f"profile: {name} must be an array, got")
          for name in ("notes", "captured_requests") for bad in (None, 3, True, "x")),
        ({"profile_version": True}, "profile_version is True"),
        ({"relative_error": 1e9}, "relative_error must be at most 10, got 1000000000.0"),
    ],
)  # fmt: skip
def test_fields_of_another_kind_are_refused(profile: LatencyProfile, change: dict[str, object], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        LatencyProfile.from_dict(profile.to_dict() | change)


def test_a_range_is_left_upwards_only() -> None:
    evidence = Evidence(points=1, ranges={"requests": (2, 8), "width": (1, 4)})
    assert outside(evidence, requests=8, width=4, context_tokens=10**6) == ()
    assert outside(evidence, requests=1) == ()
    assert "requests in a step up to 9" in outside(evidence, requests=9)[0]
    assert outside(None, requests=10**9) == ()
