"""From what a user wrote to what the simulator understands: names to shapes, shapes to costs, memory to limits."""

from __future__ import annotations

from dataclasses import asdict, replace

from scenarios.acceptance import resolve_acceptance
from scenarios.hardware import gpu as find_gpu
from scenarios.models import default_drafter
from scenarios.models import model as find_model
from specsim.analytic import analytic_profile
from specsim.config import Deployment, ReplicaLimits, Slo, Speculation
from specsim.efficiency import factors_for
from specsim.errors import CapacityError, ScenarioError
from specsim.memory import plan_memory, replica_limits
from specsim.planner.question import Question, Side
from specsim.shapes import Gpu, ModelShape

__all__ = ["STAND_IN", "find_drafter", "resolve"]

STAND_IN = (Deployment(), Speculation())
"""What `specsim plan` assumes when nothing is said: Llama-3.1-8B on one H100 SXM with its EAGLE head, the pair for
which acceptance was published position by position."""

_LOOKUP = ("ngram",)
_FROM_REPO = "config.json of "
"""How the catalogue begins the source of a shape that is a published checkpoint's."""
GIVEN_ERROR = 0.03
"""One-sigma error of an acceptance length that the user gives: that of a few hundred measured requests."""
BORROWED_ERROR = 0.25
"""That of a default of another model or task: published lengths of one method differ so much between targets (EAGLE-3
and MTP at k = 3 from 2.4 to 3.4, n-gram in chat from 1.03 to 1.40)."""
DEFAULT_ERROR = 0.10
"""That of a published default: tasks of one drafter differ by about as much (Llama-3.1-8B EAGLE, GSM8K 2.39 and
ShareGPT 2.27; n-gram 1.17 and 1.40)."""


def resolve(deployment: Deployment, speculation: Speculation, slo: Slo, *, assumed: tuple[str, ...] = ()) -> Question:
    """Look up, size and cost a deployment with speculation off and on.

    Raises:
        CatalogueError: unknown GPU, model or drafter.
        CapacityError: it does not fit, with the numbers.
        ScenarioError: a combination that makes no sense.
    """
    gpu = find_gpu(deployment.gpu)
    target = find_model(deployment.target)
    draft = find_drafter(target, speculation)
    method = speculation.method
    off = _side(target, gpu, deployment, None, "none")
    try:
        on = _side(target, gpu, deployment, draft, method)
    except CapacityError as refusal:
        raise CapacityError(f"{refusal} (without speculation it fits)") from refusal
    # Both sides refuse the same requests, or a comparison would not be one.
    shortest = min(off.limits.max_model_len, on.limits.max_model_len)
    off, on = (replace(side, limits=_with_length(side.limits, shortest)) for side in (off, on))
    acceptance, source = resolve_acceptance(speculation, target.name)
    given = speculation.acceptance is not None or speculation.acceptance_length is not None
    error = GIVEN_ERROR if given else BORROWED_ERROR if source.startswith("borrowed") else DEFAULT_ERROR
    if max(speculation.num_spec_tokens) > acceptance.max_spec_tokens:
        raise ScenarioError(
            f"speculation.num_spec_tokens {max(speculation.num_spec_tokens)} is more than the acceptance model "
            f"'{acceptance.name}' knows ({acceptance.max_spec_tokens}); lower it"
        )
    names = {"target": target.name, "gpu": gpu.name, "draft": "none (lookup)" if draft is None else draft.name}
    names |= _repositories(deployment.target, target, speculation.draft, draft)
    return Question(
        deployment=deployment,
        speculation=speculation,
        slo=slo,
        off=off,
        on=on,
        acceptance=acceptance,
        acceptance_source=source,
        acceptance_error=error,
        names=names,
        assumed=assumed,
    )


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
    if speculation.method in _LOOKUP:
        if speculation.draft is not None:
            raise ScenarioError(
                f"speculation.draft '{speculation.draft}' makes no sense with method {speculation.method}, which has "
                f"no model; leave it out"
            )
        return None
    if speculation.draft is None:
        return default_drafter(target, speculation.method)
    kind = speculation.method if speculation.method in ("eagle", "eagle3", "mtp") else None
    draft = find_model(speculation.draft, kind=kind)  # type: ignore[arg-type]
    if draft.kind != (kind or "model"):
        what, fits = ("whole model", "draft_model") if draft.kind == "model" else (f"{draft.kind} head", draft.kind)
        raise ScenarioError(
            f"speculation.draft '{speculation.draft}' is a {what}, which method {speculation.method} cannot use; give "
            f"another drafter, or --method {fits}"
        )
    return draft


def _side(target: ModelShape, gpu: Gpu, deployment: Deployment, draft: ModelShape | None, method: str) -> Side:
    plan = plan_memory(target, gpu, deployment, draft=draft, method=method)
    limits = replica_limits(target, gpu, deployment, draft=draft, method=method)
    profile = analytic_profile(
        target,
        gpu,
        tp=deployment.tp,
        weight_dtype=deployment.weight_dtype,
        kv_dtype=deployment.kv_dtype,
        draft=draft,
        method=method,
        factors=factors_for(deployment.engine, deployment.engine_version),
    )
    memory = {name: value for name, value in asdict(plan).items() if isinstance(value, int | float)}
    return Side(profile=profile, limits=limits, memory=memory, notes=plan.notes)


def _with_length(limits: ReplicaLimits, max_model_len: int) -> ReplicaLimits:
    return replace(limits, max_model_len=max_model_len)
