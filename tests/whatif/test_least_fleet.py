"""The search for the least fleet, on fleets whose share within the objective is known in advance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from specsim.config import PolicySpec
from specsim.planner.least_fleet import FleetPoint, FleetSearch, Found, Searching

OFF = PolicySpec("off")
K1, K3 = PolicySpec("static", 1), PolicySpec("static", 3)


def figures(point: FleetPoint, share: float) -> dict[str, float]:
    return {"slo_share": share, "requests": 300, "running_batch": max(1.0, 1000 / point.replicas)}


def answer(search: Searching, share: Callable[[FleetPoint], float]) -> tuple[Any, list[FleetPoint]]:
    """What a search returns when a point's share is `share(point)`, and all that it asked for."""
    asked: list[FleetPoint] = []
    try:
        points = next(search)
        while True:
            asked += points
            points = search.send([figures(p, share(p)) for p in points])
    except StopIteration as end:
        return end.value, asked


def least(
    share: Callable[[FleetPoint], float], guess: int, policies: Sequence[PolicySpec] = (K1,), requests: int = 500
) -> tuple[Found, list[FleetPoint]]:
    search = FleetSearch(0, share=0.95, seeds=3, requests=requests)
    return answer(search.least(policies, guess), share)


def from_replicas(needed: int) -> Callable[[FleetPoint], float]:
    return lambda point: 1.0 if point.alone or point.replicas >= needed else 0.1


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 20, 100])
@pytest.mark.parametrize("guess", [1, 2, 6, 50, 400])
def test_finds_the_least_from_any_guess_and_shows_that_one_less_fails(needed: int, guess: int) -> None:
    found, asked = least(from_replicas(needed), guess)
    assert (found.verdict, found.replicas, found.share) == ("holds", needed, 1.0)
    assert found.below == (None if needed == 1 else (K1, 0.1))
    assert {p.seed_index for p in asked if p.replicas == needed and not p.alone} == {0, 1, 2}, "proved by all seeds"
    assert len(asked) == len(set(asked)), "no point twice"
    assert len({p.replicas for p in asked}) <= 18, "a bracket, not a grid"


def test_the_mean_over_seeds_decides_and_not_the_first_seed() -> None:
    def share(point: FleetPoint) -> float:
        if point.alone or point.replicas >= 3:
            return 1.0
        return (0.96, 0.93, 0.94)[point.seed_index] if point.replicas == 2 else 0.2

    found, _ = least(share, 2)
    assert (found.replicas, found.below) == (3, (K1, pytest.approx(0.94333, abs=1e-4)))


def test_a_first_seed_below_what_is_asked_may_still_hold_by_the_mean() -> None:
    found, _ = least(lambda p: (0.94, 0.96, 0.96)[p.seed_index] if p.replicas == 2 else float(p.replicas > 2), 2)
    assert found.replicas == 2


def test_of_several_policies_the_fewest_replicas_win_whatever_their_order() -> None:
    needed = {K1: 4, K3: 3}
    for policies in ((K1, K3), (K3, K1)):
        found, _ = least(lambda p: float(p.alone or p.replicas >= needed[p.policy]), 6, policies)
        assert (found.policy, found.replicas) == (K3, 3)
        assert found.below is not None
        assert found.below[1] == 0.0


def test_without_speculation_luck_plays_no_part_so_that_one_replication_tells_all() -> None:
    found, asked = least(from_replicas(3), 2, (OFF,))
    assert found.replicas == 3
    assert {p.seed_index for p in asked} == {0}


def test_where_every_request_is_alone_no_further_replicas_are_tried() -> None:
    found, asked = least(lambda p: 0.94, 1, requests=5000)
    assert (found.verdict, found.share) == ("never", pytest.approx(0.94))
    assert max(p.replicas for p in asked) == found.replicas <= 2048


def test_a_policy_that_is_too_slow_alone_is_dropped_and_the_others_searched() -> None:
    found, asked = least(lambda p: float(p.policy == K3 and (p.alone or p.replicas >= 9)), 2, (K1, K3))
    assert (found.policy, found.replicas) == (K3, 9)
    assert {p.replicas for p in asked if p.policy == K1} == {1, 2}


def test_what_is_too_slow_alone_is_never_reached_and_costs_no_search() -> None:
    found, asked = least(lambda p: 0.0, 3)
    assert (found.verdict, found.share) == ("never", 0.0)
    assert len(asked) == 2


def test_no_more_replicas_than_requests_are_tried() -> None:
    found, asked = least(lambda p: 0.94 if p.alone else 0.1, 1, requests=9)
    assert (found.verdict, found.replicas) == ("not found", 9)
    assert max(p.replicas for p in asked) == 9


@pytest.mark.parametrize("limit", [1.1, 1.7, 3.0])
def test_headroom_brackets_the_factor(limit: float) -> None:
    search = FleetSearch(0, share=0.95, seeds=3, requests=500)
    (low, high), _ = answer(
        search.headroom(OFF, 2, lambda runs: all(m["slo_share"] == 1.0 for m in runs)),
        lambda p: float(p.factor <= limit),
    )
    assert low <= limit < high
    assert high - low <= 0.03 * high
