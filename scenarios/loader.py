"""Scenario files: TOML tables `[workload]`, `[deployment]`, `[speculation]`, `[policy]`, `[slo]`, `[plan]`.

Every key is a field of a record and is checked by it; unknown tables and keys are refused with the nearest right one.
Policies may also be texts or a list (`scenarios.policy_file`).
Ready scenarios lie in `scenarios/library` and are found by their name.
Leaves out: looking names of GPUs and models up, and fitting memory (`scenarios.resolve`).
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scenarios.lookup import one_line
from scenarios.policy_file import policy_keys, read_policies, write_policies
from scenarios.schema import keys_of, read_record, write_record
from scenarios.workload import WorkloadSpec
from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.errors import ScenarioError, nearest
from specsim.planner.question import PlanSettings
from specsim.policies import KINDS

__all__ = ["TABLES", "ScenarioFile", "dump_scenario", "library_names", "load_scenario", "parse_scenario",
           "with_value"]  # fmt: skip

TABLES: Mapping[str, type] = MappingProxyType(
    {
        "workload": WorkloadSpec,
        "deployment": Deployment,
        "speculation": Speculation,
        "policy": PolicySpec,
        "slo": Slo,
        "plan": PlanSettings,
    }
)
"""Table of the file -> the record behind it."""

_MILLISECONDS = ("slo",)
"""Tables in which people write milliseconds."""
_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """What a scenario file says; tables that it leaves out are at their defaults, workload None, policies empty."""

    path: Path
    workload: WorkloadSpec | None = None
    deployment: Deployment = field(default_factory=Deployment)
    speculation: Speculation = field(default_factory=Speculation)
    policies: tuple[PolicySpec, ...] = ()
    slo: Slo = field(default_factory=Slo)
    plan: PlanSettings = field(default_factory=PlanSettings)

    @property
    def folder(self) -> Path:
        """Where relative paths in the file start."""
        return self.path.parent


def library_names() -> tuple[str, ...]:
    """Names of the ready scenarios, sorted."""
    found = files("scenarios").joinpath("library").iterdir()
    return tuple(sorted(item.name.removesuffix(".toml") for item in found if item.name.endswith(".toml")))


def load_scenario(name_or_path: str | Path) -> ScenarioFile:
    """The scenario in a file, or the ready one of that name (`./name` always means a file).

    Raises:
        ScenarioError: one line: the file, the place in it, the value, the way out.
    """
    text = str(name_or_path)
    if not text:
        raise ScenarioError(f"the name of the scenario is empty; give a file, or one of {', '.join(library_names())}")
    path = Path(os.path.expanduser(text))
    if text in library_names() and not path.is_file():
        path = Path(str(files("scenarios").joinpath("library", f"{text}.toml")))
    return parse_scenario(_read_text(path, text), path)


def _read_text(path: Path, said: str) -> str:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a pipe could wait for ever
            raise ScenarioError(f"{one_line(said)}: is a pipe or a device; give a scenario file on the disk")
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        names = library_names()
        raise ScenarioError(
            f"{one_line(said)}: no such file, and no ready scenario{nearest(said, names)}; ready ones are "
            f"{', '.join(names)}"
        ) from None
    except IsADirectoryError:
        raise ScenarioError(f"{one_line(said)} is a directory; give a scenario file in it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ScenarioError(f"{one_line(said)}: cannot be read: {one_line(str(reason))}") from None
    if len(data) > _LARGEST_BYTES:
        raise ScenarioError(f"{one_line(said)}: larger than 1 MiB, so no scenario file; give the TOML file")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ScenarioError(f"{one_line(said)}: is UTF-16; save it as UTF-8")
    if b"\0" in data:
        raise ScenarioError(f"{one_line(said)}: is binary, not a TOML file; give a scenario file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ScenarioError(f"{one_line(said)}: line {line} is not UTF-8; save the file as UTF-8") from None


def parse_scenario(text: str, path: Path) -> ScenarioFile:
    """The scenario that `text` describes; `path` names it in messages and is where relative paths start.

    Raises:
        ScenarioError: see `load_scenario`.
    """
    place = one_line(str(path))
    try:
        data = tomllib.loads(text.replace("\r\n", "\n"), parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{place}: not valid TOML: {one_line(str(error))}") from None
    except (RecursionError, ValueError, ArithmeticError) as error:
        raise ScenarioError(f"{place}: not valid TOML: {one_line(str(error))}") from None
    if not data:
        raise ScenarioError(f"{place}: says nothing; give at least one of the tables {_table_list()}")
    return _scenario_of(data, path)


def with_value(scenario: ScenarioFile, table: str, key: str, text: str) -> ScenarioFile:
    """The scenario with one key changed to what `text` says as TOML, or to the text itself.

    Raises:
        ScenarioError: see `load_scenario`.
    """
    data = tomllib.loads(dump_scenario(scenario), parse_float=Decimal)
    try:
        value = tomllib.loads(f"x = {text}", parse_float=Decimal)["x"]
    except tomllib.TOMLDecodeError:
        value = text
    data.setdefault(table, {})[key] = value
    return _scenario_of(data, scenario.path)


def _scenario_of(data: Mapping[str, Any], path: Path) -> ScenarioFile:
    place = one_line(str(path))
    for name, value in data.items():
        if name not in TABLES:
            raise ScenarioError(f"{place}: {_unknown_table(name, value)}")
    for name, table in data.items():
        _refuse_misplaced(name, table, place)
    records: dict[str, Any] = {
        name: read_record(TABLES[name], table, f"{place}: {name}", milliseconds=name in _MILLISECONDS)
        for name, table in data.items()
        if name != "policy"
    }
    if "policy" in data:
        records["policies"] = read_policies(data["policy"], place)
    return ScenarioFile(path=path, **records)


def dump_scenario(scenario: ScenarioFile) -> str:
    """TOML text from which `parse_scenario` gives back an equal scenario; fields at their default are left out."""
    parts = []
    for name in TABLES:
        if name == "policy":
            parts += write_policies(scenario.policies)
            continue
        record = getattr(scenario, name)
        default = {f.name: f for f in fields(ScenarioFile)}[name].default
        if record is None and default is None:
            continue
        lines = write_record(record, milliseconds=name in _MILLISECONDS)
        if lines or default is None:
            parts.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(parts or ["[deployment]"]) + "\n"


def _table_list() -> str:
    return ", ".join(f"[{name}]" for name in TABLES)


def _unknown_table(name: str, value: Any) -> str:
    """Message for a top-level name that is no table."""
    owner = _owner(name)
    if not isinstance(value, Mapping) and owner is not None:
        return f"key '{one_line(name)}' stands outside of any table; move it below [{owner}]"
    kind = "table" if isinstance(value, Mapping) else "key"
    return f"unknown {kind} '{one_line(name)}'{nearest(name, TABLES)}; tables are {_table_list()}"


def _refuse_misplaced(name: str, table: Any, place: str) -> None:
    """Say where a key belongs that stands in the wrong table."""
    if not isinstance(table, Mapping):
        return
    own = _names(name)
    for key in table:
        owner = _owner(key)
        if key not in own and owner is not None:
            raise ScenarioError(f"{place}: {name}.{one_line(key)}: unknown key; '{key}' belongs to [{owner}]")


def _owner(key: str) -> str | None:
    """The table that has `key`, when exactly one has."""
    owners = [name for name in TABLES if key in _names(name)]
    return owners[0] if len(owners) == 1 else None


def _names(table: str) -> set[str]:
    """Keys that a table may have."""
    names = {key.name for key in keys_of(TABLES[table], milliseconds=table in _MILLISECONDS)}
    return names.union(*map(policy_keys, KINDS.values())) if table == "policy" else names
