"""How a command that simulates many points ends: its answer stored, or what is finished kept when it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

if TYPE_CHECKING:
    from db.store import Store
    from specsim.cli.progress import ProgressBar

__all__ = ["INTERRUPTED", "Asked", "Counter", "Kept", "answer", "refuse_db_without_store", "stoppable"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it (128 + SIGINT)."""


class Kept(Protocol):
    """Runs of a command in the store; `keys` are those of its points, in order of use."""

    keys: list[str]
    code_version: str
    trace_sha256: str
    scenario_sha256: str

    @property
    def profile_sha256(self) -> str: ...


_Kept = TypeVar("_Kept", bound=Kept)


@dataclass(frozen=True)
class Asked:
    """What was asked, for the store and for messages."""

    kind: str
    """The command: plan, whatif or sweep."""
    inputs: Mapping[str, Any]
    """What decides the id, the version of the code apart."""
    schema_version: int
    said: str
    """The command line."""
    points: int | None = None
    """How many are simulated; None: a search decides."""


class Counter:
    """Counts finished points, so that a command that is stopped can say how far it came."""

    def __init__(self) -> None:
        self.points = 0

    def add(self, points: int = 1) -> None:
        self.points += points


def refuse_db_without_store(db: str | None, no_store: bool) -> None:
    """--db beside --no-store would do nothing.

    Raises:
        ScenarioError: both were given.
    """
    if no_store and db is not None:
        from specsim.errors import ScenarioError

        raise ScenarioError("--db and --no-store exclude each other; give one of the two")


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C before anything was simulated ends with a sentence."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\nStopped before anything was simulated; nothing was stored.", err=True)
        raise SystemExit(INTERRUPTED) from None


def answer(
    asked: Asked,
    db: str | None,
    bar: ProgressBar,
    *,
    store_it: bool,
    keep: Callable[[Store], _Kept],
    run: Callable[[_Kept | None, Counter], dict[str, Any]],
) -> dict[str, Any]:
    """What `run` answers, with `plan_id`, `database` and `command` before it.

    `run` is given the runs that `keep` makes of the store (None: nothing is stored) and counts its points. The answer
    is stored with links to them; Ctrl-C stores how far it came, and the same command goes on from there.
    """
    counter = Counter()
    if not store_it:
        try:
            with bar:
                return {"plan_id": None, "database": None, "command": asked.said, **run(None, counter)}
        except KeyboardInterrupt:
            click.echo("\nStopped; with --no-store nothing is kept.", err=True)
            raise SystemExit(INTERRUPTED) from None
    from db.store import Store, plan_id_of

    with Store.open(db) as store:
        kept = keep(store)
        inputs = {**asked.inputs, "code_version": kept.code_version}
        plan_id = plan_id_of(inputs)
        try:
            with bar:
                result = run(kept, counter)
        except KeyboardInterrupt:
            done = {
                "command": asked.said,
                "schema_version": asked.schema_version,
                "points_done": counter.points,
                "points": asked.points,
            }
            _save(store, asked, inputs, kept, done, "partial", kept.keys)
            of = "" if asked.points is None else f" of {asked.points:,}"
            click.echo(
                f"\nStopped: {counter.points:,}{of} points are kept in {store.name} as {plan_id}; the same command "
                f"goes on from there.",
                err=True,
            )
            raise SystemExit(INTERRUPTED) from None
        result = {"plan_id": plan_id, "database": store.name, "command": asked.said, **result}
        _save(store, asked, inputs, kept, result, "complete", kept.keys)
    return result


def _save(
    store: Store,
    asked: Asked,
    inputs: Mapping[str, Any],
    kept: Kept,
    result: Mapping[str, Any],
    status: str,
    run_keys: Sequence[str],
) -> None:
    import specsim

    store.save_plan(
        inputs,
        result,
        status=status,
        schema_version=asked.schema_version,
        code_version=kept.code_version,
        specsim_version=specsim.__version__,
        trace_sha256=kept.trace_sha256,
        profile_sha256=kept.profile_sha256,
        scenario_sha256=kept.scenario_sha256,
        run_keys=run_keys,
        kind=asked.kind,
    )
