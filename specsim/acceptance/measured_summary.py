"""What measured requests say: mean acceptance length with its interval, by draft position, spread, memory, by task.

Mean acceptance length is tokens over rounds of all requests together, last rounds cut at the output. Requests are
independent and rounds of one request are not, so that intervals are over requests: percentiles of resampled ratios, and
the number of requests for a wanted interval from the linearised variance of the ratio (Cochran 1977, section 6.3).
Leaves out: what other prompts would be like. Numbers: `specsim.acceptance.measured`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specsim.acceptance.base import round_starts
from specsim.acceptance.measured import Measured
from specsim.acceptance.round_statistics import gains_autocorrelation
from specsim.rng import Purpose, stream

__all__ = ["KSummary", "MeasuredSummary", "length_error", "summary_of"]

_RESAMPLES = 2000
_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class KSummary:
    """At one k."""

    k: int
    length: float
    """Mean acceptance length in tokens a round."""
    low: float | None
    """Bounds of its 95 % interval; None with fewer than two requests."""
    high: float | None
    accepted: tuple[float, ...]
    """Chance that draft 1, 2, ... k of a round is accepted, over all rounds."""
    drafted: float | None
    """Drafts a round; None where the file does not say."""
    spread: float
    """Standard deviation between requests of their own mean, sampling noise taken out, in tokens."""
    autocorrelation: float
    """Lag-1, of tokens per round within a request."""
    prompts_wanted: int | None
    """Requests at which the interval's half width is the wanted share of the length; None: not asked, or all alike."""
    by_task: dict[str, float]
    """Mean acceptance length of each task; empty with fewer than two tasks."""


@dataclass(frozen=True, slots=True)
class MeasuredSummary:
    """Of one drafter."""

    name: str
    requests: int
    output_tokens: int
    by_k: tuple[KSummary, ...]
    measured_on: str | None = None
    """What the file says that it was measured on; None: nothing."""


def summary_of(
    measured: Measured, ks: Sequence[int], *, wanted_interval: float | None = None, seed: int = 0
) -> MeasuredSummary:
    """Figures of measured requests at each of `ks`; those measured by round only at the ks that were run.

    Args:
        wanted_interval: half width of the 95 % interval, as a share of the mean acceptance length.
    """
    there = [k for k in ks if measured.rounds is None or k in measured.rounds]
    return MeasuredSummary(
        measured.name,
        len(measured.runs),
        sum(len(run) for run in measured.runs),
        tuple(_at(measured, k, wanted_interval, seed) for k in there),
        None if measured.on is None else measured.on.sentence,
    )


def _at(measured: Measured, k: int, wanted_interval: float | None, seed: int) -> KSummary:
    gains, drafts = _rounds(measured, k)
    tokens = np.array([gain.sum(dtype=np.int64) for gain in gains], dtype=float)
    rounds = np.array([len(gain) for gain in gains], dtype=float)
    length = float(tokens.sum() / rounds.sum())
    low, high = _interval(tokens, rounds, seed)
    every = np.concatenate(gains)
    noise = [float(gain.var()) / len(gain) for gain in gains]
    spread = math.sqrt(max(0.0, float(np.var(tokens / rounds)) - float(np.mean(noise))))
    owner = np.repeat(np.arange(len(gains)), rounds.astype(int))
    tasks = sorted(set(measured.tasks) - {""})
    own = np.array(measured.tasks)
    return KSummary(
        k,
        length,
        low,
        high,
        tuple(float(np.mean(every > j)) for j in range(1, k + 1)),
        None if drafts is None else float(np.concatenate(drafts).mean()),
        spread,
        gains_autocorrelation(every.astype(float), owner, len(gains)),
        None if wanted_interval is None else _wanted(tokens, rounds, wanted_interval),
        {task: float(tokens[own == task].sum() / rounds[own == task].sum()) for task in tasks}
        if len(tasks) > 1
        else {},
    )


def _rounds(measured: Measured, k: int) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """Tokens and drafts of each round, by request."""
    if measured.rounds is not None:
        return list(measured.rounds[k]), None if measured.round_drafts is None else list(measured.round_drafts[k])
    gains, drafts = [], []
    for n, run in enumerate(measured.runs):
        starts = round_starts(run, np.array([0, len(run)]), k)
        gains.append(np.minimum(np.minimum(run[starts], k) + 1, len(run) - starts))
        if measured.drafts is not None:
            drafts.append(np.minimum(measured.drafts[n][starts], k))
    return gains, drafts or None


def _interval(tokens: np.ndarray, rounds: np.ndarray, seed: int) -> tuple[float | None, float | None]:
    n = len(tokens)
    if n < 2:
        return None, None
    counts = stream(seed, Purpose.BOOTSTRAP, 0).multinomial(n, np.full(n, 1.0 / n), size=_RESAMPLES)
    low, high = np.percentile((counts @ tokens) / (counts @ rounds), (2.5, 97.5))
    return float(low), float(high)


def length_error(measured: Measured, k: int) -> float | None:
    """One-sigma relative error of the mean acceptance length at `k`, by how requests differ; None with fewer than two.

    Of requests measured by round, at the next smaller k that was run, or the smallest.
    """
    if measured.rounds is not None:
        ran = sorted(measured.rounds)
        k = max((n for n in ran if n <= k), default=ran[0])
    gains, _ = _rounds(measured, k)
    if len(gains) < 2:
        return None
    tokens = np.array([gain.sum(dtype=np.int64) for gain in gains], dtype=float)
    rounds = np.array([len(gain) for gain in gains], dtype=float)
    length = tokens.sum() / rounds.sum()
    return float(_residual(tokens, rounds) / (rounds.mean() * math.sqrt(len(gains)) * length))


def _residual(tokens: np.ndarray, rounds: np.ndarray) -> float:
    """Standard deviation between requests of tokens against what their rounds would bring at the mean length."""
    return float(np.std(tokens - tokens.sum() / rounds.sum() * rounds, ddof=1))


def _wanted(tokens: np.ndarray, rounds: np.ndarray, wanted_interval: float) -> int | None:
    """Requests n with z * sd / (mean rounds * sqrt(n)) = wanted * length, at least two; None: they do not differ."""
    if len(tokens) < 2:
        return None
    length, sd = tokens.sum() / rounds.sum(), _residual(tokens, rounds)
    if sd == 0.0:
        return None
    return max(2, math.ceil((_Z95 * sd / (float(rounds.mean()) * wanted_interval * length)) ** 2))
