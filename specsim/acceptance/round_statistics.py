"""What rounds at a static k look like over many requests: mean length, spread, memory, and the longest requests.

Models: rounds are replayed from luck as an engine would at that k, the last round of a request cut at its output.
Leaves out: anything about time. Numbers: the luck that is handed in, measured or simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.acceptance.base import round_starts

__all__ = ["RoundStatistics", "gains_autocorrelation", "round_statistics"]


@dataclass(frozen=True, slots=True)
class RoundStatistics:
    """Of one set of requests at one k."""

    length: float
    """Mean acceptance length: tokens over rounds of all requests together."""
    request_length: float
    """Mean over requests of their own mean acceptance length."""
    spread: float
    """Standard deviation of that between requests, sampling noise included."""
    autocorrelation: float
    """Lag-1 autocorrelation of tokens per round within a request, mean over the requests that have one."""
    p99_rounds: float
    """99th percentile of rounds per request."""


def round_statistics(run: np.ndarray, offsets: np.ndarray, num_spec_tokens: int) -> RoundStatistics:
    """Statistics of requests whose runs stand one after another; request i owns `[offsets[i], offsets[i + 1])`."""
    starts = round_starts(run, offsets, num_spec_tokens)
    owner = np.searchsorted(offsets, starts, side="right") - 1
    gain = np.minimum(np.minimum(run[starts], num_spec_tokens) + 1.0, offsets[owner + 1] - starts)
    n = len(offsets) - 1
    rounds, tokens = np.bincount(owner, minlength=n), np.bincount(owner, gain, n)
    own = tokens / rounds
    return RoundStatistics(
        length=float(tokens.sum() / rounds.sum()),
        request_length=float(own.mean()),
        spread=float(own.std()),
        autocorrelation=gains_autocorrelation(gain, owner, n),
        p99_rounds=float(np.percentile(rounds, 99)),
    )


def gains_autocorrelation(gain: np.ndarray, owner: np.ndarray, n: int) -> float:
    """Correlation of each round with the next one of its request, mean over requests with at least two such pairs whose
    rounds are not all alike."""
    first = np.flatnonzero(owner[:-1] == owner[1:])
    who, x, y = owner[first], gain[first], gain[first + 1]
    pairs = np.bincount(who, minlength=n)
    with np.errstate(invalid="ignore", divide="ignore"):
        dx = x - (np.bincount(who, x, n) / pairs)[who]
        dy = y - (np.bincount(who, y, n) / pairs)[who]
        found = np.bincount(who, dx * dy, n) / np.sqrt(np.bincount(who, dx * dx, n) * np.bincount(who, dy * dy, n))
    good = (pairs > 1) & np.isfinite(found)
    return float(found[good].mean()) if good.any() else 0.0
