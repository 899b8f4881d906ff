"""Capacity and crossover of the cells of a sweep along one axis: bracketed with paired seeds instead of a grid.

Models: capacity is the place up to which the mean share of requests within the objective is what is asked for;
crossover is where requests stop, or begin, to end sooner than at the base. Leaves out: what a place is in words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specsim.executors import Done, Executor
from specsim.planner.brackets import Bracket, Look, Looking, find_turn
from specsim.planner.compare import interval
from specsim.planner.searches import run_at_once
from specsim.planner.sweep import Cell, Outcome, ShippedPoint, SweepCache, SweepJob, SweepPoint, outcome_of, sweep_crew
from specsim.planner.sweep_answer import compared, verdict
from specsim.stats import estimate, paired_ratio

__all__ = ["KINDS", "Find", "Found", "find_rows", "run_find"]

KINDS = ("capacity", "crossover")

CellAt = Callable[[int, float], Cell]
"""(which of the combinations, place on the axis) -> its cell."""


class _NoLook(Exception):
    """A place could not be looked at."""


@dataclass(frozen=True)
class Find:
    """What is searched."""

    kind: str
    """One of `KINDS`."""
    low: float
    high: float
    width: float
    """Width of a bracket over its upper end at which it is left."""
    whole: bool
    """Whether only whole numbers are places."""
    cell_at: CellAt
    bases: tuple[int | None, ...]
    """For every combination the one that it is compared with; None: it is a base itself, or nothing is compared."""
    values: tuple[tuple[tuple[str, str], ...], ...]
    """(axis, value) of every combination."""

    @property
    def searched(self) -> list[int]:
        """The combinations that are searched: all, but for the bases of a crossover."""
        places = range(len(self.values))
        return [n for n in places if self.kind == "capacity" or self.bases[n] is not None]


@dataclass(frozen=True)
class Found:
    """Where the search of one combination ended."""

    index: int
    bracket: Bracket | None
    reason: str | None = None
    """Why there is none: a place that is refused, a point that failed, or one that measured nothing."""


def run_find(
    find: Find,
    job: SweepJob,
    executor: Executor,
    *,
    cache: SweepCache | None = None,
    settled: Callable[[], None] = lambda: None,
    simulated: Callable[[], None] = lambda: None,
) -> list[Found]:
    """Every search, all at once. `settled` is told of each that ends, `simulated` of each point, reused ones included.

    `job` may grow while cells are made.
    """

    def known(shipped: ShippedPoint) -> Outcome | None:
        found = {} if cache is None else cache.find([shipped.point])
        return Outcome(found[shipped.point]) if shipped.point in found else None

    def finished(done: Done[ShippedPoint, Any]) -> Outcome:
        return outcome_of(Done(done.job.point, done.value, done.error), cache)

    searches = [_search(find, job, index, settled) for index in find.searched]
    with sweep_crew(replace(job, questions=(), traces=()), executor) as crew:
        return run_at_once(searches, crew, known=known, finished=finished, simulated=simulated)


def _search(
    find: Find, job: SweepJob, index: int, settled: Callable[[], None]
) -> Generator[list[ShippedPoint], list[Outcome], Found]:
    def look(x: float) -> Looking:
        base = find.bases[index]
        cells = [find.cell_at(index, x)]
        if find.kind == "crossover":
            assert base is not None
            cells.insert(0, find.cell_at(base, x))
        for cell in cells:
            if cell.refused is not None:
                raise _NoLook(cell.refused)
        asked = [point for cell in cells for point in cell.points]
        answers = yield [ShippedPoint(point, job.run_of(point)) for point in asked]
        failed = next((outcome.error for outcome in answers if outcome.error is not None), None)
        if failed is not None:
            raise _NoLook(failed)
        return _look(find, job, x, cells, dict(zip(asked, answers, strict=True)))

    try:
        bracket = yield from find_turn(look, find.low, find.high, width=find.width, whole=find.whole)
    except _NoLook as error:
        settled()
        return Found(index, None, str(error))
    settled()
    return Found(index, bracket)


def _look(find: Find, job: SweepJob, x: float, cells: Sequence[Cell], outcomes: Mapping[SweepPoint, Outcome]) -> Look:
    points = cells[-1].points
    if find.kind == "crossover":
        ratio = compared(cells[0], cells[1], outcomes).faster("e2e_mean_s")
        if ratio.n == 0:
            reason = _nothing_measured(job, points[0])
            unknown = {"e2e_speedup": interval(ratio), "verdict": "unknown", "reason": reason}
            return Look(x, math.nan, 0, (points, unknown))
        said = verdict(ratio)
        side = {"faster": 1, "slower": -1}.get(said, 0)
        return Look(x, math.log(ratio.mean), side, (points, {"e2e_speedup": interval(ratio), "verdict": said}))
    share = job.questions[points[0].question].slo.share
    shares = [(outcomes[point].metrics or {}).get("slo_share") for point in points]
    if all(value is None for value in shares):
        raise _NoLook(f"at {x:g} {_nothing_measured(job, points[0])}")
    values = [float(value or 0.0) for value in shares]
    within = estimate(values)
    holds = within.mean >= share
    seen = {
        "slo_share": interval(within, within=(0.0, 1.0)),
        "verdict": "holds" if holds else "fails",
        "above_by_seed": [value - share for value in values],
    }
    # exactly what is asked for still holds
    return Look(
        x, max(within.mean - share, 1e-12) if holds else within.mean - share, 1 if holds else -1, (points, seen)
    )


def _nothing_measured(job: SweepJob, point: SweepPoint) -> str:
    """Why no request of a point was measured, and the way out."""
    requests, in_flight = len(job.traces[point.trace]), point.concurrency
    if in_flight is None:
        return f"none of the {requests:,} requests was measured; give more (workload.requests)"
    return (
        f"nothing was measured: {requests:,} requests cannot keep {in_flight:,} in flight beyond the warm-up; give "
        f"more (workload.requests), or end the search lower"
    )


def _unclear(bracket: Bracket) -> str:
    """Why a search between two ends told nothing."""
    ends = sorted(bracket.looks, key=lambda look: look.x)
    ends = ends[:1] + ends[-1:]
    return "; ".join(
        f"at {look.x:g} {look.seen[1].get('reason') or 'the sides do not differ beyond the interval'}"
        for look in ends
        if look.side == 0
    )


_WORDS = {
    "capacity": {"falls": "bracketed", "rises": "holds from", "above": "beyond", "below": "below"},
    "crossover": {"falls": "stops paying", "rises": "begins to pay", "above": "always", "below": "never"},
}


def find_rows(find: Find, found: Sequence[Found], run_id: Callable[[SweepPoint], str | None]) -> list[dict[str, Any]]:
    """One row a search. `verdict` of a capacity: bracketed (it holds up to there), holds from (it rises, as an
    objective does), beyond (it holds at both ends), below (it fails at both); of a crossover: stops paying, begins to
    pay, always, never (at both ends), unclear; of either: not possible. `reason` is of
    the last two.

    A capacity has `over_seeds`, the geometric mean of those of the single seeds with its interval, and `ratio_to_base`
    in pairs, with its `vs_base`: more, less or tie; null unless every seed turns between the ends.
    """
    by_index = {one.index: _by_seed(one.bracket) for one in found if one.bracket is not None}
    rows = []
    for one in found:
        row: dict[str, Any] = {"values": dict(find.values[one.index]), "reason": one.reason}
        row |= {"verdict": "not possible", "at": None, "low": None, "high": None}
        bracket, base = one.bracket, find.bases[one.index]
        if bracket is not None:
            row["verdict"] = _WORDS[find.kind].get(bracket.verdict, "unclear")
            row |= {"at": bracket.at, "low": bracket.low, "high": bracket.high}
            if row["verdict"] == "unclear":
                row["reason"] = _unclear(bracket)
        if find.kind == "capacity":
            # the last place that was seen to hold: the highest, or the lowest where it rises
            row["at"] = row["high"] if row["verdict"] == "holds from" else row["low"]
            mine, others = by_index.get(one.index), None if base is None else by_index.get(base)
            # on logarithms, since a place is above 0
            row["over_seeds"] = interval(paired_ratio(mine or [], [1.0] * len(mine or [])))
            ratio = paired_ratio(mine or [], others or []) if mine and others else estimate([])
            row["ratio_to_base"] = interval(ratio)
            words = {"higher": "more", "lower": "less", "tie": "tie"}
            row["vs_base"] = words.get(ratio.compared_to(1.0)) if ratio.n > 1 else None
        row["looks"] = [] if bracket is None else [_look_row(look, run_id) for look in bracket.looks]
        rows.append(row)
    return rows


def _look_row(look: Look, run_id: Callable[[SweepPoint], str | None]) -> dict[str, Any]:
    points, seen = look.seen
    shown = {name: value for name, value in seen.items() if name != "above_by_seed"}
    return {"x": look.x, **shown, "runs": [{"seed": point.seed, "run_id": run_id(point)} for point in points]}


def _by_seed(bracket: Bracket) -> list[float] | None:
    """Where each seed alone turns, interpolated between the looks; None unless every one does."""
    looks = sorted(bracket.looks, key=lambda look: look.x)
    seeds = len(looks[0].seen[1].get("above_by_seed", ()))
    found = []
    for seed in range(seeds):
        above = [(look.x, look.seen[1]["above_by_seed"][seed]) for look in looks]
        turns = ((a, b) for a, b in itertools.pairwise(above) if (a[1] >= 0) != (b[1] >= 0))
        falls = bracket.verdict == "falls"
        turn = next(((a, b) for a, b in turns if (a[1] >= 0) is falls), None)
        if turn is None:
            return None
        (x_a, a), (x_b, b) = turn
        found.append(x_a + a / (a - b) * (x_b - x_a))
    return found or None
