"""The acceptance of a speculation: figures that the user gave, measured requests, or published ones, by content class.

Models: what wins over what; figures over all rounds of a lookup split in two; one acceptance per content class of a
log; published figures lowered for a sampling temperature. Leaves out: the choice among published entries
(`scenarios.acceptance`) and the use of measured requests (`scenarios.measured_acceptance`). Numbers: none but errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scenarios.acceptance import default_acceptance, default_vector, known_task
from scenarios.lookup import one_line
from scenarios.measured_acceptance import LOOKUP_FIRST_DRAFT, measured_acceptance, measured_requests
from scenarios.temperature import at_temperature
from specsim.acceptance import AcceptanceModel, ByTask, Constant, Mixture, PerPosition
from specsim.acceptance.measured_summary import length_error
from specsim.closed_forms import alpha_from_length
from specsim.config import Speculation
from specsim.errors import ScenarioError
from specsim.planner.question import TaskAcceptance

__all__ = ["Chosen", "acceptance_by_task", "chosen_acceptance"]

_GIVEN_ERROR = 0.03
"""One-sigma error of an acceptance length that the user gives: that of a few hundred measured requests. Of a file of
measured requests it is the least, since tomorrow's requests are others."""
_ONE_REQUEST_ERROR = 0.25
"""That of a single measured request, which says nothing of how requests differ."""
_BORROWED_ERROR = 0.25
"""That of a default of another model or task: published lengths of one method differ so much between targets (EAGLE-3
and MTP at k = 3 from 2.4 to 3.4, n-gram in chat from 1.03 to 1.40)."""
_DEFAULT_ERROR = 0.10
"""That of a published default: tasks of one drafter differ by about as much (Llama-3.1-8B EAGLE, GSM8K 2.39 and
ShareGPT 2.27; n-gram 1.17 and 1.40)."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model of acceptance, where it is from, and how far it may be off."""

    model: AcceptanceModel
    said: str
    """One line for the reader."""
    error: float
    """One-sigma relative error of the mean acceptance length."""
    by_task: tuple[TaskAcceptance, ...] = ()
    """What each content class got, when there are several."""


def chosen_acceptance(speculation: Speculation, target: str) -> Chosen:
    """One acceptance for all requests.

    Raises:
        ScenarioError: when figures contradict each other, the task is unknown, or there is nothing to go by.
        ProfileError: when the file of measured requests cannot be used.
    """
    if speculation.acceptance_file is not None:
        requests = measured_requests(speculation)
        if speculation.task is not None:
            requests = requests.of_task(_measured_task(speculation.task, requests.tasks) or speculation.task)
        model, said = measured_acceptance(speculation, requests)
        error = length_error(requests, max(speculation.num_spec_tokens))
        return Chosen(model, said, _ONE_REQUEST_ERROR if error is None else max(error, _GIVEN_ERROR))
    given = _given(speculation)
    if given is not None:
        return Chosen(*given, _GIVEN_ERROR)
    return _published(speculation, target)


def acceptance_by_task(speculation: Speculation, target: str, tasks: Mapping[str, float]) -> Chosen:
    """Acceptance of a log whose requests say their content class.

    `tasks`: class -> its share of all output tokens, in the order of the log's codes; the class of requests that name
    none is empty and comes last. Figures of the user's own, or a task of the user's choice, hold for all requests.

    Raises:
        ScenarioError, ProfileError: see `chosen_acceptance`.
    """
    if speculation.task is not None or speculation.acceptance is not None or speculation.acceptance_length is not None:
        one = chosen_acceptance(speculation, target)
        return replace(one, said=f"{one.said}; for all requests, whatever task the log names")
    ks = sorted(set(speculation.num_spec_tokens))
    found = [(name, share, *_of_task(speculation, target, name)) for name, share in tasks.items()]
    parts = tuple(
        TaskAcceptance(name or "none named", share, known, one.said, {k: one.model.expected_length(k) for k in ks})
        for name, share, one, known in found
    )
    models = tuple(one.model for _, _, one, _ in found)
    error = sum(share * one.error for _, share, one, _ in found)
    said = "by the log's tasks: " + "; ".join(
        f"{part.task} ({part.share:.0%} of output tokens{'' if part.known else ', unknown here, so the default'}): "
        f"{part.source}"
        for part in parts
    )
    if all(model is models[0] for model in models):
        return Chosen(models[0], said, error, parts)
    return Chosen(ByTask(models, tuple(share for _, share, _, _ in found)), said, error, parts)


def _of_task(speculation: Speculation, target: str, name: str) -> tuple[Chosen, bool]:
    """Acceptance of one class, and whether figures are known for it."""
    if speculation.acceptance_file is None:
        task = known_task(name) if name else None
        one = chosen_acceptance(replace(speculation, task=task), target)
        return one, task is not None
    task = _measured_task(name, measured_requests(speculation).tasks) if name else None
    return chosen_acceptance(replace(speculation, task=task), target), task is not None


def _measured_task(name: str, there: tuple[str, ...]) -> str | None:
    """The measured class that a class of the log is: of the same name, or of the same known content class."""
    if name in there:
        return name
    known = known_task(name)
    return next((task for task in dict.fromkeys(there) if known is not None and known_task(task) == known), None)


def _published(speculation: Speculation, target: str) -> Chosen:
    method, deepest = speculation.method, max(speculation.num_spec_tokens)
    model: PerPosition | Mixture
    if speculation.acceptance_model in ("vector", "constant"):
        model, said = default_vector(method, target, speculation.task)
    else:
        model, said = default_acceptance(method, target, speculation.task)
    if speculation.acceptance_model == "mixture" and not isinstance(model, Mixture):
        raise ScenarioError(
            f"speculation.acceptance_model mixture needs requests measured one by one, and none are published for "
            f"{method} on {one_line(target)}; leave it out, or give acceptance_file"
        )
    error = _BORROWED_ERROR if said.startswith("borrowed") else _DEFAULT_ERROR
    if speculation.acceptance_model == "constant":
        rate = model.proposal_rate
        k = min(deepest, model.max_spec_tokens)
        alpha = alpha_from_length(min(1.0 + (model.expected_length(k) - 1.0) / rate, k + 1.0), k)
        model = PerPosition((alpha,), proposal_rate=rate, name="constant")
        said += f"; taken as a constant acceptance of {alpha:.3f}, from its length at k={k}"
    if speculation.temperature is None:
        return Chosen(model, said, error)
    model, how, more = at_temperature(
        model, speculation.drafter, speculation.temperature, speculation.draft_sampling, deepest
    )
    return Chosen(model, f"{said}; {how}", (error**2 + more**2) ** 0.5)


def _given(speculation: Speculation) -> tuple[PerPosition, str] | None:
    """Acceptance from the user's own figures, None when there are none.

    For lookup methods figures count rounds without a proposal: they are split into a proposal rate and a match.
    """
    lookup = speculation.drafter.varies
    if speculation.acceptance is not None:
        vector = tuple(map(float, speculation.acceptance))
        said = f"given: conditional {', '.join(f'{a:g}' for a in vector)}"
        if not lookup or vector[0] == 0.0:
            return PerPosition(vector, name="given"), said
        rate = min(1.0, vector[0] / LOOKUP_FIRST_DRAFT)
        model = PerPosition((vector[0] / rate, *vector[1:]), proposal_rate=rate, name="given")
        return model, f"{said}; taken as {rate:.3g} of rounds with a proposal, {vector[0] / rate:.2f} of them matching"
    if speculation.acceptance_length is None:
        return None
    length, k = speculation.acceptance_length, speculation.acceptance_length_k
    if k is None:
        if len(set(speculation.num_spec_tokens)) != 1:
            raise ScenarioError(
                f"acceptance length {length:g} needs the number of draft tokens at which it was measured; "
                f"give acceptance_length_k"
            )
        k = speculation.num_spec_tokens[0]
    alpha = alpha_from_length(float(length), k)
    said = f"given: acceptance length {length:g} at k={k}"
    if lookup:
        shape, _ = default_vector(speculation.method, "", speculation.task)
        rate = (length - 1.0) / ((shape.expected_length(k) - 1.0) / shape.proposal_rate)
        if rate <= 1.0:
            model = PerPosition(shape.given, shape.max_spec_tokens, rate, name="given length")
            return model, f"{said}; taken as {rate:.3g} of rounds with a proposal, matching as the catalogue's n-gram"
    return Constant(alpha), f"{said}; taken as a constant acceptance of {alpha:.3f}"
