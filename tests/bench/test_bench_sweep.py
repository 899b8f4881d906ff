"""Sweep on two processes against one, kept in a store, starting the workers included.

Other work on a shared machine would be counted as bad scaling, so the figure is in processor time: what one process
takes, over what two free cores would need (the busiest worker, or half of all that is computed). The wall clock's is
printed beside it. A worker needs about a second to start, so that short sweeps gain less.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ruler import example

from db.store import Store
from scenarios.loader import ScenarioFile
from scenarios.resolve import STAND_IN, resolve
from specsim.cli.sweep_store import StoredPoints
from specsim.config import PolicySpec, Slo
from specsim.executors import LocalProcesses
from specsim.planner import sweep
from specsim.planner.sweep import Cell, SweepJob, SweepPoint

SEEDS = 48
LOADS = (1.5, 1.9, 2.3, 2.7, 3.1, 3.5)


def job() -> SweepJob:
    """Off and four values of k at six loads, 48 seeds, on the whole example."""
    policies = [PolicySpec("off"), *(PolicySpec("static", k) for k in (1, 2, 3, 5))]
    cells = [
        Cell((), tuple(SweepPoint(0, 0, policy, seed, load, None, 0.1) for seed in range(SEEDS)))
        for policy in policies
        for load in LOADS
    ]
    return SweepJob(tuple(cells), (resolve(*STAND_IN, Slo()),), (example(),), tuple(range(SEEDS)))


def timed(asked: SweepJob) -> Callable[[SweepPoint], tuple[Any, int, float]]:
    """The sweep's own worker, which says who it is and how long it has computed."""
    work = sweep._start(asked)
    return lambda point: (work(point), os.getpid(), time.process_time())


def seconds(asked: SweepJob, processes: int, database: Path) -> tuple[float, float]:
    """(processor seconds that free cores would need, seconds of the wall clock)."""
    began, own = time.perf_counter(), time.process_time()
    spent: dict[int, float] = defaultdict(float)
    with Store.open(database) as store:
        items = {point.of_scenario: ScenarioFile(Path("bench.toml")) for point in asked.points()}
        kept = StoredPoints(store, asked, items)
        with LocalProcesses(processes).crew(timed, (asked,), alike=sweep._luck_of) as crew:
            for done in crew.run(deque(asked.points())):
                metrics, pid, took = done.result()
                spent[pid] = took
                kept.save(done.job, metrics)
    wall, here = time.perf_counter() - began, time.process_time() - own
    spent.pop(os.getpid(), None)
    everything = here + sum(spent.values())
    return max(max(spent.values(), default=here), everything / processes), wall


def test_sweep_on_two_processes(benchmark, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    asked = job()
    found = []
    few = replace(asked, cells=asked.cells[:: len(LOADS)])
    seconds(few, 1, tmp_path / "first.db")  # compiled loops are read once a process

    def run() -> None:
        found.append([seconds(asked, count, tmp_path / f"{count}.db") for count in (1, 2)])

    benchmark.pedantic(run, rounds=1, warmup_rounds=0)
    (one, wall_one), (two, wall_two) = found[-1]
    points = len(asked.points())
    benchmark.extra_info["summary"] = (
        f"{one / two:.2f} times one process on two free cores ({wall_one / wall_two:.2f} by the wall clock here); "
        f"{points} points, {one / points * 1e3:.0f} ms each"
    )
