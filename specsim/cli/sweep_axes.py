"""The axes of a grid, as `--grid NAME=VALUES` says them: which flag or key one changes, and its values, read strictly.

An axis is k, load or rate, a flag of the command by its name, or a key of a scenario file. Leaves out: what a
combination of values means (`specsim.cli.sweep_input`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from specsim.checks import read_number, read_whole
from specsim.errors import InputError, ScenarioError, nearest

__all__ = [
    "MOST_VALUES",
    "Axis",
    "Over",
    "flag_names",
    "parse_axis",
    "parse_over",
    "read_bound",
    "read_value",
    "refuse_clashes",
]

MOST_VALUES = 1000
STEPS = 6
"""Values of a range that does not say how many."""
_RANGE = re.compile(r"([^.\s]+(?:\.\d+)?)\.\.([^/\s]+)(?:/(\d+)(:log)?)?")
_SPECIAL = {
    "k": "drafts a round; 0 is speculation off",
    "load": "times the workload's own rate",
    "rate": "requests per second",
}
_ALIASES = {"drafter": "method"}
_ELSEWHERE = {
    "seed": "seeds are no axis: --seeds N repeats every point with paired seeds",
    "seeds": "seeds are no axis: --seeds N repeats every point with paired seeds",
    "num_spec_tokens": "the axis of drafts is k",
    "slo": "name the part of the objective: ttft, tpot, e2e or slo_share",
    "replications": "--seeds N repeats every point with paired seeds",
}


@dataclass(frozen=True)
class Axis:
    """One axis of a grid."""

    name: str
    kind: str
    """k, load, rate, flag, or key."""
    values: tuple[str, ...]
    option: click.Option | None = None
    """The flag that is set."""
    key: tuple[str, str] | None = None
    """(table, key) of a scenario file."""

    def converted(self, value: str) -> Any:
        """A value as the flag would give it; the text itself for a key of a file.

        Raises:
            ScenarioError: it cannot be read.
        """
        return read_value(self, value)


@dataclass(frozen=True)
class Over:
    """The axis along which something is searched, and between what."""

    axis: Axis
    low: float
    high: float
    whole: bool
    """Whether only whole numbers are places."""


def parse_over(text: str, flags: Mapping[str, click.Option]) -> Over:
    """What `--over AXIS=LOW..HIGH` says.

    Raises:
        ScenarioError: an unknown axis, or no range of numbers above 0.
    """
    said, _, values = text.partition("=")
    ranged = _RANGE.fullmatch(values.strip())
    if ranged is None or ranged[3]:
        raise ScenarioError(f"--over {text!r} must be AXIS=LOW..HIGH, e.g. load=0.5..4")
    try:
        axis = _target(said.strip().lstrip("-").replace("-", "_"), flags)
        low, high = (read_bound(axis, end) for end in (ranged[1], ranged[2]))
        for end in (ranged[1], ranged[2]) if 0 < low < high else ():
            axis.converted(end)
    except ScenarioError as error:  # the readers of --grid say its name
        raise ScenarioError(str(error).replace("--grid ", "--over ", 1)) from None
    if not 0 < low < high:
        raise ScenarioError(f"--over {text}: goes from a number above 0 to a higher one")
    return Over(axis, low, high, _is_whole(axis))


def flag_names(options: Sequence[click.Option]) -> dict[str, click.Option]:
    """Axis name -> flag, by every spelling of the flag."""
    return {spelling.lstrip("-").replace("-", "_"): option for option in options for spelling in option.opts}


def parse_axis(text: str, flags: Mapping[str, click.Option]) -> Axis:
    """The axis that `--grid TEXT` says.

    Raises:
        ScenarioError: an unknown axis, values that cannot be read, or one of them twice.
    """
    said, equals, values = text.partition("=")
    name = said.strip().lstrip("-").replace("-", "_")
    if not equals or not name or not values.strip():
        raise ScenarioError(f"--grid {text!r} must be NAME=VALUES, e.g. k=0,1,3 or load=0.5..3")
    axis = _target(name, flags)
    found = _values(axis, values)
    read = [axis.converted(value) for value in found]
    for value, one in zip(found, read, strict=True):
        if read.count(one) > 1:
            raise ScenarioError(f"--grid {name} has {value} twice; give each value once")
    return Axis(axis.name, axis.kind, tuple(found), axis.option, axis.key)


def _target(name: str, flags: Mapping[str, click.Option]) -> Axis:
    if name in _SPECIAL:
        return Axis(name, name, ())
    if name in _ELSEWHERE:
        raise ScenarioError(f"--grid {name}: {_ELSEWHERE[name]}")
    if _ALIASES.get(name, name) in flags:
        return Axis(name, "flag", (), option=flags[_ALIASES.get(name, name)])
    key = _scenario_key(name)
    if key is not None:
        return Axis(name, "key", (), key=key)
    known = [*_SPECIAL, *_ALIASES, *flags, *_scenario_keys()]
    raise ScenarioError(
        f"--grid {name}: unknown axis{nearest(name, known)}; axes are {', '.join(_SPECIAL)}, the flags of specsim "
        f"sweep and the keys of a scenario file"
    )


def _scenario_keys() -> dict[str, tuple[str, str]]:
    """Name -> (table, key): `table.key` of all, and `key` alone where one table has it."""
    from scenarios.loader import TABLES
    from scenarios.schema import keys_of

    found: dict[str, tuple[str, str]] = {}
    several: set[str] = set()
    for table, record in TABLES.items():
        if table in ("policy", "plan"):  # policies are written as texts; how much is simulated is said with --seeds
            continue
        for key in keys_of(record, milliseconds=table == "slo"):
            found[f"{table}.{key.name}"] = (table, key.name)
            several |= {key.name} & set(found)
            found[key.name] = (table, key.name)
    return {name: key for name, key in found.items() if name not in several}


def _scenario_key(name: str) -> tuple[str, str] | None:
    return _scenario_keys().get(name)


def _is_whole(axis: Axis) -> bool:
    if axis.option is not None:
        return isinstance(axis.option.type, click.types.IntParamType)
    return axis.kind == "k" or (axis.key is not None and axis.key[1] in ("isl", "osl", "requests", "limit"))


def _values(axis: Axis, text: str) -> list[str]:
    """The values of a list or a range; `;` separates values that hold commas."""
    ranged = _RANGE.fullmatch(text.strip())
    if ranged is None:
        parts = [part.strip() for part in text.split(";" if ";" in text else ",")]
        if ";" in text and not parts[-1]:  # a single value that holds commas ends in one
            parts.pop()
        if not all(parts):
            raise ScenarioError(f"--grid {axis.name}={text}: a value is empty; leave the comma out")
        return parts
    low, high = (read_bound(axis, end) for end in (ranged[1], ranged[2]))
    if not low < high:
        raise ScenarioError(f"--grid {axis.name}={text}: a range goes from the lower end to the higher")
    whole = _is_whole(axis)
    steps = int(ranged[3]) if ranged[3] else int(high - low) + 1 if whole else STEPS
    if not 2 <= steps <= MOST_VALUES:
        raise ScenarioError(f"--grid {axis.name}={text}: a range has 2 to {MOST_VALUES} values, not {steps}")
    if ranged[4] and low <= 0:
        raise ScenarioError(f"--grid {axis.name}={text}: a range in equal ratios (:log) begins above 0")
    shares = [step / (steps - 1) for step in range(steps)]
    between = [low * (high / low) ** s if ranged[4] else low + (high - low) * s for s in shares]
    found = [str(round(x)) if whole else f"{x:.6g}" for x in between]
    if len(set(found)) < len(found):
        raise ScenarioError(f"--grid {axis.name}={text}: has not {steps} whole numbers; give fewer")
    return found


def read_bound(axis: Axis, text: str) -> float:
    """One end of a range.

    Raises:
        ScenarioError: not a number, or no whole number on an axis of these.
    """
    try:
        return float(read_whole(text)) if _is_whole(axis) else read_number(text)
    except ValueError:
        kind = "whole numbers" if _is_whole(axis) else "numbers"
        raise ScenarioError(f"--grid {axis.name}: a range is of {kind}, e.g. 1..4, got {text!r}") from None


def read_value(axis: Axis, text: str) -> Any:
    """See `Axis.converted`."""
    if axis.kind == "k":
        return _number(axis, text, read_whole, 0, 1000, "a whole number of drafts up to 1000, 0 for speculation off")
    if axis.kind in ("load", "rate"):
        return _number(axis, text, read_number, 1e-6, 1e6, f"a number > 0 and up to 1e6, {_SPECIAL[axis.kind]}")
    if axis.option is None:
        return text
    option = axis.option
    if option.name == "policy":
        from specsim.policies import parse_policy

        try:
            return parse_policy(text)
        except InputError as error:
            raise ScenarioError(f"--grid {axis.name}: {error}") from None
    kind = click.BOOL if option.is_flag else option.type
    try:
        value = kind.convert(text, option, None)
    except click.BadParameter as error:
        raise ScenarioError(f"--grid {axis.name}={text}: {error.message.rstrip('.')}") from None
    return (value,) if option.multiple else value


def _number(axis: Axis, text: str, read: Any, low: float, high: float, wanted: str) -> Any:
    try:
        value = read(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise ScenarioError(f"--grid {axis.name}={text} must be {wanted}")
    return value


_SAME = (
    {"k", "policy"}, {"load", "rate", "concurrency"}, {"rate", "rate_per_s"},
    *({"concurrency", name} for name in ("rate_per_s", "arrivals", "duration", "prefix_pool")),
)  # fmt: skip
"""Axes of which a grid has one at most: they say the same thing in two ways, or one makes the other idle."""


def refuse_clashes(axes: Sequence[Axis], given: Mapping[str, str]) -> None:
    """Axes that are given twice, beside a flag that says the same, or that exclude each other.

    `given`: axis name -> flag, of flags of the command that were typed.

    Raises:
        ScenarioError: such a pair.
    """
    names = [_canonical(axis) for axis in axes]
    for axis, name in zip(axes, names, strict=True):
        if names.count(name) > 1:
            raise ScenarioError(f"--grid has the axis {axis.name} twice, perhaps spelt in two ways; give it once")
        for same in _SAME:
            others = [other for other in names if other in same and other != name]
            if name in same and others:
                raise ScenarioError(f"--grid {axis.name} and {others[0]} exclude each other; give one of them")
            flag = next((given[other] for other in sorted(same & set(given) - {name}) if name in same), None)
            if flag is not None:
                raise ScenarioError(f"{flag} and --grid {axis.name} exclude each other; give one of them")
        if axis.key is not None and axis.key[0] == "workload" and ("trace" in given or "trace" in names):
            log = given.get("trace", "--grid trace")
            raise ScenarioError(f"{log} replaces the workload, of which --grid {axis.name} is; leave one out")
        if name in given:
            raise ScenarioError(f"{given[name]} and --grid {axis.name} say the same; leave one out")


def _canonical(axis: Axis) -> str:
    if axis.option is not None:
        return axis.option.name or axis.name
    if axis.key is None:
        return axis.name
    from specsim.cli.scenario_options import flag_of

    return flag_of(*axis.key) or axis.key[1]
