"""`--pool NAME=TASKS:POLICIES[:OBJECTIVE]`: which requests have a fleet of their own, and what it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from specsim.config import Slo
    from specsim.traces.model import Trace

__all__ = ["PoolAsked", "masks_of", "read_pools"]

_POLICIES: Mapping[str, tuple[str, ...]] = {
    "off": ("off",),
    "speculative": ("static", "schedule", "adaptive"),
    "any": ("off", "static", "schedule", "adaptive"),
}
"""Word of a pool -> kinds of policies that are tried."""
_REST = "*"
_FORM = "NAME=TASKS:POLICIES, e.g. interactive=chat,code:speculative or batch=*:off:tpot=200,ttft=none"


@dataclass(frozen=True, slots=True)
class PoolAsked:
    """A pool as it was typed."""

    name: str
    tasks: tuple[str, ...]
    kinds: tuple[str, ...]
    slo: Slo


def read_pools(texts: Sequence[str], slo: Slo) -> tuple[PoolAsked, ...]:
    """The pools of the flags; an objective that a pool does not name is that of the other flags.

    Raises:
        ScenarioError: a pool that is malformed, a name or a task that is there twice, or one pool alone.
    """
    from specsim.errors import ScenarioError, nearest

    found = []
    for text in texts:
        name, equals, rest = text.partition("=")
        parts = rest.split(":")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", name.strip()) or len(parts) not in (2, 3):
            raise ScenarioError(f"--pool {text!r} must be {_FORM}")
        tasks = tuple(task.strip() for task in parts[0].split(","))
        if not all(tasks):
            raise ScenarioError(f"--pool {text!r}: tasks must be names separated by commas, or * for the rest")
        if parts[1] not in _POLICIES:
            raise ScenarioError(
                f"--pool {text!r}: no '{parts[1]}'{nearest(parts[1], _POLICIES)}; one of {', '.join(_POLICIES)}"
            )
        own = _objective(parts[2], text, slo) if len(parts) == 3 else slo
        found.append(PoolAsked(name.strip(), tasks, _POLICIES[parts[1]], own))
    if len(found) == 1:
        raise ScenarioError(
            f"--pool is given once; a second pool takes the other requests, e.g. --pool others={_REST}:off"
        )
    for what, names in (("name", [pool.name for pool in found]), ("task", [t for pool in found for t in pool.tasks])):
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise ScenarioError(f"--pool has the {what} {double} twice; give it once")
    return tuple(found)


def _objective(text: str, pool: str, slo: Slo) -> Slo:
    """The objective with a pool's own figures over it: `tpot=200,ttft=none,share=0.9`."""
    from specsim.cli.scenario_options import slo_from
    from specsim.errors import ScenarioError

    flags = {"ttft": None, "tpot": None, "e2e": None, "slo_share": None}
    values: dict[str, object] = dict(flags)
    for part in text.split(","):
        name, _, value = part.partition("=")
        name = {"share": "slo_share"}.get(name.strip(), name.strip())
        if name not in flags or not value or values[name] is not None:
            raise ScenarioError(f"--pool {pool!r}: an objective is ttft=MS, tpot=MS, e2e=MS or share=SHARE, each once")
        values[name] = value if name != "slo_share" else _share(value, pool)
    try:
        found = slo_from(values, slo)
    except ScenarioError as error:
        raise ScenarioError(f"--pool {pool!r}: {error}") from error
    if found.ttft_s is found.tpot_s is found.e2e_s is None:
        raise ScenarioError(f"--pool {pool!r}: has no objective to size for; keep one of ttft, tpot and e2e")
    return found


def _share(value: str, pool: str) -> float:
    from specsim.checks import read_number
    from specsim.errors import ScenarioError

    try:
        return read_number(value)
    except ValueError:
        raise ScenarioError(f"--pool {pool!r}: share must be a number, got {value!r}") from None


def masks_of(pools: Sequence[PoolAsked], trace: Trace) -> list[np.ndarray]:
    """Which requests of a log belong to each pool; every one belongs to one.

    Raises:
        ScenarioError: the log names no tasks, a task is unknown, or requests are left over.
    """
    import numpy as np

    from specsim.errors import ScenarioError, nearest

    if trace.task is None or not (trace.task >= 0).any():
        raise ScenarioError(
            f"--pool splits requests by their task, and {trace.meta.source} names none; name its column with --column "
            f"task=COLUMN"
        )
    there = [name for code, name in enumerate(trace.task_names) if (trace.task == code).any()]
    named = [task for pool in pools for task in pool.tasks if task != _REST]
    unknown = next((task for task in named if task not in there), None)
    if unknown is not None:
        raise ScenarioError(
            f"--pool: the log has no task '{unknown}'{nearest(unknown, there)}; it has {', '.join(there)}"
        )
    codes = {name: code for code, name in enumerate(trace.task_names)}
    taken = np.isin(trace.task, [codes[task] for task in named])
    masks = []
    for pool in pools:
        mask = np.isin(trace.task, [codes[task] for task in pool.tasks if task != _REST])
        masks.append(mask | ~taken if _REST in pool.tasks else mask)
    left = ~np.logical_or.reduce(masks)
    if left.any():
        names = [name for name in there if name not in named] or ["no task"]
        raise ScenarioError(
            f"--pool: {int(left.sum()):,} requests ({', '.join(names)}) belong to no pool; give one of them {_REST}, "
            "which takes the rest"
        )
    empty = next((pool.name for pool, mask in zip(pools, masks, strict=True) if not mask.any()), None)
    if empty is not None:
        raise ScenarioError(f"--pool {empty}: no request of the log belongs to it; leave it out")
    return masks
