"""From the flags of `specsim validate bench` and what its files say to what is simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specsim.cli.profile_input import StoredProfiles, profile_fills_in
from specsim.cli.scenario_input import in_scenario
from specsim.cli.scenario_options import deployment_from, parse_whole_numbers, speculation_from

if TYPE_CHECKING:
    from specsim.benchmarks import Benchmark
    from specsim.config import PolicySpec, Speculation
    from specsim.planner.benched import Arm
    from specsim.planner.question import Question

__all__ = ["arms_of", "runs_of"]

_ENGINES = {"vllm": "vllm", "openai": "vllm", "sglang": "sglang", "trt": "trtllm", "tensorrt-llm": "trtllm"}
"""Beginning of what a client calls its backend -> engine; `openai` is any server that speaks so, vLLM by default."""
_SPECULATES = ("method", "draft", "num_spec_tokens", "acceptance", "acceptance_length", "acceptance_length_k",
               "acceptance_file", "task", "tree_nodes", "tree", "temperature")  # fmt: skip
_OF_ACCEPTANCE = ("acceptance", "acceptance_length", "acceptance_file", "task", "acceptance_model")


def runs_of(
    files: Sequence[str], on: Sequence[str], off: Sequence[str], values: dict[str, Any]
) -> list[tuple[Benchmark, bool]]:
    """Every run of every file, and whether it speculated: as the file says, or as the user does.

    Raises:
        ScenarioError: a file that is none, or one that does not say and must.
    """
    from specsim.benchmarks import read_benchmarks
    from specsim.errors import ScenarioError

    if not (files or on or off):
        raise ScenarioError("no file: give results of vllm bench serve, sglang bench_serving, aiperf or guidellm")
    names = [*files, *on, *off]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise ScenarioError(f"{double} is given twice; give each file once")
    found = [(run, None if name in files else name in on) for name in names for run in read_benchmarks(name)]
    tell = {run.client for run, said in found if said is None and run.speculates}
    wanted = values["scenario"] is not None or any(values[name] not in (None, ()) for name in _SPECULATES)
    runs = []
    for run, said in found:
        if said is False and run.speculates:
            raise ScenarioError(f"--off {run.source}: was measured with speculation, as the file says")
        speculates = said if said is not None else run.speculates
        if speculates is None and wanted and run.client not in tell:
            raise ScenarioError(f"{run.source}: does not say whether speculation was on; give it as --on {names[0]} or "
                                f"--off {names[0]}")  # fmt: skip
        runs.append((run, bool(speculates)))
    return runs


def arms_of(runs: Sequence[tuple[Benchmark, bool]], values: dict[str, Any], kept: StoredProfiles) -> list[Arm]:
    """Repeats put together, each group with the deployment and the speculation that it was measured with.

    Raises:
        ScenarioError, CatalogueError, ProfileError, CapacityError: a flag, or what neither flags nor files say.
    """
    from pathlib import Path

    from scenarios.loader import load_scenario
    from scenarios.resolve import resolve
    from specsim.config import PolicySpec, Slo
    from specsim.errors import ScenarioError
    from specsim.planner.benched import Arm

    groups: list[tuple[list[Benchmark], bool]] = []
    for run, speculates in runs:
        alike = next((own for own, how in groups if how == speculates and own[0].repeats(run)), None)
        if alike is None:
            groups.append(([run], speculates))
        else:
            alike.append(run)
    scenario, policy_text = values.pop("scenario"), values.pop("policy")
    item = None if scenario is None else load_scenario(scenario)
    speculating = any(how for _, how in groups)
    given = {name for name in _SPECULATES if values[name] not in (None, ())}
    if not speculating and (given or policy_text):
        flag = "--policy" if policy_text else f"--{sorted(given)[0].replace('_', '-')}"
        raise ScenarioError(f"{flag.replace('--num-spec-tokens', '--k')} does nothing: no file was measured with "
                            f"speculation; give one, or name it with --on")  # fmt: skip
    profile_fills_in(values, kept)
    assumed = _from_files([run for run, _ in runs], values, item is not None)
    if speculating and values["method"] is None and item is None:
        raise ScenarioError("measured with speculation, and no file says with which: give --method, and --draft where "
                            "it has a model")  # fmt: skip
    deployment = deployment_from(values, None if item is None else item.deployment)
    base = None if item is None else item.speculation

    folder = Path() if item is None else item.folder

    def question(speculation: Speculation) -> Question:
        with in_scenario(None if item is None else item.path.name, flags=True):
            profile = kept.profile_of(deployment, folder)
            return resolve(deployment, speculation, Slo(), assumed=assumed, folder=folder, profile=profile)

    arms: dict[int, Arm] = {}
    for number, (own, how) in enumerate(groups):
        if how:
            speculation, policy, counted = _speculation(own, dict(values), base, policy_text)
            asked = question(speculation)
            if counted:
                asked = replace(asked, acceptance_source=f"as the engine counted it in {own[0].source}")
            arms[number] = Arm(asked, policy, tuple(own))
    # without speculation nothing of it matters, so that any question of this deployment will do
    plain = next((arm.question for arm in arms.values()), None) or question(_any(values, base))
    for number, (own, how) in enumerate(groups):
        if not how:
            arms[number] = Arm(plain, PolicySpec("off"), tuple(own))
    return [arms[number] for number in range(len(groups))]


def _from_files(runs: Sequence[Benchmark], values: dict[str, Any], has_scenario: bool) -> tuple[str, ...]:
    """What flags leave out and files say, put into `values`; sentences on that.

    Raises:
        ScenarioError: the target or the GPU is said nowhere.
    """
    from scenarios.models import known_model
    from specsim.errors import ScenarioError

    said = []
    models = list(dict.fromkeys(run.model for run in runs if run.model))
    if values["target"] is None and not has_scenario:
        if not models:
            raise ScenarioError("no file says which model was served; give --target")
        known = known_model(models[0])
        if known is None:
            raise ScenarioError(f"{runs[0].source}: served was '{models[0]}', which the catalogue does not have; give "
                                f"--target with a name or a config.json")  # fmt: skip
        values["target"] = known.name
        said.append(f"The target is {known.name}, since '{models[0]}' was served.")
    elif values["target"] is not None:
        target = known_model(values["target"])
        for model in models:
            other = known_model(model)
            if other is not None and target is not None and other.name.split("-fp8")[0] != target.name.split("-fp8")[0]:
                said.append(f"Predicted is {target.name}; served was '{model}', as the file says.")
    if values["gpu"] is None and not has_scenario:
        raise ScenarioError("no file says on which GPU was served; give --gpu, e.g. --gpu h100-sxm, or --profile")
    for field, name, read in (("tp", "tp", int), ("method", "method", str)):
        told = {run.says[field] for run in runs if field in run.says}
        if values[name] is None and len(told) == 1 and not has_scenario:
            values[name] = read(told.pop())
            said.append(f"{field} is {values[name]}, as the server told.")
    if values["engine"] is None and not has_scenario:
        values["engine"], sentence = _engine(runs)
        said.append(sentence)
    return tuple(said)


def _engine(runs: Sequence[Benchmark]) -> tuple[str, str]:
    for run in runs:
        backend = (run.backend or "").lower()
        found = next((engine for start, engine in _ENGINES.items() if backend.startswith(start)), None)
        if found is not None:
            sure = "" if not backend.startswith("openai") else ", which any server may speak; --engine says another"
            return found, f"The engine is taken for {found}: the client spoke to it as '{backend}'{sure}."
    return "vllm", "The engine is taken for vllm; no file says it, --engine says another."


def _speculation(
    runs: Sequence[Benchmark], values: dict[str, Any], base: Speculation | None, policy: str | None
) -> tuple[Speculation, PolicySpec, bool]:
    """(speculation, policy, whether acceptance is that of the file); k and acceptance of the file stand in where flags
    and scenario have none."""
    from specsim.config import PolicySpec
    from specsim.errors import ScenarioError
    from specsim.policies import parse_policy

    seen = [run.acceptance for run in runs if run.acceptance is not None]
    k = next((own.num_spec_tokens for own in seen if own.num_spec_tokens), None)
    k = k or next((int(run.says["num_spec_tokens"]) for run in runs if "num_spec_tokens" in run.says), None)
    arm = None if policy is None else parse_policy(policy)
    if arm is not None and not arm.num_spec_tokens:
        raise ScenarioError(f"--policy {policy}: drafts nothing, and {runs[0].source} was measured with speculation")
    if values["num_spec_tokens"] is None and values["tree"] is None and base is None:
        if arm is not None:
            k = arm.num_spec_tokens
        if k is None:
            raise ScenarioError(f"{runs[0].source}: does not say how many tokens a round drafts; give --k")
        values["num_spec_tokens"] = str(k)
    asked = values["num_spec_tokens"]
    if asked is not None:
        numbers = parse_whole_numbers(asked, "--k", low=1)
        if len(numbers) != 1:
            raise ScenarioError(f"--k takes one number here, got {asked}; the file was measured with one")
        k = numbers[0]
    given = any(values[name] not in (None, ()) for name in _OF_ACCEPTANCE)
    told = base is not None and (base.acceptance or base.acceptance_length or base.acceptance_file)
    counted = not given and not told and bool(seen)
    if counted:
        values |= _of_file(seen, k or max(base.num_spec_tokens if base is not None else (1,)))
    found = speculation_from(values, base)
    if len(found.num_spec_tokens) != 1 and arm is None:
        raise ScenarioError(f"{runs[0].source}: the scenario drafts {found.num_spec_tokens} tokens, and a file was "
                            f"measured with one number of them; give --k")  # fmt: skip
    return found, arm or PolicySpec("static", found.num_spec_tokens[0]), counted


def _of_file(seen: Sequence[Any], k: int) -> dict[str, Any]:
    """Acceptance as the engine counted it: by position where that is known, else its mean length."""
    if len(seen) == 1 and len(seen[0].conditional) >= k:
        return {"acceptance": ",".join(f"{p:.6g}" for p in seen[0].conditional[:k])}
    mean = sum(own.length for own in seen) / len(seen)
    measured_at = next((own.num_spec_tokens for own in seen if own.num_spec_tokens), None)
    return {"acceptance_length": mean, "acceptance_length_k": measured_at or k}


def _any(values: Mapping[str, Any], base: Speculation | None) -> Speculation:
    """A speculation that is never used, of the method that a profile was measured for."""
    from specsim.config import Speculation

    method = values["method"] or (base.method if base is not None else "ngram")
    return Speculation(method, num_spec_tokens=(1,), acceptance=(0.5,))
