"""Closed forms of speculative decoding: exact under independent acceptance, and conversions between published figures.

Models: tokens per round, speedup from a cost ratio, acceptance rate against acceptance probability, marginals against
conditionals, acceptance length and its inverse, break-even from times.
Leaves out: queueing, batches, dependence between rounds. Sources: Leviathan et al. 2023 (arXiv 2211.17192) for the
constant case; the rest follows from the definition of a round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from specsim.errors import ScenarioError

__all__ = [
    "acceptance_length",
    "alpha_from_length",
    "break_even_length",
    "conditionals_from_lengths",
    "conditionals_from_marginals",
    "draft_acceptance_rate",
    "expected_tokens_per_round",
    "marginals_from_conditionals",
    "speedup_with_cost_ratio",
]


def expected_tokens_per_round(alpha: float, num_spec_tokens: int) -> float:
    """Mean tokens of a round, bonus included: `(1 - alpha**(k+1)) / (1 - alpha)`, summed so that alpha = 1 is exact.

    Raises:
        ScenarioError: when alpha is outside 0..1 or k is negative.
    """
    _check_alpha(alpha)
    _check_k(num_spec_tokens, 0)
    return math.fsum(alpha**j for j in range(num_spec_tokens + 1))


def speedup_with_cost_ratio(alpha: float, num_spec_tokens: int, cost_ratio: float) -> float:
    """Tokens per round over the cost of k draft passes and one target pass, each draft `cost_ratio` of a target pass.

    Raises:
        ScenarioError: when an argument is out of range.
    """
    if not (math.isfinite(cost_ratio) and cost_ratio >= 0):
        raise ScenarioError(f"draft cost ratio must be finite and >= 0, got {cost_ratio!r}")
    return expected_tokens_per_round(alpha, num_spec_tokens) / (1.0 + num_spec_tokens * cost_ratio)


def draft_acceptance_rate(alpha: float, num_spec_tokens: int) -> float:
    """Accepted over drafted tokens, which vLLM prints as acceptance rate; below alpha for k > 1.

    Raises:
        ScenarioError: when alpha is outside 0..1 or k is below 1.
    """
    _check_k(num_spec_tokens, 1)
    return (expected_tokens_per_round(alpha, num_spec_tokens) - 1.0) / num_spec_tokens


def marginals_from_conditionals(conditionals: Sequence[float]) -> tuple[float, ...]:
    """Chance that at least j drafts are accepted, `m_j = a_1 ... a_j`: what vLLM counts per position.

    Raises:
        ScenarioError: when a probability is outside 0..1.
    """
    marginals, survival = [], 1.0
    for a in conditionals:
        _check_alpha(a)
        survival *= a
        marginals.append(survival)
    return tuple(marginals)


def conditionals_from_marginals(marginals: Sequence[float]) -> tuple[float, ...]:
    """`a_j = m_j / m_(j-1)`; after a marginal of 0 the rest is 0.

    Raises:
        ScenarioError: when a marginal is outside 0..1 or larger than the one before it.
    """
    conditionals, before = [], 1.0
    for position, m in enumerate(marginals, start=1):
        _check_alpha(m)
        if m > before:
            raise ScenarioError(
                f"marginal acceptance at position {position} is {m:g}, above {before:g} before it; marginals cannot "
                f"rise, were these conditional probabilities?"
            )
        conditionals.append(m / before if before > 0 else 0.0)
        before = m
    return tuple(conditionals)


def acceptance_length(conditionals: Sequence[float], num_spec_tokens: int | None = None) -> float:
    """Mean acceptance length, bonus included: `1 + sum of marginals` of the first k drafts (all when None).

    Raises:
        ScenarioError: when a probability is outside 0..1.
    """
    return 1.0 + math.fsum(marginals_from_conditionals(conditionals[:num_spec_tokens]))


def conditionals_from_lengths(
    lengths: Mapping[int, float] | Sequence[float], *, proposal_rate: float = 1.0
) -> tuple[float, ...]:
    """Conditional vector whose acceptance length at k = 1, 2, ... is `lengths[k - 1]`, or at the k of a mapping.

    The marginals are the differences of successive lengths; between the k of a mapping the conditional is constant.
    `proposal_rate` is the share of rounds with drafts: the vector then holds for those rounds. Published curves are
    noisy where they flatten: a conditional above 1 is cut to 1 and one below 0 to 0, and what was cut is made good at
    the next k if it can be.

    Raises:
        ScenarioError: when a length is outside 1..k + 1.
    """
    known = dict(lengths) if isinstance(lengths, Mapping) else dict(enumerate(lengths, start=1))
    conditionals: list[float] = []
    survival, reached, last = proposal_rate, 1.0, 0
    for k, length in sorted(known.items()):
        if not (math.isfinite(length) and 1.0 <= length <= k + 1.0):
            raise ScenarioError(f"acceptance length at k={k} must lie in 1..{k + 1} (bonus included), got {length!r}")
        gain = max(0.0, length - reached) / survival if survival > 0 else 0.0
        a = alpha_from_length(1.0 + min(gain, k - last), k - last)
        for _ in range(k - last):
            conditionals.append(a)
            survival *= a
            reached += survival
        last = k
    return tuple(conditionals)


def alpha_from_length(length: float, num_spec_tokens: int) -> float:
    """Constant alpha at which the mean acceptance length at k is `length`: the inverse of the closed form.

    Raises:
        ScenarioError: when no alpha in 0..1 gives that length.
    """
    _check_k(num_spec_tokens, 1)
    if not (math.isfinite(length) and 1.0 <= length <= num_spec_tokens + 1.0):
        raise ScenarioError(
            f"acceptance length {length!r} at k={num_spec_tokens} must lie in 1..{num_spec_tokens + 1}, bonus included"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if expected_tokens_per_round(middle, num_spec_tokens) < length:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def break_even_length(time_off_s: float, time_on_s: float) -> float:
    """Mean acceptance length at which speculation neither helps nor hurts: seconds of a round over a plain step.

    Raises:
        ScenarioError: when a time is not positive.
    """
    for name, value in (("plain step", time_off_s), ("round", time_on_s)):
        if not (math.isfinite(value) and value > 0):
            raise ScenarioError(f"seconds of a {name} must be finite and > 0, got {value!r}")
    return time_on_s / time_off_s


def _check_alpha(alpha: float) -> None:
    if not (isinstance(alpha, int | float) and 0.0 <= alpha <= 1.0):
        raise ScenarioError(f"acceptance probability must lie in 0..1, got {alpha!r}")


def _check_k(num_spec_tokens: int, low: int) -> None:
    if isinstance(num_spec_tokens, bool) or not isinstance(num_spec_tokens, int) or num_spec_tokens < low:
        raise ScenarioError(f"num_spec_tokens must be a whole number >= {low}, got {num_spec_tokens!r}")
