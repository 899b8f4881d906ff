"""The plan command end to end: same bytes, reuse, what is stored, what is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from plan_cli import QUICK, plan, write_log

from db.store import Store
from specsim.planner.points import Worker


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "log.csv")


@pytest.fixture(scope="module")
def done(log: Path) -> dict:
    """One plan, stored beside its log."""
    result = plan("--trace", log, *QUICK, "--db", log.parent / "done.db", "--json")
    assert result.exit_code == 0, result.stderr
    assert re.fullmatch(r"simulating \d+ points on 1 process\n", result.stderr), "one line, nothing else"
    return json.loads(result.stdout, parse_constant=lambda text: pytest.fail(f"{text} in JSON"))


def test_the_same_command_again_simulates_nothing_and_prints_the_same_bytes(
    log: Path, done: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "run", lambda worker, batch: pytest.fail(f"{batch} was simulated again"))
    first = plan("--trace", log, *QUICK, "--db", log.parent / "done.db", "--json").stdout
    second = plan("--trace", log, *QUICK, "--db", log.parent / "done.db", "--json").stdout
    assert first == second
    assert json.loads(first) == done


def test_the_number_of_processes_changes_no_byte(log: Path, done: dict) -> None:
    alone = plan("--trace", log, *QUICK, "--no-store", "--json")
    pair = plan("--trace", log, *QUICK[:-1], 2, "--no-store", "--json")
    assert alone.stdout == pair.stdout
    assert json.loads(alone.stdout) == {**done, "plan_id": None, "database": None}


def test_another_seed_is_another_plan_with_other_luck(log: Path, done: dict) -> None:
    other = json.loads(plan("--trace", log, *QUICK, "--seed", 7, "--no-store", "--json").stdout)
    row, same = (next(r for r in p["comparison"] if r["policy"] == "k=3") for p in (other, done))
    assert row["metrics"]["e2e_mean_s"]["mean"] != same["metrics"]["e2e_mean_s"]["mean"]
    off, off_same = (next(r for r in p["comparison"] if r["policy"] == "off") for p in (other, done))
    assert off["metrics"] == off_same["metrics"], "without speculation no luck is drawn"


def test_the_report_is_the_plan(log: Path, done: dict) -> None:
    database = log.parent / "done.db"
    assert json.loads(plan("latest", "--db", database, "--json", command="report").stdout) == done
    text = plan("--trace", log, *QUICK, "--db", database).stdout
    assert plan(done["plan_id"], "--db", database, command="report").stdout == text
    for title in ("Answer", "1. Trace", "2. Deployment", "3. Comparison", "4. Where", "5. Capacity", "6. If acceptance",
                  "7. Flags", "What would settle it", "Stored"):  # fmt: skip
        assert any(line.startswith(title) for line in text.splitlines()), title
    assert done["plan_id"] in text


def test_every_point_is_a_run_of_the_plan(log: Path, done: dict) -> None:
    with Store.open(log.parent / "done.db", mode="read") as store:
        item = store.get(done["plan_id"])
    points = len(done["loads"]["policies"]) * len(done["loads"]["simulated_per_s"]) + 2 + len(done["search"])
    assert len(item["run_ids"]) == 3 * points


def test_a_load_of_the_users_own_is_simulated(done: dict) -> None:
    assert done["loads"]["simulated_per_s"] == pytest.approx([4.0, 40.0])
    assert done["loads"]["own_per_s"] == pytest.approx(4.0)


def test_a_log_of_few_requests_is_repeated_and_says_so(tmp_path: Path) -> None:
    log = write_log(tmp_path / "tiny.csv", requests=10, output=4)
    result = json.loads(
        plan("--trace", log, "--replications", 2, "--k", 1, "--loads", 4, "--max-num-seqs", 16, "--jobs", 1,
             "--no-store", "--json").stdout
    )  # fmt: skip
    assert result["trace"]["rows_kept"] == 10
    assert result["trace"]["simulated_requests"] >= 400
    assert any("times over" in note for note in result["notes"])
    assert any(w.startswith("Only 10 requests") for w in result["warnings"])
    assert result["loads"]["own_per_s"] == pytest.approx(4.0), "repeating keeps the rate"


def test_requests_too_long_for_the_engine_are_counted(tmp_path: Path) -> None:
    log = write_log(tmp_path / "long.csv")
    log.write_text(log.read_text() + "10.1,5000,10\n10.2,6000,10\n")
    result = json.loads(plan("--trace", log, *QUICK[2:], "--max-requests", 42, "--max-model-len", 4096, "--no-store",
                             "--json").stdout)  # fmt: skip
    assert any(note.startswith("2 of 42 requests (5%) are longer than 4096 tokens") for note in result["notes"])
    assert any("were refused" in w for w in result["warnings"])
    own = [r for r in result["comparison"] if r["load_per_s"] == result["loads"]["own_per_s"]]
    assert all(r["metrics"]["rejected"]["mean"] == 2 for r in own)


def test_a_load_far_above_capacity_names_the_replicas(tmp_path: Path) -> None:
    log = write_log(tmp_path / "burst.csv", gap_s=0.001, output=60)
    result = json.loads(plan("--trace", log, *QUICK[2:6], "--max-requests", 40, "--max-num-seqs", 2, "--jobs", 1,
                             "--loads", 40, "--no-store", "--json").stdout)  # fmt: skip
    (warning,) = [w for w in result["warnings"] if "more than this fleet serves" in w]
    needed = int(re.search(r"--replicas (\d+)", warning)[1])  # type: ignore[index]
    assert needed >= result["loads"]["own_per_s"] / result["loads"]["capacity_off_per_s"] > needed - 1
    assert next(r for r in result["comparison"] if r["policy"] == "off" and r["load_per_s"] > 500)["saturated"]


def test_policies_that_are_asked_for_are_compared_and_stored_too(log: Path, done: dict, tmp_path: Path) -> None:
    scenario = tmp_path / "case.toml"
    scenario.write_text('policy = ["off_above:3:4", "static:3"]\n', encoding="utf-8")
    flags = ("--trace", log, *QUICK, "--scenario", scenario, "--policy", "schedule:1-4=3,5-64=1")
    more = json.loads(plan(*flags, "--no-store", "--json").stdout)
    own = done["loads"]["policies"]
    assert more["loads"]["policies"] == [*own, "k=3 to 4", "schedule 3/1@5"], "k=3 is there already"
    labels = {row["policy"] for row in more["comparison"]}
    assert labels == {*own, "k=3 to 4", "schedule 3/1@5"}
    same = [row for row in more["comparison"] if row["policy"] in own]
    assert same == done["comparison"], "further policies change nothing for the others"
    stored = json.loads(plan(*flags, "--db", tmp_path / "x.db", "--json").stdout)
    fewer = json.loads(plan(*flags[:-2], "--db", tmp_path / "x.db", "--json").stdout)
    assert stored["plan_id"] != fewer["plan_id"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--policy", "statik:3"), "policy 'statik:3': unknown kind (did you mean 'static'?)"),
        (("--policy", "static:3", "--policy", "static:3"), "--policy static:3 is given twice; leave one out"),
        (("--policy", "static:3", "--acceptance-length", "2", "--acceptance-length-k", "1"), None),
        (("--policy", "static:40"), "policy k=40: k 40 is more than the acceptance model"),
    ],
)
def test_a_wrong_policy_is_refused(log: Path, flags: tuple[str, ...], said: str | None) -> None:
    result = plan("--trace", log, *QUICK, *flags, "--no-store")
    assert result.exit_code == (0 if said is None else 2)
    assert said is None or said in result.stderr


def test_a_handful_of_requests_gets_no_recommendation_but_its_tables(tmp_path: Path) -> None:
    result = plan("--trace", write_log(tmp_path / "few.csv", requests=5), *QUICK, "--no-store")
    said = " ".join(result.stdout.partition("1. Trace")[0].split())
    assert "No recommendation: 5 requests are too few" in said
    assert "Confidence: unsure, because 5 requests are too few (" in said
    assert "requests/s" not in said, "no load that the tables then contradict"
    assert "3. Comparison over load" in result.stdout


def test_the_load_of_a_window_is_called_so(log: Path) -> None:
    said = " ".join(plan("--trace", log, "--window", "0:9", *QUICK, "--no-store").stdout.split())
    assert "the window's" in said
    assert "the trace's own" not in said
    assert "Whatever the objective, a full fleet completes" in said
