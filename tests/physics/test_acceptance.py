"""Luck of requests: exact at every k, independent of neighbours, replayable."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.acceptance import AcceptanceModel, ByTask, Constant, Luck, PerPosition
from specsim.acceptance.base import MAX_SPEC_TOKENS, round_starts
from specsim.acceptance.spread import length_spread
from specsim.closed_forms import expected_tokens_per_round
from specsim.errors import ProfileError

GOLDEN = [0, 4, 3, 2, 1, 0, 0, 0, 5, 4, 3, 2, 4, 3, 2, 1, 0, 4, 3, 2, 1, 0, 0, 1]
VECTOR = (0.7, 0.6, 0.65)
MODELS = {
    "constant": Constant(0.7),
    "per position": PerPosition(VECTOR),
    "spread": PerPosition(VECTOR).with_spread(0.35, 3),
    "lookup": PerPosition((0.72, 0.82, 0.85), proposal_rate=0.2),
    "lookup with spread": PerPosition((0.72, 0.82, 0.85), proposal_rate=0.25).with_spread(0.3, 3),
    "short proposals": PerPosition((0.72, 0.82, 0.85), proposal_rate=0.5, proposed=(1.0, 0.7, 0.2, 0.0)),
    "short proposals with spread": PerPosition(
        (0.72, 0.82, 0.85), proposal_rate=0.5, proposed=(1.0, 0.7, 0.2)
    ).with_spread(0.2, 3),
    "by task": ByTask((PerPosition(VECTOR), PerPosition((0.3,), proposal_rate=0.5)), (1.0, 1.0)),
}


def deal(model: AcceptanceModel, n: int, length: int, *, seed: int = 1, first: int = 0) -> Luck:
    return model.luck(seed, first, np.full(n, length), np.arange(first, first + n) % 2)


def rounds_of(luck: Luck, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, tokens) of each request at a static k."""
    starts = round_starts(luck.run, luck.offsets, k)
    owner = np.searchsorted(luck.offsets, starts, side="right") - 1
    n = len(luck.offsets) - 1
    tokens = np.bincount(owner, weights=np.minimum(luck.run[starts], k) + 1.0, minlength=n)
    return np.bincount(owner, minlength=n).astype(float), tokens


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("k", [1, 3, 8])
def test_tokens_per_round_are_exact_at_every_k(name: str, k: int) -> None:
    """Ratio of sums over 1500 requests, each an independent draw, against the closed form.

    Tolerance 4.5 standard errors (delta method over requests) plus 2/length for the uncut last round: a false alarm
    has a chance below 1e-5 per case, and the seed is fixed.
    """
    length = 400
    rounds, tokens = rounds_of(deal(MODELS[name], 1500, length), k)
    mean = tokens.sum() / rounds.sum()
    error = np.std(tokens - mean * rounds) / rounds.mean() / math.sqrt(len(rounds))
    assert abs(mean - MODELS[name].expected_length(k)) < 4.5 * error + 2 / length


def test_marginals_are_exact_position_by_position() -> None:
    """600,000 positions; counts are correlated over at most 8 positions, so 5 x sqrt(8) binomial errors hold with a
    false alarm below 1e-6."""
    run = deal(PerPosition(VECTOR), 2000, 300).run
    expected = 1.0
    for depth, a in enumerate((*VECTOR, 0.65, 0.65), start=1):
        expected *= a
        share = np.count_nonzero(run >= depth) / len(run)
        assert abs(share - expected) < 5 * math.sqrt(8 * expected * (1 - expected) / len(run))


def test_constant_is_the_textbook_formula() -> None:
    for k in (1, 3, 4):
        assert Constant(0.8).expected_length(k) == pytest.approx(expected_tokens_per_round(0.8, k))


def test_extremes() -> None:
    assert deal(Constant(0.0), 3, 50).run.max() == 0
    assert deal(Constant(1.0), 3, 50).run.min() == 20
    assert deal(PerPosition((1.0, 0.0)), 3, 50).run.tolist() == [1] * 150
    never = deal(PerPosition((0.9,), proposal_rate=0.0), 2, 40)
    assert never.drafts is not None and not never.drafts.any() and never.run.max() == 0


@pytest.mark.parametrize("name", MODELS)
def test_luck_depends_on_seed_and_own_id_only(name: str) -> None:
    model = MODELS[name]
    lengths = np.array([5, 300, 17, 1, 90, 64])
    tasks = np.array([0, 1, 0, 1, 1, 0])
    whole = model.luck(7, 10, lengths, tasks)
    for i, length in enumerate(lengths.tolist()):
        alone = model.luck(7, 10 + i, np.array([length]), tasks[i : i + 1])
        longer = model.luck(7, 10 + i, np.array([length + 1000]), tasks[i : i + 1])
        for mine, own, more in zip(whole.of(i), alone.of(0), longer.of(0), strict=True):
            if mine is None or own is None or more is None:
                assert mine is None or mine.all()
                continue
            assert np.array_equal(mine, own)
            assert np.array_equal(mine, more[:length])  # a longer output begins with the same luck
    other_seed = model.luck(8, 10, lengths, tasks)
    assert not np.array_equal(whole.run, other_seed.run)
    assert whole.run.dtype == np.int8 and whole.run.max() <= model.max_spec_tokens


def test_luck_of_a_seed_never_changes() -> None:
    """Stored results name their seed only: a change here needs a new code version in the run cache."""
    assert deal(Constant(0.7), 2, 12, seed=42).run.tolist() == GOLDEN


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["lookup with spread"]
    whole = deal(model, 50, 100)
    monkeypatch.setattr("specsim.acceptance.vector._BLOCK_TOKENS", 150)
    assert np.array_equal(deal(model, 50, 100).run, whole.run)


def test_runs_of_a_constant_model_count_down() -> None:
    """With one probability for all positions, a run seen one position later is one shorter."""
    run = deal(Constant(0.7), 1, 2000).run.astype(int)
    inside = (run[:-1] > 0) & (run[:-1] < 20)
    assert np.array_equal(run[1:][inside], run[:-1][inside] - 1)


def test_spread_between_requests_is_the_asked_one() -> None:
    """SD over 1500 requests of long outputs; its own error is 2 %, sampling noise within requests adds under 1 %:
    10 % is over 4 errors, a false alarm below 1e-4, seed fixed."""
    model = PerPosition(VECTOR).with_spread(0.35, 3)
    rounds, tokens = rounds_of(deal(model, 1500, 4000), 3)
    assert np.std(tokens / rounds) == pytest.approx(0.35, rel=0.10)
    assert length_spread(model.conditional, 1.0, model.sigma, 3) == pytest.approx(0.35, rel=1e-4)
    assert length_spread(model.conditional, 1.0, 0.0, 3) == pytest.approx(0.0, abs=1e-9)


def test_proposals_come_at_their_rate_and_runs_need_them() -> None:
    """300,000 independent positions: 5 binomial errors, a false alarm below 1e-6."""
    luck = deal(MODELS["lookup"], 1000, 300)
    assert luck.drafts is not None
    proposes = luck.drafts > 0
    assert abs(proposes.mean() - 0.2) < 5 * math.sqrt(0.2 * 0.8 / len(proposes))
    assert (luck.drafts[proposes] == MAX_SPEC_TOKENS).all()
    assert not luck.run[~proposes].any()
    assert (luck.run[proposes] > 0).mean() == pytest.approx(0.72, abs=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_no_more_drafts_match_than_are_proposed(name: str) -> None:
    luck = deal(MODELS[name], 300, 200)
    assert luck.drafts is None or (luck.run <= luck.drafts).all()


@pytest.mark.parametrize("name", ["short proposals", "short proposals with spread"])
def test_proposals_are_as_long_as_asked(name: str) -> None:
    """300,000 positions of 2000 requests. Without spread positions are independent: 5 binomial errors, a false alarm
    below 1e-6; with it requests differ, so the error is that of their means."""
    model = MODELS[name]
    luck = deal(model, 2000, 150)
    assert luck.drafts is not None
    for j, survival in enumerate((1.0, *model.proposed)):
        share = (luck.drafts >= j).reshape(2000, 150).mean(axis=1)
        expected = 0.5 * survival if j else 1.0
        assert abs(share.mean() - expected) <= 5 * share.std() / math.sqrt(2000)
    assert set(luck.drafts.tolist()) == ({0, 1, 2, 3} if model.proposed[-1] == 0.0 else {0, 1, 2, MAX_SPEC_TOKENS})


@pytest.mark.parametrize("name", ["constant", "lookup", "short proposals"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_drafts_a_round_are_those_expected(name: str, k: int) -> None:
    """Rounds of these models are independent and requests are alike: means over 400 requests, 5 standard errors, a
    false alarm below 1e-5 a case."""
    luck, model, shares = deal(MODELS[name], 400, 300), MODELS[name], []
    for i in range(400):
        run, drafts = luck.of(i)
        position, asked = 0, []
        while position < len(run):
            asked.append(k if drafts is None else min(k, int(drafts[position])))
            position += min(k, int(run[position])) + 1
        shares.append(np.mean(asked))
    assert abs(np.mean(shares) - model.expected_drafts(k)) <= 5 * np.std(shares) / math.sqrt(400) + 1e-12


def test_longer_proposals_match_more() -> None:
    """The same luck with longer proposals: no run gets shorter, and some get longer."""
    short = deal(PerPosition((0.8,), proposal_rate=0.5, proposed=(1.0, 0.3, 0.0)), 50, 200)
    long = deal(PerPosition((0.8,), proposal_rate=0.5, proposed=(1.0, 0.6, 0.1)), 50, 200)
    assert (long.run >= short.run).all() and (long.run > short.run).any()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6), st.floats(-0.5, 0.5), st.integers(1, 20))
def test_change_moves_every_conditional(vector: list[float], delta: float, k: int) -> None:
    model = PerPosition(tuple(vector))
    moved = model.with_change(delta)
    assert all(
        b == pytest.approx(min(1, max(0, a + delta))) for a, b in zip(model.conditional, moved.conditional, strict=True)
    )
    assert (moved.expected_length(k) - model.expected_length(k)) * delta >= -1e-12


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.05, 0.95), min_size=1, max_size=4),
    st.floats(0.05, 1.0),
    st.floats(0.1, 1.5),
    st.integers(0, 9),
)
def test_any_model_deals_runs_in_range(vector: list[float], rate: float, sigma: float, seed: int) -> None:
    model = PerPosition(tuple(vector), 5, rate, sigma)
    luck = model.luck(seed, 3, np.array([1, 40, 7]))
    assert luck.offsets.tolist() == [0, 1, 41, 48]
    assert len(luck.run) == 48 and luck.run.min() >= 0 and luck.run.max() <= 5
    assert (luck.drafts is None) == (rate >= 1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: PerPosition(()),
        lambda: PerPosition((1.1,)),
        lambda: PerPosition((float("nan"),)),
        lambda: PerPosition((0.5,), max_spec_tokens=0),
        lambda: PerPosition((0.5,), max_spec_tokens=65),
        lambda: PerPosition((0.5,), proposal_rate=-0.1),
        lambda: PerPosition((0.5,), sigma=float("inf")),
        lambda: PerPosition((0.5,), proposed=()),
        lambda: PerPosition((0.5,), proposed=(0.9,)),
        lambda: PerPosition((0.5,), proposed=(1.0, 0.5, 0.6)),
        lambda: PerPosition((0.5,), proposed=(1.0, float("nan"))),
        lambda: PerPosition((0.5,), 3, proposed=(1.0, 0.5, 0.4, 0.3)),
        lambda: PerPosition((0.5,)).with_spread(5.0, 3),
        lambda: ByTask((Constant(0.5),), ()),
        lambda: ByTask((Constant(0.5),), (1.0,)).luck(0, 0, np.array([3]), np.array([1])),
        lambda: ByTask((Constant(0.5),), (1.0,)).luck(0, 0, np.array([3])),
    ],
)
def test_impossible_models_are_refused_in_one_line(call) -> None:
    with pytest.raises(ProfileError) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_models_are_values() -> None:
    assert PerPosition(VECTOR) == PerPosition(VECTOR)
    assert dataclasses.replace(PerPosition(VECTOR), sigma=0.2) != PerPosition(VECTOR)
