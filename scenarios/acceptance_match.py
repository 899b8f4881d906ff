"""Whether measured requests are of the target, the drafter and the sampling that a scenario names.

Models: names of folders, GGUF files, repositories and the catalogue, and the sizes that the file states. What
contradicts for certain is refused; what cannot be decided, and a temperature or an option that differs, is said.
Leaves out: whether the prompts are like the traffic. Numbers: the user's file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scenarios.lookup import name_key, one_line
from scenarios.measured_acceptance import measured_requests
from scenarios.models import catalogue_name
from specsim.acceptance.measured_on import MeasuredModel, MeasuredOn
from specsim.config import Speculation
from specsim.drafters import find_drafter
from specsim.errors import ScenarioError
from specsim.shapes import ModelShape

__all__ = ["measured_doubts"]


def measured_doubts(
    speculation: Speculation, target: ModelShape, draft: ModelShape | None, *, target_given: str
) -> tuple[str, ...]:
    """What is doubtful about the speculation's file of measured requests, a sentence each; none without such a file.

    Args:
        draft: the drafter as it was resolved; None: the method runs no model.
        target_given: the target as the user wrote it.

    Raises:
        ScenarioError: the file was measured on another target, another drafter or by another method.
        ProfileError: it cannot be read.
    """
    if speculation.acceptance_file is None:
        return ()
    requests = measured_requests(speculation)
    place = Path(speculation.acceptance_file)
    method, on = speculation.method, requests.on
    _check_levels(speculation, requests.tree, place)
    if on is None:
        sampled = "" if speculation.temperature is None else f" at temperature {speculation.temperature:g}"
        return (
            f"{place.name} does not say on what it was measured: its acceptance is taken as that of {method} on "
            f"{one_line(target.name)}{sampled}.",
        )
    return (
        *_of_target(on, target, target_given, place),
        *_of_method(on, speculation, place),
        *_of_drafter(on, speculation, draft, place),
        *_of_options(on, speculation, target, place),
        *_of_sampling(on, speculation, place),
    )


def _of_target(on: MeasuredOn, target: ModelShape, given: str, place: Path) -> Iterator[str]:
    if on.target is None:
        yield f"{place.name} does not say which target it was measured on: it is taken as {one_line(target.name)}."
        return
    why = _differ(on.target, target, given)
    if why is None:
        return
    name = _shown(target.name)
    if not why:
        yield (
            f"{place.name} was measured on {on.target}; whether that is {name} cannot be told, so its acceptance is "
            f"taken as that of {name}."
        )
        return
    way = _way("--target", on.target.name, target.name)
    raise ScenarioError(
        f"{place}: was measured on {on.target}, and deployment.target is {name} ({why}); {way}, a file measured on "
        f"{name}, or its figures as --acceptance-length"
    )


def _of_method(on: MeasuredOn, speculation: Speculation, place: Path) -> Iterator[str]:
    if on.method is None:
        yield f"{place.name} does not say by which method drafts were made: it is taken as {speculation.method}."
        return
    measured, wanted = find_drafter(on.method), speculation.drafter
    if measured is None:
        yield (
            f"{place.name} was measured by the method '{on.method}', which is not known here: it is taken as "
            f"{wanted.name}."
        )
    elif measured.name == wanted.name:
        return
    elif measured.name in wanted.listed_as or wanted.name in measured.listed_as:
        yield f"{place.name} was measured by method {measured.name}, whose drafter {wanted.name} uses in another way."
    else:
        raise ScenarioError(
            f"{place}: was measured by method {measured.name}, and speculation.method is {wanted.name}; give --method "
            f"{measured.name}, a file measured by {wanted.name}, or its figures as --acceptance-length"
        )


def _of_drafter(on: MeasuredOn, speculation: Speculation, draft: ModelShape | None, place: Path) -> Iterator[str]:
    """A head that nobody named is the one that was trained for the target, whatever its folder is called."""
    if on.drafter is None or draft is None or (speculation.draft is None and speculation.drafter.loads != "model"):
        return
    is_model = draft.kind == "model"
    why = _differ(on.drafter if is_model else MeasuredModel(on.drafter.name), draft, speculation.draft or draft.name)
    if why is None:
        return
    name = _shown(draft.name)
    if not why:
        yield f"{place.name} was measured with the drafter {on.drafter}; whether that is {name} cannot be told."
        return
    way = _way("--draft", on.drafter.name, draft.name)
    raise ScenarioError(
        f"{place}: was measured with the drafter {on.drafter}, and speculation.draft is {name} ({why}); {way}, or a "
        f"file measured with {name}"
    )


def _of_options(on: MeasuredOn, speculation: Speculation, target: ModelShape, place: Path) -> Iterator[str]:
    chosen = speculation.drafter.chosen(target, speculation.options)
    for name, value in on.options:
        if name in chosen and chosen[name] != value:
            yield (
                f"{place.name} was measured with {name} {value:g}, and costs are those of {name} {chosen[name]}; "
                f"--draft-option {name}={value:g} makes them agree."
            )


def _of_sampling(on: MeasuredOn, speculation: Speculation, place: Path) -> Iterator[str]:
    wanted = speculation.temperature
    if wanted is None:
        return
    if on.temperature is None:
        yield f"{place.name} does not say at which temperature it was measured: it is taken as {wanted:g}."
    elif on.temperature != wanted:
        yield (
            f"{place.name} was measured at temperature {on.temperature:g}, and requests are sampled at {wanted:g}: its "
            f"acceptance is taken as it is; specsim calibrate acceptance --temperature {wanted:g} measures it there."
        )
    elif wanted > 0 and on.draft_sampling not in (None, speculation.draft_sampling or "greedy"):
        yield (
            f"{place.name} was measured with {on.draft_sampling} drafts, and drafts are "
            f"{speculation.draft_sampling or 'greedy'} here: its acceptance is taken as it is."
        )


def _check_levels(speculation: Speculation, measured: str, place: Path) -> None:
    """Refuse a static tree of other levels than those that were verified."""
    levels = speculation.static_levels[: max(speculation.num_spec_tokens)]
    words = measured.split(",")
    if not levels or not all(word.isascii() and word.isdigit() for word in words):
        return
    there = tuple(map(int, words))
    if there[: len(levels)] != levels:
        raise ScenarioError(
            f"{place}: was measured over trees of {measured} nodes by level, and speculation verifies "
            f"{','.join(map(str, levels))}; give --tree {measured}, or a file measured over that tree"
        )


def _differ(measured: MeasuredModel, shape: ModelShape, given: str) -> str | None:
    """None: they are the same; a reason why they are not, empty where that cannot be told."""
    sizes = [(measured.layers, shape.num_layers, "layers"), (measured.hidden_size, shape.hidden_size, "hidden size")]
    for own, asked, what in sizes:
        if own is not None and own != asked:
            return f"{what} {own} and {asked}"
    names = {shape.name.removesuffix("/config.json"), given.removesuffix("/config.json").rstrip("/")}
    short = {name_key(name.split("/")[-1]) for name in names}
    if name_key(measured.name.split("/")[-1]) in short:
        return None
    own_entry = catalogue_name(measured.name)
    entry = next((hit for hit in map(catalogue_name, sorted(names)) if hit is not None), None)
    if own_entry is None or entry is None:
        return ""
    if own_entry != entry:
        return f"which the catalogue has as {own_entry} and {entry}"
    # an entry is a shape, and other trainings of the same shape are listed with it
    both = (measured.name, given)
    return None if all(name_key(entry) in name_key(name) for name in both) else ""


def _way(flag: str, measured: str, asked: str) -> str:
    """How to name the model that was measured."""
    known = catalogue_name(measured)
    own = known is None or known == catalogue_name(asked)
    return f"give {flag} with that model's config.json" if own else f"give {flag} {known}"


def _shown(name: str) -> str:
    return one_line(name.removesuffix("/config.json"))
