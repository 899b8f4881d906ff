"""Bisection to a turn that is known, with and without a stretch in which the sides cannot be told apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specsim.planner.brackets import MOST_LOOKS, Bracket, Look, find_turn


def search(
    value: Callable[[float], float], low: float, high: float, *, blur: float = 0.0, width: float = 0.03,
    whole: bool = False,
) -> Bracket:  # fmt: skip
    """A search for the sign of `value`, which is told only where it is further than `blur` from zero."""

    def look(x: float) -> Generator[float, float, Look]:
        mean = yield x
        return Look(x, mean, 0 if not abs(mean) > blur else 1 if mean > 0 else -1)

    steps = find_turn(look, low, high, width=width, whole=whole)
    try:
        asked: Any = next(steps)
        while True:
            asked = steps.send(value(asked))
    except StopIteration as end:
        return end.value


@given(st.floats(0.011, 99.0), st.booleans(), st.sampled_from([0.2, 0.03, 0.001]))
def test_a_turn_is_bracketed_as_narrowly_as_asked(turn: float, falls: bool, width: float) -> None:
    sign = -1 if falls else 1
    found = search(lambda x: sign * (x - turn), 0.01, 100.0, width=width)
    assume(all(seen.mean for seen in found.looks))  # at the turn itself there are no sides
    assert found.verdict == ("falls" if falls else "rises")
    assert found.low is not None
    assert found.high is not None
    assert found.low <= turn <= found.high
    assert found.high - found.low <= width * found.high * 1.001
    assert found.low <= found.at <= found.high
    assert len(found.looks) <= 30, "bisection"


@given(st.floats(1.0, 2.0), st.floats(0.05, 0.4))
def test_where_the_sides_cannot_be_told_apart_the_ends_are_the_nearest_that_can(turn: float, blur: float) -> None:
    found = search(lambda x: math.log(turn / x), 0.2, 20.0, blur=blur)
    first, last = turn * math.exp(-blur), turn * math.exp(blur)
    assert found.verdict == "falls"
    assert found.low <= first <= found.low * 1.04
    assert found.high / 1.04 <= last <= found.high
    assert found.low <= found.at <= found.high
    assert {seen.side for seen in found.looks if seen.x in (found.low, found.high)} == {1, -1}


@given(st.integers(1, 998), st.floats(0.1, 0.9))
def test_whole_numbers_are_narrowed_to_neighbours(turn: int, part: float) -> None:
    found = search(lambda x: turn + part - x, 1, 999, width=0.0001, whole=True)
    assert (found.low, found.high) == (turn, turn + 1)
    assert all(seen.x == int(seen.x) for seen in found.looks)
    assert len({seen.x for seen in found.looks}) == len(found.looks) <= 20, "no place twice"


@pytest.mark.parametrize(
    ("value", "blur", "verdict"), [(1.0, 0.0, "above"), (-1.0, 0.0, "below"), (1.0, 2.0, "unclear"),
                                   (math.nan, 0.0, "unclear")],
)  # fmt: skip
def test_without_a_turn_only_the_ends_are_looked_at(value: float, blur: float, verdict: str) -> None:
    found = search(lambda x: value, 1.0, 8.0, blur=blur)
    assert (found.verdict, found.at, found.low, found.high) == (verdict, None, None, None)
    assert [seen.x for seen in found.looks] == [1.0, 8.0]


def test_a_blur_up_to_an_end_leaves_that_end_open() -> None:
    found = search(lambda x: math.log(2 / x), 1.5, 20.0, blur=0.5)
    assert found.low is None
    assert found.high is not None


def test_a_search_ends_however_narrow_it_should_be() -> None:
    assert len(search(lambda x: 1 - x, 0.01, 100.0, blur=0.3, width=0.0).looks) <= MOST_LOOKS
