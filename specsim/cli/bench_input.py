"""From the flags of `specsim validate bench` and what its files say to what is simulated."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specsim.cli.doubts import say_doubts
from specsim.cli.profile_input import StoredProfiles, profile_fills_in
from specsim.cli.scenario_input import in_scenario
from specsim.cli.scenario_options import deployment_from, parse_whole_numbers, speculation_from

if TYPE_CHECKING:
    from scenarios.loader import ScenarioFile
    from specsim.benchmarks import Benchmark
    from specsim.config import PolicySpec, Speculation
    from specsim.planner.benched import Arm
    from specsim.planner.question import Question

__all__ = ["arms_of", "runs_of"]

_ENGINES = {"vllm": "vllm", "openai": "vllm", "sglang": "sglang", "trt": "trtllm", "tensorrt-llm": "trtllm"}
"""Beginning of what a client calls its backend -> engine; `openai` is any server that speaks so, vLLM by default."""
_SPECULATES = ("method", "draft", "num_spec_tokens", "acceptance", "acceptance_length", "acceptance_length_k",
               "acceptance_file", "acceptance_drafter", "acceptance_model", "task", "tree_nodes", "topk", "tree",
               "temperature", "draft_tp", "draft_dtype", "draft_kv_dtype", "draft_sampling",
               "draft_option")  # fmt: skip
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
    paths: dict[str, str] = {}
    for name in names:
        path = os.path.realpath(os.path.expanduser(name))
        if path in paths:
            how = "is given twice" if paths[path] == name else f"is the same file as {paths[path]}"
            raise ScenarioError(f"{name} {how}; give each file once")
        paths[path] = name
    found = [(name, run, None if name in files else name in on) for name in names for run in read_benchmarks(name)]
    tell = {run.client for _, run, said in found if said is None and run.speculates}
    wanted = values["scenario"] is not None or any(values[flag] not in (None, ()) for flag in _SPECULATES)
    runs = []
    for name, run, said in found:
        if said is False and run.speculates:
            raise ScenarioError(f"--off {run.source}: was measured with speculation, as the file says")
        speculates = said if said is not None else run.speculates
        if speculates is None and wanted and run.client not in tell:
            raise ScenarioError(f"{run.source}: does not say whether speculation was on; give it as --on {name} or "
                                f"--off {name}")  # fmt: skip
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
        alike = next((own for own, how in groups if how == speculates and own[0].repeats(run)
                      and len({_k_of(own[0]), _k_of(run)} - {None}) < 2), None)  # fmt: skip
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
    assumed = list(_from_files([run for run, _ in runs], values, item))
    if speculating and values["method"] is None and item is None:
        raise ScenarioError("measured with speculation, and no file says with which: give --method, and --draft where "
                            "it has a model")  # fmt: skip
    deployment = deployment_from(values, None if item is None else item.deployment)
    base = None if item is None else item.speculation

    folder = Path() if item is None else item.folder

    def question(speculation: Speculation) -> Question:
        with in_scenario(None if item is None else item.path.name, flags=True):
            profile = kept.profile_of(deployment, folder)
            return resolve(deployment, speculation, Slo(), assumed=tuple(assumed), folder=folder, profile=profile)

    arms: dict[int, Arm] = {}
    drafting = {n: _speculation(own, dict(values), base, policy_text) for n, (own, how) in enumerate(groups) if how}
    for number, (_, policy, counted) in drafting.items():
        assumed += _of_other_k(groups[number][0][0], policy, counted)
    for number, (speculation, policy, counted) in drafting.items():
        own = groups[number][0]
        asked = question(speculation)
        if counted:
            asked = replace(asked, acceptance_source=f"as the engine counted it in {own[0].source}")
        say_doubts([asked])
        arms[number] = Arm(asked, policy, tuple(own))
    # without speculation nothing of it matters, so that any question of this deployment will do
    plain = next((arm.question for arm in arms.values()), None) or question(_any(values, base))
    for number, (own, how) in enumerate(groups):
        if not how:
            arms[number] = Arm(plain, PolicySpec("off"), tuple(own))
    return [arms[number] for number in range(len(groups))]


def _from_files(runs: Sequence[Benchmark], values: dict[str, Any], item: ScenarioFile | None) -> Iterator[str]:
    """What flags leave out and files say, put into `values`; sentences on that, and on flags that say otherwise.

    Raises:
        ScenarioError: the target or the GPU is said nowhere, or files disagree on what no flag says.
    """
    from specsim.drafters import find_drafter
    from specsim.errors import ScenarioError

    yield from _target(runs, values, item)
    if values["gpu"] is None and item is None:
        raise ScenarioError("no file says on which GPU was served; give --gpu, e.g. --gpu h100-sxm, or --profile")

    def method(text: str) -> str:
        known = find_drafter(text)
        return text if known is None else known.name

    bases = {} if item is None else {"tp": item.deployment.tp, "method": item.speculation.method}
    for name, read in (("tp", int), ("method", method)):
        told = _first_of((read(run.says[name]), run) for run in runs if name in run.says)
        if values[name] is None and item is None:
            _refuse_several(told, name, f"--{name}")
            for value in told:
                values[name] = value
                yield f"{name} is {value}, as the server told."
        else:
            mine = read(str(values[name] if values[name] is not None else bases[name]))
            for value, run in told.items():
                if value != mine:
                    yield f"Predicted is {name} {mine}; served was {name} {value}, as {run.source} says."
    yield from _engine(runs, values, item)


def _first_of(said: Iterable[tuple[Any, Benchmark]]) -> dict[Any, Benchmark]:
    """Each thing that is said, in order, and the first run that says it."""
    found: dict[Any, Benchmark] = {}
    for what, run in said:
        found.setdefault(what, run)
    return found


def _refuse_several(told: Mapping[Any, Benchmark], what: str, flag: str) -> None:
    """Runs that say different things of what is one for all of them."""
    from specsim.errors import ScenarioError

    if len(told) > 1:
        (one, first), (other, second) = list(told.items())[:2]
        raise ScenarioError(f"{first.source}: served was {what} {one}, and in {second.source} {other}; give files of "
                            f"one in a call, or {flag} for all")  # fmt: skip


def _target(runs: Sequence[Benchmark], values: dict[str, Any], item: ScenarioFile | None) -> Iterator[str]:
    from scenarios.models import known_model
    from specsim.errors import CatalogueError, ScenarioError

    models = _first_of((run.model, run) for run in runs if run.model)
    names = {model: known_model(model) for model in models}
    if values["target"] is None and item is None:
        if not models:
            raise ScenarioError("no file says which model was served; give --target")
        unknown = next((model for model, known in names.items() if known is None), None)
        if unknown is not None:
            raise ScenarioError(f"{models[unknown].source}: served was '{unknown}', which the catalogue does not have; "
                                f"give --target with a name or a config.json")  # fmt: skip
        _refuse_several(_first_of((known.name, models[model]) for model, known in names.items() if known), "model",
                        "--target")  # fmt: skip
        model, known = next(iter(names.items()))
        values["target"] = known.name if known is not None else None
        yield f"The target is {values['target']}, since '{model}' was served."
        return
    given = values["target"] or (item.deployment.target if item is not None else "")
    try:
        target = known_model(given)
    except CatalogueError:
        if values["target"] is not None:
            raise
        target = None  # a scenario's path starts at its own folder
    for model, known in names.items():
        if known is not None and target is not None and known.name.split("-fp8")[0] != target.name.split("-fp8")[0]:
            yield f"Predicted is {target.name}; served was '{model}', as {models[model].source} says."
    if len(models) > 1 and (target is None or None in names.values()):
        yield f"Files say that {', '.join(map(repr, models))} were served; all are predicted as {given}."


def _engine(runs: Sequence[Benchmark], values: dict[str, Any], item: ScenarioFile | None) -> Iterator[str]:
    seen: dict[str, Benchmark] = {}
    spoken: dict[str, str] = {}
    for run in runs:
        backend = (run.backend or "").lower()
        found = next((engine for start, engine in _ENGINES.items() if backend.startswith(start)), None)
        if found is not None and not backend.startswith("openai"):
            seen.setdefault(found, run)
            spoken.setdefault(found, backend)
    given = values["engine"] or (item.deployment.engine if item is not None else None)
    if given is not None:
        for engine, run in seen.items():
            if engine != given:
                yield f"Predicted is {given}; the client of {run.source} spoke to it as '{spoken[engine]}'."
        return
    _refuse_several(seen, "engine", "--engine")
    for engine in seen:
        values["engine"] = engine
        yield f"The engine is taken for {engine}: the client spoke to it as '{spoken[engine]}'."
    if not seen:
        values["engine"] = "vllm"
        openai = next((run.backend for run in runs if (run.backend or "").lower().startswith("openai")), None)
        yield ("The engine is taken for vllm; no file says it, --engine says another." if openai is None else
               f"The engine is taken for vllm: the client spoke to it as '{openai}', which any server may speak; "
               f"--engine says another.")  # fmt: skip


def _k_of(run: Benchmark) -> int | None:
    """Draft tokens a round, as its counts or its server tell."""
    if run.acceptance is not None and run.acceptance.num_spec_tokens:
        return run.acceptance.num_spec_tokens
    return int(run.says["num_spec_tokens"]) if "num_spec_tokens" in run.says else None


def _of_other_k(run: Benchmark, policy: PolicySpec, counted: bool) -> Iterator[str]:
    """A sentence on a prediction of another k than was served."""
    told, k = _k_of(run), policy.num_spec_tokens
    if told is None or told == k:
        return
    further = f" Acceptance behind draft {told} is extrapolated." if counted and k > told else ""
    yield f"Predicted is k={k}; served was k={told}, as {run.source} says.{further}"


def _speculation(
    runs: Sequence[Benchmark], values: dict[str, Any], base: Speculation | None, policy: str | None
) -> tuple[Speculation, PolicySpec, bool]:
    """(speculation, policy, whether acceptance is that of the file); k and acceptance of the file stand in where flags
    and scenario have none."""
    from specsim.config import PolicySpec
    from specsim.errors import ScenarioError
    from specsim.policies import parse_policy

    seen = [run for run in runs if run.acceptance is not None]
    k = next((own_k for run in runs if (own_k := _k_of(run)) is not None), None)
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


def _of_file(seen: Sequence[Benchmark], k: int) -> dict[str, Any]:
    """Acceptance as the engine counted it: by position where that is known, else its mean length.

    Raises:
        ScenarioError: more tokens a round than its drafts and the bonus token are, with the file.
    """
    from specsim.errors import ScenarioError

    counts = [run.acceptance for run in seen if run.acceptance is not None]
    if len(counts) == 1 and len(counts[0].conditional) >= k:
        return {"acceptance": ",".join(f"{p:.6g}" for p in counts[0].conditional[:k])}
    measured_at = next((own.num_spec_tokens for own in counts if own.num_spec_tokens), k)
    for run, own in zip(seen, counts, strict=True):
        if own.length > measured_at + 1:
            raise ScenarioError(f"{run.source}: acceptance length {own.length:g} is more than the {measured_at + 1} "
                                f"tokens that a round of k={measured_at} can emit, bonus included; give the k that was "
                                f"served with --k, or acceptance of your own with --acceptance-length")  # fmt: skip
    return {"acceptance_length": sum(own.length for own in counts) / len(counts), "acceptance_length_k": measured_at}


def _any(values: Mapping[str, Any], base: Speculation | None) -> Speculation:
    """A speculation that is never used, of the method that a profile was measured for."""
    from specsim.config import Speculation

    method = values["method"] or (base.method if base is not None else "ngram")
    return Speculation(method, num_spec_tokens=(1,), acceptance=(0.5,))
