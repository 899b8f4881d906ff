"""Acceptance models fitted to one half of measured requests and judged on the other.

Models: constant, by position, mixture with memory, and replay, each fitted to a half; the requests of the other half
are then simulated at their own output lengths, many times over. What the measured halves differ by stands beside it.
Leaves out: other requests than those measured, other drafters, other temperatures. Numbers: the measured requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.acceptance import AcceptanceModel, Empirical, Measured, PerPosition, fit_mixture
from specsim.acceptance.round_statistics import RoundStatistics, round_statistics
from specsim.closed_forms import alpha_from_length, conditionals_from_lengths
from specsim.errors import ProfileError

__all__ = ["MEASURES", "MODELS", "HeldOut", "Measure", "held_out"]

_CONSTANT_K = 3
"""k at which the constant model's one number is taken."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One of the figures that are compared."""

    name: str
    title: str
    limit: float
    """Largest error that is called met."""
    relative: bool

    def error(self, predicted: RoundStatistics, measured: RoundStatistics) -> float:
        """Signed, relative to the measured value where that makes sense."""
        a, b = float(getattr(predicted, self.name)), float(getattr(measured, self.name))
        return (a / b - 1.0 if b else 0.0) if self.relative else a - b


MEASURES = (
    Measure("length", "mean acceptance length", 0.02, True),
    Measure("request_length", "the same, mean over requests", 0.02, True),
    Measure("spread", "spread between requests", 0.15, True),
    Measure("autocorrelation", "lag-1 autocorrelation", 0.1, False),
    Measure("p99_rounds", "p99 of rounds a request", 0.10, True),
)
"""What is compared, and how close a model is to come."""


def _constant(half: Measured) -> AcceptanceModel:
    k = min(_CONSTANT_K, half.max_spec_tokens)
    return PerPosition((alpha_from_length(half.lengths()[k - 1], k),))


def _vector(half: Measured) -> AcceptanceModel:
    return PerPosition(conditionals_from_lengths(half.lengths()[:20]))


def _mixture(half: Measured) -> AcceptanceModel:
    return fit_mixture(half.runs)


MODELS: Mapping[str, Callable[[Measured], AcceptanceModel]] = {
    "constant": _constant,
    "vector": _vector,
    "mixture": _mixture,
    "replay": Empirical.of,
}
"""Model -> how it is fitted to a half."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors of every model on the half that it did not see."""

    name: str
    requests: int
    splits: int
    measured: Mapping[int, RoundStatistics]
    """k -> figures of all requests together."""
    errors: Mapping[tuple[int, str], Sequence[Mapping[str, float]]]
    """(k, model) -> signed error by measure, one mapping a split; model `other half` is the fitted half itself."""

    def mean_error(self, k: int, model: str, measure: str) -> float:
        """Mean over splits of the absolute error."""
        return float(np.mean([abs(split[measure]) for split in self.errors[k, model]]))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "name": self.name,
            "requests": self.requests,
            "splits": self.splits,
            "rows": [
                {
                    "k": k,
                    "measure": measure.name,
                    "limit": measure.limit,
                    "measured": float(getattr(self.measured[k], measure.name)),
                    "errors": {
                        model: [split[measure.name] for split in self.errors[k, model]]
                        for model in ("other half", *MODELS)
                    },
                }
                for k in self.measured
                for measure in MEASURES
            ],
        }


def held_out(
    requests: Measured, ks: Sequence[int], *, splits: int = 4, replications: int = 8, seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> HeldOut:  # fmt: skip
    """Fit to a half, judge on the other: first the even requests, then the odd ones, then halves drawn by lot.

    Raises:
        ProfileError: fewer than 20 requests.
    """
    n = len(requests.runs)
    if n < 20:
        raise ProfileError(f"{requests.name}: {n} requests are too few to halve; measure 20 at least")
    errors: dict[tuple[int, str], list[dict[str, float]]] = {}
    for split in range(splits):
        fitted = np.arange(n) % 2 == split
        if split > 1:
            fitted = np.zeros(n, dtype=bool)
            fitted[np.random.default_rng((seed, split)).permutation(n)[: n // 2]] = True
        half, other = _part(requests, fitted), _part(requests, ~fitted)
        outputs = np.array([len(run) for run in other.runs])
        measured, floor = _measured(other, ks), _measured(half, ks)
        predicted = {"other half": floor}
        for name, fit in MODELS.items():
            predicted[name] = _simulated(fit(half), outputs, ks, replications, seed)
            progress(1)
        for name, by_k in predicted.items():
            for k in ks:
                found = {m.name: float(np.mean([m.error(one, measured[k][0]) for one in by_k[k]])) for m in MEASURES}
                errors.setdefault((k, name), []).append(found)
    everything = {k: found[0] for k, found in _measured(requests, ks).items()}
    return HeldOut(requests.name, n, splits, everything, errors)


def _part(requests: Measured, chosen: np.ndarray) -> Measured:
    kept = np.flatnonzero(chosen).tolist()
    drafts = None if requests.drafts is None else tuple(requests.drafts[i] for i in kept)
    return Measured(
        tuple(requests.runs[i] for i in kept), drafts, tuple(requests.tasks[i] for i in kept), requests.name
    )


def _measured(requests: Measured, ks: Sequence[int]) -> dict[int, list[RoundStatistics]]:
    run = np.concatenate(requests.runs)
    offsets = np.concatenate(([0], np.cumsum([len(own) for own in requests.runs])))
    return {k: [round_statistics(run, offsets, k)] for k in ks}


def _simulated(
    model: AcceptanceModel, outputs: np.ndarray, ks: Sequence[int], replications: int, seed: int
) -> dict[int, list[RoundStatistics]]:
    """Statistics of each replication of the requests, all of them of the same output lengths."""
    found: dict[int, list[RoundStatistics]] = {k: [] for k in ks}
    for replication in range(replications):
        luck = model.luck(seed, replication * len(outputs), outputs)
        for k in ks:
            found[k].append(round_statistics(luck.run, luck.offsets, k))
    return found
