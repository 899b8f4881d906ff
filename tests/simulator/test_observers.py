"""Observers are told everything, in order, and change nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import CROWDED, KINDS, World, run, worlds

from specsim.engine.observe import Observer
from specsim.engine.replica import StepView
from specsim.latency import StepWork
from specsim.records import RunResult


class Notes(Observer):
    """Writes down everything that it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, float]] = []
        self.replica: dict[int, int] = {}
        self.refused: set[int] = set()
        self.steps: list[tuple[int, float, float, StepWork, StepView, bool]] = []
        self._open: dict[int, tuple[float, float, StepView]] = {}

    def submitted(self, request: int, replica: int, arrival_s: float, accepted: bool) -> None:
        self.calls.append(("arrival", request, arrival_s))
        self.replica[request] = replica
        if not accepted:
            self.refused.add(request)

    def scheduled(self, request: int, now_s: float) -> None:
        self.calls.append(("scheduled", request, now_s))

    def preempted(self, request: int, now_s: float) -> None:
        self.calls.append(("preempted", request, now_s))

    def first_token(self, request: int, now_s: float) -> None:
        self.calls.append(("first token", request, now_s))

    def finished(self, request: int, now_s: float) -> None:
        self.calls.append(("finished", request, now_s))

    def step_began(self, replica: int, now_s: float, seconds: float, view: StepView) -> None:
        assert replica not in self._open
        self._open[replica] = (now_s, seconds, view)

    def step_ended(self, replica: int, now_s: float, measured: bool, view: StepView) -> None:
        began_s, seconds, began = self._open.pop(replica)
        assert now_s == began_s + seconds
        assert view.work is began.work
        assert view.running <= began.running
        self.steps.append((replica, began_s, seconds, replace(view.work), began, measured))

    def of(self, what: str) -> dict[int, float]:
        return {request: time_s for call, request, time_s in self.calls if call == what}


def assert_same(one: RunResult, other: RunResult) -> None:
    for name, column in asdict(one.requests).items():
        np.testing.assert_array_equal(getattr(other.requests, name), column, err_msg=name)
        assert type(getattr(other.requests, name)) is np.ndarray
    assert asdict(one.totals) == asdict(other.totals)
    assert (one.gaps.counts, one.gaps.zeros) == (other.gaps.counts, other.gaps.zeros)
    assert one.end_s == other.end_s
    assert (one.measure_from_s, one.measure_until_s) == (other.measure_from_s, other.measure_until_s)


def times(column: np.ndarray) -> dict[int, float]:
    return {i: t for i, t in enumerate(column.tolist()) if t == t}


def check(world: World, plain: bool) -> Notes:
    notes = Notes()
    result = run(world, plain=plain, observers=[notes])
    assert_same(run(world, plain=plain), result)
    rows, totals = result.requests, result.totals
    assert notes.of("scheduled") == times(rows.first_scheduled_s)
    assert notes.of("first token") == times(rows.first_token_s)
    assert notes.of("finished") == times(rows.finish_s)
    assert notes.of("arrival") == times(rows.arrival_s)
    counts = Counter(request for call, request, _ in notes.calls if call == "preempted")
    assert [counts[i] for i in range(len(rows.preemptions))] == rows.preemptions.tolist()
    assert notes.refused == set(np.flatnonzero(rows.rejected).tolist())
    assert [notes.replica[i] for i in range(len(rows.replica))] == rows.replica.tolist()
    told = [time_s for call, _, time_s in notes.calls if call != "arrival"]
    assert told == sorted(told)
    arrivals = [time_s for call, _, time_s in notes.calls if call == "arrival"]
    assert arrivals == sorted(arrivals)
    cost = world.cost
    measured = [step for step in notes.steps if step[5]]
    assert len(measured) == totals.steps
    assert sum(seconds for _, _, seconds, *_ in measured) == pytest.approx(totals.busy_s, rel=1e-9)
    decoded = sum(work.decode_requests for *_, work, _, _ in measured)
    drafted = sum(cost.drafts_verified(work) for *_, work, _, _ in measured)
    prefilled = sum(work.prefill_tokens for *_, work, _, _ in measured)
    rules = world.limits.discipline
    if rules.extra_step or rules.first_round_placeholders or rules.order == "batch":  # computed, but nobody's round
        assert decoded >= totals.rounds
        assert drafted >= totals.drafted_tokens
    else:
        assert (decoded, drafted) == (totals.rounds, totals.drafted_tokens)
    assert prefilled == totals.prefill_tokens
    assert sum(view.rounds for *_, view, _ in measured) == totals.rounds
    levels = sum(view.draft_tokens for *_, view, _ in measured)
    assert levels == totals.drafted_tokens or (world.trees and levels <= totals.drafted_tokens)
    assert max((view.used_blocks for *_, view, _ in measured), default=0) == totals.peak_kv_blocks
    for _, _, seconds, work, view, _ in notes.steps:
        assert cost.step_s(work) == seconds
        assert view.running >= view.rounds + work.prefill_rows
    return notes


@KINDS
@settings(max_examples=60, deadline=None)
@given(world=worlds())
def test_observers_are_told_what_the_record_says_and_change_nothing(plain: bool, world: World) -> None:
    check(world, plain)


@KINDS
def test_preemptions_refusals_and_two_replicas_are_told(plain: bool) -> None:
    notes = check(CROWDED, plain)
    assert notes.refused == {11}
    assert set(notes.replica.values()) == {0, 1}
    assert any(call == "preempted" for call, _, _ in notes.calls)
    assert max(view.waiting for *_, view, _ in notes.steps) > 0


@pytest.mark.parametrize("world", [CROWDED, replace(CROWDED, concurrency=5, warmup_share=0.3)])
def test_both_kinds_of_replica_tell_the_same(world: World) -> None:
    fast, plain = check(world, plain=False), check(world, plain=True)
    assert sorted(fast.calls) == sorted(plain.calls)
    assert fast.steps == plain.steps
