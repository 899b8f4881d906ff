"""The recipe of a synthetic trace, and how the command line writes it.

Leaves out: drawing it, which is `synth`. Rates are requests/s, lengths are tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from specsim.checks import read_number, read_whole
from specsim.errors import TraceError
from specsim.traces.options import MOST_RATE_PER_S, ArrivalProcess, parse_arrivals, parse_duration
from specsim.type_checks import check_types

__all__ = [
    "MOST_ROWS",
    "LengthSpec",
    "PrefixPool",
    "RateProfile",
    "SynthSpec",
    "parse_lengths",
    "parse_pool",
    "parse_profile",
    "spec_from_text",
]

_Z95 = 1.6448536269514722
MOST_ROWS = 20_000_000
_MOST_IN_POOL = 100_000_000
_MOST_PERIODS = 100_000


@dataclass(frozen=True, slots=True)
class LengthSpec:
    """Token counts: always `mean`, or log-normal with that mean and 95th percentile."""

    mean: float
    p95: float | None = None

    def __post_init__(self) -> None:
        check_types(self, "lengths", TraceError)

    def __str__(self) -> str:
        return f"{self.mean:g}" if self.p95 is None else f"lognormal mean {self.mean:g} p95 {self.p95:g}"

    def draw(self, rows: int, rng: np.random.Generator) -> np.ndarray:
        """int32 [rows], at least 1.

        For a log-normal, mean m and 95th percentile q fix sigma by ln(q/m) = z sigma - sigma**2 / 2 (smaller root).
        """
        if self.p95 is None:
            return np.full(rows, round(self.mean), dtype=np.int32)
        sigma = _Z95 - math.sqrt(_Z95**2 - 2 * math.log(self.p95 / self.mean))
        mu = math.log(self.mean) - sigma**2 / 2
        return np.clip(np.rint(rng.lognormal(mu, sigma, rows)), 1, 1e8).astype(np.int32)


def parse_lengths(text: str, what: str) -> LengthSpec:
    """`512` (always) or `lognormal:MEAN:P95`.

    Raises:
        TraceError: not one of these, or a P95 that no log-normal of that mean has (1 to 3.87 times the mean).
    """
    kind, _, rest = str(text).strip().lower().partition(":")
    try:
        if not rest:
            mean = read_number(kind)
            if mean >= 1 and mean == int(mean) and mean <= 1e8:
                return LengthSpec(mean)
        elif kind == "lognormal":
            mean, p95 = (read_number(part) for part in rest.split(":"))
            if mean >= 1 and 1 < p95 / mean <= math.exp(_Z95**2 / 2):
                return LengthSpec(mean, p95)
    except ValueError:
        pass
    raise TraceError(
        f"{what} {text!r} must be a whole number of tokens >= 1, or lognormal:MEAN:P95 with P95 up to 3.8 times MEAN"
    )


@dataclass(frozen=True, slots=True)
class RateProfile:
    """How the rate changes: steps (`times_s`, `factors` of the mean rate), or a sine of an amplitude and a period."""

    times_s: tuple[float, ...] = (0.0,)
    factors: tuple[float, ...] = (1.0,)
    amplitude: float = 0.0
    period_s: float = 86400.0

    def __post_init__(self) -> None:
        check_types(self, "rate profile", TraceError)

    def cumulated(self, until_s: float) -> tuple[np.ndarray, np.ndarray]:
        """(times [m] in s, integral of the relative rate up to them [m]), fine enough to interpolate."""
        if self.amplitude:
            times = np.linspace(0.0, until_s, max(2048, int(64 * until_s / self.period_s)))
            turn = 2 * np.pi / self.period_s
            return times, times + self.amplitude / turn * (1 - np.cos(turn * times))
        edges = [time for time in self.times_s if time < until_s]
        times = np.array([*edges, until_s])
        steps = np.diff(times) * np.array(self.factors[: len(edges)])
        return times, np.concatenate(([0.0], np.cumsum(steps)))


def parse_profile(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`0=2,10m=8,20m=3` as (times in s, requests/s from then on).

    Raises:
        TraceError: not such a list, not starting at 0, not increasing, or a rate outside 0 to a million.
    """
    times: list[float] = []
    rates: list[float] = []
    for piece in str(text).split(","):
        time, equals, rate = piece.partition("=")
        try:
            times.append(parse_duration(time, "time"))
            rates.append(read_number(rate))
        except ValueError:
            equals = ""
        if not equals or not 0 <= rates[-1] <= MOST_RATE_PER_S:
            raise TraceError(f"rate profile {text!r} must be TIME=RATE,TIME=RATE,... for example 0=2,10m=8,20m=3")
    if times[0] != 0 or any(b <= a for a, b in pairwise(times)) or max(rates) <= 0:
        raise TraceError(f"rate profile {text!r} must start at 0, have increasing times and some rate > 0")
    return tuple(times), tuple(rates)


@dataclass(frozen=True, slots=True)
class PrefixPool:
    """A share of the requests starts with one of `prefixes` common prefixes of `tokens` tokens (system prompts)."""

    prefixes: int
    tokens: int
    share: float = 1.0

    def __post_init__(self) -> None:
        check_types(self, "prefix pool", TraceError)


def parse_pool(text: str) -> PrefixPool:
    """`COUNT:TOKENS` or `COUNT:TOKENS:SHARE`, for example `4:1024:0.8`.

    Raises:
        TraceError: not such figures, or a share outside 0..1.
    """
    parts = str(text).split(":")
    try:
        count, tokens = read_whole(parts[0]), read_whole(parts[1])
        share = read_number(parts[2]) if len(parts) > 2 else 1.0
        if 1 <= count <= _MOST_IN_POOL and 1 <= tokens <= _MOST_IN_POOL and 0 < share <= 1 and len(parts) <= 3:
            return PrefixPool(count, tokens, share)
    except (ValueError, IndexError):
        pass
    raise TraceError(f"prefix pool {text!r} must be COUNT:TOKENS or COUNT:TOKENS:SHARE, for example 4:1024:0.8")


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthSpec:
    """Recipe of a synthetic trace; exactly one of `requests` and `duration_s` is set."""

    process: ArrivalProcess
    requests: int | None = None
    duration_s: float | None = None
    profile: RateProfile | None = None
    prompt: LengthSpec | None = None
    output: LengthSpec | None = None
    pool: PrefixPool | None = None
    hash_block_tokens: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self, "synthetic trace", TraceError)
        if (self.requests is None) == (self.duration_s is None):
            raise TraceError("a synthetic trace needs either --requests or --duration, not both")
        if self.requests is not None and not 1 <= self.requests <= MOST_ROWS:
            raise TraceError(f"--requests must be 1 to {MOST_ROWS:,}, got {self.requests}")
        if self.duration_s is not None and not (math.isfinite(self.duration_s) and self.duration_s > 0):
            raise TraceError(f"--duration must be finite and > 0, got {self.duration_s!r}")
        if self.duration_s is not None and self.duration_s * self.process.rate_per_s > MOST_ROWS:
            raise TraceError(f"--duration at that rate means over {MOST_ROWS:,} requests: shorten it or lower the rate")
        if self.profile is not None and self.duration_s is None:
            raise TraceError("a changing rate needs --duration instead of --requests")


def spec_from_text(
    *,
    arrivals: str | None = None,
    requests: int | None = None,
    duration: str | None = None,
    rate_profile: str | None = None,
    diurnal: str | None = None,
    isl: str | None = None,
    osl: str | None = None,
    prefix_pool: str | None = None,
    hash_block: int | None = None,
    seed: int = 0,
) -> SynthSpec:
    """A recipe as the command line writes it; `arrivals` left out are Poisson at 5/s, and without `requests` and
    `duration` there are 1,000 requests.

    Raises:
        TraceError: anything malformed or contradictory.
    """
    process = parse_arrivals("poisson:5" if arrivals is None else arrivals)
    if hash_block is not None and prefix_pool is None:
        raise TraceError("--hash-block does nothing without shared prefixes; give --prefix-pool too, or leave it out")
    profile = None
    duration_s = None if duration is None else parse_duration(duration, "--duration")
    if rate_profile is not None and diurnal is not None:
        raise TraceError("--rate-profile and --diurnal both change the rate: give one of them")
    if rate_profile is not None:
        if arrivals is not None and process.kind != "gamma":
            raise TraceError(
                "--rate-profile and --arrivals both say the rate: give one of them (gamma:RATE:CV only lends its CV)"
            )
        times, rates = parse_profile(rate_profile)
        process = ArrivalProcess(kind=process.kind, rate_per_s=max(rates), cv=process.cv)
        profile = RateProfile(times, tuple(rate / max(rates) for rate in rates))
    if diurnal is not None:
        amplitude, _, period = str(diurnal).partition(":")
        try:
            size = read_number(amplitude)
        except ValueError:
            size = -1.0
        period_s = parse_duration(period or "24h", "--diurnal period")
        if not (0 < size <= 1 and period_s > 0):
            raise TraceError(f"--diurnal {diurnal!r} must be an amplitude of the rate in (0, 1] and a period: 0.6:24h")
        if duration_s is not None and duration_s > _MOST_PERIODS * period_s:
            raise TraceError(
                f"--diurnal {diurnal!r}: --duration {duration} holds over {_MOST_PERIODS:,} such periods; lengthen the"
                " period or shorten the duration"
            )
        profile = RateProfile(amplitude=size, period_s=period_s)
    if requests is None and duration_s is None:
        if profile is not None:
            raise TraceError("a changing rate needs --duration")
        requests = 1000
    return SynthSpec(
        process=process,
        requests=requests,
        duration_s=duration_s,
        profile=profile,
        prompt=None if isl is None else parse_lengths(isl, "--isl"),
        output=None if osl is None else parse_lengths(osl, "--osl"),
        pool=None if prefix_pool is None else parse_pool(prefix_pool),
        hash_block_tokens=512 if hash_block is None else hash_block,
        seed=seed,
    )
