"""The method that `specsim validate serve` runs: its options, its weights, and the acceptance that is dealt to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim.cli.model_input import method_options, model_of
from specsim.cli.scenario_options import parse_numbers

if TYPE_CHECKING:
    from calibrate.latency.job import Model
    from specsim.acceptance import PerPosition
    from specsim.profiles import LatencyProfile

__all__ = ["drafter_options", "drafter_weights", "forced_acceptance", "whole_of"]


def whole_of(covers: Mapping[str, str], name: str, profile: str) -> int | None:
    """A whole number >= 1 that a profile covers; None where it does not say.

    Raises:
        ScenarioError: it is none.
    """
    from specsim.checks import read_whole
    from specsim.errors import ScenarioError

    if name not in covers:
        return None
    try:
        value = read_whole(covers[name])
    except ValueError:
        value = 0
    if value < 1:
        raise ScenarioError(
            f"--profile {profile}: covers {name} {covers[name]!r}, which is no whole number >= 1; measure again"
        )
    return value


def drafter_options(texts: tuple[str, ...], method: str, profile: LatencyProfile) -> dict[str, float]:
    """Of the method; layers are those of the profile where it says them.

    Raises:
        ScenarioError: options without a method, or what `method_options` refuses.
    """
    from specsim.errors import ScenarioError

    if method == "none":
        if texts:
            raise ScenarioError("--draft-option does nothing with a profile without speculation")
        return {}
    found = method_options(texts, (method,))[method]
    layers = whole_of(profile.covers, "draft_layers", profile.name)
    if method == "layer_skip" and layers is not None:
        found.setdefault("layers", layers)
    return found


def drafter_weights(given: str | None, method: str, *, to_load: bool = True) -> Model | Path | None:
    """A draft model, or the folder of heads; `to_load` as in `model_of`.

    Raises:
        ScenarioError: the method runs none, or there is no such model or folder.
    """
    from calibrate.acceptance.methods import HEADS, NEEDS_DRAFT
    from specsim.errors import ScenarioError

    if given is None:
        return None
    if method not in NEEDS_DRAFT:
        raise ScenarioError(f"--draft is for {', '.join(NEEDS_DRAFT)}, and the profile is of method {method}")
    if method not in HEADS:
        return model_of(given, "--draft", to_load=to_load)
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise ScenarioError(f"--draft {given}: no such folder; {method} needs {NEEDS_DRAFT[method]}")
    return folder


def forced_acceptance(values: Mapping[str, Any], method: str) -> PerPosition | None:
    """Acceptance that is dealt to real rounds, one number for all positions or one each.

    Raises:
        ScenarioError: numbers that are none of such, or flags that say how acceptance is measured.
    """
    import click
    from click.core import ParameterSource

    from specsim.acceptance import PerPosition
    from specsim.errors import InputError, ScenarioError
    from specsim.policies import parse_policy

    text = values["forced_acceptance"]
    if text is None:
        return None
    if method == "none":
        raise ScenarioError("--forced-acceptance does nothing with a profile without speculation")
    if values["acceptance_file"] is not None:
        raise ScenarioError("--forced-acceptance deals acceptance, and --acceptance-file measured it; give one of them")
    context = click.get_current_context(silent=True)
    typed = (
        set[str]()
        if context is None
        else {name for name in values if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    )
    for name in ("acceptance_prompts", "acceptance_drafter"):
        if name in typed:
            flag = f"--{name.replace('_', '-')}"
            raise ScenarioError(
                f"--forced-acceptance deals acceptance, and {flag} is of measured acceptance; leave one of them out"
            )
    try:
        idle = bool(values["policies"]) and all(not parse_policy(text).num_spec_tokens for text in values["policies"])
    except InputError:  # told where the arms are read
        idle = False
    if idle:
        raise ScenarioError(
            f"--forced-acceptance does nothing where nothing is drafted (--policy "
            f"{' --policy '.join(values['policies'])}"
            f"); add an arm such as --policy static:{values['k']}, or leave it out"
        )
    rates, k = parse_numbers(text, "--forced-acceptance"), values["k"]
    if len(rates) == 1:
        rates *= k
    if len(rates) != k or not all(0 <= rate <= 1 for rate in rates):
        raise ScenarioError(
            f"--forced-acceptance {text}: must be one share in 0..1, or {k} of them, one a draft of --k"
        )
    return PerPosition(rates, name=f"forced: {', '.join(f'{rate:g}' for rate in rates)}")
