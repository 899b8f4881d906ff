"""Expected rounds of a request whose text moves between regimes of acceptance: without drawing anything.

The regime of the text moves from output position to output position as a Markov chain. A round that starts in a regime
accepts its drafts one by one, each by the regime at its own position, and emits one token more; so where rounds start
is a Markov renewal process, and its sums over the positions of an output follow by powers of one matrix, or of one for
each band of positions where the chain drifts.
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
    """Sums over the rounds of one request at a static number of drafts. A round moves by the chances of the band in
    which it starts, so that sums are exact but for the last k positions before the next band.

    Args:
        accept: [regimes, k], chance that draft 1..k matches given that it was proposed and that those before it did,
            by the regime at the draft's own position.
        proposes: [regimes], chance that anything is proposed to a round that starts in a regime.
        moves: [bands, kinds, regimes, regimes], chance of the next position's regime, by kind of request.
        starts: [kinds, regimes], regime of the first position.
        lengths: output lengths, whole numbers >= 1.
        bands: first output position of each band, rising from 0.
    """
    (regimes, k), kinds = accept.shape, moves.shape[1]
    size = (k + 1) * regimes
    state = np.zeros((len(lengths), kinds, size + 3))
    state[:, :, :regimes] = starts
    wanted = np.asarray(lengths, dtype=np.int64)
    # einsum, since threads of a matrix library cost more than these small products, and sum in an order of their own
    for first, end, own in zip(bands, (*bands[1:], max(int(wanted.max()), bands[-1])), moves, strict=True):
        left = np.clip(wanted, first, end) - first
        turn = _turn(accept, proposes, own) if left.any() else None
        while turn is not None:
            odd = (left & 1).astype(bool)
            state[odd] = np.einsum("lci,cij->lcj", state[odd], turn)
            left >>= 1
            turn = np.einsum("cij,cjk->cik", turn, turn) if left.any() else None
    sums = state[:, :, size:]
    return RoundSums(sums[..., 0], sums[..., 1], sums[..., 2])


def _turn(accept: np.ndarray, proposes: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """[kinds, n, n]: one position further. A row vector of n holds where rounds start at the last k + 1 positions, and
    the three sums so far."""
    (regimes, k), kinds = accept.shape, len(moves)
    # steps[g - 1]: a round that starts in a regime emits g tokens and the next one starts in another
    steps = np.empty((k + 1, kinds, regimes, regimes))
    alive = np.broadcast_to(np.eye(regimes), (kinds, regimes, regimes))
    emitted = np.ones((kinds, regimes))
    chances = np.concatenate((accept[:, :1] * proposes[:, None], accept[:, 1:]), axis=1)
    for j in range(k):
        steps[j] = (alive * (1.0 - chances[:, j])) @ moves
        alive = (alive * chances[:, j]) @ moves
        emitted = emitted + alive.sum(axis=2)
    steps[k] = alive @ moves
    size = (k + 1) * regimes
    turn = np.zeros((kinds, size + 3, size + 3))
    for g in range(k + 1):
        turn[:, g * regimes : (g + 1) * regimes, :regimes] = steps[g]
        if g < k:
            block = np.arange(regimes) + g * regimes
            turn[:, block, block + regimes] = 1.0
    turn[:, :regimes, size] = 1.0
    turn[:, :regimes, size + 1] = emitted
    turn[:, :regimes, size + 2] = proposes
    turn[:, range(size, size + 3), range(size, size + 3)] = 1.0
    return turn
