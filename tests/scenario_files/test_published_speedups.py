"""`specsim crossover` against published speed-ups: sign everywhere, size at the median, where chains and trees turn.

Three seeds are used: their spread (about 1 %) is small against every limit, and seeds are fixed, so that no run of the
tests can differ from another.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from scenarios.resolve import resolve
from specsim.config import Deployment, Slo, Speculation
from specsim.planner.concurrency import CrossoverSettings, run_point
from specsim.planner.question import Question
from specsim.planner.turns import find_turns
from specsim.traces.recipe import LengthSpec

GOLDEN = json.loads((Path(__file__).parent / "golden" / "specdecode_bench_llama_8b.json").read_text(encoding="utf-8"))


def question(method: str, k: int, length: float, *, tree_nodes: int | None = None) -> Question:
    speculation = Speculation(method, num_spec_tokens=(k,), acceptance_length=length, tree_nodes=tree_nodes)
    place = GOLDEN["conditions"]
    return resolve(Deployment(target=place["target"], gpu=place["gpu"]), speculation, Slo())


def simulated(method: str) -> list[tuple[float, float]]:
    """(simulated, published) speed-ups of a method."""
    pairs = []
    for row in (row for row in GOLDEN["rows"] if row["method"] == method):
        asked = question(method, 3, row["acceptance_length"])
        settings = CrossoverSettings((1,), LengthSpec(row["isl"]), LengthSpec(row["osl"]), 3, seeds=3)
        for concurrency, published in row["speedup"].items():
            pairs.append((run_point(asked, settings, int(concurrency)).speedup.mean, published))
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize(("method", "median_error"), [("eagle", 0.15), ("ngram", 0.08)])
def test_speedups_follow_the_published_rows(method: str, median_error: float) -> None:
    pairs = simulated(method)
    assert len(pairs) == 8
    assert all((ours > 1) == (published > 1) for ours, published in pairs), pairs
    assert statistics.median(abs(ours / published - 1) for ours, published in pairs) <= median_error, pairs


def test_a_wide_tree_turns_between_20_and_40_requests() -> None:
    asked = question("eagle", 4, 3.2, tree_nodes=21)
    settings = CrossoverSettings((1,), LengthSpec(500), LengthSpec(300), 4, seeds=3)
    points = [run_point(asked, settings, c) for c in (8, 16, 24, 48, 64)]
    (turn,) = find_turns(points)
    assert turn.stops
    assert 20 <= turn.concurrency <= 40
    assert (points[0].verdict, points[-1].verdict) == ("faster", "slower")


def test_a_chain_of_three_still_pays_at_100_requests_and_turns_beyond() -> None:
    asked = question("eagle", 3, 2.3)
    settings = CrossoverSettings((1,), LengthSpec(94), LengthSpec(166), 3, seeds=3)
    points = [run_point(asked, settings, c) for c in (100, 400)]
    (turn,) = find_turns(points)
    assert (points[0].verdict, points[-1].verdict) == ("faster", "slower")
    assert turn.concurrency > 100
