"""The mixture with memory: exact means, independence of requests, and a fit that finds what it was dealt."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.acceptance import Luck, Mixture, PerPosition, fit_mixture
from specsim.acceptance.base import MAX_SPEC_TOKENS, round_starts
from specsim.acceptance.measured import lengths_by_k
from specsim.acceptance.regime_chain import drifted, round_sums
from specsim.errors import ProfileError

SMALL = Mixture(
    accept=((0.1, 0.2), (0.6, 0.5, 0.4), (0.98, 0.95)),
    moves=(
        ((0.9, 0.08, 0.02), (0.1, 0.8, 0.1), (0.0, 0.2, 0.8)),
        ((0.5, 0.4, 0.1), (0.05, 0.85, 0.1), (0.02, 0.03, 0.95)),
    ),
    starts=((1.0, 0.0, 0.0), (0.2, 0.8, 0.0)),
    shares=((0.9, 0.1), (0.3, 0.7)),
    share_tokens=(20.0, 500.0),
    outputs=((60, 2.0), (300, 1.0)),
)
LOOKUP = dataclasses.replace(SMALL, proposes=(0.2, 0.6, 1.0))
DRIFTING = dataclasses.replace(LOOKUP, drift=((40, (0.5, 1.0, 3.0)), (150, (3.0, 1.0, 0.2))))


GOLDEN = [0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1]


def rounds_of(luck: Luck, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, tokens) of each request at a static k."""
    starts = round_starts(luck.run, luck.offsets, k)
    n = len(luck.offsets) - 1
    owner = np.searchsorted(luck.offsets, starts, side="right") - 1
    tokens = np.bincount(owner, np.minimum(luck.run[starts], k) + 1.0, n)
    return np.bincount(owner, minlength=n).astype(float), tokens


@pytest.mark.parametrize("model", [SMALL, LOOKUP, DRIFTING], ids=["always", "lookup", "drifting"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_expected_length_is_that_of_the_simulation(model: Mixture, k: int) -> None:
    """Ratio of sums over 2100 requests of the model's own lengths, 4.5 standard errors: a false alarm below 1e-5 a
    case, seed fixed."""
    outputs = np.tile([60, 60, 300], 700)
    luck = model.luck(3, 0, outputs)
    rounds, tokens = rounds_of(luck, k)
    mean = tokens.sum() / rounds.sum()
    error = np.std(tokens - mean * rounds) / rounds.mean() / math.sqrt(len(rounds))
    assert abs(mean - model.expected_length(k)) < 4.5 * error
    if luck.drafts is not None:
        starts = round_starts(luck.run, luck.offsets, k)
        drafted = np.minimum(luck.drafts[starts], k).reshape(-1)
        share = 4.5 * k * math.sqrt(0.25 / len(outputs))  # proposals of one request hang together: counted as one draw
        assert abs(drafted.mean() - model.expected_drafts(k)) < share


@pytest.mark.parametrize("bands", [(0,), (0, 4), (0, 3, 7, 20)])
def test_round_sums_are_those_of_a_walk_over_positions(bands: tuple[int, ...]) -> None:
    """The matrix powers against the plain recursion: chance of a round at a position, from the rounds before it."""
    accept = np.array([[0.3, 0.5], [0.9, 0.8]])
    proposes = np.array([0.5, 1.0])
    moves = drifted(np.array([[[0.7, 0.3], [0.4, 0.6]]]), np.array([[1, 1], [0.2, 1], [3, 1], [1, 9]])[: len(bands)])
    starts = np.array([[0.25, 0.75]])
    length, k = 9, 2
    at = np.zeros((length + k + 1, 2))
    at[0] = starts[0]
    rounds = tokens = proposals = 0.0
    chance = np.stack([accept[:, 0] * proposes, accept[:, 1]], axis=1)
    for p in range(length):
        rounds += at[p].sum()
        proposals += at[p] @ proposes
        alive = at[p]
        for j in range(k + 1):
            own = moves[np.searchsorted(bands, min(p + j, length - 1), side="right") - 1, 0]
            tokens += alive.sum()
            miss = 1.0 - chance[:, j] if j < k else np.ones(2)
            at[p + j + 1] += (alive * miss) @ own
            alive = (alive * (1.0 - miss)) @ own
    found = round_sums(accept, proposes, moves, starts, np.array([length, 1]), bands)
    assert found.rounds.shape == (2, 1)
    assert found.rounds[0, 0] == pytest.approx(rounds)
    assert found.tokens[0, 0] == pytest.approx(tokens)
    assert found.proposals[0, 0] == pytest.approx(proposals)
    assert found.rounds[1, 0] == pytest.approx(1.0)


def test_drift_changes_the_text_behind_its_position_only() -> None:
    """Weights of 1 are no drift, to the bit; and up to `max_spec_tokens` before the position all is as without."""
    outputs = np.full(50, 120)
    plain = SMALL.luck(7, 0, outputs).run.reshape(50, 120)
    none = dataclasses.replace(SMALL, drift=((30, (1.0, 1.0, 1.0)),)).luck(7, 0, outputs).run.reshape(50, 120)
    late = dataclasses.replace(SMALL, drift=((60, (0.1, 1.0, 9.0)),)).luck(7, 0, outputs).run.reshape(50, 120)
    assert np.array_equal(plain, none)
    assert np.array_equal(plain[:, :40], late[:, :40])
    assert late[:, 60:].mean() > 1.5 * plain[:, 60:].mean()


def test_one_kind_and_one_regime_is_the_vector() -> None:
    vector = (0.7, 0.6, 0.65)
    plain = Mixture((vector,), (((1.0,),),), ((1.0,),), ((1.0,),), (100.0,), ((100, 1.0),))
    for k in (1, 2, 5, 20):
        assert plain.expected_length(k) == pytest.approx(PerPosition(vector).expected_length(k))
    assert plain.conditional == pytest.approx(PerPosition(vector).conditional)


@pytest.mark.parametrize("model", [SMALL, LOOKUP, DRIFTING], ids=["always", "lookup", "drifting"])
def test_luck_depends_on_seed_id_and_output_only(model: Mixture) -> None:
    outputs = np.array([5, 300, 17, 1, 90, 64])
    whole = model.luck(7, 10, outputs)
    for i, length in enumerate(outputs.tolist()):
        alone = model.luck(7, 10 + i, np.array([length]))
        for mine, own in zip(whole.of(i), alone.of(0), strict=True):
            assert mine is own is None or np.array_equal(mine, own)
    assert not np.array_equal(whole.run, model.luck(8, 10, outputs).run)


def test_luck_of_a_seed_never_changes() -> None:
    """Stored results name their seed only: a change here needs a new code version in the run cache."""
    assert SMALL.luck(42, 0, np.array([12, 12])).run.tolist() == GOLDEN


def test_requests_differ_and_remember() -> None:
    """1000 requests of 400 tokens: their means differ by more than the rounds of alike requests would, and neighbouring
    rounds are alike. Both are known to about 3 % and 0.004."""
    luck = SMALL.luck(1, 0, np.full(1000, 400))
    rounds, tokens = rounds_of(luck, 3)
    alike = PerPosition(SMALL.conditional).luck(1, 0, np.full(1000, 400))
    others, their = rounds_of(alike, 3)
    assert np.std(tokens / rounds) > 3 * np.std(their / others)
    starts = round_starts(luck.run, luck.offsets, 3)
    gain = np.minimum(luck.run[starts], 3).astype(float)
    same = np.searchsorted(luck.offsets, starts[:-1], side="right") == np.searchsorted(
        luck.offsets, starts[1:], side="right"
    )
    assert np.corrcoef(gain[:-1][same], gain[1:][same])[0, 1] > 0.2


def test_kinds_follow_the_output_length() -> None:
    shares = SMALL.kinds_at(np.array([1, 20, 100, 500, 9000]))
    assert shares.sum(axis=1) == pytest.approx(np.ones(5))
    assert shares[:, 1] == pytest.approx([0.1, 0.1, 0.1 + 0.6 * math.log(5) / math.log(25), 0.7, 0.7])


@settings(max_examples=25, deadline=None)
@given(st.floats(-0.6, 0.6), st.integers(1, 12))
def test_change_moves_the_length_the_right_way(delta: float, k: int) -> None:
    moved = SMALL.with_change(delta)
    assert (moved.expected_length(k) - SMALL.expected_length(k)) * delta >= -1e-12
    assert 1.0 <= moved.expected_length(k) <= k + 1.0
    assert LOOKUP.with_change(delta).expected_drafts(k) >= 0.0


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_mixture_deals_runs_in_range(data: st.DataObject) -> None:
    regimes, kinds = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    chance = st.floats(0.0, 1.0)

    def row() -> tuple[float, ...]:
        values = np.array(data.draw(st.lists(st.integers(0, 5), min_size=regimes, max_size=regimes)), dtype=float)
        values = values / values.sum() if values.sum() else np.full(regimes, 1 / regimes)
        return tuple(values.tolist())

    model = Mixture(
        accept=tuple(tuple(data.draw(st.lists(chance, min_size=1, max_size=3))) for _ in range(regimes)),
        moves=tuple(tuple(row() for _ in range(regimes)) for _ in range(kinds)),
        starts=tuple(row() for _ in range(kinds)),
        shares=(tuple([1.0 / kinds] * kinds),),
        share_tokens=(10.0,),
        outputs=((10, 1.0),),
        proposes=tuple(data.draw(chance) for _ in range(regimes)) if data.draw(st.booleans()) else (),
        max_spec_tokens=data.draw(st.integers(1, 6)),
    )
    outputs = np.array(data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=6)))
    luck = model.luck(data.draw(st.integers(0, 9)), 0, outputs)
    assert len(luck.run) == outputs.sum()
    assert luck.run.min() >= 0 and luck.run.max() <= model.max_spec_tokens
    if luck.drafts is not None:
        assert (luck.run <= luck.drafts).all() and set(luck.drafts.tolist()) <= {0, MAX_SPEC_TOKENS}
    lengths = [model.expected_length(k) for k in range(1, model.max_spec_tokens + 1)]
    assert all(1.0 - 1e-9 <= length <= k + 1.0 + 1e-9 for k, length in enumerate(lengths, start=1))
    assert 0.0 <= model.proposal_rate <= 1.0 + 1e-9


def test_the_fit_finds_what_it_was_dealt() -> None:
    """A mixture dealt to 100 requests and fitted again: lengths are met exactly by construction, spread and memory on
    fresh requests within 15 % and 0.05."""
    outputs = np.random.default_rng(5).integers(60, 240, size=100)
    luck = SMALL.luck(9, 0, outputs)
    model = fit_mixture([luck.of(i)[0] for i in range(100)], kinds=3)
    for k in (1, 3, 6):
        measured = 1.0 + np.minimum(luck.run[round_starts(luck.run, luck.offsets, k)], k).mean()
        assert model.expected_length(k) == pytest.approx(measured, rel=2e-3)
    fresh = np.random.default_rng(6).integers(60, 240, size=1500)
    spread, memory = zip(*(_spread_and_memory(m.luck(1, 0, fresh)) for m in (SMALL, model)), strict=True)
    assert spread[1] == pytest.approx(spread[0], rel=0.15)
    assert memory[1] == pytest.approx(memory[0], abs=0.05)


def test_the_fit_finds_a_drift() -> None:
    """60 requests of 2100 tokens that are easy between 128 and 512 and get hard at position 1024, fitted again: runs by
    position within 12 % of what was dealt, between bands that differ by a factor of two."""
    truth = dataclasses.replace(
        SMALL, drift=((128, (0.3, 1.0, 2.0)), (512, (1.0, 1.0, 1.0)), (1024, (4.0, 1.0, 0.3))), shares=((0.5, 0.5),) * 2
    )
    luck = truth.luck(9, 0, np.full(60, 2100))
    model = fit_mixture([luck.of(i)[0] for i in range(60)], kinds=2, regimes=3)
    dealt, again = (m.luck(4, 0, np.full(200, 2100)).run.reshape(200, 2100) for m in (truth, model))
    parts = [slice(0, 128), slice(128, 512), slice(512, 1024), slice(1024, 2100)]
    by_part = np.array([[runs[:, part].mean() for part in parts] for runs in (dealt, again)])
    assert by_part[0].max() > 2 * by_part[0].min()
    assert by_part[1] == pytest.approx(by_part[0], rel=0.12)


def test_a_fit_draws_nothing() -> None:
    luck = SMALL.luck(9, 0, np.full(20, 50))
    runs = [luck.of(i)[0] for i in range(20)]
    assert fit_mixture(runs, kinds=2, regimes=3) == fit_mixture(runs, kinds=2, regimes=3)


def _spread_and_memory(luck: Luck) -> tuple[float, float]:
    rounds, tokens = rounds_of(luck, 3)
    starts = round_starts(luck.run, luck.offsets, 3)
    gain = np.minimum(luck.run[starts], 3).astype(float)
    return float(np.std(tokens / rounds)), float(np.corrcoef(gain[:-1], gain[1:])[0, 1])


def test_a_steady_fit_meets_given_lengths_at_any_output_length() -> None:
    luck = SMALL.luck(9, 0, np.full(40, 100))
    wanted = (1.5, 1.8, 1.95)
    model = fit_mixture([luck.of(i)[0] for i in range(40)], kinds=2, steady_lengths=wanted, proposal_rate=0.7)
    assert [model.expected_length(k) for k in (1, 2, 3)] == pytest.approx(wanted, abs=1e-4)
    longer = dataclasses.replace(model, outputs=((5000, 1.0),))
    assert longer.expected_length(3) == pytest.approx(1.95, rel=0.02)
    assert model.proposal_rate == pytest.approx(0.7, abs=1e-6)


BAD: list[dict[str, Any]] = [
    {"accept": ()},
    {"accept": ((0.5,), (), (0.5,))},
    {"accept": ((0.5,), (1.2,), (0.5,))},
    {"moves": SMALL.moves[:1]},
    {"moves": (((0.5, 0.4, 0.2), *SMALL.moves[0][1:]), SMALL.moves[1])},
    {"starts": ((1.0, 0.0), (0.2, 0.8))},
    {"shares": ((0.9, 0.1),)},
    {"share_tokens": (500.0, 20.0)},
    {"outputs": ()},
    {"outputs": ((0, 1.0),)},
    {"proposes": (0.5,)},
    {"proposes": (0.5, float("nan"), 0.5)},
    {"max_spec_tokens": 65},
    {"drift": ((0, (1.0, 1.0, 1.0)),)},
    {"drift": ((9, (1.0, 1.0, 1.0)), (9, (1.0, 2.0, 1.0)))},
    {"drift": ((9, (1.0, 1.0)),)},
    {"drift": ((9, (1.0, 0.0, 1.0)),)},
    {"drift": ((9, (1.0, float("inf"), 1.0)),)},
]


@pytest.mark.parametrize("change", BAD, ids=lambda change: next(iter(change)))
def test_impossible_mixtures_are_refused_in_one_line(change: dict[str, Any]) -> None:
    with pytest.raises(ProfileError) as caught:
        dataclasses.replace(SMALL, **change)
    assert "\n" not in str(caught.value)


def test_nothing_to_fit_is_refused() -> None:
    with pytest.raises(ProfileError, match="at least one measured request"):
        fit_mixture([])


def _texts(chance: float, most: int, requests: int = 30, tokens: int = 120) -> list[np.ndarray]:
    """Positions that match independently: runs from each, cut at `most` drafts and at the end of the text."""
    rng = np.random.default_rng(8)
    found = []
    for _ in range(requests):
        run = np.zeros(tokens + 1, dtype=np.int64)
        for position in range(tokens - 1, -1, -1):
            run[position] = run[position + 1] + 1 if rng.random() < chance else 0
        found.append(np.minimum(run[:-1], most))
    return found


def test_a_run_that_was_cut_by_k_says_nothing_of_the_next_draft() -> None:
    """Of runs cut at 3 drafts, acceptance at the third is no lower than at the first."""
    runs = _texts(0.8, most=3)
    model = fit_mixture(runs, kinds=2, regimes=2, num_spec_tokens=3)
    assert model.max_spec_tokens == 3
    assert model.conditional[:3] == pytest.approx([0.8, 0.8, 0.8], abs=0.04)
    assert fit_mixture(runs, kinds=2, regimes=2) == model, "of files that do not say k, the longest run is as many"


def test_a_mixture_knows_as_many_drafts_as_were_measured_not_as_the_longest_run_has() -> None:
    """20 drafts were measured, and the longest run ended in a miss."""
    runs = _texts(0.4, most=20)
    longest = max(int(run.max()) for run in runs)
    assert longest < 12, "the guard: no run was cut"
    model = fit_mixture(runs, kinds=2, regimes=2, num_spec_tokens=20)
    assert model.max_spec_tokens == 20
    known = lengths_by_k(runs, 20)
    assert [model.expected_length(k) for k in (1, 3, 10, 20)] == pytest.approx([known[k - 1] for k in (1, 3, 10, 20)],
                                                                               rel=0.002)  # fmt: skip
    with pytest.raises(ProfileError, match=f"{longest} drafts match where 3 were measured"):
        fit_mixture(runs, num_spec_tokens=3)
