"""Measured requests beside a scenario: another target or method is refused, what cannot be told is said, everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from scenarios.acceptance_match import measured_doubts
from scenarios.models import catalogue_name, default_drafter, model
from scenarios.resolve import resolve
from specsim.cli import cli
from specsim.config import Deployment, Slo, Speculation
from specsim.errors import ScenarioError

LLAMA: dict[str, Any] = {"name": "Llama-3.1-8B-Instruct", "layers": 32, "hidden_size": 4096}


def measured(path: Path, *, drafter: str = "eagle", requests: int = 12, **on: Any) -> str:
    """Requests measured on Llama-3.1-8B by EAGLE, but for what `on` says; `target` None: nothing is said at all."""
    draws = np.random.default_rng(1)
    facts: dict[str, Any] = {
        "target": LLAMA, "drafters": {drafter: {"method": drafter}}, "temperature": 0.0, "prompts": requests, **on,
    }  # fmt: skip
    rows = [
        {"request": n, "prompt_tokens": 10, "output_tokens": 40,
         drafter: (1 + np.minimum(draws.geometric(0.4, size=40) - 1, 8)).tolist(), "k_max": 8,
         **({} if facts["target"] is None else {"measured": facts})}
        for n in range(requests)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def doubts(path: str, target: str = "llama-3.1-8b", **speculation: Any) -> tuple[str, ...]:
    given = Speculation(**{"num_spec_tokens": (3,), "acceptance_file": path, **speculation})
    shape = model(target)
    draft = None
    if given.drafter.runs_model:
        draft = model(given.draft) if given.draft is not None else default_drafter(shape, given.method, given.options)
    return measured_doubts(given, shape, draft, target_given=target)


NAMES = [
    ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
    ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "llama-3.1-8b"),
    ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m"),
    ("Llama-3.3-70B-Instruct-IQ2_XS-00001-of-00003.gguf", "llama-3.3-70b"),
    ("Qwen3-8B-AWQ", "qwen3-8b"),
    ("someone/Qwen3-8B-FP8", "qwen3-8b"),
    ("qwen3-8b-bf16.gguf", "qwen3-8b"),
    ("my-own-model", None),
    ("target", None),
    ("", None),
]


@pytest.mark.parametrize(("name", "known"), NAMES)
def test_names_of_folders_files_and_repositories_lead_to_the_catalogue(
    name: str, known: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "target").mkdir()
    monkeypatch.chdir(tmp_path)
    assert catalogue_name(name) == known, "whatever lies on the disk"


@pytest.mark.parametrize(
    ("on", "target", "said"),
    [
        (LLAMA, "llama-3.1-8b", None),
        (LLAMA, "meta-llama/Llama-3.1-8B-Instruct", None),
        ({"name": "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf"}, "llama-3.1-8b", None),
        ({"name": "Qwen3-8B-AWQ"}, "qwen3-8b-fp8", None),
        ({"name": "my-llama", "layers": 32, "hidden_size": 4096}, "llama-3.1-8b", "whether that is llama-3.1-8b"),
        ({"name": "my-llama"}, "llama-3.1-8b", "whether that is llama-3.1-8b cannot be told"),
        # trainings of one shape, listed in one entry of the catalogue
        ({"name": "DeepSeek-R1-Distill-Llama-70B"}, "llama-3.3-70b", "whether that is llama-3.3-70b cannot be told"),
        ({"name": "Llama-3.3-70B-Instruct"}, "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "cannot be told"),
        ({"name": "DeepSeek-R1-Distill-Llama-70B"}, "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", None),
        ({}, "llama-3.1-8b", "does not say which target it was measured on"),
    ],
)  # fmt: skip
def test_the_same_target_passes_and_a_doubtful_one_is_said(
    tmp_path: Path, on: dict[str, Any], target: str, said: str | None
) -> None:
    facts = {"drafters": {"eagle": {"method": "eagle"}}, "temperature": 0.0}
    path = measured(tmp_path / "m.jsonl", **(facts | {"target": on} if on else {}))
    if not on:
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
        Path(path).write_text("".join(json.dumps(row | {"measured": facts}) + "\n" for row in rows))
    found = doubts(path, target)
    assert len(found) == (said is not None)
    if said is not None:
        assert found[0].startswith("m.jsonl ") and said in found[0]


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ({"name": "Qwen3-8B"}, "which the catalogue has as qwen3-8b and llama-3.1-8b); give --target qwen3-8b"),
        ({"name": "Mistral-7B-Instruct-v0.3", "layers": 32, "hidden_size": 4096}, "give --target mistral-7b"),
        ({"name": "SmolLM2-135M-Instruct.Q4_1.gguf", "layers": 30}, "(layers 30 and 32); give --target smollm2-135m"),
        ({"name": "mine", "layers": 32, "hidden_size": 64}, "(hidden size 64 and 4096); give --target with that"),
        # sizes go before names: another model under the same name
        ({"name": "Llama-3.1-8B-Instruct", "layers": 16}, "(layers 16 and 32); give --target with that"),
    ],
)  # fmt: skip
def test_another_target_is_refused(tmp_path: Path, on: dict[str, Any], said: str) -> None:
    path = measured(tmp_path / "m.jsonl", target=on)
    with pytest.raises(ScenarioError) as caught:
        doubts(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: was measured on {on['name']}, and deployment.target is llama-3.1-8b (")
    assert said in text and "--acceptance-length" in text and "\n" not in text


def test_a_target_of_ones_own_is_known_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
              "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 61, "max_position_embeddings": 512,
              "architectures": ["LlamaForCausalLM"]}  # fmt: skip
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    for given in (tmp_path / "mine", tmp_path / "mine" / "config.json"):
        own = {"name": "mine", "layers": 4, "hidden_size": 64}
        assert doubts(measured(tmp_path / "m.jsonl", target=own), str(given)) == ()
        other = measured(tmp_path / "m.jsonl", target=own | {"name": "theirs"})
        assert "whether that is mine cannot be told" in doubts(other, str(given))[0]
        with pytest.raises(ScenarioError, match="layers 32 and 4"):
            doubts(measured(tmp_path / "m.jsonl"), str(given))


@pytest.mark.parametrize(
    ("measured_by", "asked", "outcome"),
    [
        ("eagle", "eagle", ""),
        ("EAGLE", "eagle", ""),
        ("eagle", "eagle2", "was measured by method eagle, whose drafter eagle2 uses in another way"),
        ("eagle", "eagle3", ScenarioError),
        ("ngram", "suffix", ScenarioError),
        ("medusa", "eagle", ScenarioError),
        ("something of ours", "eagle", "'something of ours', which is not known here"),
        (None, "eagle", "does not say by which method"),
    ],
)
def test_another_method_is_refused(tmp_path: Path, measured_by: str | None, asked: str, outcome: Any) -> None:
    own = {} if measured_by is None else {"method": measured_by}
    path = measured(tmp_path / "m.jsonl", drafters={"eagle": own})
    given = {"method": asked, "acceptance_drafter": "eagle"}
    if outcome is ScenarioError:
        with pytest.raises(
            ScenarioError, match=f"was measured by method {measured_by}, and speculation.method is {asked}"
        ):
            doubts(path, **given)
        return
    found = doubts(path, **given)
    assert (outcome in found[0]) if outcome else not found


def test_another_draft_model_is_refused(tmp_path: Path) -> None:
    small = {"name": "Llama-3.2-1B-Instruct", "layers": 16, "hidden_size": 2048}
    facts = {"target": {"name": "Llama-3.3-70B-Instruct"}}

    def path(draft: dict[str, Any], method: str = "draft_model") -> str:
        return measured(tmp_path / "m.jsonl", drafter=method, drafters={method: {"method": method, "model": draft}},
                        **facts)  # fmt: skip

    given = {"method": "draft_model", "draft": "llama-3.2-1b"}
    assert doubts(path(small), "llama-3.3-70b", **given) == ()
    assert "whether that is llama-3.2-1b cannot be told" in doubts(path({"name": "own"}), "llama-3.3-70b", **given)[0]
    with pytest.raises(
        ScenarioError, match=r"measured with the drafter Llama-3.2-1B-Instruct, and speculation.draft is"
    ):
        doubts(path(small), "llama-3.3-70b", method="draft_model", draft="llama-3.2-3b")
    # the usual drafter of the target costs what it costs, whoever drafted
    with pytest.raises(ScenarioError, match=r"give --draft llama-3\.2-3b"):
        doubts(path({"name": "Llama-3.2-3B"}), "llama-3.3-70b", method="draft_model")
    # a head that nobody names is that of the target
    assert doubts(path({"name": "any-folder"}, "eagle"), "llama-3.3-70b", method="eagle") == ()


def test_options_that_cost_something_else_are_said(tmp_path: Path) -> None:
    own = {"layer_skip": {"method": "layer_skip", "options": {"layers": 26}}}
    path = measured(tmp_path / "m.jsonl", drafter="layer_skip", drafters=own)
    (said,) = doubts(path, method="layer_skip")
    assert "measured with layers 26, and costs are those of layers 8; --draft-option layers=26" in said
    assert doubts(path, method="layer_skip", options={"layers": 26}) == ()


@pytest.mark.parametrize(
    ("on", "asked", "said"),
    [
        ({}, {}, ""),
        ({}, {"temperature": 0.0}, ""),
        ({"temperature": 0.8}, {}, ""),
        ({"temperature": 0.8, "draft_sampling": "greedy"}, {"temperature": 0.8}, ""),
        ({}, {"temperature": 0.7}, "measured at temperature 0, and requests are sampled at 0.7"),
        ({"temperature": 0.8}, {"temperature": 0.0}, "measured at temperature 0.8, and requests are sampled at 0"),
        ({"temperature": None}, {"temperature": 0.7}, "does not say at which temperature it was measured"),
        (
            {"temperature": 0.8, "draft_sampling": "probabilistic"}, {"temperature": 0.8},
            "measured with probabilistic drafts, and drafts are greedy here",
        ),
    ],
)  # fmt: skip
def test_another_temperature_is_said(tmp_path: Path, on: dict[str, Any], asked: dict[str, Any], said: str) -> None:
    found = doubts(measured(tmp_path / "m.jsonl", **on), **asked)
    assert (said in found[0]) if said else not found


def test_the_temperature_changes_no_figure_of_a_file(tmp_path: Path) -> None:
    path = measured(tmp_path / "m.jsonl")
    asked = [Speculation(num_spec_tokens=(3,), acceptance_file=path, temperature=t) for t in (None, 0.0, 1.0)]
    lengths = {resolve(Deployment(), one, Slo()).acceptance.expected_length(3) for one in asked}
    assert len(lengths) == 1


def test_a_file_that_says_nothing_is_said_to(tmp_path: Path) -> None:
    (said,) = doubts(measured(tmp_path / "m.jsonl", target=None), temperature=0.7)
    assert said == (
        "m.jsonl does not say on what it was measured: its acceptance is taken as that of eagle on llama-3.1-8b at "
        "temperature 0.7."
    )
    assert doubts(measured(tmp_path / "m.jsonl")) == (), "the guard"


def test_a_static_tree_of_other_levels_is_refused(tmp_path: Path) -> None:
    path = measured(tmp_path / "m.jsonl")
    rows = [json.loads(line) | {"eagle_tree": "4,8,8"} for line in Path(path).read_text().splitlines()]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for same in ({"tree_levels": (4, 8, 8)}, {"tree_branching": (4, 2, 1)}, {"tree_levels": (4, 8)}):
        depth = len(next(iter(same.values())))
        assert doubts(path, num_spec_tokens=(depth,), **same) == ()
    with pytest.raises(ScenarioError, match="over trees of 4,8,8 nodes by level, and speculation verifies 2,1,1"):
        doubts(path, tree_levels=(2, 1, 1))


def run(*words: object) -> Result:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


SCENARIO = '[speculation]\nacceptance_file = "m.jsonl"\nnum_spec_tokens = [2]\n\n[workload]\nisl = 20\nosl = 10\n'
SCENARIO += "rate_per_s = 4\nrequests = 30\n"
QUICK = ("--max-requests", 30, "--jobs", 1, "--no-store")
COMMANDS = {
    "crossover": ("crossover", "--k", 2, "--concurrency", "2", "--seeds", 3, "--isl", 20, "--osl", 10),
    "simulate": ("simulate", "s.toml", "--policy", "static:2", "--no-store"),
    "sweep": ("sweep", "s.toml", "--grid", "k=0,2", "--seeds", 1, "--jobs", 1, "--no-store"),
    "sweep --find": ("sweep", "s.toml", "--grid", "k=2", "--find", "capacity", "--over", "load=1..2", "--seeds", 1,
                     "--jobs", 1, "--no-store"),
    "plan": ("plan", "--trace", "log.csv", "--k", 2, "--loads", "4", "--replications", 2, *QUICK),
    "plan --scenario": ("plan", "--scenario", "s.toml", "--loads", "4", "--replications", 2, *QUICK),
    "whatif": ("whatif", "--trace", "log.csv", "--gpu", "h100-sxm", "--k", 2, "--replications", 2, *QUICK),
}  # fmt: skip
LISTS = {"crossover": "assumed", "simulate": "assumed", "sweep": "notes", "sweep --find": "notes", "plan": "notes",
         "plan --scenario": "notes", "whatif": "notes"}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(SCENARIO)
    rows = [f"{i * 0.25},{20 + i % 7},{6 + i % 9}" for i in range(30)]
    Path("log.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(rows) + "\n")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_another_models_file(here: Path, command: str) -> None:
    measured(here / "m.jsonl", target={"name": "Qwen3-8B"})
    own = () if "s.toml" in COMMANDS[command] else ("--acceptance-file", "m.jsonl")
    done = run(*COMMANDS[command], *own)
    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "m.jsonl: was measured on Qwen3-8B, and deployment.target is llama-3.1-8b" in done.stderr
    assert "give --target qwen3-8b" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_is_doubtful_once_and_where_acceptance_is_from(here: Path, command: str) -> None:
    measured(here / "m.jsonl", target={"name": "my-llama"}, date="2026-11-30")
    own = () if "s.toml" in COMMANDS[command] else ("--acceptance-file", "m.jsonl")
    done = run(*COMMANDS[command], *own, "--json")
    assert done.exit_code == 0, done.output
    said = (
        "m.jsonl was measured on my-llama; whether that is llama-3.1-8b cannot be told, so its acceptance is taken as "
    )
    said += "that of llama-3.1-8b."
    assert done.stderr.count(f"warning: {said}\n") == done.stderr.count("cannot be told") == 1
    result = json.loads(done.stdout)
    assert said in result[LISTS[command]]
    assert "on my-llama by eagle, greedy, 12 prompts, 2026-11-30" in done.stdout
    assert not any("published default" in line for line in result[LISTS[command]])


def test_what_is_not_used_is_not_warned_of(here: Path) -> None:
    measured(here / "m.jsonl", target={"name": "my-llama"})
    for words in (("simulate", "s.toml", "--policy", "off"), ("sweep", "s.toml", "--grid", "k=0", "--seeds", 1)):
        done = run(*words, "--no-store")
        assert done.exit_code == 0, done.output
        assert "my-llama" not in done.stderr and "cannot be told" not in done.stdout


def test_a_sweep_over_targets_refuses_those_of_another_file(here: Path) -> None:
    measured(here / "m.jsonl")
    done = run("sweep", "s.toml", "--grid", "target=llama-3.1-8b,qwen3-8b", "--seeds", 1, "--jobs", 1, "--no-store",
               "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["points"]
    assert [row["status"] for row in rows] == ["done", "refused"]
    assert "was measured on Llama-3.1-8B-Instruct, and deployment.target is qwen3-8b" in rows[1]["reason"]


def test_a_temperature_of_the_scenario_is_held_against_a_file_of_the_flags(here: Path) -> None:
    measured(here / "m.jsonl")
    Path("t.toml").write_text(SCENARIO.replace('acceptance_file = "m.jsonl"', "temperature = 0.7"))
    done = run("simulate", "t.toml", "--policy", "static:2", "--acceptance-file", "m.jsonl", "--no-store")
    assert done.exit_code == 0, done.output
    assert "warning: m.jsonl was measured at temperature 0, and requests are sampled at 0.7" in done.stderr
    given = run("simulate", "t.toml", "--policy", "static:2", "--acceptance", "0.5", "--no-store")
    assert (given.exit_code, given.stderr) == (0, "")


def test_validate_acceptance_says_what_its_files_were_measured_on(here: Path) -> None:
    path = measured(here / "m.jsonl", requests=24)
    words = ("validate", "acceptance", path, "--splits", 1, "--replications", 1, "--k", "2", "--jobs", 1)
    assert "measured on Llama-3.1-8B-Instruct by eagle, greedy, 24 prompts" in run(*words).stdout
    (found,) = json.loads(run(*words, "--json").stdout)["sets"]
    assert found["measured_on"] == "on Llama-3.1-8B-Instruct by eagle, greedy, 24 prompts"
    assert run(*words, "-o", "page.md").exit_code == 0
    assert "Measured on Llama-3.1-8B-Instruct by eagle" in Path("page.md").read_text()
