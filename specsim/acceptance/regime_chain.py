"""Expected rounds of a request whose text moves between regimes of acceptance: exact, without drawing anything.

The regime of the text moves from output position to output position as a Markov chain. A round that starts in a regime
accepts its drafts one by one, each by the regime at its own position, and emits one token more; so the regime together
with the drafts accepted so far is a Markov chain, and its sums over the positions of an output follow by powers of one
matrix, or of one for each band of positions where the chain drifts.
Numbers: none; the chain and its acceptances are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["RoundSums", "drifted", "round_sums", "steady_regimes"]


def steady_regimes(moves: np.ndarray) -> np.ndarray:
    """[kinds, regimes]: where each of the chains [kinds, regimes, regimes] is in the long run."""
    regimes = moves.shape[1]
    found = []
    for chain in moves:
        system = np.vstack([chain.T - np.eye(regimes), np.ones(regimes)])
        shares = np.linalg.lstsq(system, np.append(np.zeros(regimes), 1.0), rcond=None)[0]
        found.append(np.clip(shares, 0.0, 1.0))
    return np.asarray(found) / np.sum(found, axis=1, keepdims=True)


def drifted(moves: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[bands, kinds, regimes, regimes]: chains [kinds, regimes, regimes] with moves into each regime weighted by band.

    Args:
        weights: [bands, regimes], positive; a band whose weights are all 1 has the moves as they are, to the last bit.
    """
    found = moves[None] * weights[:, None, None, :]
    return np.where(
        (weights == 1.0).all(axis=1)[:, None, None, None], moves[None], found / found.sum(axis=3)[..., None]
    )


@dataclass(frozen=True, slots=True)
class RoundSums:
    """Expectations by output length and kind of request, arrays [lengths, kinds]."""

    rounds: np.ndarray
    """Rounds that start within the output."""
    tokens: np.ndarray
    """Tokens that they emit, the last round not cut."""
    proposals: np.ndarray
    """Rounds among them in which anything is proposed."""


def round_sums(
    accept: np.ndarray, proposes: np.ndarray, moves: np.ndarray, starts: np.ndarray, lengths: np.ndarray,
    bands: Sequence[int] = (0,),
) -> RoundSums:  # fmt: skip
    """Sums over the rounds of one request at a static number of drafts.

    Args:
        accept: [regimes, k], chance that draft 1..k matches given that it was proposed and that those before it did,
            by the regime at the draft's own position.
        proposes: [regimes], chance that anything is proposed to a round that starts in a regime.
        moves: [bands, kinds, regimes, regimes], chance of the next position's regime, by kind of request.
        starts: [kinds, regimes], regime of the first position.
        lengths: output lengths, whole numbers >= 1. What the last round emits beyond them follows the last band.
        bands: first output position of each band, rising from 0.
    """
    (regimes, k), kinds = accept.shape, moves.shape[1]
    chances = np.concatenate((accept[:, :1] * proposes[:, None], accept[:, 1:]), axis=1)
    size = (k + 1) * regimes
    state = np.zeros((len(lengths), kinds, size + 2))
    state[:, :, :regimes] = starts
    wanted = np.asarray(lengths, dtype=np.int64)
    beyond = np.zeros((len(lengths), kinds))
    # einsum, since threads of a matrix library cost more than these small products, and sum in an order of their own
    for first, end, own in zip(bands, (*bands[1:], max(int(wanted.max()), bands[-1])), moves, strict=True):
        left = np.clip(wanted, first, end) - first
        done = (wanted > first) & (wanted <= end)
        turn = _turn(chances, proposes, own) if left.any() else None
        while turn is not None:
            odd = (left & 1).astype(bool)
            state[odd] = np.einsum("lci,cij->lcj", state[odd], turn)
            left >>= 1
            turn = np.einsum("cij,cjk->cik", turn, turn) if left.any() else None
        beyond[done] = np.einsum("lci,ci->lc", state[done][:, :, :size], _remaining(chances, own))
    return RoundSums(state[:, :, size], wanted[:, None] + beyond, state[:, :, size + 1])


def _turn(chances: np.ndarray, proposes: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """[kinds, n, n]: one position further. A row vector of n holds the regime of the text together with the drafts that
    the round under way has accepted, 0 where one starts, and so far the rounds and those with a proposal."""
    (regimes, k), kinds = chances.shape, len(moves)
    size = (k + 1) * regimes
    turn = np.zeros((kinds, size + 2, size + 2))
    for j in range(k + 1):
        here = slice(j * regimes, (j + 1) * regimes)
        hit = chances[:, j, None] if j < k else np.zeros((regimes, 1))
        turn[:, here, :regimes] += (1.0 - hit) * moves
        if j < k:
            turn[:, here, (j + 1) * regimes : (j + 2) * regimes] = hit * moves
    turn[:, :regimes, size] = 1.0
    turn[:, :regimes, size + 1] = proposes
    turn[:, range(size, size + 2), range(size, size + 2)] = 1.0
    return turn


def _remaining(chances: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """[kinds, (k + 1) * regimes]: tokens that the round under way still emits, 0 where the next one would start."""
    (regimes, k), kinds = chances.shape, len(moves)
    left = np.ones((kinds, k + 1, regimes))
    for j in range(k - 1, 0, -1):
        left[:, j] += chances[:, j] * (moves @ left[:, j + 1, :, None])[..., 0]
    left[:, 0] = 0.0
    return left.reshape(kinds, -1)
