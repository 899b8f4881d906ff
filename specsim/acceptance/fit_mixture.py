"""Fit of a `Mixture` to measured requests by expectation maximisation.

Two walks of rounds over every measured request, at one draft and at as many as were measured, say at each output
position whether a draft for it was tested, at which place of its draft, and whether it matched. A hidden Markov chain
of regimes explains these tests; kinds of requests share the regimes and differ in how they move between them, and how
moves drift over bands of output positions is common to all kinds. Which kinds an output length has is smoothed over
similar lengths. At the end the acceptance at each place of a draft is
shifted by as much as makes the mean acceptance lengths exactly the measured ones.
Leaves out: tests beyond 150,000 output tokens (every n-th request is taken then); proposals where nothing matched,
which measurements do not show: their rate is given.
Numbers: none but the sizes below; they are the same for every data set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specsim.acceptance.base import similar_outputs
from specsim.acceptance.measured import lengths_by_k
from specsim.acceptance.mixture import Mixture
from specsim.acceptance.regime_chain import drifted, steady_regimes
from specsim.acceptance.shift_mixture import with_lengths, with_proposals
from specsim.errors import ProfileError

__all__ = ["fit_mixture"]

_PLACES = 6
"""Places of a draft with acceptance of their own; those behind are alike."""
_PIECE_TOKENS = 128
_MAX_TOKENS = 150_000
_ITERATIONS = 24
_WARM = 3
"""Iterations in which requests stay in the kind that their own mean acceptance puts them in."""
_IGNORED = 0.003
"""Chance below which a request is not tried as one of a kind, most of the time."""
_MOVES_PRIOR = 5.0
_PLACES_PRIOR = 20.0
"""Observations for which the mean over kinds, or over places, counts."""
_BANDS = (0, 128, 512, 1024, 2048, 4096)
"""Output positions at which moves may drift, those up to half of the longest output; multiples of `_PIECE_TOKENS`."""
_DRIFT_PRIOR = 50.0
"""Moves for which it counts that all bands are alike."""
_SCALINGS = 4
_SIMILAR = 1.2
"""Ratio of output lengths at which a request says 1/e as much of the kinds; 1.6 predicts held-out halves worse."""
_KNOTS = 16
_REFERENCE_OUTPUTS = 24


def fit_mixture(
    runs: Sequence[np.ndarray],
    *,
    kinds: int = 8,
    regimes: int = 4,
    num_spec_tokens: int | None = None,
    proposal_rate: float = 1.0,
    steady_lengths: Sequence[float] | None = None,
    output_tokens: int | None = None,
    name: str = "mixture",
) -> Mixture:
    """The mixture that explains measured requests. Deterministic; some seconds for 100,000 output tokens.

    Args:
        runs: one array a request: drafts that would match for a round starting at each output position.
        kinds, regimes: sizes of the model; fewer kinds are used where there are fewer than five requests for each.
        num_spec_tokens: drafts of a round that were measured: a run of as many was cut there, and what its next draft
            would have done is not known; every shorter one ended with a miss. None: as many as the longest run has.
        proposal_rate: share of positions at which a lookup proposes anything; 1: always.
        steady_lengths: mean acceptance lengths at k = 1, 2, ... to be met by requests of any output length; None: those
            measured, and long requests may differ from short ones as they do in the measurement.
        output_tokens: the one output length over which a steady fit's `expected_length` is a mean; None: as measured.

    Raises:
        ProfileError: when there is nothing to fit, or a run is longer than what was measured.
    """
    measured = [np.asarray(run, dtype=np.int64) for run in runs if len(run)]
    if not measured or not 1 <= regimes <= 8 or not 1 <= kinds <= 64:
        raise ProfileError("a mixture needs at least one measured request, 1..8 regimes and 1..64 kinds")
    longest = max(1, max(int(run.max()) for run in measured))
    most = longest if num_spec_tokens is None else num_spec_tokens
    if most < longest:
        raise ProfileError(f"{longest} drafts match where {most} were measured; that cannot be")
    chosen = measured[:: math.ceil(sum(map(len, measured)) / _MAX_TOKENS)]
    kinds = max(1, min(kinds, len(chosen) // 5))
    tokens = np.array([len(run) for run in chosen], dtype=np.float64)
    steady = steady_lengths is not None
    bands = (0,) if steady else tuple(p for p in _BANDS if 2 * p <= tokens.max())
    found = _explain(_Tests.of(chosen, (1, most), bands), tokens, _by_ease(chosen, tokens, kinds), regimes, steady)
    if steady:
        places = np.array([tokens.mean()])
        shares = found.member.mean(axis=0)[None]
    else:
        places = np.exp(np.linspace(math.log(tokens.min()), math.log(tokens.max() + 1.0), _KNOTS))
        shares = similar_outputs(places, tokens, _SIMILAR) @ found.member
    model = Mixture(
        accept=tuple(tuple(row) for row in found.accept.tolist()),
        moves=tuple(
            tuple(tuple(row) for row in rows) for rows in _normal(drifted(found.moves, found.drift[:1])[0]).tolist()
        ),
        starts=tuple(tuple(row) for row in _normal(found.starts).tolist()),
        shares=tuple(tuple(row) for row in _normal(shares).tolist()),
        share_tokens=tuple(places.tolist()),
        outputs=_reference(measured) if output_tokens is None else ((output_tokens, 1.0),),
        max_spec_tokens=most,
        name=name,
        drift=tuple((p, tuple(w)) for p, w in zip(bands[1:], (found.drift[1:] / found.drift[0]).tolist(), strict=True)),
    )
    lengths = lengths_by_k(measured, most) if steady_lengths is None else steady_lengths
    return with_proposals(with_lengths(model, lengths), proposal_rate)


@dataclass(frozen=True)
class _Tests:
    """Tests of drafts, position by position, in pieces of requests laid side by side, the longest first."""

    code: np.ndarray
    """[position, piece] int8: 0 not tested, 1 + 2 place a miss, 2 + 2 place a match."""
    request: np.ndarray
    before: np.ndarray
    """Piece in front, -1: none; likewise `after`."""
    after: np.ndarray
    size: np.ndarray
    walks: int
    band: np.ndarray
    """Band of output positions of each piece."""
    bands: int

    @classmethod
    def of(cls, runs: Sequence[np.ndarray], walks: Sequence[int], bands: Sequence[int]) -> _Tests:
        parts: list[np.ndarray] = []
        request: list[int] = []
        before: list[int] = []
        first_of: list[int] = []
        for k in walks:
            for i, run in enumerate(runs):
                code = _walk(run, k)
                for first in range(0, len(code), _PIECE_TOKENS):
                    before.append(len(parts) - 1 if first else -1)
                    parts.append(code[first : first + _PIECE_TOKENS])
                    request.append(i)
                    first_of.append(first)
        size = np.array([len(part) for part in parts])
        order = np.argsort(-size, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        band = np.searchsorted(bands, first_of, side="right") - 1
        front = np.array(before)[order]
        front = np.where(front >= 0, place[front], -1)
        behind = np.full(len(order), -1)
        behind[front[front >= 0]] = np.flatnonzero(front >= 0)
        code = np.zeros((int(size.max()), len(order)), dtype=np.int8)
        for n, part in enumerate(order.tolist()):
            code[: size[part], n] = parts[part]
        return cls(code, np.array(request)[order], front, behind, size[order], len(walks), band[order], len(bands))


@dataclass
class _Found:
    accept: np.ndarray
    moves: np.ndarray
    starts: np.ndarray
    drift: np.ndarray
    """[band, regime]: weight of moves into a regime."""
    member: np.ndarray
    """[request, kind]: chance of being of that kind."""


def _walk(run: np.ndarray, num_spec_tokens: int) -> np.ndarray:
    """Code of every position of one request under rounds of that many drafts."""
    values = np.minimum(run, num_spec_tokens).tolist()
    code = np.zeros(len(values), dtype=np.int8)
    position = 0
    while position < len(values):
        matched = values[position]
        for place in range(min(matched, len(values) - position)):
            code[position + place] = 2 + 2 * min(place, _PLACES - 1)
        position += matched
        if position < len(values) and matched < num_spec_tokens:
            code[position] = 1 + 2 * min(matched, _PLACES - 1)
        position += 1
    return code


def _by_ease(runs: Sequence[np.ndarray], tokens: np.ndarray, kinds: int) -> np.ndarray:
    """[request, kind] 0 or 1: requests by the share of positions at which something matches, as many tokens a kind."""
    ease = np.array([np.mean(run > 0) for run in runs])
    order = np.argsort(ease, kind="stable")
    reached = (np.cumsum(tokens[order]) - 0.5 * tokens[order]) / tokens.sum()
    member = np.zeros((len(runs), kinds))
    member[order, np.minimum((reached * kinds).astype(int), kinds - 1)] = 1.0
    return member


def _normal(rows: np.ndarray) -> np.ndarray:
    rows = np.clip(rows, 0.0, 1.0)
    return np.asarray(rows / rows.sum(axis=-1, keepdims=True))


def _explain(tests: _Tests, tokens: np.ndarray, member: np.ndarray, regimes: int, steady: bool) -> _Found:
    """Expectation maximisation, each kind first holding the requests that it was given."""
    kinds = member.shape[1]
    ease = np.linspace(0.05, 0.95, regimes)
    moves = np.repeat((0.8 * np.eye(regimes) + 0.2 / regimes)[None], kinds, axis=0)
    drift = np.ones((tests.bands, regimes))
    now = _Found(np.repeat(ease[:, None], _PLACES, axis=1), moves, steady_regimes(moves), drift, member)
    shape = (regimes, kinds, len(tests.size))
    borders = _Borders(np.zeros(shape), np.zeros(shape))
    similar = None if steady else similar_outputs(tokens, tokens, _SIMILAR)
    prior = np.zeros_like(member)
    last = -math.inf
    for iteration in range(_ITERATIONS):
        warm = iteration < _WARM
        tried = now.member > 0 if warm else now.member > (0.0 if iteration % 8 == _WARM else _IGNORED)
        if iteration % 8 == _WARM:
            tried[:] = True
        total = _iterate(tests, now, borders, tried, prior, fixed=warm)
        if steady:
            now.starts = steady_regimes(now.moves)
        held = now.member.mean(axis=0)[None] if similar is None else similar @ now.member
        prior = np.log(np.maximum(np.broadcast_to(held, now.member.shape), 1e-9))
        if not warm and abs(total - last) < 1e-5 * abs(total):
            break
        last = total
    return now


@dataclass
class _Borders:
    """What pieces of one request tell each other, from the last iteration, [regime, kind, piece]; 0: nothing yet."""

    ends: np.ndarray
    begins: np.ndarray


def _iterate(
    tests: _Tests, now: _Found, borders: _Borders, tried: np.ndarray, prior: np.ndarray, *, fixed: bool
) -> float:
    """One step of expectation and maximisation, in place; the log likelihood before it.

    Every piece of a request is a row for each kind that is tried for it; arrays are [regime, ..., row], so that sums
    over regimes are sums of long vectors.
    """
    kind, piece = np.nonzero(tried[tests.request].T)
    order = np.argsort(piece, kind="stable")
    kind, piece = kind[order], piece[order]
    request = tests.request[piece]
    code, size = tests.code[:, piece], tests.size[piece]
    rows = np.searchsorted(-size, -np.arange(len(code)), side="left").tolist()  # that are longer than each position
    chance = np.ones((now.accept.shape[0], 1 + 2 * _PLACES))
    chance[:, 1::2], chance[:, 2::2] = 1.0 - now.accept, now.accept
    fits = np.take(chance, code, axis=1)
    band = tests.band[piece]
    moves = np.ascontiguousarray(drifted(now.moves, now.drift)[band, kind].transpose(1, 2, 0))

    here = np.ascontiguousarray(now.starts[kind].T)
    front = tests.before[piece]
    told = np.flatnonzero((front >= 0) & (borders.ends[:, kind, front].sum(axis=0) > 0))
    known = borders.ends[:, kind[told], front[told]]
    here[:, told] = _onward(known, moves[:, :, told])
    forward = np.empty((len(code), len(here), len(piece)))
    scale = np.ones((len(code), len(piece)))
    for t, m in enumerate(rows):
        here = (_onward(here[:, :m], moves[:, :, :m]) if t else here) * fits[:, t, :m]
        total = here.sum(axis=0)
        here /= total
        forward[t, :, :m], scale[t, :m] = here, total

    score = np.full(now.member.shape, -np.inf)
    score[tried] = prior[tried]
    seen = np.zeros_like(score)
    # the walks see the same text, so together they count once
    np.add.at(seen, (request, kind), np.log(scale).sum(axis=0) / tests.walks)
    score += seen
    best = score.max(axis=1, keepdims=True)
    member = np.exp(score - best)
    likelihood = float((np.log(member.sum(axis=1)) + best[:, 0]).sum())
    if not fixed:
        now.member = member / member.sum(axis=1, keepdims=True)
    weight = now.member[request, kind] / tests.walks

    last = forward[size - 1, :, np.arange(len(piece))].T
    ahead = np.ones_like(last)
    behind = tests.after[piece]
    heard = np.flatnonzero((behind >= 0) & (borders.begins[:, kind, behind].sum(axis=0) > 0))
    ahead[:, heard] = borders.begins[:, kind[heard], behind[heard]]
    ahead /= (last * ahead).sum(axis=0)
    moved = np.zeros_like(moves)
    for t in range(len(code) - 1, -1, -1):
        m = rows[t]
        held = forward[t, :, :m] * ahead[:, :m]
        later = ahead[:, :m] * fits[:, t, :m] / scale[t, :m]
        if t:
            moved[:, :, :m] += forward[t - 1, :, None, :m] * later
            ahead[:, :m] = _backward(later, moves[:, :, :m])
        forward[t, :, :m] = held * weight[:m]
        forward[t, :, m:] = 0.0
    into = known[:, None] * later[:, told]
    moved[:, :, told] += into / (into * moves[:, :, told]).sum(axis=(0, 1))
    begins = _backward(later, moves)
    borders.ends[:, kind, piece] = last
    borders.begins[:, kind, piece] = begins / begins.max(axis=0)

    moved *= moves * weight
    cells = len(now.drift) * len(now.moves)
    cell = band * len(now.moves) + kind
    sums = np.stack([np.bincount(cell, row, cells) for row in moved.reshape(-1, len(piece))], axis=1)
    _learn_moves(now, sums.reshape(len(now.drift), *now.moves.shape))
    first = np.flatnonzero(front < 0)
    begun = np.stack([np.bincount(kind[first], row[first], len(now.moves)) for row in forward[0]], axis=1)
    now.starts = _normal(begun + begun.sum(axis=0) / max(begun.sum(), 1e-12))
    tested = np.stack([np.bincount(code.ravel(), row.ravel(), 1 + 2 * _PLACES) for row in forward.transpose(1, 0, 2)])
    misses, hits = tested[:, 1::2], tested[:, 2::2]
    level = (hits.sum(axis=1, keepdims=True) + 0.5) / (tested[:, 1:].sum(axis=1, keepdims=True) + 1.0)
    now.accept = (hits + _PLACES_PRIOR * level) / (hits + misses + _PLACES_PRIOR)
    return likelihood


def _learn_moves(now: _Found, seen: np.ndarray) -> None:
    """Moves and drift from the moves [band, kind, regime, regime] that were seen, by iterative scaling (Darroch and
    Ratcliff 1972): each factor is multiplied by what was seen over what it predicts."""
    total = seen.sum(axis=0)
    usual = _MOVES_PRIOR * _normal(total.sum(axis=0) + 1e-6)
    if len(seen) == 1:
        now.moves = total + usual
        now.moves /= now.moves.sum(axis=2, keepdims=True)
        return
    left = seen.sum(axis=3)[..., None]
    for _ in range(_SCALINGS):
        expected = (left * drifted(now.moves, now.drift)).sum(axis=(1, 2))
        now.drift = now.drift * (seen.sum(axis=(1, 2)) + _DRIFT_PRIOR) / (expected + _DRIFT_PRIOR * now.drift)
        expected = (left * drifted(now.moves, now.drift)).sum(axis=0)
        now.moves = now.moves * (total + usual) / (expected + _MOVES_PRIOR * now.moves)
        now.moves /= now.moves.sum(axis=2, keepdims=True)


def _onward(rows: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Regimes one position later."""
    found = rows[0] * moves[0]
    for s in range(1, len(rows)):
        found += rows[s] * moves[s]
    return np.asarray(found)


def _backward(rows: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """The same the other way: a mean over where each regime leads."""
    found = rows[0] * moves[:, 0]
    for s in range(1, len(rows)):
        found += rows[s] * moves[:, s]
    return np.asarray(found)


def _reference(runs: Sequence[np.ndarray]) -> tuple[tuple[int, float], ...]:
    """A few output lengths that stand for all, groups of as many tokens each."""
    ordered = np.sort([len(run) for run in runs])
    group = ((np.cumsum(ordered) - 0.5 * ordered) / ordered.sum() * _REFERENCE_OUTPUTS).astype(int)
    found = []
    for g in np.unique(group):
        own = ordered[group == g]
        found.append((max(1, round(float(own.mean()))), float(len(own))))
    return tuple(found)
