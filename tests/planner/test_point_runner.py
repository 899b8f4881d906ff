"""Points on processes: order, cache, progress, and no state between runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import active_children
from typing import Any

import numpy as np
import pytest
from builders import make_limits, make_trace
from plan_tables import make_question

from specsim.config import PolicySpec
from specsim.planner.point_runner import PointRunner, run_batches
from specsim.planner.points import Batch, Stretch, Worker
from specsim.planner.question import PlanSettings

TRACE = make_trace(arrival_s=np.arange(30) * 0.05, prompt_tokens=60, output_tokens=12)
QUESTION = make_question(limits=make_limits(max_num_seqs=8))
BATCHES = [
    Batch(policy, Stretch(i, 0, 30, i), (5.0, 20.0), (30, 30))
    for i in range(3)
    for policy in (PolicySpec("off"), PolicySpec("static", 3))
]


class Shelf:
    """A cache in memory that counts."""

    def __init__(self) -> None:
        self.kept: dict[Batch, list[dict[str, Any]]] = {}
        self.found = 0

    def find(self, batch: Batch) -> list[dict[str, Any]] | None:
        self.found += batch in self.kept
        return self.kept.get(batch)

    def save(self, batch: Batch, metrics: Sequence[Mapping[str, Any]]) -> None:
        assert batch not in self.kept
        self.kept[batch] = [dict(m) for m in metrics]


def test_processes_change_nothing_and_are_gone_afterwards() -> None:
    alone = run_batches(BATCHES, QUESTION, TRACE, PlanSettings(jobs=1))
    with PointRunner(QUESTION, TRACE, PlanSettings(jobs=2)) as runner:
        pair = runner.run(BATCHES)
        again = runner.run(BATCHES[:2])
        assert len(active_children()) == 2, "one pool for all runs"
    assert pair == alone
    assert again == {key: alone[key] for key in again}
    assert len(alone) == 12
    assert active_children() == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_the_cache_is_asked_first_and_progress_counts_every_point() -> None:
    shelf, seen = Shelf(), []

    def told(points: int, reused: bool) -> None:
        seen.append((points, reused))

    run_batches(
        BATCHES[:4],
        QUESTION,
        TRACE,
        PlanSettings(jobs=1),
        cache=shelf,
        progress=told,
    )
    assert (shelf.found, seen) == (0, [(0, False), *[(2, False)] * 4]), "what is not there is begun, then done"
    seen.clear()
    points = run_batches(
        BATCHES,
        QUESTION,
        TRACE,
        PlanSettings(jobs=1),
        cache=shelf,
        progress=told,
    )
    assert (shelf.found, seen) == (4, [*[(2, True)] * 4, (0, False), *[(2, False)] * 2])
    assert points == run_batches(BATCHES, QUESTION, TRACE, PlanSettings(jobs=1))


def test_batches_of_another_order_give_the_same_points() -> None:
    there = run_batches(BATCHES, QUESTION, TRACE, PlanSettings(jobs=1))
    back = run_batches(BATCHES[::-1], QUESTION, TRACE, PlanSettings(jobs=1))
    assert there == back


def test_every_policy_meets_the_same_luck() -> None:
    """With a = 1 a run of k=3 has the rounds of its length; a worker's workload is one object for all policies."""
    worker = Worker(QUESTION, TRACE, PlanSettings())
    assert worker.workload(BATCHES[0].stretch) is worker.workload(BATCHES[1].stretch)
    assert worker.workload(BATCHES[0].stretch) is not worker.workload(BATCHES[2].stretch)
    assert worker.workload(BATCHES[0].stretch, 0.1) is not worker.workload(BATCHES[0].stretch)


def test_an_error_in_a_worker_reaches_the_caller_and_ends_the_pool() -> None:
    broken = Batch(PolicySpec("off"), Stretch(0, 0, 30, 0), (5.0,), (0,))  # no request at all
    with pytest.raises(IndexError), PointRunner(QUESTION, TRACE, PlanSettings(jobs=2)) as runner:
        runner.run([broken, broken, *BATCHES[:1]])
    for child in active_children():
        child.join(10)
    assert active_children() == []


def test_it_works_beside_the_main_thread() -> None:
    found: list[dict] = []
    thread = threading.Thread(
        target=lambda: found.append(run_batches(BATCHES[:2], QUESTION, TRACE, PlanSettings(jobs=2)))
    )
    thread.start()
    thread.join(60)
    assert found == [run_batches(BATCHES[:2], QUESTION, TRACE, PlanSettings(jobs=1))]
