"""`specsim validate serve`, `list`, `show` and `delete` on a tiny model that is measured, served and predicted here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

sys.path.insert(0, str(Path(__file__).parent.parent / "calibrate_acceptance"))

from tiny_acceptance import save_model  # noqa: E402

from scenarios.published.served import read_served  # noqa: E402
from specsim.cli import cli  # noqa: E402

SMALL = ("--device", "cpu", "--threads", "1", "--clock", "cpu")
WORDS = " ".join(f"w{6 + (7 * n + n * n // 5) % 50}" for n in range(400))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Target, draft model, text, and profiles of two methods."""
    folder = tmp_path_factory.mktemp("validate")
    save_model(folder / "tiny-target")
    save_model(folder / "tiny-draft", noise=0.02)
    (folder / "notes.txt").write_text(WORDS, encoding="utf-8")
    done = specsim(
        "calibrate", "latency", "--target", str(folder / "tiny-target"), "--draft", str(folder / "tiny-draft"),
        "--method", "draft_model", "--method", "ngram", "--max-batch", "4", "--max-context", "48", "--max-chunk", "16",
        "--k-max", "2", "--budget", "1s", *SMALL, "-o", str(folder / "p.json"),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECSIM_DB", str(tmp_path / "kept.db"))


def specsim(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def serve(home: Path, *words: str, profile: str = "p-ngram.json") -> Result:
    """Words that say what a usual one says replace it."""
    usual: tuple[str, ...] = (
        "--isl", "12", "--osl", "8", "--requests", "7", "--concurrency", "5", "--repeats", "2", "--k", "2",
        "--acceptance-prompts", "4", *SMALL,
    )  # fmt: skip
    if "--forced-acceptance" in words:  # nothing is measured then
        usual = tuple(word for word in usual if word not in ("--acceptance-prompts", "4"))
    kept = [
        word for flag, value in zip(usual[::2], usual[1::2], strict=True) if flag not in words for word in (flag, value)
    ]
    target = ("--profile", str(home / profile), "--target", str(home / "tiny-target"))
    return specsim("validate", "serve", *target, *kept, *words)


def test_served_predicted_kept_listed_shown_and_deleted(home: Path) -> None:
    options = ("--draft-option", "min_tokens=1", "--draft-option", "max_tokens=3")
    done = serve(home, "--text", str(home / "notes.txt"), *options, "--append-to", "rows.jsonl", "--json")
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    arms = {row["policy"] for row in result["rows"]}
    assert {"off", "k=2"} <= arms
    assert result["runs"] == result["runs_asked"] == 2 * len(arms)
    for row in result["rows"]:
        throughput = row["figures"]["output_tokens_per_s"]
        assert throughput["measured"] > 0
        assert throughput["error"] == pytest.approx(throughput["predicted"] / throughput["measured"] - 1)
        assert row["repeats"] == 2
    assert result["replay"]["unmatched_steps"] == 0
    assert "other parts of the text" in " ".join(result["checks"])
    (kept,) = read_served(Path("rows.jsonl"))
    assert kept["validation_id"] == result["validation_id"]
    listed = json.loads(specsim("validate", "list", "--json").stdout)["validations"]
    assert [(row["id"], row["kind"], row["subject"]) for row in listed] == [
        (result["validation_id"], "serve", result["subject"])
    ]
    assert result["validation_id"] in specsim("validate", "list").stdout
    assert json.loads(specsim("validate", "show", "latest", "--json").stdout) == result
    shown = specsim("validate", "show", result["validation_id"][:8]).stdout
    assert f"Served for real: {result['subject']}" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert specsim("validate", "delete", "latest").exit_code == 0
    assert "no validation is stored" in specsim("validate", "list").stdout
    gone = specsim("validate", "show", "latest")
    assert (gone.exit_code, gone.stdout) == (2, "")
    assert "no validation 'latest'" in gone.stderr


def test_a_draft_model_is_served_and_dry_runs_serve_nothing(home: Path) -> None:
    draft = ("--draft", str(home / "tiny-draft"), "--policy", "off", "--policy", "static:2", "--repeats", "1")
    planned = serve(home, *draft, "--dry-run", profile="p-draft_model.json")
    assert planned.exit_code == 0, planned.output
    assert "2 runs (1 loads x 2 arms x 1 repeats)" in planned.stderr
    assert planned.stdout == ""
    assert not Path("kept.db").exists()
    done = serve(home, *draft, "--no-store", "--json", profile="p-draft_model.json")
    assert done.exit_code == 0, done.output
    on = next(row for row in json.loads(done.stdout)["rows"] if row["policy"] == "k=2")
    assert on["figures"]["mean_acceptance_length"]["measured"] > 1
    assert not Path("kept.db").exists()


def test_heads_are_served_and_what_verifies_trees_is_refused(home: Path, tmp_path: Path) -> None:
    from tiny_heads import save_eagle3, save_medusa

    from calibrate.models import load_model

    target = load_model(home / "tiny-target", dtype=torch.float64)
    texts = [[(7 * n + i * i) % 61 for i in range(30)] for n in range(4)]
    save_eagle3(tmp_path / "head", target, texts, speculators_form=False)
    save_medusa(tmp_path / "medusa", target, texts, project_form=True)
    measured = json.loads((home / "p-draft_model.json").read_text("utf-8"))
    del measured["covers"]["draft"]
    at_once = {"draft_mode": "heads", "draft_catches_up": False, "at_zero_drafts": "skipped", "draft_rows_fixed": 0}
    for method, changes, covers in (
        ("eagle3", {}, {}), ("eagle2", {}, {}), ("medusa", at_once, {"draft_heads": "3"})
    ):  # fmt: skip
        changed = measured | changes | {"covers": measured["covers"] | covers | {"method": method}}
        Path(f"{method}.json").write_text(json.dumps(changed), encoding="utf-8")
    flags = ("--policy", "static:2", "--repeats", "1", "--no-store", "--json")
    for method, head in (("eagle3", "head"), ("medusa", "medusa")):
        done = serve(home, "--draft", head, *flags, profile=str(tmp_path / f"{method}.json"))
        assert done.exit_code == 0, done.output
        (row,) = json.loads(done.stdout)["rows"]
        assert row["figures"]["mean_acceptance_length"]["measured"] >= 1, "None where nothing is drafted"
        assert row["figures"]["mean_acceptance_length"]["measured"] <= 3, "a chain of 2 drafts"
    more = serve(home, "--draft", "medusa", *flags, "--k", "4", profile=str(tmp_path / "medusa.json"))
    assert more.exit_code == 2
    assert "num_spec_tokens 4 is more than the 3 heads that are loaded" in more.stderr
    five = json.loads(Path("medusa.json").read_text("utf-8"))
    five["covers"]["draft_heads"] = "5"
    Path("five.json").write_text(json.dumps(five), encoding="utf-8")
    fewer = serve(home, "--draft", "medusa", *flags, profile=str(tmp_path / "five.json"))
    assert fewer.exit_code == 2
    assert "medusa: has 3 heads, and the profile was measured with 5; give the folder" in fewer.stderr
    refused = serve(home, "--draft", "head", *flags, profile=str(tmp_path / "eagle2.json"))
    assert refused.exit_code == 2
    assert "of method eagle2, and the reference engine serves ngram" in refused.stderr.replace("draft_model, ", "")
    lacking = serve(home, "--draft", "nowhere", profile=str(tmp_path / "eagle3.json"))
    assert "--draft nowhere: no such folder; eagle3 needs the folder of an EAGLE-3 head" in lacking.stderr


def test_a_profile_of_a_model_that_the_catalogue_lacks_is_for_its_config(home: Path) -> None:
    words = ("--profile", str(home / "p-ngram.json"), "--k", "2", "--acceptance-length", "1.5", "--isl", "20",
             "--osl", "9", "--concurrency", "1,4")  # fmt: skip
    done = specsim("crossover", "--target", str(home / "tiny-target"), *words)
    assert done.exit_code == 0, done.output
    other = specsim("crossover", "--target", str(home / "tiny-draft"), *words)
    assert other.exit_code == 2
    assert "the profile was measured for 'tiny-target'" in other.stderr


def test_forced_acceptance_gives_real_and_predicted_runs_the_same_rounds(home: Path) -> None:
    draft = ("--draft", str(home / "tiny-draft"), "--policy", "off", "--policy", "static:2", "--no-store", "--json")
    done = serve(home, *draft, "--forced-acceptance", "0.8,0.5", profile="p-draft_model.json")
    assert done.exit_code == 0, done.output
    assert "measuring acceptance" not in done.stderr
    result = json.loads(done.stdout)
    on = next(row for row in result["rows"] if row["policy"] == "k=2")
    for name in ("mean_acceptance_length", "tokens_per_round"):
        assert on["figures"][name]["error"] == pytest.approx(0)
        assert on["figures"][name]["luck"] == on["figures"][name]["noise"] == 0
    assert on["figures"]["mean_acceptance_length"]["measured"] > 1.2
    assert "Acceptance was forced, 2.20 tokens a round at k = 2" in " ".join(result["checks"])
    ended = serve(home, *draft, "--forced-acceptance", "0.8", "--budget", "1s", "--repeats", "90",
                  profile="p-draft_model.json")  # fmt: skip
    assert ended.exit_code == 0, ended.output
    partial = json.loads(ended.stdout)
    assert partial["status"] == "partial"
    assert 1 <= partial["runs"] < partial["runs_asked"] == 180


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--forced-acceptance", "0.8,0.5,0.1"), "must be one share in 0..1, or 2 of them"),
        (("--forced-acceptance", "1.2"), "must be one share in 0..1"),
        (("--forced-acceptance", "x"), "must be finite numbers separated by commas"),
        (("--forced-acceptance", "0.5", "--acceptance-file", "x"), "give one of them"),
        (("--forced-acceptance", "0.5", "--acceptance-prompts", "48"), "--acceptance-prompts is of measured"),
        (("--forced-acceptance", "0.5", "--acceptance-drafter", "x"), "--acceptance-drafter is of measured"),
        (("--forced-acceptance", "0.5", "--policy", "off"), "does nothing where nothing is drafted (--policy off)"),
        (("--budget", "soon"), "--budget 'soon' must be a time such as 90s"),
        (("--concurrency", "4"), "has seen batches of so many requests"),
        (
            ("--draft", "x"),
            "--draft is for draft_model, medusa, eagle, eagle2, eagle3, mtp, and the profile is of method ngram",
        ),
        (("--draft-option", "min_tokens=x"), "must be NAME=N with a number"),
        (("--draft-option", "depth=3"), "ngram has no option 'depth'"),
        (("--text", "nowhere.txt"), "--text nowhere.txt: cannot be read: No such file or directory"),
        (("--acceptance-file", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--poisson",), "--poisson draws the arrivals of --rate, which is missing"),
        (("--append-to", "a.txt"), "must end in .jsonl"),
        (("--device", "cuda:7"), "cuda:7"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(home: Path, flags: tuple[str, ...], said: str) -> None:
    done = serve(home, *flags)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr.splitlines()[-1]
    assert not Path("kept.db").exists()


def test_another_target_than_that_of_the_profile_is_refused(home: Path) -> None:
    flags = ("--isl", "12", "--osl", "8", "--concurrency", "5", *SMALL)
    done = specsim("validate", "serve", "--profile", str(home / "p-ngram.json"), "--target", str(home / "tiny-draft"),
                   *flags)  # fmt: skip
    assert done.exit_code == 2
    assert "is tiny-draft, and the profile was measured for tiny-target" in done.stderr
