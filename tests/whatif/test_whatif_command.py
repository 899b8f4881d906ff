"""`specsim whatif` as users call it: JSON against its page, the store, prices, refusals, and stopping."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_cli import leaves, plan, plan_process, write_log

from scenarios.resolve import resolve
from specsim.config import Deployment, Slo, Speculation

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "whatif-json.md"
PLAN_PAGE = PAGE.with_name("plan-json.md")
QUICK = ["--k", "1,3", "--jobs", "1", "--policies", "off,static"]


def whatif(*arguments: object) -> Any:
    return plan(*arguments, command="whatif")


ALL_POLICIES = QUICK[:4]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log.csv")


def documented(page: Path) -> list[str]:
    return [line.split("`")[1] for line in page.read_text().splitlines() if line.startswith("| `")]


def test_every_key_is_documented_and_every_documented_key_is_printed(log: Path, tmp_path: Path) -> None:
    slow = write_log(tmp_path / "slow.csv", gap_s=0.05, output=40)
    tasked = tmp_path / "tasked.csv"
    tasked.write_text(
        "arrival_s,prompt_tokens,output_tokens,task\n"
        + "\n".join(f"{i},50,9,{'chat' if i % 2 else 'sum'}" for i in range(60))
    )
    own = ("--purchase", "h100=30000", "--years", 3, "--pue", 1.3, "--usd-per-kwh", 0.1)
    results = [
        whatif("--trace", slow, "--gpu", "l40s,l4,h100", "--tp", "1", "--tpot", "25", "--ttft", "300", "--growth", "2",
               *own, *QUICK, "--no-store", "--json"),
        whatif("--trace", log, "--gpu", "l4,h100", "--target", "llama-3.1-70b", "--tp", "1,4", *QUICK, "--no-store",
               "--json"),
        whatif("--trace", slow, "--gpu", "l40s,h100", "--tpot", "20", "--price", "l40s=1.5", "--price", "h100=2",
               *QUICK, "--no-store", "--json"),
        whatif("--trace", tasked, "--gpu", "h100", "--pool", "a=chat:any", "--pool", "b=*:off", *QUICK, "--no-store",
               "--json"),
    ]  # fmt: skip
    printed = set()
    for result in results:
        assert result.exit_code == 0, result.stderr
        for path in leaves(json.loads(result.stdout)):
            path = path.replace(".proof.below.", ".proof.at.")
            path = re.sub(r"\.(spare|beyond\.growth\[\])\.cost\.", ".cost.", path)
            printed.add(path)
    rows = documented(PAGE)
    assert len(rows) == len(set(rows))
    patterns = {row: re.compile(re.escape(row).replace(r"\*", r".+") + r"\Z") for row in rows}
    lists = {path + "[]" for path in printed}
    empty = {p for p in printed for row in rows if row.startswith((p + "[].", p + "."))}  # lists and objects without
    missing = printed - empty
    assert sorted(p for p in missing if not any(x.match(p) or x.match(p + "[]") for x in patterns.values())) == []
    assert sorted(row for row, x in patterns.items() if not any(x.match(p) for p in printed | lists)) == []
    shared = {p for p in printed if p.startswith(("trace.", "speculation."))}
    known = [re.compile(re.escape(row).replace(r"\*", r"[^.]+") + r"\Z") for row in documented(PLAN_PAGE)]
    names = {p if p.startswith("trace.") else f"deployment.{p}" for p in shared}
    assert sorted(p for p in names if not any(x.match(p) for x in known)) == []


def test_it_is_stored_listed_and_printed_again_from_what_was_simulated(log: Path, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    call = ("--trace", log, "--gpu", "l40s,h100", "--tpot", "25", *QUICK, "--db", db)
    first = whatif(*call)
    assert first.exit_code == 0, first.stderr
    assert max(map(len, first.stdout.splitlines())) <= 100
    stored = json.loads(plan("latest", "--json", "--db", db, command="report").stdout)
    ids = {run for row in stored["options"] for run in row["proof"]["at"]["runs"]}
    assert plan("latest", "--db", db, command="report").stdout == first.stdout
    assert "what-if" in plan("list", "--db", db, command="runs").stdout
    shown = plan("show", "latest", "--json", "--db", db, command="runs").stdout
    assert ids <= set(json.loads(shown)["plan"]["run_ids"]), "the proofs are among the stored runs"
    assert whatif(*call).stdout == first.stdout
    other = whatif(*call, "--price", "h100=1.25", "--json")
    assert json.loads(other.stdout)["plan_id"] != stored["plan_id"]
    assert len(
        json.loads(plan("show", "latest", "--json", "--db", db, command="runs").stdout)["plan"]["run_ids"]
    ) == len(json.loads(shown)["plan"]["run_ids"])
    for command, words in (
        (("config", "latest"), "is a what-if"),
        (("runs", "compare", "latest", "latest"), "is a what-if"),
    ):
        refused = plan(*command[1:], "--db", db, command=command[0])
        assert refused.exit_code in (1, 2)
        assert words in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1


def test_prices_are_never_silent(log: Path, tmp_path: Path) -> None:
    base = ("--trace", log, "--gpu", "h100,b300", "--policies", "off", "--jobs", "1", "--no-store", "--json")
    table = tmp_path / "mine.toml"
    table.write_text(
        'schema_version = 1\n[sources]\nQ = { text = "our quote", date = "2026-05-04" }\n'
        '[[price]]\ngpu = "B300"\nusd_per_gpu_h = 3\nprovider = "us"\nsource = "Q"\n'
    )
    by_default = {p["gpu"]: p for p in json.loads(whatif(*base).stdout)["prices"]}
    assert {p["provider"] for p in by_default.values()} == {"own hardware, hyperscaler"}, "whoever has them all"
    assert all(p["date"] and p["source"] for p in by_default.values())
    mine = json.loads(whatif(*base, "--prices", table).stdout)
    assert [p["usd_per_gpu_h"] for p in mine["prices"]] == [None, 3]
    assert any("No price is known for H100 SXM" in note for note in mine["notes"])
    assert mine["options"][0]["cost"]["usd_per_h"] is None
    flag = json.loads(whatif(*base, "--prices", table, "--price", "h100-sxm=2.5").stdout)
    assert (flag["prices"][0]["usd_per_gpu_h"], flag["prices"][0]["provider"]) == (2.5, "given")


def test_what_does_not_fit_is_listed_with_the_numbers(log: Path) -> None:
    result = whatif("--trace", log, "--gpu", "h100", "--target", "llama-3.1-70b", "--tp", "1,4", *QUICK, "--no-store")
    assert result.exit_code == 0, result.stderr
    lines = " ".join(result.stdout.split())
    assert "does not fit H100 SXM with tp 1" in lines
    assert "GB" in lines[lines.index("does not fit") :]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--gpu", "h100,h100-sxm"], "one GPU twice"),
        (["--gpu", "h100,"], "--gpu"),
        (["--gpu", "h1oo"], "not in the catalogue"),
        (["--gpu", "h100", "--tp", "0"], "--tp"),
        (["--gpu", "h100", "--tp", "2,2"], "--tp"),
        (["--gpu", "h100", "--replicas", "3"], "--replicas"),
        (["--gpu", "h100", "--dtype", "fp8,fp8"], "--dtype"),
        (["--gpu", "h100", "--growth", "0.5"], "--growth"),
        (["--gpu", "h100", "--growth", "2,x"], "--growth"),
        (
            ["--gpu", "h100", "--growth", "2", "--pool", "a=chat:any", "--pool", "b=*:off"],
            "--growth is of one fleet for all",
        ),
        (["--gpu", "h100", "--policies", "of"], "--policies"),
        (["--gpu", "h100", "--busiest", "x"], "Error: --busiest 'x' is not a duration"),
        (["--gpu", "h100", "--price", "h100"], "--price"),
        (["--gpu", "h100", "--price", "h200=3"], "not among --gpu"),
        (["--gpu", "h100", "--price", "h100=1", "--price", "h100-sxm=2"], "twice"),
        (["--gpu", "h100", "--provider", "nobody"], "--provider"),
        (["--gpu", "h100", "--prices", "none.toml"], "--prices"),
        (["--gpu", "h100", "--purchase", "h100=30000"], "--years"),
        (["--gpu", "h100", "--years", "3"], "--purchase"),
        (["--gpu", "h100", "--purchase", "h100=3", "--years", "0", "--pue", "1", "--usd-per-kwh", "1"], "--years"),
        (["--gpu", "h100", "--ttft", "none", "--tpot", "none"], "objective"),
        (["--gpu", "h100", "--peak", "1s"], "too few"),
        (["--gpu", "l4", "--target", "llama-3.1-70b"], "does not fit"),
    ],
)
def test_bad_input_is_one_line_with_exit_code_2(flags: list[str], words: str, log: Path) -> None:
    result = whatif("--trace", log, *flags, *QUICK, "--no-store")
    assert result.exit_code == 2, result.stderr
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("policies", "said", "never"),
    [
        ("static", "Without speculation was not tried", "Without speculation no option holds"),
        ("off", "With speculation was not tried", "With speculation no option holds"),
    ],
)
def test_what_was_not_tried_is_not_called_impossible(policies: str, said: str, never: str, log: Path) -> None:
    result = whatif("--trace", log, "--gpu", "h100", "--policies", policies, *ALL_POLICIES, "--no-store")
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert said in text
    assert never not in text


def test_nothing_holds_further_than_it_keeps_up(tmp_path: Path) -> None:
    """Over a short window a loose objective is met while a queue grows."""
    log = write_log(tmp_path / "log.csv")
    loose = ("--ttft", "none", "--tpot", "2000", "--policies", "off,static")
    result = whatif("--trace", log, "--gpu", "l40s", *loose, *ALL_POLICIES, "--no-store", "--json")
    rows = [row["beyond"] for row in json.loads(result.stdout)["options"] if row["beyond"] is not None]
    assert any(row["holds_to"] == row["keeps_up_to"] and row["falls_behind_at"] is not None for row in rows)
    assert all(row["holds_to"] <= row["keeps_up_to"] for row in rows)


def test_the_end_of_a_request_can_be_the_only_objective(log: Path) -> None:
    result = json.loads(whatif("--trace", log, "--gpu", "l40s", "--e2e", "2000", *QUICK, "--no-store", "--json").stdout)
    assert result["slo"] == {"ttft_s": None, "tpot_s": None, "share": 0.95, "e2e_s": 2.0}
    at = result["options"][0]["proof"]["at"]["metrics"]
    assert at["e2e_p95_s"]["mean"] <= 2.0
    hard = json.loads(whatif("--trace", log, "--gpu", "l40s", "--e2e", "100", *QUICK, "--no-store", "--json").stdout)
    assert {row["verdict"] for row in hard["options"]} == {"never"}
    assert hard["verdict"]["cheapest"] is None


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", requests=3000, output=120)
    call = ("--trace", log, "--gpu", "h100,l40s,a100", "--tp", "1,2", "--db", tmp_path / "runs.db", "--jobs", "1")
    running = plan_process(*call, folder=tmp_path, command="whatif")
    assert running.stderr is not None
    assert "searching" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert "kept in" in err
    refused = plan("latest", "--db", tmp_path / "runs.db", command="report")
    assert refused.exit_code == 1
    assert "was stopped" in refused.stderr


def test_a_measured_profile_counts_on_its_own_gpu_and_is_carried_to_the_others(log: Path, tmp_path: Path) -> None:
    profile = replace(resolve(Deployment(gpu="h100-sxm"), Speculation(), Slo()).on.profile, kind="measured",
                      relative_error=0.03, host_s=5e-3)  # fmt: skip
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(profile.to_dict()), encoding="utf-8")
    call = ("--trace", log, "--gpu", "h100,h200,l40s", "--policies", "off", "--jobs", "1", "--k", "3", "--no-store")
    result = json.loads(whatif(*call, "--profile", file, "--json").stdout)
    assert [row["profile_kind"] for row in result["options"]] == ["measured", "transferred", "transferred"]
    errors = [row["profile_error"] for row in result["options"]]
    assert errors == sorted(errors)
    assert errors[0] == 0.03
    plain = json.loads(whatif(*call, "--json").stdout)
    assert {row["profile_kind"] for row in plain["options"]} == {"analytic"}
    for measured, analytic in zip(result["options"], plain["options"], strict=True):
        own, other = (row["proof"]["at"]["metrics"]["tpot_p50_s"]["mean"] for row in (measured, analytic))
        assert own - other == pytest.approx(5e-3 - 1.2e-3, rel=0.3), "the host's time is carried as it is"
    said = whatif(*call, "--profile", file).stdout
    assert "measured, a step is good to ±3%: H100 SXM tp 1 bf16" in said
    assert "how attention verifies several tokens" in said
