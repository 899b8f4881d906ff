"""Jobs on the workers of an existing Ray cluster, whose machines must have the same specsim installed."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack, redirect_stdout
from functools import cached_property
from typing import Any

from specsim.code_version import arithmetic
from specsim.errors import ScenarioError, SpecsimError
from specsim.executors.base import TRIES, Answer, Job, Result, Setup, Task, WorkerCrew, WorkerDied

__all__ = ["RayCluster"]

_CONNECT_S = 5.0
"""To wait for a first answer of an address; Ray itself tries for two minutes."""


class RayCluster:
    """Up to `workers` actors of one CPU each, 0: one for every CPU of the cluster.

    `address` is HOST:PORT; None: that of RAY_ADDRESS, else of a cluster on this machine.

    Raises:
        ScenarioError: Ray is not installed here.
    """

    def __init__(self, address: str | None = None, workers: int = 0) -> None:
        try:
            import ray  # noqa: F401
        except ModuleNotFoundError:
            raise ScenarioError(
                "--executor ray needs Ray: run pip install '.[ray]' in the folder of specsim, or leave it out"
            ) from None
        self._address = address
        self._workers = workers
        self._is_ours = False

    @cached_property
    def count(self) -> int:
        """Workers that will run at once; connects.

        Raises:
            ScenarioError: there is no such cluster.
        """
        import ray

        self._connect()
        return self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def _connect(self) -> None:
        import ray

        if ray.is_initialized():
            return
        address = self._address or os.environ.get("RAY_ADDRESS") or "auto"
        _refuse_silent(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _no_cluster(address, str(error)) from None
        self._is_ours = True

    @property
    def said(self) -> str:
        return f"{self.count:,} Ray worker{'s' * (self.count != 1)}"

    def crew(
        self,
        start: Callable[..., Callable[[Job], Result]],
        setup: tuple[Any, ...],
        *,
        alike: Callable[[Job], Hashable] | None = None,
    ) -> RayCrew[Job, Result]:
        """See `specsim.executors.base.Executor.crew`."""
        count = self.count
        self._connect()
        return RayCrew(count, (start, setup), alike, disconnect=self._is_ours)


def _refuse_silent(address: str) -> None:
    """Try a HOST:PORT before Ray does; other forms, such as auto, are left to Ray.

    Raises:
        ScenarioError: nothing answers there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
            pass
    except (OSError, OverflowError, UnicodeError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, reason: str) -> ScenarioError:
    return ScenarioError(
        f"--address {address}: no Ray cluster lets us in there ({' '.join(reason.split())}); start one with ray start "
        f"--head, or leave --executor out"
    )


class _Remote:
    """What an actor is: the same task as in a local process, unless its machine would compute otherwise."""

    def __init__(self, setup: bytes, expected: str) -> None:
        self._task = Task(pickle.loads(setup))
        found = arithmetic()
        if found != expected:
            different = SpecsimError(
                f"a machine of the Ray cluster has {found}, and this one {expected}: install the same there, or "
                f"results would differ"
            )
            self._task = Task((_refuse, (different,)))

    def call(self, job: bytes) -> Answer:
        return self._task(pickle.loads(job))


def _refuse(error: SpecsimError) -> Callable[[Any], Any]:
    raise error


class _Actor:
    """One actor of a crew."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def begin(self, job: Any) -> Any:
        return self.handle.call.remote(pickle.dumps(job))


class RayCrew(WorkerCrew[Job, Result]):
    """Actors of a cluster; see `RayCluster`.

    What Ray says of workers that died it prints, also later, until it is disconnected: to standard error, where talk
    belongs.
    """

    def __init__(self, count: int, setup: Setup, alike: Callable[[Job], Hashable] | None, *, disconnect: bool) -> None:
        import ray

        super().__init__(count, alike)
        self._ray = ray
        self._kind = ray.remote(num_cpus=1, max_restarts=0)(_Remote)
        # as bytes, here and for jobs: arrays that Ray itself unpacks can only be read
        self._setup = ray.put(pickle.dumps(setup))
        self._actors: list[_Actor] = []
        self._disconnect = disconnect
        self._aside = ExitStack()

    def __enter__(self) -> RayCrew[Job, Result]:
        self._aside.enter_context(redirect_stdout(sys.stderr))
        return self

    def _new_worker(self) -> _Actor:
        actor = _Actor(self._kind.remote(self._setup, arithmetic()))
        self._actors.append(actor)
        return actor

    def _wait(self, tickets: Sequence[Any]) -> Sequence[Any]:
        return self._ray.wait(list(tickets), num_returns=1)[0]

    def _take(self, ticket: Any) -> Answer:
        try:
            return self._ray.get(ticket)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ModuleNotFoundError):
                raise SpecsimError(
                    f"a machine of the Ray cluster lacks {error.cause.name}: install the same specsim there as here"
                ) from None
            raise
        except self._ray.exceptions.RayError as error:
            said = str(error)
            if "ModuleNotFoundError" in said:
                raise SpecsimError(
                    "a machine of the Ray cluster cannot import specsim: install the same there as here"
                ) from None
            raise WorkerDied(f"its Ray worker died {TRIES} times: {said.splitlines()[0]}") from error

    def _leave(self, *, finished: bool) -> None:
        with self._aside:
            for actor in self._actors:
                self._ray.kill(actor.handle)
            if self._disconnect:
                self._ray.shutdown()
