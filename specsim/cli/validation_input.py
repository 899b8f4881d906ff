"""From the flags of `specsim validate serve` to what is served: profile, requests, arms, loads, a loaded model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim.cli.doubts import say_doubts
from specsim.cli.model_input import model_of
from specsim.cli.scenario_options import parse_numbers, parse_whole_numbers, refuse_doubles
from specsim.cli.served_method import drafter_options, drafter_weights, forced_acceptance, whole_of

if TYPE_CHECKING:
    from calibrate.latency.device import Device
    from calibrate.latency.job import Model
    from calibrate.validation.runs import Run
    from calibrate.validation.server import Server
    from calibrate.validation.world import Load, World
    from specsim.acceptance import PerPosition
    from specsim.config import PolicySpec
    from specsim.planner.question import Question
    from specsim.profiles import LatencyProfile
    from specsim.traces.model import Trace

__all__ = ["Asked", "Ready", "asked", "minutes_said", "prepared", "runs_said"]

_CLOCKS = {"wall": "wall", "device events": "device", "processor time": "cpu"}
"""How a profile calls a clock -> `calibrate.latency.device.CLOCKS`."""
_TREES = ("eagle2", "lookahead")
"""Methods that draft nothing but trees, while the reference engine verifies chains."""
_USUAL_REQUESTS = 24
_USUAL_SEQS, _USUAL_BUDGET = 32, 512


@dataclass(frozen=True)
class Ready:
    """Everything that is needed to serve and to predict."""

    world: World
    server: Server
    device: Device
    facts: Mapping[str, Any]
    """What the result says beside its figures."""
    checks: Sequence[str]
    began: datetime = field(default_factory=lambda: datetime.now(UTC))

    def result(self, runs: Sequence[Run], complete: bool) -> dict[str, Any]:
        """The JSON form of the result.

        Raises:
            ScenarioError: not one run was finished.
        """
        from calibrate.validation.judge import judged
        from calibrate.validation.runs import predict
        from scenarios.published.served import SCHEMA_VERSION
        from specsim.errors import ScenarioError

        if not runs:
            raise ScenarioError("stopped before the first run was finished, so there is nothing to compare")
        total = self.world.repeats * len(self.world.loads) * len(self.world.policies)
        return {
            "schema_version": SCHEMA_VERSION,
            "date": self.began.date().isoformat(),
            "began_utc": self.began.isoformat(timespec="seconds"),
            "wall_s": round(sum(run.wall_s for run in runs), 1),
            "status": "complete" if complete else "partial",
            "runs": len(runs),
            "runs_asked": total,
            **self.facts,
            "checks": list(self.checks),
            **judged(self.world, runs, partial(predict, self.world)),
        }


@dataclass(frozen=True)
class Asked:
    """What the flags ask for, read and checked before any weights are loaded."""

    values: Mapping[str, Any]
    method: str
    """How drafts are made; none where the profile is without speculation."""
    options: Mapping[str, float]
    forced: PerPosition | None
    trace: Trace
    loads: tuple[Load, ...]
    device: Device
    dtype: str
    target: Model
    draft: Model | Path | None
    question: Question
    texts: Sequence[str]
    checks: Sequence[str]

    @property
    def heads(self) -> int | None:
        """Heads of the profile, of a method whose heads run at once."""
        return whole_of(self.question.on.profile.covers, "draft_heads", self.values["profile"])

    @property
    def measures_acceptance(self) -> bool:
        """Whether acceptance is measured before anything is served."""
        return self.method != "none" and self.forced is None and self.values["acceptance_file"] is None

    def world(self, question: Question) -> World:
        """What is served and predicted, once acceptance is known."""
        from calibrate.validation.world import World

        return World(
            trace=self.trace, off=question.off, on=question.on,
            policies=_policies(self.values, question, self.trace), loads=self.loads,
            acceptance=None if self.method == "none" else question.acceptance, forced=self.forced is not None,
            repeats=self.values["repeats"], seed=self.values["seed"],
        )  # fmt: skip


def asked(values: Mapping[str, Any], *, to_load: bool = True) -> Asked:
    """Read and check; `to_load` False: nothing is made ready for loading.

    Raises:
        ScenarioError, ProfileError, CatalogueError, TraceError: a flag, a file, or things that do not fit together.
    """
    from calibrate.acceptance.methods import METHODS, chosen_options
    from calibrate.latency.device import find_device
    from calibrate.latency.job import DTYPES
    from calibrate.validation.overlap import overlap_sentences, shared_loads
    from specsim.cli.profile_input import StoredProfiles, points_file
    from specsim.errors import ScenarioError

    profile = StoredProfiles(values["db"], read=values["store"]).find(values["profile"])
    covers = profile.covers
    method = covers.get("method", "none")
    served = tuple(name for name in METHODS if name not in _TREES)
    if method not in (*served, "none"):
        raise ScenarioError(f"--profile {values['profile']}: of method {method}, and the reference engine serves "
                            f"{', '.join(served)}; give a profile of one of those")  # fmt: skip
    options = drafter_options(values["draft_option"], method, profile)
    if method != "none":
        chosen_options(method, options)
    forced = forced_acceptance(values, method)
    trace, loads = _trace(values), _loads(values)
    clock = values["clock"] or _CLOCKS.get(covers.get("clock", "wall"), "wall")
    threads = values["threads"] or whole_of(covers, "threads", values["profile"])
    device = find_device(values["device"], clock=clock, threads=threads)
    dtype = covers.get("weight_dtype", "fp32")
    if dtype not in DTYPES:
        raise ScenarioError(f"--profile {values['profile']}: weights in {dtype}, and the reference engine serves "
                            f"{', '.join(DTYPES)}; give a profile of one of those")  # fmt: skip
    target = model_of(values["target"], "--target", to_load=to_load)
    if target.name != covers.get("target", target.name):
        raise ScenarioError(f"--target {values['target']}: is {target.name}, and the profile was measured for "
                            f"{covers['target']}; give that, or another profile")  # fmt: skip
    draft = drafter_weights(values["draft"], method, to_load=to_load)
    question = _question(profile, target, draft, options, values, loads)
    path = points_file(values["profile"])
    points = None if path is None else _points(path)
    shared = () if points is None else shared_loads(loads, points)
    if shared and not values["fitted_batches"]:
        raise ScenarioError(f"--concurrency {', '.join(map(str, shared))}: the fit of the profile has seen batches of "
                            f"so many requests, and would be judged by what it was fitted to; give others, or "
                            f"--fitted-batches")  # fmt: skip
    texts = [_text(name) for name in values["texts"]]
    if forced is not None:
        question = replace(question, acceptance=forced, acceptance_source=forced.name)
    checks = [*overlap_sentences(loads, points), *_device_checks(profile, device), *question.doubts]
    return Asked(values, method, options, forced, trace, loads, device, dtype, target, draft, question, texts, checks)


def prepared(values: Mapping[str, Any], *, say: Callable[[str], None]) -> Ready:
    """Read, check, load, and say how long it will take.

    Raises:
        ScenarioError, ProfileError, CatalogueError, TraceError: see `asked`, or what cannot be loaded.
    """
    from calibrate.latency.device import memory_suffices
    from calibrate.validation.server import open_server

    given = asked(values)
    question = given.question
    say_doubts([question])
    with memory_suffices("give a smaller --target or --draft, or another --device"):
        server = open_server(
            given.target, given.device, dtype=given.dtype, method=given.method, draft=given.draft,
            options=given.options, heads=given.heads, texts=given.texts,
            syncs_at_zero=question.on.profile.at_zero_drafts == "synced", seed=values["seed"],
        )  # fmt: skip
    if given.measures_acceptance:
        say(f"measuring acceptance on {values['acceptance_prompts']} other prompts")
        model = server.acceptance(given.trace, values["acceptance_prompts"], values["k"], question.on.limits)
        question = replace(question, acceptance=model, acceptance_source=model.name)
    world = given.world(question)
    say(runs_said(world))
    facts = _facts(values, question, given.trace, server, given.device, world)
    return Ready(world, server, given.device, facts, [*given.checks, _of_acceptance(values, given.method, question)])


def runs_said(world: World) -> str:
    """How many runs, and how long they should take."""
    from calibrate.validation.runs import predicted_s

    loads, arms = len(world.loads), len(world.policies)
    return (
        f"{world.repeats * loads * arms} runs ({loads} loads x {arms} arms x {world.repeats} repeats): about "
        f"{minutes_said(predicted_s(world))} by the profile's clock"
    )


def _trace(values: Mapping[str, Any]) -> Trace:
    """The requests: a slice of a log, or drawn lengths."""
    import numpy as np

    from scenarios.workload import WorkloadSpec
    from specsim.cli.scenario_input import overruled_workload, read_workload
    from specsim.cli.trace import READ_NAMES
    from specsim.errors import ScenarioError

    reading = {name: values[name] for name in READ_NAMES if values.get(name)}
    if values["trace"] is not None:
        for name in ("isl", "osl", "requests"):
            if values[name] is not None:
                raise ScenarioError(f"--{name} draws requests, and --trace brings its own; give one of them")
        spec = overruled_workload(None, {"trace": values["trace"], **reading}, place="", command="validate serve")
    elif values["isl"] is None or values["osl"] is None:
        raise ScenarioError("no requests: give --trace, or --isl and --osl")
    elif reading:
        raise ScenarioError(f"--{next(iter(reading)).replace('_', '-')} is about reading a log; give --trace with it")
    else:
        spec = WorkloadSpec(isl=values["isl"], osl=values["osl"], rate_per_s=1.0,
                            requests=values["requests"] or _USUAL_REQUESTS)  # fmt: skip
    trace = read_workload(spec, folder=Path(), seed=values["seed"])
    scale = values["scale_tokens"]
    if scale is not None and values["trace"] is None:
        raise ScenarioError("--scale-tokens is about the lengths of a log; give --trace with it")
    if scale is not None:
        prompts, outputs = (
            np.maximum(1, np.rint(column * scale)).astype(np.int32)
            for column in (trace.prompt_tokens, trace.output_tokens)
        )
        note = f"prompts and outputs {scale:g} times as long"
        trace = replace(trace, prompt_tokens=prompts, output_tokens=outputs,
                        meta=replace(trace.meta, notes=(*trace.meta.notes, note)))  # fmt: skip
    # every prompt is computed here, so shared prefixes would only be a difference to explain
    return replace(trace, hash_ids=None, hash_offsets=None, hash_block_tokens=None)


def _loads(values: Mapping[str, Any]) -> tuple[Load, ...]:
    from calibrate.validation.world import Load
    from specsim.errors import ScenarioError

    found: list[Load] = []
    if values["concurrency"] is not None:
        numbers = parse_whole_numbers(values["concurrency"], "--concurrency", low=1)
        refuse_doubles(numbers, "--concurrency")
        found += [Load(concurrency=number) for number in numbers]
    if values["rate"] is not None:
        rates = parse_numbers(values["rate"], "--rate")
        refuse_doubles(rates, "--rate")
        found += [Load(rate_per_s=rate, arrivals="poisson" if values["poisson"] else "trace") for rate in rates]
    elif values["poisson"]:
        raise ScenarioError("--poisson draws the arrivals of --rate, which is missing")
    if not found:
        raise ScenarioError("no load: give --concurrency, --rate or both")
    return tuple(found)


def _question(
    profile: LatencyProfile,
    target: Model,
    draft: Model | Path | None,
    options: Mapping[str, float],
    values: Mapping[str, Any],
    loads: Sequence[Load],
) -> Question:
    """Both sides with the profile's times; acceptance is that of the file, or a stand-in until it is measured."""
    from calibrate.latency.job import Model
    from scenarios.measured_costs import deployment_of
    from scenarios.resolve import resolve
    from specsim.cli.profile_input import called
    from specsim.config import Deployment, Slo, Speculation
    from specsim.drafters import drafter
    from specsim.errors import ScenarioError

    fields = deployment_of(profile)
    method = str(fields.pop("method", "none"))
    ranges = {} if profile.evidence is None else profile.evidence.ranges
    most = max(load.concurrency or 1 for load in loads)
    seqs = values["max_num_seqs"] or max(most, int(ranges.get("requests", (0, _USUAL_SEQS))[1]))
    budget = values["max_num_batched_tokens"] or int(ranges.get("step_tokens", (0, _USUAL_BUDGET))[1])
    places: dict[str, Any] = {key: fields[key] for key in ("gpu", "tp", "weight_dtype", "kv_dtype") if key in fields}
    deployment = Deployment(
        target=_named(target), **places,
        profile=called(values["profile"], profile),
        enable_prefix_caching=False, max_num_seqs=seqs, max_num_batched_tokens=budget,
    )  # fmt: skip
    if method == "none":
        for flag in ("acceptance_file", "acceptance_drafter", "draft"):
            if values[flag] is not None:
                raise ScenarioError(f"--{flag.replace('_', '-')} does nothing with a profile without speculation")
        method = "ngram"
    acceptance: dict[str, Any] = {"acceptance": (0.5,) * values["k"]}
    if values["acceptance_file"] is not None:
        # the reference engine serves greedily
        acceptance = {"acceptance_file": os.path.abspath(values["acceptance_file"]),
                      "acceptance_drafter": values["acceptance_drafter"], "temperature": 0.0}  # fmt: skip
    numbers = {key: int(value) for key, value in options.items() if key in drafter(method).options}
    heads = whole_of(profile.covers, "draft_heads", profile.name)
    if drafter(method).mode == "heads" and heads is not None:
        numbers["heads"] = heads
    speculation = Speculation(
        method, draft=_named(draft) if isinstance(draft, Model) else None,
        num_spec_tokens=tuple(range(1, values["k"] + 1)), options=numbers,
        # a chain is served, whatever tree is usual
        topk=1 if drafter(method).usual_tree is not None else None, **acceptance,
    )  # fmt: skip
    return resolve(deployment, speculation, Slo(), profile=profile)


def _named(given: Model) -> str:
    """By its name in the catalogue, else by its config.json."""
    from scenarios.models import known_model

    path = given.source
    return given.name if known_model(given.name) is not None or not isinstance(path, Path) else str(path.resolve())


def _policies(values: Mapping[str, Any], question: Question, trace: Trace) -> tuple[PolicySpec, ...]:
    """The arms that were asked for; else off, static at k, and the schedule that profile and acceptance give."""
    from specsim.config import PolicySpec
    from specsim.planner.surface import best_k_table
    from specsim.policies import parse_policy

    if values["policies"]:
        return tuple(parse_policy(text) for text in values["policies"])
    found = [PolicySpec("off")]
    if question.on.profile.covers.get("method", "none") == "none":
        return tuple(found)
    found.append(PolicySpec("static", values["k"]))
    context = float(trace.prompt_tokens.mean() + trace.output_tokens.mean() / 2)
    table = best_k_table(question, context)
    if len(table) > 1:  # otherwise it is one of the other arms
        found.append(PolicySpec("schedule", max(k for _, _, k in table), table=table))
    return tuple(found)


def _of_acceptance(values: Mapping[str, Any], method: str, question: Question) -> str:
    if method == "none":
        return "Nothing drafts, so no acceptance is needed."
    if values["forced_acceptance"] is not None:
        return (f"Acceptance was forced, {question.acceptance.expected_length(values['k']):.2f} tokens a round at k = "
                f"{values['k']}: served and predicted rounds are the same, so that errors are of step times and "
                f"scheduling alone.")  # fmt: skip
    if values["acceptance_file"] is not None:
        return (f"Acceptance is that of {values['acceptance_file']} ({question.acceptance_source}); whether its "
                f"prompts are others than those served is not known here.")  # fmt: skip
    where = "other parts of the text" if values["texts"] else "other drawn tokens"
    return (f"Acceptance was measured on {values['acceptance_prompts']} prompts out of {where}: "
            f"{question.acceptance.expected_length(values['k']):.2f} tokens a round at k = {values['k']}.")  # fmt: skip


def _device_checks(profile: LatencyProfile, device: Device) -> list[str]:
    from calibrate.validation.reference import reference_of

    found = []
    if reference_of(profile) is None:
        found.append("How fast the machine is now is not held against the calibration: the profile knows no reference "
                     "point of a whole model.")  # fmt: skip
    measured = profile.covers.get("gpu", "")
    if measured and measured != device.name:
        found.append(f"The profile was measured on {measured}; this is {device.name}.")
    clock = _CLOCKS.get(profile.covers.get("clock", ""), device.clock)
    if clock != device.clock and {clock, device.clock} != {"wall", "device"}:
        found.append(f"The profile was measured by {profile.covers['clock']}; served is by {device.clock} time.")
    return found


def _points(path: Path) -> Any:
    from calibrate.points import read_points

    return read_points(path)[1]


def _text(name: str) -> str:
    from specsim.errors import ScenarioError

    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ScenarioError(f"--text {name}: cannot be read: {reason}; give a text file") from None


def minutes_said(seconds: float) -> str:
    """`12 s`, or `3 min`."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _facts(
    values: Mapping[str, Any], question: Question, trace: Trace, server: Server, device: Device, world: World
) -> dict[str, Any]:
    profile, meta = question.on.profile, trace.meta
    method = profile.covers.get("method", "none")
    drafts = "" if method == "none" else f", {method} k={values['k']}"
    return {
        "subject": f"{profile.covers.get('target', '')}{drafts} on {device.name}",
        "target": profile.covers.get("target"),
        "weights": server.model.source if server.model.source.startswith("random") else "those of the checkpoint",
        "method": method,
        "k": values["k"],
        "device": device.name,
        "clock": device.clock,
        "attention_backend": server.model.attention_backend,
        "versions": dict(device.facts),
        "profile": {
            "name": profile.name, "sha256": profile.sha256, "relative_error": profile.relative_error,
            "date": profile.covers.get("date"), "notes": list(profile.notes),
        },
        "trace": {
            "source": meta.source, "requests": len(trace), "notes": list(meta.notes),
            "prompt_tokens_mean": float(trace.prompt_tokens.mean()),
            "output_tokens_mean": float(trace.output_tokens.mean()),
        },
        "texts": [os.path.basename(name) for name in values["texts"]],
        "acceptance": None if world.acceptance is None else {
            "source": question.acceptance_source,
            "length": question.acceptance.expected_length(values["k"]),
        },
        "limits": {"max_num_seqs": question.on.limits.max_num_seqs,
                   "max_num_batched_tokens": question.on.limits.max_num_batched_tokens},
        "repeats": world.repeats,
        "luck": world.luck,
        "seed": world.seed,
    }  # fmt: skip
