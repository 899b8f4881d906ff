"""Two plans or two runs side by side: differences of the main metrics, paired by policy, load and seed.

The same seed means the same requests with the same luck, so the difference within a pair is free of most noise.
Leaves out: intervals, which need statistics (the command adds them).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import sqlalchemy as sa

from db import queries, schema
from db.rows import decoded
from specsim.errors import StoreError

__all__ = ["COMPARE_SCHEMA_VERSION", "compare", "pair_up"]

COMPARE_SCHEMA_VERSION = 1

Run = Mapping[str, Any]

_SETTINGS = ("trace_sha256", "profile_sha256", "scenario_sha256", "policy_label", "load_per_s", "rate_scale", "seed",
             "code_version", "point")  # fmt: skip


def compare(connection: sa.Connection, a: str, b: str, name: str) -> dict[str, Any]:
    """One object: `a`, `b`, `differs` (settings that are not the same), `pairs`, `unpaired_a`, `unpaired_b`, `rows`.

    A row holds `policy` (`policy_b` too when two runs of different policies are compared), `load_per_s`, `rate_scale`,
    `point` (of a), `metric`, `seeds`, means `a` and `b`, and `differences` (b minus a, in the order of `seeds`) with
    their mean `difference`. Pairs with a null are left out of that metric; a metric without pairs has no row.

    Raises:
        StoreError: unknown ids, a plan without runs, or nothing to pair.
    """
    left, right = queries.get(connection, a, name), queries.get(connection, b, name)
    for item in (left, right):
        if item.get("kind") == "whatif":
            raise StoreError(f"{item['id']} is a what-if, whose runs are of many fleets; compare single runs of it")
        if item.get("kind") == "sweep":
            raise StoreError(f"{item['id']} is a sweep, which --against compares within; compare single runs of it")
    runs_a, runs_b = _runs(connection, left), _runs(connection, right)
    if left["type"] == right["type"] == "run":
        pairs: list[tuple[Run, Run]] = [(runs_a[0], runs_b[0])]
    else:
        pairs = pair_up(runs_a, runs_b)
    if not pairs:
        raise StoreError(
            f"{left['id']} and {right['id']} have no runs with the same policy, load and seed; "
            f"plan both with the same --loads, e.g. --loads 5,10,20, and --seed, or compare single runs"
        )
    return {
        "schema_version": COMPARE_SCHEMA_VERSION,
        "a": {"id": left["id"], "type": left["type"], "runs": len(runs_a)},
        "b": {"id": right["id"], "type": right["type"], "runs": len(runs_b)},
        "differs": _differs(pairs),
        "pairs": len(pairs),
        "unpaired_a": len(runs_a) - len(pairs),
        "unpaired_b": len(runs_b) - len(pairs),
        "rows": _rows(pairs),
    }


def _runs(connection: sa.Connection, item: Run) -> list[dict[str, Any]]:
    if item["type"] == "run":
        return [dict(item)]
    table = schema.run
    out: list[dict[str, Any]] = []
    for part in queries.parts(item["run_ids"]):
        out += [decoded(row) for row in connection.execute(sa.select(table).where(table.c.id.in_(part))).mappings()]
    if not out:
        raise StoreError(f"{item['id']} has no stored runs to compare; run the plan again to store them")
    return sorted(out, key=lambda run: run["id"])


def _key(run: Run) -> tuple[Any, ...]:
    return run["policy_label"], run["load_per_s"], run["rate_scale"], run["seed"]


def pair_up(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Pairs with the same policy, load and seed; where a side has several of those, only with the same point too."""
    groups: dict[tuple[Any, ...], tuple[list[Run], list[Run]]] = defaultdict(lambda: ([], []))
    for side, runs in enumerate((runs_a, runs_b)):
        for run in runs:
            groups[_key(run)][side].append(run)
    pairs: list[tuple[Run, Run]] = []
    for in_a, in_b in groups.values():
        if len(in_a) == len(in_b) == 1:
            pairs.append((in_a[0], in_b[0]))
            continue
        rest = list(in_b)
        for run in in_a:
            hit = next((other for other in rest if other["point"] == run["point"]), None)
            if hit is not None:
                rest.remove(hit)
                pairs.append((run, hit))
    return pairs


def _differs(pairs: Sequence[tuple[Run, Run]]) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for field in _SETTINGS:
        unequal = [(a[field], b[field]) for a, b in pairs if a[field] != b[field]]
        if unequal and field == "point":
            out[field] = sorted({name for a, b in unequal for name in {*a, *b} if a.get(name) != b.get(name)})
        elif unequal:
            out[field] = list(unequal[0])
    return out


def _rows(pairs: Sequence[tuple[Run, Run]]) -> list[dict[str, Any]]:
    groups: dict[str, list[tuple[Run, Run]]] = defaultdict(list)
    for a, b in pairs:
        # The point keeps apart runs of one policy and load that differ in, say, their acceptance; which requests a run
        # served differs from seed to seed where a log is cut into stretches, so it keeps nothing apart.
        point = {name: value for name, value in a["point"].items() if name != "requests"}
        group = (a["policy_label"], b["policy_label"], a["load_per_s"], a["rate_scale"], point)
        groups[json.dumps(group, sort_keys=True)].append((a, b))
    out: list[dict[str, Any]] = []
    for members in groups.values():
        members.sort(key=lambda pair: pair[0]["seed"])
        for metric in schema.METRIC_COLUMNS:
            valued = [(a, b) for a, b in members if a[metric] is not None and b[metric] is not None]
            if not valued:
                continue
            first, second = valued[0]
            differences = [b[metric] - a[metric] for a, b in valued]
            row = {
                "policy": first["policy_label"],
                "policy_b": second["policy_label"],
                "load_per_s": first["load_per_s"],
                "rate_scale": first["rate_scale"],
                "point": first["point"],
                "metric": metric,
                "seeds": [a["seed"] for a, _ in valued],
                "a": fmean(a[metric] for a, _ in valued),
                "b": fmean(b[metric] for _, b in valued),
                "difference": fmean(differences),
                "differences": differences,
            }
            out.append(row)
    return sorted(out, key=lambda row: (row["policy"], row["load_per_s"] or 0.0, row["rate_scale"] or 0.0))
