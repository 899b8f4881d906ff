"""The workload of a command: a scenario's, with the reading flags over it, or a log named on the command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenarios.workload import WorkloadSpec
    from specsim.traces.model import Trace

__all__ = ["in_scenario", "overruled_workload", "read_workload"]

_BIG_FILE_BYTES = 20 << 20


@contextmanager
def in_scenario(name: str | None, *, flags: bool) -> Iterator[None]:
    """Names the scenario in the errors of what it describes, and says when flags lay over it; None: there is none.

    Raises:
        InputError: of the same kind, with the place.
    """
    from specsim.errors import InputError

    try:
        yield
    except InputError as error:
        if name is None:
            raise
        place = f"{name} and the flags over it" if flags else name
        raise type(error)(f"{place}: {error}") from error


def overruled_workload(spec: WorkloadSpec | None, values: dict[str, Any], *, place: str, command: str) -> WorkloadSpec:
    """The workload with the flags in `values` over it; `trace` among them replaces it whole (its path starts at the
    working directory, not at the folder of the scenario).

    `place` names the scenario in messages, `command` the command.

    Raises:
        ScenarioError: there is no workload at all, or a flag that does nothing here.
    """
    from scenarios.workload import WorkloadSpec
    from specsim.errors import ScenarioError
    from specsim.traces.options import parse_columns

    given = {name: value for name, value in values.items() if value is not None and value != () and value is not False}
    if given.pop("no_spread_grid", False):
        given["spread_grid"] = False
    if "columns" in given:
        given["columns"] = parse_columns(list(given["columns"]))
    known = {f.name for f in fields(WorkloadSpec)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ScenarioError(f"--{unknown[0].replace('_', '-')} does nothing in specsim {command}; leave it out")
    if "trace" in given:
        with _by_flags(given):
            return WorkloadSpec(**given)
    if spec is None:
        raise ScenarioError(f"{place}: has no [workload]; add one, or give --trace")
    if "concurrency" in given and spec.trace is None:
        idle = next((name for name in ("arrivals", "hash_block") if name in given), None)
        if idle is not None:
            flag = f"--{idle.replace('_', '-')}"
            raise ScenarioError(
                f"{flag} {given[idle]} does nothing where {given['concurrency']} requests are kept in flight; leave "
                f"{flag} or concurrency out"
            )
        given |= dict.fromkeys(("rate_per_s", "arrivals", "duration", "prefix_pool", "hash_block"))
    with _by_flags(given):
        return replace(spec, **given)


_KEY = re.compile(r"\bworkload\.(\w+)")
_FLAGS = {"columns": "--column", "spread_grid": "--no-spread-grid"}
"""Keys of a workload whose flags have another name."""


@contextmanager
def _by_flags(given: Collection[str]) -> Iterator[None]:
    """Errors name the flag that was typed, not the key of a scenario."""
    from specsim.errors import SpecsimError

    def named(key: re.Match[str]) -> str:
        return _FLAGS.get(key[1], f"--{key[1].replace('_', '-')}") if key[1] in given else key[0]

    try:
        yield
    except SpecsimError as error:
        raise type(error)(_KEY.sub(named, str(error))) from error


def read_workload(spec: WorkloadSpec, *, folder: Path, seed: int) -> Trace:
    """The requests, with a progress bar when the log is big and standard error a terminal.

    Raises:
        TraceError: see `specsim.traces.read_trace`.
    """
    from scenarios.workload import load_workload

    path = None if spec.trace in (None, "-") else folder / os.path.expanduser(str(spec.trace))
    size = os.path.getsize(path) if path is not None and os.path.isfile(path) else 0
    if size < _BIG_FILE_BYTES or not sys.stderr.isatty():
        return load_workload(spec, folder=folder, seed=seed)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading the log", total=size)
        return load_workload(spec, folder=folder, seed=seed, progress=lambda done: bar.update(task, completed=done))
