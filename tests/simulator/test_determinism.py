"""Same inputs and seed: same bytes, whatever the process, its hash seed and how many workers share the work."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from builders import FixedLuck, make_trace
from strategies import CROWDED, World, run

from specsim.config import PolicySpec
from specsim.workload import CHUNK, Workload

HERE = Path(__file__).resolve().parent
WORLDS: list[tuple[World, bool]] = [
    (CROWDED, False),
    (CROWDED, True),
    (replace(CROWDED, router="least_outstanding", policy=PolicySpec("static", 3)), False),
    (replace(CROWDED, concurrency=5, policy=PolicySpec("goodput", 4), warmup_share=0.2), False),
    (replace(CROWDED, replicas=1, seed=9, luck=FixedLuck(proposal_rate=0.5)), False),
]


def digest(number: int) -> str:
    """Hash of everything that leaves a run of `WORLDS[number]`."""
    world, plain = WORLDS[number]
    result = run(world, plain=plain)
    columns = {name: (column.dtype.str, column.tobytes()) for name, column in asdict(result.requests).items()}
    rest = {name: getattr(result, name) for name in ("end_s", "measure_from_s", "measure_until_s", "policy", "seed",
                                                     "num_replicas", "num_kv_blocks")}  # fmt: skip
    gaps = (result.gaps.counts, result.gaps.zeros)
    return hashlib.sha256(repr((columns, asdict(result.totals), gaps, rest)).encode()).hexdigest()


def digests_by_workers(workers: int) -> list[str]:
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return pool.map(digest, range(len(WORLDS)), chunksize=1)


@pytest.fixture(scope="module")
def here() -> list[str]:
    """Digests from this process."""
    return [digest(number) for number in range(len(WORLDS))]


def test_same_bytes_twice_in_one_process(here: list[str]) -> None:
    assert [digest(number) for number in range(len(WORLDS))] == here
    assert here[0] == here[1], "fast and plain agree to the byte"
    assert len(set(here)) == len(WORLDS) - 1, "the guard: other worlds give other bytes"


def test_another_seed_gives_other_bytes(here: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "WORLDS", [(replace(world, seed=77), plain) for world, plain in WORLDS])
    assert all(digest(number) != before for number, before in enumerate(here))


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_same_bytes_in_a_new_process_with_another_hash_seed(here: list[str], hash_seed: str) -> None:
    program = (
        f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n"
        "import test_determinism as t\n"
        "print(hash('specsim')); print(*[t.digest(n) for n in range(len(t.WORLDS))])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    hashed, digests = done.stdout.splitlines()
    assert digests.split() == here
    assert int(hashed) != hash("specsim"), "the guard: strings do hash otherwise there"


@pytest.mark.parametrize("workers", [1, 2])
def test_same_bytes_through_a_pool(here: list[str], workers: int) -> None:
    assert digests_by_workers(workers) == here


def test_a_run_leaves_its_inputs_alone() -> None:
    """Runs share traces and workloads: the same workload under other policies in between still gives the same bytes."""
    before = pickle.dumps((CROWDED.trace, CROWDED.limits, CROWDED.policy))
    first = digest(0)
    for policy in (PolicySpec("off"), PolicySpec("static", 2), PolicySpec("goodput", 3)):
        run(replace(CROWDED, policy=policy), plain=False)
    assert digest(0) == first
    assert pickle.dumps((CROWDED.trace, CROWDED.limits, CROWDED.policy)) == before


def test_luck_belongs_to_the_request() -> None:
    """Requests behind, another chunk, or a late start of the trace do not change the luck of a request."""
    n = CHUNK + 40
    trace = make_trace(arrival_s=[0.0] * n, output_tokens=[1 + i % 7 for i in range(n)])
    everyone = Workload(trace, FixedLuck(), seed=3)
    fewer = Workload(trace.rows(0, CHUNK + 7), FixedLuck(), seed=3)
    late = Workload(trace.rows(CHUNK - 5, n), FixedLuck(), seed=3, first_request_id=CHUNK - 5)

    def luck(workload: Workload, request: int, length: int) -> list[int]:
        return [workload.span(request, p) for p in range(length)]

    for i in [0, 6, CHUNK - 5, CHUNK - 1, CHUNK, CHUNK + 6]:
        length = 1 + i % 7
        assert luck(fewer, i, length) == luck(everyone, i, length)
        if i >= CHUNK - 5:
            assert luck(late, i - CHUNK + 5, length) == luck(everyone, i, length)
    other = Workload(trace, FixedLuck(), seed=4)
    assert any(luck(other, i, 1 + i % 7) != luck(everyone, i, 1 + i % 7) for i in range(20))


def test_a_chunk_that_was_dropped_comes_back_the_same() -> None:
    n = 20 * CHUNK
    workload = Workload(make_trace(arrival_s=[0.0] * n, output_tokens=3), FixedLuck(), seed=3)
    first = workload.luck(0)
    for chunk in range(1, 20):
        workload.luck(chunk)
    again = workload.luck(0)
    assert again is not first, "the guard: it was dropped"
    np.testing.assert_array_equal(again.span, first.span)


def test_no_luck_reaches_past_the_output() -> None:
    trace = make_trace(arrival_s=[0.0, 0.0], output_tokens=[5, 3])
    workload = Workload(trace, FixedLuck(constant=9), seed=0)
    assert workload.luck(0).span.tolist() == [5, 4, 3, 2, 1, 3, 2, 1]
    assert Workload(trace, None, seed=0).luck(0).span.tolist() == [1] * 8
