"""Acceptance models fitted to one half of measured requests and judged on the other, over many halvings.

Models: constant, by position, mixture with memory, and replay. Every halving is used both ways, and the requests of the
half that is predicted are simulated at their own output lengths, which a simulation knows. Two errors are told apart:
the bias, which is the mean prediction against the mean measurement over all halvings, and the error of one half, which
holds the luck of its requests too; beside it stand what a half of the model's own requests differs by from its mean,
and what the two measured halves differ by.
Leaves out: other requests than those measured, other drafters, other temperatures. Numbers: the measured requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.acceptance import AcceptanceModel, Empirical, Measured, PerPosition, fit_mixture
from specsim.acceptance.base import request_offsets
from specsim.acceptance.round_statistics import RoundStatistics, round_statistics
from specsim.closed_forms import alpha_from_length, conditionals_from_lengths
from specsim.errors import ProfileError
from specsim.executors import run_jobs

__all__ = ["HALVES", "MEASURES", "MODELS", "HeldOut", "Measure", "held_out"]

_CONSTANT_K = 3
"""k at which the constant model's one number is taken."""
_LUCK_OF = "mixture"
"""Model whose replications say what luck alone does to a half."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One of the figures that are compared."""

    name: str
    title: str
    limit: float
    """Largest bias that is called met."""
    relative: bool

    def error(self, predicted: Any, measured: Any) -> Any:
        """Signed, relative to the measured value where that makes sense (0 to a measured 0); numbers or arrays."""
        if not self.relative:
            return predicted - measured
        shape = np.broadcast_shapes(np.shape(predicted), np.shape(measured))
        return np.divide(predicted, measured, out=np.ones(shape), where=np.asarray(measured) != 0.0) - 1.0


MEASURES = (
    Measure("length", "mean length", 0.02, True),
    Measure("request_length", "mean of requests", 0.02, True),
    Measure("spread", "spread", 0.15, True),
    Measure("autocorrelation", "autocorrelation", 0.1, False),
    Measure("p99_rounds", "p99 of rounds", 0.10, True),
)
"""What is compared, and how close a model is to come."""


def _constant(half: Measured) -> AcceptanceModel:
    k = min(_CONSTANT_K, half.max_spec_tokens)
    return PerPosition((alpha_from_length(half.lengths()[k - 1], k),))


def _vector(half: Measured) -> AcceptanceModel:
    return PerPosition(conditionals_from_lengths(half.lengths()[:20]))


def _mixture(half: Measured) -> AcceptanceModel:
    return fit_mixture(half.runs, num_spec_tokens=half.max_spec_tokens)


MODELS: Mapping[str, Callable[[Measured], AcceptanceModel]] = {
    "constant": _constant,
    "vector": _vector,
    "mixture": _mixture,
    "replay": Empirical.of,
}
"""Model -> how it is fitted to a half."""


def _random(outputs: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    chosen = np.zeros(len(outputs), dtype=bool)
    chosen[draws.permutation(len(outputs))[: len(outputs) // 2]] = True
    return chosen


def _stratified(outputs: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Of each two requests of neighbouring output length one, by lot; of equal lengths any two are neighbours."""
    order = np.lexsort((draws.random(len(outputs)), -outputs))
    pairs = order[: len(order) // 2 * 2].reshape(-1, 2)
    chosen = np.zeros(len(outputs), dtype=bool)
    chosen[pairs[np.arange(len(pairs)), draws.integers(2, size=len(pairs))]] = True
    return chosen


def _even_odd(outputs: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    return np.arange(len(outputs)) % 2 == 0


HALVES: Mapping[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "random": _random,
    "stratified": _stratified,
    "even-odd": _even_odd,
}
"""Way to halve -> which requests are in the first half, from output lengths and a generator; the last has no lot."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions of every model for the half that it did not see; arrays end in [k, measure]."""

    name: str
    halves: str
    requests: int
    splits: int
    ks: tuple[int, ...]
    everything: np.ndarray
    """Figures of all requests together."""
    measured: np.ndarray
    """[fits, k, measure]: figures of the half that was predicted."""
    fitted: np.ndarray
    """[fits, k, measure]: figures of the half that was fitted."""
    predicted: Mapping[str, np.ndarray]
    """model -> [fits, replications, k, measure]."""
    measured_on: str = ""
    """What the requests were measured on, as their file says; empty: it does not."""

    def bias(self, model: str) -> np.ndarray:
        """[k, measure]: signed error of the mean prediction over all fits against the mean measurement."""
        return self._by_measure(
            lambda m, at: m.error(self.predicted[model][at].mean((0, 1)), self.measured[at].mean(0))
        )

    def errors(self, model: str) -> np.ndarray:
        """[fits, k, measure]: signed error of each fit's mean prediction."""
        return self._by_measure(lambda m, at: m.error(self.predicted[model][at].mean(1), self.measured[at]))

    def one_half(self, model: str) -> np.ndarray:
        """[k, measure]: mean absolute error of one fit."""
        return np.asarray(np.abs(self.errors(model)).mean(axis=0))

    def luck(self) -> np.ndarray:
        """[k, measure]: mean absolute error that one half would show if the mixture were true to the letter."""
        found = self.predicted[_LUCK_OF]
        n = found.shape[1]
        if n < 2:
            return np.full(found.shape[2:], np.nan)
        return self._by_measure(
            lambda m, at: (
                np.abs(m.error(found[at], found[at].mean(1, keepdims=True))).mean((0, 1)) * (n / (n - 1)) ** 0.5
            )
        )

    def between_halves(self) -> np.ndarray:
        """[k, measure]: mean absolute error if the figures of the fitted half were the prediction."""
        return self._by_measure(lambda m, at: np.abs(m.error(self.fitted[at], self.measured[at])).mean(0))

    def missed(self, model: str) -> list[tuple[int, Measure, float]]:
        """`(k, measure, bias)` wherever the bias is beyond the measure's limit."""
        bias = self.bias(model)
        return [
            (k, measure, float(bias[i, j]))
            for j, measure in enumerate(MEASURES)
            for i, k in enumerate(self.ks)
            if abs(bias[i, j]) > measure.limit
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        floor = {"luck": self.luck(), "between halves": self.between_halves()}
        models = {model: (self.bias(model), self.one_half(model), self.errors(model)) for model in MODELS}
        return {
            "name": self.name,
            "measured_on": self.measured_on or None,
            "halves": self.halves,
            "requests": self.requests,
            "splits": self.splits,
            "rows": [
                {
                    "k": k,
                    "measure": measure.name,
                    "limit": measure.limit,
                    "measured": float(self.everything[i, j]),
                    **{name: _number(values[i, j]) for name, values in floor.items()},
                    "models": {
                        model: {
                            "bias": float(bias[i, j]),
                            "one half": float(one[i, j]),
                            "errors": errors[:, i, j].tolist(),
                        }
                        for model, (bias, one, errors) in models.items()
                    },
                }
                for i, k in enumerate(self.ks)
                for j, measure in enumerate(MEASURES)
            ],
        }

    def _by_measure(self, found: Callable[[Measure, Any], np.ndarray]) -> np.ndarray:
        """Errors of each measure, put together along the last axis."""
        return np.stack([found(measure, np.s_[..., j]) for j, measure in enumerate(MEASURES)], axis=-1)


@dataclass(frozen=True, slots=True)
class _Job:
    requests: Measured
    fitted: np.ndarray
    ks: tuple[int, ...]
    replications: int
    seed: int


def held_out(
    sets: Sequence[Measured], ks: Sequence[int], *, halves: Sequence[str] = ("random",), splits: int = 4,
    replications: int = 4, seed: int = 0, processes: int = 0, progress: Callable[[int], None] = lambda done: None,
) -> list[HeldOut]:  # fmt: skip
    """Each set of requests halved in each way `splits` times, fitted to one half, judged on the other, and the reverse.

    Args:
        halves: keys of `HALVES`.
        replications: simulations of each half that is predicted.
        processes: 0: one a core. Results do not depend on it.
        progress: told 1 for each fit of all models.

    Raises:
        ProfileError: a set has fewer than 20 requests.
    """
    for requests in sets:
        if len(requests.runs) < 20:
            raise ProfileError(
                f"{requests.name}: {len(requests.runs)} requests are too few to halve; measure 20 at least"
            )
    plans = [(requests, way, 1 if way == "even-odd" else splits) for requests in sets for way in halves]
    jobs = []
    for requests, way, count in plans:
        outputs = np.array([len(run) for run in requests.runs])
        for split in range(count):
            first = HALVES[way](outputs, np.random.default_rng((seed, split)))
            jobs += [_Job(requests, half, tuple(ks), replications, seed) for half in (first, ~first)]
    found = iter(run_jobs(_judge, jobs, processes=processes, done=lambda job: progress(1)))
    results = []
    for requests, way, count in plans:
        own = [next(found) for _ in range(2 * count)]
        everything = _figures(requests.runs, ks)
        measured, fitted = (np.array([one[part] for one in own]) for part in ("measured", "fitted"))
        predicted = {model: np.array([one[model] for one in own]) for model in MODELS}
        number = len(requests.runs)
        on = "" if requests.on is None else requests.on.sentence
        results.append(
            HeldOut(requests.name, way, number, count, tuple(ks), everything, measured, fitted, predicted, on)
        )
    return results


def _judge(job: _Job) -> dict[str, np.ndarray]:
    half, other = (job.requests.of_requests(np.flatnonzero(chosen).tolist()) for chosen in (job.fitted, ~job.fitted))
    outputs = np.array([len(run) for run in other.runs])
    found = {"measured": _figures(other.runs, job.ks), "fitted": _figures(half.runs, job.ks)}
    for name, fit in MODELS.items():
        model = fit(half)
        found[name] = np.array(
            [_simulated(model, outputs, job.ks, job.seed, n * len(outputs)) for n in range(job.replications)]
        )
    return found


def _figures(runs: Sequence[np.ndarray], ks: Sequence[int]) -> np.ndarray:
    """[k, measure] of measured requests."""
    offsets = request_offsets(np.array([len(run) for run in runs]))
    run = np.concatenate(runs)
    return np.array([_row(round_statistics(run, offsets, k)) for k in ks])


def _simulated(model: AcceptanceModel, outputs: np.ndarray, ks: Sequence[int], seed: int, first: int) -> np.ndarray:
    """[k, measure] of one simulation of requests of these output lengths."""
    luck = model.luck(seed, first, outputs)
    return np.array([_row(round_statistics(luck.run, luck.offsets, k)) for k in ks])


def _row(found: RoundStatistics) -> list[float]:
    return [float(getattr(found, measure.name)) for measure in MEASURES]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
