"""Jobs on local processes: what comes back, in whatever order, and workers that die under a job."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from multiprocessing import active_children
from pathlib import Path

import pytest
from squares import broken, squares, tries

from specsim.errors import ScenarioError, SpecsimError
from specsim.executors import LocalProcesses, run_jobs
from specsim.executors.base import TRIES


def test_a_worker_that_dies_costs_one_job_at_most_and_the_rest_goes_on(tmp_path: Path) -> None:
    with LocalProcesses(2).crew(squares, (str(tmp_path),)) as crew:
        found = {done.job: done for done in crew.run(deque([13, 7, 5, *range(20, 30)]))}
    assert set(found) == {13, 7, 5, *range(20, 30)}
    assert {n: found[n].result() for n in (7, *range(20, 30))} == {n: n * n for n in (7, *range(20, 30))}
    assert len(set(tries(tmp_path, 13))) == TRIES, "another worker each time"
    assert len(set(tries(tmp_path, 7))) == 2
    assert all(len(tries(tmp_path, n)) == 1 for n in (5, *range(20, 30))), "no other job was repeated"
    with pytest.raises(SpecsimError, match=f"killed {TRIES} times"):
        found[13].result()
    with pytest.raises(ScenarioError, match="five is refused") as raised:
        found[5].result()
    assert "in square" in raised.value.__notes__[0], "where it was raised"
    assert active_children() == []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_that_cannot_be_set_up_says_why(tmp_path: Path, processes: int) -> None:
    with LocalProcesses(processes).crew(broken, ("the box",)) as crew:
        for done in crew.run(deque([1, 2])):
            with pytest.raises(ScenarioError, match="nothing in the box"):
                done.result()


def test_jobs_that_are_added_meanwhile_are_done_by_the_same_workers(tmp_path: Path) -> None:
    queue = deque([1, 2])
    seen = []
    with LocalProcesses(2).crew(squares, (str(tmp_path),)) as crew:
        for done in crew.run(queue):
            seen.append(done.result())
            if done.job < 100:
                queue.append(done.job + 100)
        assert [done.result() for done in crew.run(deque([4]))] == [16], "and later queues"
    assert sorted(seen) == [1, 4, 101**2, 102**2]
    assert len({pid for n in (1, 2, 101, 102, 4) for pid in tries(tmp_path, n)}) == 2


@pytest.mark.parametrize("processes", [1, 3])
def test_results_are_in_the_order_of_the_jobs(processes: int) -> None:
    finished: list[int] = []
    assert run_jobs(abs, [-3, -1, -2], processes=processes, done=finished.append) == [3, 1, 2]
    assert sorted(finished) == [-3, -2, -1]


def test_jobs_that_are_alike_share_a_worker(tmp_path: Path) -> None:
    """Two kinds, interleaved: each worker keeps to its kind, and takes of the other only when its own is done."""
    numbers = list(range(20, 44))
    with LocalProcesses(2).crew(squares, (str(tmp_path),), alike=parity) as crew:
        assert sorted(done.result() for done in crew.run(deque(numbers))) == [n * n for n in numbers]
    switches = 0
    for pid in {pid for n in numbers for pid in tries(tmp_path, n)}:
        mine = [n for n in numbers if tries(tmp_path, n) == [pid]]
        mine.sort(key=lambda n: (tmp_path / str(n)).stat().st_mtime_ns)
        switches += sum(a % 2 != b % 2 for a, b in pairwise(mine))
    assert switches <= 2


def parity(number: int) -> int:
    return number % 2
