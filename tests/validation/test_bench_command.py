"""`specsim validate bench`: files made from simulated runs are predicted to the digit, and planted faults show."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_files import FIGURES, aiperf_export, guidellm_report, sglang_line, vllm_result, write
from click.testing import CliRunner, Result

from scenarios.published.served import read_served
from scenarios.resolve import resolve
from specsim.benchmarks import Benchmark
from specsim.cli import cli
from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.planner.benched import Arm, predicted
from specsim.planner.published_result import published_result
from specsim.report.benched import benched_section
from specsim.report.validation_page import validation_page

RNG = np.random.default_rng(4)
PROMPTS, OUTPUTS = RNG.integers(50, 400, 24).tolist(), RNG.integers(20, 120, 24).tolist()
LENGTHS: dict[str, Any] = {"prompts": PROMPTS, "outputs": OUTPUTS}
MARGINALS = (0.75, 0.5, 0.3)
CONDITIONAL = (0.75, 0.666667, 0.6)
GPU = ("--gpu", "h100-sxm")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECSIM_DB", str(tmp_path / "kept.db"))


def specsim(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def bench(*words: str) -> dict[str, Any]:
    done = specsim("validate", "bench", *words, "--json")
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def truth(*, on: bool, engine: str = "vllm", luck: int = 5, **load: Any) -> dict[str, float]:
    """What a simulated engine shows: the figures that a client would write down of it."""
    speculation = Speculation("eagle3", num_spec_tokens=(3,), acceptance=CONDITIONAL)
    question = resolve(Deployment(target="llama-3.1-8b", gpu="h100-sxm", engine=engine), speculation, Slo())  # type: ignore[arg-type]
    run = Benchmark("made", "made", tuple(PROMPTS), tuple(OUTPUTS), {}, **(load or {"concurrency": 4}))
    policy = PolicySpec("static", 3) if on else PolicySpec("off")
    found = predicted(Arm(question, policy, (run,)), luck=luck)
    return {name: value for name, value in found.figures.items() if name in FIGURES}


def vllm(path: str, figures: dict[str, float], **changes: Any) -> str:
    return write(Path(path), vllm_result(figures, **LENGTHS, **{"max_concurrency": 4, **changes}))


def errors(row: dict[str, Any]) -> dict[str, float]:
    return {name: figure["error"] for name, figure in row["figures"].items()}


def test_a_run_that_went_as_simulated_is_predicted_to_the_digit_and_kept() -> None:
    off, on = truth(on=False), truth(on=True)
    files = [vllm("off.json", off), vllm("on.json", on, marginals=MARGINALS)]
    result = bench(*files, *GPU, "--method", "eagle3", "--append-to", "rows.jsonl")
    assert [(row["policy"], row["loop"], row["repeats"]) for row in result["rows"]] == [
        ("off", "closed", 1), ("k=3", "closed", 1)
    ]  # fmt: skip
    for row in result["rows"]:
        assert set(row["figures"]) >= set(FIGURES)
        assert max(abs(errors(row)[name]) for name in FIGURES) < 1e-4, row["policy"]
        assert row["figures"]["tpot_mean_s"]["noise"] is None
    assert result["rows"][1]["acceptance"]["source"] == "as the engine counted it in on.json"
    (gain,) = result["speedups"]
    assert gain["sign_right"] is True
    assert gain["measured"] == pytest.approx(on["output_tokens_per_s"] / off["output_tokens_per_s"])
    assert result["verdict"] == {"figures": 4, "within": 4, "bound": 0.05, "signs": 1, "signs_right": 1}
    listed = json.loads(specsim("validate", "list", "--json").stdout)["validations"]
    assert [(row["id"], row["kind"]) for row in listed] == [(result["validation_id"], "bench")]
    assert json.loads(specsim("validate", "show", "latest", "--json").stdout) == result
    shown = specsim("validate", "show", "latest").stdout
    assert "4 of 4 throughputs and mean TPOTs are within 5 % or the noise, which is not known from single" in shown
    assert max(map(len, shown.splitlines())) <= 100
    (row,) = read_served(Path("rows.jsonl"))
    assert row == result
    page = benched_section([row])
    nothing = published_result([], [], [], rows_from="none", settings={"seeds": 3, "seed": 0})
    assert page in validation_page(nothing, [], [], [], [row])
    assert benched_section([]) == ""
    assert "| 4 in flight | k=3 | 1 |" in page


def test_a_planted_fault_is_shown_with_its_sign_and_repeats_give_the_noise() -> None:
    off = truth(on=False)
    twice = {name: value * (2 if name.endswith("tokens_per_s") else 0.5) for name, value in off.items()}
    files = [
        vllm(f"{n}.json", {name: value * factor for name, value in twice.items()})
        for n, factor in enumerate((0.96, 1.0, 1.02))
    ]
    (row,) = bench(*files, *GPU)["rows"]
    assert row["repeats"] == 3
    throughput = row["figures"]["output_tokens_per_s"]
    assert throughput["error"] == pytest.approx(-0.5, abs=1e-3)
    assert throughput["noise"] == pytest.approx(0.04)
    assert throughput["within"] is False
    assert row["figures"]["tpot_p99_s"]["error"] == pytest.approx(1.0, abs=1e-3)
    assert "within" not in row["figures"]["tpot_p99_s"], "throughput and mean TPOT decide"


def test_a_measured_slow_down_that_is_predicted_as_a_speed_up_is_a_wrong_sign() -> None:
    off, on = truth(on=False), truth(on=True)
    slow = {**on, "output_tokens_per_s": 0.8 * off["output_tokens_per_s"]}
    files = [vllm("off.json", off), vllm("on.json", slow, marginals=MARGINALS)]
    done = specsim("validate", "bench", *files, *GPU, "--method", "eagle3", "--no-store")
    assert "WRONG" in done.stdout
    assert not Path("kept.db").exists()


def test_other_clients_give_the_same_rows() -> None:
    off, on = truth(on=False), truth(on=True)
    counted = {"pooled_spec_decode_acceptance_histogram": {"0": 250, "1": 250, "2": 200, "3": 300}}
    load = {"type": "concurrency", "concurrency": 4}
    strategies = ({"type_": "concurrent", "streams": 4},)
    pairs = {
        "guidellm": (guidellm_report(off, **LENGTHS, strategies=strategies),
                     guidellm_report(on, **LENGTHS, strategies=strategies)),
        "aiperf": (aiperf_export(off, **LENGTHS, load=load), aiperf_export(on, **LENGTHS, load=load, **counted)),
    }  # fmt: skip
    flags = (*GPU, "--method", "eagle3", "--k", "3", "--acceptance", ",".join(map(str, CONDITIONAL)), "--no-store")
    for client, (plain, fast) in pairs.items():
        given = ("--off", write(Path("a.json"), plain), "--on", write(Path("b.json"), fast))
        rows = bench(*given, *flags)["rows"]
        assert [row["policy"] for row in rows] == ["k=3", "off"]
        for row in rows:
            assert row["client"] == client
            # aiperf's lengths are drawn along quantiles, so that requests differ a little
            assert abs(errors(row)["tpot_mean_s"]) < (0.1 if client == "aiperf" else 1e-3)


def test_sglang_says_method_k_and_parallelism_itself() -> None:
    on = truth(on=True, engine="sglang")
    server = {"tp_size": 1, "model_path": "meta-llama/Llama-3.1-8B-Instruct", "speculative_algorithm": "EAGLE3",
              "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}  # fmt: skip
    line = sglang_line(on, **LENGTHS, server=server, max_concurrency=4, accept_length=1 + sum(MARGINALS))
    result = bench(write(Path("s.jsonl"), line), *GPU, "--acceptance", ",".join(map(str, CONDITIONAL)))
    (row,) = result["rows"]
    assert result["subject"] == "llama-3.1-8b, eagle3 k=3, on H100 SXM, sglang"
    assert max(abs(errors(row)[name]) for name in FIGURES if not name.startswith("itl")) < 1e-4
    assert not any(name.startswith("itl") for name in row["figures"])


def test_an_open_loop_is_simulated_at_the_times_of_sending_or_at_the_rate() -> None:
    starts = np.cumsum(np.random.default_rng(2).exponential(0.05, 24)).round(6).tolist()
    starts = [start - starts[0] for start in starts]
    off = truth(on=False, rate_per_s=20.0, starts_s=tuple(starts))
    file = vllm("o.json", off, request_rate=20.0, max_concurrency=None, start_times=[9.5 + s for s in starts])
    (row,) = bench(file, *GPU)["rows"]
    assert row["loop"] == "open"
    assert max(abs(error) for error in errors(row).values()) < 1e-3
    rate_only = vllm("r.json", off, request_rate=20.0, max_concurrency=None, detailed=False)
    (row,) = bench(rate_only, *GPU)["rows"]
    assert (row["load"], row["loop"]) == ("20/s", "open")
    assert row["figures"]["ttft_p95_s"]["luck"] > 0, "arrivals are drawn"
    for rate, loop in ((0.5, "open"), (1000.0, "closed")):
        both = vllm(f"b{loop}.json", off, request_rate=rate, max_concurrency=2)
        (row,) = bench(both, *GPU)["rows"]
        assert row["loop"] == loop, "what lets fewer requests through is what holds"


def test_observed_queues_change_no_prediction() -> None:
    off = truth(on=False)
    rows = []
    for name, times in (("a.json", [5.0 + n for n in range(24)]), ("b.json", [5.0] * 24)):
        file = vllm(name, off, start_times=times, queue_times=[float(n) for n in range(24)], ttfts=[7.0] * 24)
        rows.append(bench(file, *GPU)["rows"][0])
    assert [figure["predicted"] for figure in rows[0]["figures"].values()] == [
        figure["predicted"] for figure in rows[1]["figures"].values()
    ]


def test_a_scenario_and_a_policy_say_the_rest() -> None:
    Path("s.toml").write_text(
        '[deployment]\ntarget = "llama-3.1-8b"\ngpu = "h200-sxm"\n'
        '[speculation]\nmethod = "eagle3"\nnum_spec_tokens = [3]\nacceptance_length = 2.2\n'
        "[workload]\nisl = 100\nosl = 50\nrate_per_s = 1\nrequests = 10\n",
        encoding="utf-8",
    )
    file = vllm("on.json", truth(on=True), marginals=MARGINALS)
    flags = ("--scenario", "s.toml", "--policy", "schedule:1-2=3,3-64=1")
    result = bench(file, *flags)
    (row,) = result["rows"]
    assert result["deployment"]["gpu"] == "h200-sxm"
    assert row["policy"].startswith("schedule")
    assert row["acceptance"]["source"].startswith("given"), "the scenario's, before the file's"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no file: give results of vllm bench serve"),
        (("off.json",), "no file says on which GPU"),
        (("off.json", "off.json", *GPU), "off.json is given twice"),
        (("on.json", *GPU), "give --method"),
        (("off.json", *GPU, "--method", "eagle3"), "does not say whether speculation was on"),
        (("--off", "on.json", *GPU), "was measured with speculation, as the file says"),
        (("--off", "off.json", *GPU, "--k", "3"), "--k does nothing: no file was measured with speculation"),
        (("--on", "off.json", *GPU, "--method", "eagle3"), "give --k"),
        (("on.json", *GPU, "--method", "eagle3", "--policy", "off"), "drafts nothing"),
        (("on.json", *GPU, "--method", "eagle3", "--k", "2,3"), "--k takes one number here"),
        (("foreign.json", *GPU), "foreign.json: no result of vllm bench serve"),
        (("odd.json", *GPU), "served was 'acme/none', which the catalogue does not have; give --target"),
        (("off.json", *GPU, "--append-to", "a.txt"), "must end in .jsonl"),
        (("off.json", *GPU, "--luck", "0"), "--luck"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_in_one_line(words: tuple[str, ...], said: str) -> None:
    vllm("off.json", dict(FIGURES))
    vllm("on.json", dict(FIGURES), marginals=MARGINALS)
    vllm("odd.json", dict(FIGURES), model_id="acme/none")
    write(Path("foreign.json"), {"a": 1})
    done = specsim("validate", "bench", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr.splitlines()[-1]
    assert len(done.stderr.splitlines()) == 1
    assert not Path("kept.db").exists()


def test_the_same_files_give_the_same_bytes() -> None:
    file = vllm("on.json", truth(on=True), marginals=MARGINALS)
    results = [bench(file, *GPU, "--method", "eagle3", "--no-store", "--seed", "3") for _ in range(2)]
    assert results[0] == results[1]
    other = bench(file, *GPU, "--method", "eagle3", "--no-store", "--seed", "4")
    assert (
        other["rows"][0]["figures"]["tpot_mean_s"]["predicted"]
        != results[0]["rows"][0]["figures"]["tpot_mean_s"]["predicted"]
    )


def test_the_commands_of_the_guide_run() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "validate.md").read_text("utf-8")
    commands = re.findall(r"^specsim (validate bench .*)$", guide, re.MULTILINE)
    assert len(commands) == 3
    vllm("off.json", truth(on=False))
    vllm("off-again.json", truth(on=False))
    vllm("on.json", truth(on=True), marginals=MARGINALS)
    question = resolve(Deployment(target="llama-3.1-8b", gpu="h100-sxm"), Speculation("eagle3"), Slo())
    profile = replace(question.on.profile, covers={"target": "llama-3.1-8b", "gpu": "h100-sxm", "method": "eagle3"})
    Path("mine.json").write_text(json.dumps(profile.to_dict()), encoding="utf-8")
    for command in commands:
        done = specsim(*command.split())
        assert done.exit_code == 0, done.output
        assert "throughputs and mean TPOTs are within" in done.stdout
    assert len(read_served(Path("rows.jsonl"))) == 1
