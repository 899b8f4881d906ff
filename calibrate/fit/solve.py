"""Terms of a pass from measured points: non-negative, by relative error, robust, with intervals.

Every term is fitted by its logarithm, so that it stays positive, is judged relative to its size, and has an interval
that does not reach below zero. Residuals are relative errors over what the measurement itself is uncertain by. Losses
that grow ever more slowly find the terms first; points that lie far off are then flagged and left out, if they are few.
A weak prior at the starting values keeps apart what no point tells apart (weights against fixed time).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares, nnls

from calibrate.fit.law import SHAPE_TERMS, TERMS, Architecture, Law, Work
from calibrate.points import Point
from specsim.errors import ProfileError
from specsim.profiles import PassCost

__all__ = ["Fitted", "fit_pass"]

MODEL_FLOOR = 0.02
"""Relative error that is granted to the law itself, beside the noise of a measurement."""
FACTOR_SPREAD = 0.25
"""How far, as a logarithm, a factor by size lies from 1 before it costs as much as one standard deviation."""
FIRST_FACTOR_SPREAD = 0.08
"""The same while points far off are looked for: of two that disagree at one size, the one off the law is bad."""
PRIOR_SPREAD = 3.0
"""The same for terms against their starting values: a factor of twenty."""
FLAG_SIGMAS = 4.0
FLAG_ERROR = 0.12
"""A point is flagged when it is off by both: so many standard deviations, and such a relative error."""
FLAG_SHARE = 0.15
"""More flagged points than this are the law's fault, not the machine's: none is then left out."""
NOISY = 0.25
"""Half width of an interval beyond which a measurement is called noisy."""
_SMALL = 1e-3
"""Share of every point's seconds below which a term is nothing."""
_SIZES = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    4096,
    8192,
)
_KNEES = (1.0, 12.0)


@dataclass(frozen=True)
class Fitted:
    """The outcome of a fit."""

    law: Law
    terms: Mapping[str, float]
    log_factors: np.ndarray
    head_log_factors: np.ndarray
    covariance: np.ndarray
    """Of the parameters, [terms, exponents, factors, head factors, drift], logarithms all but the last."""
    jacobian_terms: tuple[str, ...]
    drift_share: float
    """How far a point follows the reference point when that drifts: 0 not at all, 1 in proportion."""
    reference_s: float
    """Median of the reference point, for which the terms hold."""
    flagged: Mapping[int, str]
    """Index of a point -> why it was left out, or what is wrong with it."""
    used: np.ndarray
    """Whether each point took part."""

    @property
    def pass_cost(self) -> PassCost:
        return self.law.pass_cost(self.terms, self.log_factors, self.head_log_factors)

    def predict(self, points: Sequence[Point], *, drifted: bool = True) -> np.ndarray:
        """Seconds of points, as of the time at which each was measured when `drifted`."""
        work = Work.of(points, self.law.architecture)
        seconds = self.law.seconds(work, self.terms, self.log_factors, self.head_log_factors)
        return seconds * self.drift(points) if drifted else seconds

    def drift(self, points: Sequence[Point]) -> np.ndarray:
        """Factor by which each point was slower than at the median of the reference."""
        return np.exp(self.drift_share * _drift_logs(points, self.reference_s))

    def variance(self, points: Sequence[Point]) -> np.ndarray:
        """Variance of the logarithm of each prediction, by the covariance of the fit."""
        gradient = self.gradient(points)
        return np.einsum("ij,jk,ik->i", gradient, self.covariance[:-1, :-1], gradient)

    def gradient(self, points: Sequence[Point]) -> np.ndarray:
        """Derivative of the logarithm of each prediction by each parameter, drift left out."""
        problem = _Problem(self.law, Work.of(points, self.law.architecture))
        start = problem.pack(self.terms, self.log_factors, self.head_log_factors)
        base = np.log(problem.predict(start))
        step = 1e-4
        columns = [(np.log(problem.predict(start + step * unit)) - base) / step for unit in np.eye(len(start))]
        return np.stack(columns, axis=1)

    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % interval of each term that is not 0."""
        found = {}
        for n, name in enumerate(self.jacobian_terms):
            value = self.terms[name]
            if value <= 0:
                continue
            half = 1.96 * math.sqrt(max(0.0, self.covariance[n, n]))
            low, high = value * math.exp(-min(half, 50.0)), value * math.exp(min(half, 50.0))
            found[name] = (max(1.0, low), high) if name in SHAPE_TERMS else (low, high)
        return found


@dataclass(frozen=True)
class _Problem:
    law: Law
    work: Work

    def pack(self, terms: Mapping[str, float], factors: np.ndarray, head_factors: np.ndarray) -> np.ndarray:
        values = [math.log(max(terms[name], 1e-15)) for name in TERMS]
        knees = [math.log(terms[name]) for name in SHAPE_TERMS]
        return np.concatenate([values, knees, factors, head_factors])

    def unpack(self, x: np.ndarray) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
        names = (*TERMS, *SHAPE_TERMS)
        terms = dict(zip(names, np.exp(x[: len(names)]).tolist(), strict=True))
        sizes = len(self.law.sizes)
        rest = x[len(names) :]
        return terms, rest[:sizes], rest[sizes : sizes + len(self.law.head_sizes)]

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.law.seconds(self.work, *self.unpack(x))


def fit_pass(
    points: Sequence[Point],
    architecture: Architecture,
    *,
    prior: Mapping[str, float] | None = None,
    place: str = "points",
) -> Fitted:
    """The terms that explain points of one model.

    Args:
        points: of kinds body, head, sample and whole; held-out ones are not looked at.
        prior: expected terms in seconds, as from a roofline; what no point tells stays near them.

    Raises:
        ProfileError: too few points to tell reading from computing.
    """
    seen = np.array([not point.is_holdout for point in points])
    _check(points, seen, place)
    work = Work.of(points, architecture)
    observed = np.array([point.seconds for point in points])
    noise = np.array([0.0 if math.isnan(point.noise) else point.noise / 1.96 for point in points])
    sigma = np.hypot(noise, MODEL_FLOOR)
    references = [point.reference_s for point in points if point.reference_s > 0]
    reference_s = float(np.median(references)) if references else 0.0
    drifts = _drift_logs(points, reference_s)
    law = Law(architecture, _sizes(work.tokens[seen]), _sizes(work.rows[seen & (work.tokens == 0)]))
    start = _start(work, observed, seen, law, prior or {})
    problem = _Problem(law, work)
    fixed = _fixed(start, work, law)

    def solve(mask: np.ndarray, x0: np.ndarray, loss: str, factor_spread: float) -> tuple[np.ndarray, np.ndarray]:
        free = np.flatnonzero(~fixed)
        base = np.append(problem.pack(start, np.zeros(len(law.sizes)), np.zeros(len(law.head_sizes))), 0.0)

        def whole(y: np.ndarray) -> np.ndarray:
            x = base.copy()
            x[free] = y
            return x

        count = len(TERMS) + len(SHAPE_TERMS)
        spread = np.full(len(base), factor_spread)
        spread[:count] = PRIOR_SPREAD
        spread[-1] = 1.0

        def residuals(y: np.ndarray) -> np.ndarray:
            x = whole(y)
            logs = np.log(problem.predict(x[:-1])) + x[-1] * drifts - np.log(observed)
            return np.concatenate([logs[mask] / sigma[mask], (x - base)[free] / spread[free]])

        low, high = np.full(len(base), -2.0), np.full(len(base), 2.0)
        low[:count], high[:count] = base[:count] - 16.0, base[:count] + 8.0
        low[len(TERMS) : count], high[len(TERMS) : count] = math.log(_KNEES[0]), math.log(_KNEES[1])
        low[-1], high[-1] = 0.0, 1.0
        low, high = low[free], high[free]
        y0 = np.clip(x0[free], low + 1e-9, high - 1e-9)
        found = least_squares(residuals, y0, bounds=(low, high), loss=loss, method="trf", max_nfev=300)
        jacobian = found.jac
        degrees = max(1, int(mask.sum()) - len(free))
        scale = max(1.0, float(np.square(residuals(found.x)[: mask.sum()]).sum()) / degrees)
        covariance = np.zeros((len(base), len(base)))
        covariance[np.ix_(free, free)] = np.linalg.pinv(jacobian.T @ jacobian) * scale
        return whole(found.x), covariance

    x0 = np.append(problem.pack(start, np.zeros(len(law.sizes)), np.zeros(len(law.head_sizes))), 0.0)
    x0[len(TERMS) : len(TERMS) + len(SHAPE_TERMS)] = math.log(2.0)
    x, covariance = solve(seen, x0, "soft_l1", FIRST_FACTOR_SPREAD)
    x, covariance = solve(seen, x, "cauchy", FIRST_FACTOR_SPREAD)
    logs = np.log(problem.predict(x[:-1])) + x[-1] * drifts - np.log(observed)
    off = (np.abs(logs) > FLAG_SIGMAS * sigma) & (np.abs(logs) > FLAG_ERROR)
    left_out = off & seen
    if left_out.sum() > FLAG_SHARE * seen.sum():
        left_out[:] = False
    x, covariance = solve(seen & ~left_out, x, "linear", FACTOR_SPREAD)
    terms, factors, head_factors = problem.unpack(x[:-1])
    _drop_nothing(terms, law, work, factors, head_factors)
    flagged = {int(n): _reason(-float(logs[n])) for n in np.flatnonzero(left_out)}
    for n in np.flatnonzero(noise * 1.96 > NOISY):
        flagged.setdefault(int(n), f"noisy: its repeats give ±{noise[n] * 1.96:.0%}")
    return Fitted(
        law=law, terms=terms, log_factors=factors, head_log_factors=head_factors, covariance=covariance,
        jacobian_terms=(*TERMS, *SHAPE_TERMS), drift_share=float(x[-1]), reference_s=reference_s, flagged=flagged,
        used=seen & ~left_out,
    )  # fmt: skip


def _check(points: Sequence[Point], seen: np.ndarray, place: str) -> None:
    bodies = {(p.tokens, p.drafts) for p, s in zip(points, seen, strict=True) if s and p.kind in ("body", "whole")}
    if len(bodies) < 3:
        raise ProfileError(
            f"{place}: passes of {len(bodies)} different sizes; a fit needs at least 3, better 10, so measure longer"
        )


def _reason(log: float) -> str:
    """What a logarithm of measured over predicted says."""
    return f"{math.exp(log) - 1:+.0%} against the law that the other points follow"


def _drift_logs(points: Sequence[Point], reference_s: float) -> np.ndarray:
    return np.array([math.log(p.reference_s / reference_s) if p.reference_s > 0 else 0.0 for p in points])


def _sizes(counts: np.ndarray) -> tuple[int, ...]:
    """Sizes that get a factor: those of the usual ladder with at least two measurements next to them, since one alone
    could not be told from a slow measurement."""
    found = []
    for low, size, high in zip((0, *_SIZES), _SIZES, (*_SIZES[1:], math.inf), strict=False):
        near = (counts > (low + size) / 2) & (counts <= (size + high) / 2) & (counts > 0)
        if near.sum() >= 2:
            found.append(size)
    return tuple(found)


def _start(
    work: Work, observed: np.ndarray, seen: np.ndarray, law: Law, prior: Mapping[str, float]
) -> dict[str, float]:
    """Terms from a linear fit with non-negative coefficients, in which everything adds; half-way to the prior."""
    running = (work.tokens > 0) * work.heads
    columns = {
        "weights_s": running,
        "experts_s": running,
        "token_s": work.tokens * work.heads,
        "request_s": work.requests,
        "kv_token_s": work.cached + work.prefix,
        "kv_pair_s": work.pairs,
        "decode_kv_pair_s": work.cached * np.maximum(work.width - 1.0, 0.0),
        "head_weights_s": (work.rows > 0) * work.heads,
        "head_row_s": work.rows * work.heads,
        "sample_row_s": work.samples,
    }
    if law.architecture.num_experts:
        share = law.architecture.experts_per_token / law.architecture.num_experts
        columns["experts_s"] = running * (1.0 - (1.0 - share) ** work.tokens)
    else:
        columns["experts_s"] = np.zeros(len(observed))
    names = list(columns)
    matrix = np.stack([columns[name] for name in names], axis=1)[seen] / observed[seen, None]
    scales = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    values, _ = nnls(matrix / scales, np.ones(int(seen.sum())))
    terms = {}
    for name, value, scale, column in zip(names, values, scales, matrix.T, strict=True):
        largest = float(np.max(column))
        # a term that the straight fit dropped starts where it would be one part in a hundred of its largest share
        terms[name] = float(value / scale) if value > 0 else (0.01 / largest if largest > 0 else 0.0)
    terms["fixed_s"] = 0.1 * terms["weights_s"]
    terms["weights_s"] *= 0.9
    for name, expected in prior.items():
        if name in terms and terms[name] > 0 and expected > 0:
            terms[name] = math.sqrt(terms[name] * expected)
    return terms | {"knee": 2.0, "attention_knee": 1.5}


def _fixed(start: Mapping[str, float], work: Work, law: Law) -> np.ndarray:
    """Parameters that no point can tell: they stay where they are."""
    idle = {
        "experts_s": not law.architecture.num_experts,
        "request_s": not (work.requests > 0).any(),
        "kv_token_s": not ((work.cached > 0) | (work.prefix > 0)).any(),
        "decode_kv_pair_s": not (work.cached > 0).any(),
        "kv_pair_s": not (work.pairs > 0).any(),
        "head_weights_s": not (work.rows > 0).any(),
        "head_row_s": not (work.rows > 0).any(),
        "sample_row_s": not (work.samples > 0).any(),
    }
    names = (*TERMS, *SHAPE_TERMS)
    fixed = np.zeros(len(names) + len(law.sizes) + len(law.head_sizes) + 1, dtype=bool)
    fixed[: len(names)] = [idle.get(name, False) or start[name] <= 0 for name in names]
    return fixed


def _drop_nothing(terms: dict[str, float], law: Law, work: Work, factors: np.ndarray, head_factors: np.ndarray) -> None:
    """Set terms to 0 that matter at no point."""
    whole = law.seconds(work, terms, factors, head_factors)
    for name in TERMS:
        without = law.seconds(work, terms | {name: 0.0}, factors, head_factors)
        if np.all(whole - without < _SMALL * whole):
            terms[name] = 0.0
