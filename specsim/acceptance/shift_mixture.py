"""A mixture changed as a whole to meet figures: acceptance lengths, or the rate at which a lookup proposes.

Models: one shift on the logit scale for each place of a draft, the same in every regime, so that regimes keep their
order and rounds their memory. Leaves out: figures that no such shift reaches; the nearest is taken.
Numbers: the caller's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from specsim.acceptance.mixture import Mixture

__all__ = ["with_lengths", "with_proposals"]

_PLACES = 10
"""Places of a draft that are shifted one by one; those behind move with the last of them."""


def with_lengths(model: Mixture, lengths: Sequence[float]) -> Mixture:
    """The model with each place of a draft shifted so that `expected_length(k)` is `lengths[k - 1]`, k = 1, 2, ..."""
    accept = np.clip(model.by_depth(model.max_spec_tokens), 1e-6, 1.0 - 1e-6)
    logit = np.log(accept) - np.log1p(-accept)
    shift = 0.0
    for k in range(1, min(len(lengths), _PLACES, model.max_spec_tokens) + 1):

        def excess(x: float, k: int = k, accept: np.ndarray = accept, logit: np.ndarray = logit) -> float:
            accept[:, k - 1] = 1.0 / (1.0 + np.exp(-logit[:, k - 1] - x))
            return _with_accept(model, accept[:, :k]).expected_length(k) - lengths[k - 1]

        shift = _root(excess, shift)
        excess(shift)
    for place in range(k, model.max_spec_tokens):
        accept[:, place] = 1.0 / (1.0 + np.exp(-logit[:, place] - shift))
    return _with_accept(model, accept)


def with_proposals(model: Mixture, rate: float, num_spec_tokens: int = 0) -> Mixture:
    """A lookup that proposes in a share of rounds at a static k (0: at a share of output positions): wherever something
    matches, and elsewhere with the chance that makes up the rest."""
    if rate >= 1.0:
        return model
    hit = np.array([row[0] for row in model.accept])
    steps = max(num_spec_tokens, 1)

    def with_idle(idle: float) -> Mixture:
        proposes = 1.0 - (1.0 - hit) * (1.0 - idle)
        first = np.divide(hit, proposes, out=np.zeros_like(hit), where=proposes > 0)
        accept = tuple((float(a), *row[1:]) for a, row in zip(np.minimum(first, 1.0), model.accept, strict=True))
        return dataclasses.replace(model, accept=accept, proposes=tuple(proposes.tolist()))

    def share(idle: float) -> float:
        found = with_idle(idle)
        return found.expected_drafts(steps) / steps if num_spec_tokens else found.proposal_rate

    # rounds start where they did whatever is proposed in vain, so the share is straight in `idle`
    none, all_ = share(0.0), share(1.0)
    return with_idle(min(1.0, max(0.0, (rate - none) / (all_ - none))) if all_ > none else 0.0)


def _with_accept(model: Mixture, accept: np.ndarray) -> Mixture:
    return dataclasses.replace(model, accept=tuple(tuple(row) for row in accept.tolist()))


def _root(rising: Callable[[float], float], near: float, most: float = 8.0) -> float:
    """Root of a rising function by bracketing and false position; the nearer end of -most..most when there is none."""
    low = high = near
    at_low = at_high = rising(near)
    step = 0.1
    while at_low > 0 and low > -most:
        high, at_high = low, at_low
        low = max(-most, low - step)
        at_low, step = rising(low), 4 * step
    while at_high < 0 and high < most:
        low, at_low = high, at_high
        high = min(most, high + step)
        at_high, step = rising(high), 4 * step
    if at_low > 0 or at_high < 0:
        return low if at_low > 0 else high
    for _ in range(40):
        if high - low < 1e-7:
            break
        middle = 0.5 * (low + high) if at_high == at_low else low - at_low * (high - low) / (at_high - at_low)
        middle = min(max(middle, low + 0.02 * (high - low)), high - 0.02 * (high - low))
        value = rising(middle)
        if abs(value) < 1e-7:
            return middle
        if value < 0:
            low, at_low = middle, value
        else:
            high, at_high = middle, value
    return 0.5 * (low + high)
