"""Spread between requests: a shared normal effect on the logit of every acceptance of a request.

Request r accepts draft j with probability `sigmoid(c_j + sigma * z_r)`, z_r standard normal. The thresholds c_j are
chosen one after the other so that tokens per round over all rounds (each request weighing by its output, which is a
harmonic mean over requests) stay exactly those of the given vector at every static k.
Leaves out: memory within a request beyond that effect. Numbers: sigma, or the published SD between requests.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from specsim.errors import ProfileError

__all__ = ["length_spread", "sigma_for_spread", "thresholds"]

_NODES, _WEIGHTS = (np.asarray(a) for a in np.polynomial.hermite_e.hermegauss(61))
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_LIMIT = 60.0


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    """Root of a rising function; the nearer end when there is none."""
    for _ in range(60):
        middle = 0.5 * (low + high)
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


@functools.lru_cache(maxsize=256)
def _solve(
    conditional: tuple[float, ...], proposal_rate: float, sigma: float, there: tuple[float, ...]
) -> tuple[tuple[float, ...], np.ndarray]:
    """Thresholds (proposal first, then one per draft) and tokens a round of each quadrature node."""
    effect = sigma * _NODES
    if proposal_rate >= 1.0:
        first, proposed = math.inf, np.ones_like(effect)
    else:
        first = _bisect(lambda c: float(_WEIGHTS @ _sigmoid(c + effect)) - proposal_rate, -_LIMIT, _LIMIT)
        proposed = _sigmoid(first + effect)
    found = [first]
    length, target, survival, mean_survival = np.ones_like(effect), 1.0, proposed, proposal_rate
    for a, before, now in zip(conditional, (1.0, *there), there, strict=False):
        ratio = now / before if before > 0.0 else 0.0
        mean_survival *= a * ratio
        survival = survival * ratio
        target += mean_survival
        if a <= 0.0 or mean_survival == 0.0:
            c = -math.inf
            accepted = np.zeros_like(effect)
        else:

            def excess(
                c: float, length: np.ndarray = length, survival: np.ndarray = survival, target: float = target
            ) -> float:
                return 1.0 / float(_WEIGHTS @ (1.0 / (length + survival * _sigmoid(c + effect)))) - target

            c = math.inf if a >= 1.0 or excess(_LIMIT) <= 0.0 else _bisect(excess, -_LIMIT, _LIMIT)
            accepted = _sigmoid(np.minimum(c, 700.0) + effect)
        found.append(c)
        survival = survival * accepted
        length = length + survival
    return tuple(found), length


def thresholds(
    conditional: Sequence[float], proposal_rate: float, sigma: float, there: Sequence[float] | None = None
) -> tuple[float, ...]:
    """Logit thresholds (proposal, draft 1, draft 2, ...): accept where `logit(u) - sigma * z` lies below.

    `there`: chance that a proposal has a draft 1, 2, ... (None: always).
    """
    return _solve(tuple(conditional), proposal_rate, sigma, _survival(conditional, there))[0]


def _survival(conditional: Sequence[float], there: Sequence[float] | None) -> tuple[float, ...]:
    return (1.0,) * len(conditional) if there is None else tuple(there)


def length_spread(
    conditional: Sequence[float],
    proposal_rate: float,
    sigma: float,
    num_spec_tokens: int,
    there: Sequence[float] | None = None,
) -> float:
    """Standard deviation between requests of the mean acceptance length at k, free of sampling noise."""
    _, lengths = _solve(tuple(conditional[:num_spec_tokens]), proposal_rate, sigma, _survival(conditional, there))
    mean = float(_WEIGHTS @ lengths)
    return math.sqrt(max(0.0, float(_WEIGHTS @ (lengths - mean) ** 2)))


def sigma_for_spread(
    conditional: Sequence[float],
    proposal_rate: float,
    num_spec_tokens: int,
    spread: float,
    there: Sequence[float] | None = None,
) -> float:
    """Sigma at which requests differ by `spread` in their mean acceptance length at k.

    Raises:
        ProfileError: when no sigma reaches that spread.
    """
    if spread == 0.0:
        return 0.0
    highest = 6.0
    most = length_spread(conditional, proposal_rate, highest, num_spec_tokens, there)
    if not 0.0 < spread <= most:
        raise ProfileError(
            f"acceptance spread {spread:g} tokens between requests at k={num_spec_tokens} is not possible for this "
            f"acceptance; give one between 0 and {most:.2f}"
        )
    low, high = 0.0, highest
    for _ in range(30):
        middle = 0.5 * (low + high)
        if length_spread(conditional, proposal_rate, middle, num_spec_tokens, there) < spread:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
