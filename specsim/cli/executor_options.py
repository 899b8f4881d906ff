"""Flags that say where points are simulated, shared by every command that simulates many."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from specsim.executors import Executor

__all__ = ["WHERE", "executor_from", "executor_options"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

WHERE = ("jobs", "executor", "address")
"""Arguments that `executor_options` adds; none of them changes a result."""

_OPTIONS = (
    click.option("--jobs", type=int, metavar="N", help="Workers; default: one per core. Never changes a result."),
    click.option("--executor", type=click.Choice(["local", "ray"]), default="local", show_default=True,
                 help="Processes here, or workers of a Ray cluster. Never changes a result."),
    click.option("--address", metavar="HOST:PORT", help="Of the Ray cluster; default: RAY_ADDRESS, or the one here."),
)  # fmt: skip


def executor_options(command: _Command) -> _Command:
    """Add --jobs, --executor and --address to a click command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def executor_from(executor: str, address: str | None, jobs: int) -> Executor:
    """Where points are simulated; `jobs` 0: on every core.

    Raises:
        ScenarioError: an address without Ray, a number of jobs out of range, or a cluster that cannot be used.
    """
    from specsim.checks import whole
    from specsim.errors import ScenarioError
    from specsim.executors import LocalProcesses

    whole("--jobs", jobs, 0, 1024)
    if executor == "ray":
        from specsim.executors.ray_cluster import RayCluster

        return RayCluster(address, jobs)
    if address is not None:
        raise ScenarioError("--address is of a Ray cluster; add --executor ray, or leave it out")
    return LocalProcesses(jobs)
