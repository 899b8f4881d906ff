"""An acceptance vector bent to a mean acceptance length, its shape kept.

Models: every conditional probability raised to one power, so that 0 and 1 stay and the order of positions stays; a
drafter that does not always propose first proposes more or less often, and matches otherwise only when it would have to
propose always. How many drafts a proposal has stays.
Leaves out: spread between requests, which does not move means.
"""

from __future__ import annotations

import math
from dataclasses import replace

from specsim.acceptance.base import AcceptanceModel
from specsim.acceptance.vector import PerPosition
from specsim.errors import ScenarioError

__all__ = ["longest_length", "scaled_to_length", "vector_of"]

_LOG_POWER = 40.0
"""Powers of e**-40 to e**40 take any probability strictly between 0 and 1 to 1 or 0 within float precision."""


def vector_of(model: AcceptanceModel) -> PerPosition:
    """The vector of a model, without spread between requests or memory between rounds."""
    if isinstance(model, PerPosition):
        return model
    return PerPosition(tuple(model.conditional), model.max_spec_tokens, model.proposal_rate, name=model.name)


def longest_length(model: PerPosition, num_spec_tokens: int) -> float:
    """Tokens a round at a static k if whatever the drafter can propose matched: k + 1 where it proposes all."""
    return replace(model, given=(1.0,), proposal_rate=1.0, sigma=0.0).expected_length(num_spec_tokens)


def scaled_to_length(model: PerPosition, length: float, num_spec_tokens: int) -> PerPosition:
    """`model` with `length` tokens a round (bonus and rounds without a proposal included) at a static k.

    Raises:
        ScenarioError: when the length lies outside what k allows, or the vector holds zeros or ones, which stay.
    """
    k = num_spec_tokens
    most = longest_length(model, k)
    if not (math.isfinite(length) and 1.0 <= length <= most + 1e-9):
        raise ScenarioError(f"acceptance length {length!r} at k={k} must lie in 1..{most:g}, bonus included")
    name = f"{model.name} scaled to {length:.4g} at k={k}"
    plain = replace(model, given=model.given[:k], sigma=0.0, name=name)
    if model.proposal_rate < 1.0:
        gain = (plain.expected_length(k) - 1.0) / plain.proposal_rate if plain.proposal_rate else 0.0
        if gain > 0.0 and length - 1.0 <= gain:
            return replace(plain, proposal_rate=(length - 1.0) / gain)
    plain = replace(plain, proposal_rate=1.0)
    low, high = -_LOG_POWER, _LOG_POWER
    for _ in range(80):
        middle = 0.5 * (low + high)
        if _raised(plain, middle).expected_length(k) > length:
            low = middle
        else:
            high = middle
    found = _raised(plain, high)
    if abs(found.expected_length(k) - length) > 1e-6 * length:
        raise ScenarioError(
            f"acceptance length {length:g} at k={k} is out of reach of the vector "
            f"{', '.join(f'{a:g}' for a in plain.given)}: no power of it gives that; use another vector"
        )
    return found


def _raised(model: PerPosition, log_power: float) -> PerPosition:
    power = math.exp(log_power)
    return replace(model, given=tuple(a**power for a in model.given))
