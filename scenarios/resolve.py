"""From what a user wrote to what the simulator understands: names to shapes, shapes to costs, memory to limits."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from scenarios.acceptance_match import measured_doubts
from scenarios.chosen_acceptance import acceptance_by_task, chosen_acceptance
from scenarios.hardware import gpu as find_gpu
from scenarios.measured_costs import gpu_of, profile_of, sides
from scenarios.models import default_drafter
from scenarios.models import model as find_model
from scenarios.trees import Verified, verified
from specsim.acceptance import ByTask
from specsim.analytic import analytic_profile
from specsim.config import Deployment, ReplicaLimits, Slo, Speculation
from specsim.disaggregation import Disaggregation
from specsim.drafters import all_drafters
from specsim.efficiency import factors_for
from specsim.errors import CapacityError, ScenarioError
from specsim.memory import DraftMemory, MemoryPlan, plan_memory, replica_limits, tree_limits
from specsim.planner.question import Question, Side, TaskAcceptance
from specsim.profiles import LatencyProfile
from specsim.shapes import Gpu, ModelShape
from specsim.traces.model import Trace

__all__ = ["STAND_IN", "by_task", "find_drafter", "resolve"]

STAND_IN = (Deployment(), Speculation())
"""What `specsim plan` assumes when nothing is said: Llama-3.1-8B on one H100 SXM with its EAGLE head, the pair for
which acceptance was published position by position."""

_FROM_REPO = "config.json of "
"""How the catalogue begins the source of a shape that is a published checkpoint's."""


def resolve(
    deployment: Deployment,
    speculation: Speculation,
    slo: Slo,
    *,
    assumed: tuple[str, ...] = (),
    folder: Path = Path(),
    profile: LatencyProfile | None = None,
) -> Question:
    """Look up, size and cost a deployment with speculation off and on. A relative `acceptance_file` starts at `folder`.

    `profile`: step times instead of those that the deployment names.

    Raises:
        CatalogueError: unknown GPU, model or drafter.
        CapacityError: it does not fit, with the numbers.
        ScenarioError: a combination that makes no sense.
    """
    given = profile_of(deployment, folder) if profile is None else profile
    gpu = find_gpu(deployment.gpu) if given is None else gpu_of(given, deployment.gpu)
    target = find_model(deployment.target)
    draft = find_drafter(target, speculation)
    measured = (None, None) if given is None else sides(given, deployment, speculation)
    off = _side(target, gpu, deployment, profile=measured[0])
    try:
        on = _side(target, gpu, deployment, draft, speculation, profile=measured[1])
    except CapacityError as refusal:
        raise CapacityError(f"{refusal} (without speculation it fits)") from refusal
    # Both sides refuse the same requests, or a comparison would not be one.
    shortest = min(off.limits.max_model_len, on.limits.max_model_len)
    off, on = (replace(side, limits=_with_length(side.limits, shortest)) for side in (off, on))
    located = _located(speculation, folder)
    doubts = measured_doubts(located, target, draft, target_given=deployment.target)
    chosen = chosen_acceptance(located, target.name)
    shape = verified(located, target, chosen.model)
    acceptance, trees = shape.acceptance, shape.trees
    limits = on.limits
    if deployment.engine == "vllm":  # the others budget the target's tokens only
        limits = replace(limits, draft_slots=speculation.drafter.extra_rows.at(max(speculation.num_spec_tokens)))
    on = replace(on, trees=trees, limits=tree_limits(limits, trees))
    source = f"{chosen.said}; {shape.said}" if shape.said else chosen.said
    deepest = max(speculation.num_spec_tokens)
    if draft is not None and draft.kind == "medusa" and deepest > draft.num_layers:
        raise ScenarioError(
            f"speculation.num_spec_tokens {deepest} is more than the {draft.num_layers} heads that are loaded; lower "
            f"it or set options heads"
        )
    if deepest > acceptance.max_spec_tokens:
        raise ScenarioError(
            f"speculation.num_spec_tokens {deepest} is more than the acceptance model "
            f"'{acceptance.name}' knows ({acceptance.max_spec_tokens}); lower it"
        )
    none = "none (lookup)" if speculation.drafter.looks_up else "none"
    names = {"target": target.name, "gpu": gpu.name, "draft": none if draft is None else draft.name}
    names |= _repositories(deployment.target, target, speculation.draft, draft)
    if deployment.engine != "vllm":
        assumed = (*assumed, f"Followed is {deployment.serving.follows}")
    return Question(
        deployment=deployment,
        speculation=speculation,
        slo=slo,
        off=off,
        on=on,
        acceptance=acceptance,
        acceptance_source=source,
        acceptance_error=math.hypot(chosen.error, shape.error),
        names=names,
        assumed=(*assumed, *doubts),
        doubts=doubts,
    )


def by_task(question: Question, trace: Trace, *, folder: Path = Path()) -> Question:
    """The question with an acceptance for each content class that the log names; as it is when it names none.

    Raises:
        ScenarioError, ProfileError: see `scenarios.chosen_acceptance`.
    """
    if trace.task is None or not (trace.task >= 0).any():
        return question
    tokens = np.bincount(trace.task.astype(np.int64) + 1, weights=trace.output_tokens, minlength=1)
    shares = tokens / tokens.sum()
    tasks = {name: float(shares[code]) for code, name in enumerate(trace.task_names, start=1) if code < len(shares)}
    if shares[0] > 0:
        tasks[""] = float(shares[0])
    target = find_model(question.deployment.target)
    located = _located(question.speculation, folder)
    chosen = acceptance_by_task(located, target.name, tasks)
    shape = verified(located, target, chosen.model)
    return replace(
        question,
        acceptance=shape.acceptance,
        acceptance_source=f"{chosen.said}; {shape.said}" if shape.said else chosen.said,
        acceptance_error=math.hypot(chosen.error, shape.error),
        acceptance_by_task=_as_trees(chosen.by_task, shape),
    )


def _as_trees(parts: tuple[TaskAcceptance, ...], shape: Verified) -> tuple[TaskAcceptance, ...]:
    """The acceptance lengths of content classes on the trees that are verified."""
    if not shape.trees:
        return parts
    model = shape.acceptance
    models = model.models if isinstance(model, ByTask) else (model,) * len(parts)
    return tuple(
        replace(part, lengths={k: own.expected_length(k) for k in part.lengths})
        for part, own in zip(parts, models, strict=True)
    )


def _located(speculation: Speculation, folder: Path) -> Speculation:
    """The speculation with the file of measured requests where it lies."""
    if speculation.acceptance_file is None:
        return speculation
    return replace(speculation, acceptance_file=str(folder / Path(speculation.acceptance_file).expanduser()))


def _repositories(
    target_given: str, target: ModelShape, draft_given: str | None, draft: ModelShape | None
) -> dict[str, str]:
    """What an engine loads: the repository or path that the user named, else the catalogue's.

    EAGLE heads of the catalogue come from training configurations, so that nothing is said of those.
    """
    found = {}
    for key, given, shape in (("target_repo", target_given, target), ("draft_repo", draft_given, draft)):
        if given is not None and (given == "config.json" or given.endswith("/config.json")):
            found[key] = given.removesuffix("config.json").rstrip("/") or "."  # an engine takes the folder
        elif given is not None and "/" in given:
            found[key] = given
        elif shape is not None and shape.source.startswith(_FROM_REPO):
            found[key] = shape.source.removeprefix(_FROM_REPO)
    return found


def find_drafter(target: ModelShape, speculation: Speculation) -> ModelShape | None:
    """The drafter of a speculation, None for methods that run no model.

    Raises:
        CatalogueError: unknown, or the target has none of the method.
        ScenarioError: the method cannot use it.
    """
    method = speculation.drafter
    if speculation.draft is None:
        return default_drafter(target, method.name, speculation.options)
    if method.loads not in ("model", "head"):
        raise ScenarioError(
            f"speculation.draft '{speculation.draft}' makes no sense with method {method.name}, which has no model of "
            f"its own; leave it out"
        )
    if speculation.options:
        raise ScenarioError(
            f"speculation.draft '{speculation.draft}' has its own shape, so that options do nothing; give one of them"
        )
    kind = None if method.kind == "model" else method.kind
    draft = find_model(speculation.draft, kind=kind)
    if draft.kind != method.kind:
        what = "a whole model" if draft.kind == "model" else f"made for {draft.kind}"
        fits = [other.name for other in all_drafters().values() if other.kind == draft.kind]
        raise ScenarioError(
            f"speculation.draft '{speculation.draft}' is {what}, which method {method.name} cannot use; give another "
            f"drafter, or --method {' or '.join(fits)}"
        )
    return draft


def _side(
    target: ModelShape,
    gpu: Gpu,
    deployment: Deployment,
    draft: ModelShape | None = None,
    speculation: Speculation | None = None,
    *,
    profile: LatencyProfile | None = None,
) -> Side:
    method = "none" if speculation is None else speculation.method
    given = speculation or Speculation()
    kept = DraftMemory(given.draft_tp, given.draft_weight_dtype, given.draft_kv_dtype)
    plan = plan_memory(target, gpu, deployment, draft=draft, method=method, kept=kept)
    limits = replica_limits(target, gpu, deployment, draft=draft, method=method, kept=kept)
    memory = {name: value for name, value in asdict(plan).items() if isinstance(value, int | float)}
    pools = _pools(deployment, gpu, plan)
    if profile is not None:
        return Side(profile=profile, limits=limits, memory=memory, notes=plan.notes, disaggregation=pools)
    profile = analytic_profile(
        target,
        gpu,
        tp=deployment.tp,
        weight_dtype=deployment.weight_dtype,
        kv_dtype=deployment.kv_dtype,
        draft=draft,
        method=method,
        engine=deployment.engine,
        factors=factors_for(deployment.engine, deployment.engine_version),
        max_captured=deployment.max_captured,
        is_async=deployment.async_scheduling,
        options=None if speculation is None else speculation.options,
        draft_tp=given.draft_tp,
        draft_weight_dtype=given.draft_weight_dtype,
        draft_kv_dtype=given.draft_kv_dtype,
    )
    return Side(profile=profile, limits=limits, memory=memory, notes=plan.notes, disaggregation=pools)


def _pools(deployment: Deployment, gpu: Gpu, plan: MemoryPlan) -> Disaggregation | None:
    """Prefill and decode replicas with their link; None where replicas do both."""
    if deployment.prefill_replicas is None or deployment.decode_replicas is None:
        return None
    factors = factors_for(deployment.engine, deployment.engine_version)
    rate = deployment.kv_link_gb_per_s
    usual = min(gpu.link_bytes_per_s, factors.between_servers_bytes_per_s) * factors.slow_link_bandwidth
    latency_s = deployment.kv_link_latency_s
    return Disaggregation(
        prefill_replicas=deployment.prefill_replicas,
        decode_replicas=deployment.decode_replicas,
        block_bytes=plan.kv_bytes_per_token * plan.block_size_tokens,
        link_bytes_per_s=usual if rate is None else rate * 1e9,
        link_latency_s=factors.kv_pull_latency_s if latency_s is None else latency_s,
    )


def _with_length(limits: ReplicaLimits, max_model_len: int) -> ReplicaLimits:
    return replace(limits, max_model_len=max_model_len)
