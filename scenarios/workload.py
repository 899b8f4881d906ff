"""The workload of a scenario: a request log with its reading options, or fixed or drawn lengths at a rate or in a loop.

Leaves out: reading and drawing themselves (`specsim.traces`). A closed loop of drawn requests starts in its steady
state (`specsim.planner.concurrency`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specsim.errors import ScenarioError
from specsim.traces.model import Trace
from specsim.traces.options import (
    LEAST_RATE_PER_S,
    MOST_RATE_PER_S,
    ReadOptions,
    parse_arrivals,
    parse_columns,
    parse_duration,
    parse_per_token,
    parse_window,
)
from specsim.traces.recipe import MOST_ROWS, parse_lengths, parse_pool, spec_from_text
from specsim.type_checks import check_types

__all__ = ["WorkloadSpec", "load_workload", "read_options"]

_DEFAULT_REQUESTS = 2000
_MOST_IN_FLIGHT = 65536
"""As in `specsim crossover`."""
_SYNTHETIC_ONLY = ("isl", "osl", "rate_per_s", "requests", "duration", "prefix_pool")
_TRACE_ONLY = ("trace_format", "columns", "time_unit", "strict", "window", "busiest", "limit", "rate_scale",
               "spread_grid", "session_rate", "bytes_per_token", "chars_per_token", "default_output",
               "max_line")  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Keys of `[workload]`: either `trace`, or `isl` and `osl` with `rate_per_s`, `arrivals` or `concurrency`."""

    trace: str | None = None
    """Request log of any supported format; a relative path starts at the folder of the scenario file."""
    trace_format: str | None = None
    """Name of the format; left out: detected from the content."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Field of a request = column of the log, e.g. {arrival = "created_at"}."""
    time_unit: str | None = None
    """Unit of a numeric time column: s, ms, us, ns, m, h or d."""
    strict: bool = False
    """Refuse the first bad row instead of counting it."""
    window: str | None = None
    """Stretch to keep, from the start of the trace, e.g. "10m:20m"."""
    busiest: str | None = None
    """Keep the window of this length with most arrivals, e.g. "10m"."""
    limit: int | None = None
    """Keep this many requests from the start (of the window)."""
    rate_scale: float | None = None
    """Let the kept requests arrive this many times as fast."""
    spread_grid: bool = True
    """Spread arrivals that sit on a coarse time grid of the log."""
    session_rate: float | None = None
    """Sessions per second, for logs whose times count from the start of each session."""
    arrivals: str | None = None
    """Arrivals to draw, of a log or a synthetic workload: "poisson:RATE", "gamma:RATE:CV" or "even:RATE"."""
    bytes_per_token: str | float | None = None
    """Bytes a token, to estimate tokens of an access log; "P:O" for prompt and output apart."""
    chars_per_token: str | float | None = None
    """Characters a token, to estimate tokens of texts; "P:O" for prompt and output apart."""
    default_output: int | None = None
    """Output tokens of rows that do not say."""
    hash_block: int | None = None
    """Prompt tokens that one prefix hash covers."""
    max_line: int | None = None
    """Longest line accepted, in MiB; left out: 16."""
    isl: int | str | None = None
    """Prompt tokens of a synthetic workload: a whole number, or "lognormal:MEAN:P95"."""
    osl: int | str | None = None
    """Output tokens, likewise."""
    rate_per_s: float | None = None
    """Poisson arrivals per second of a synthetic workload; short for `arrivals = "poisson:RATE"`."""
    concurrency: int | None = None
    """Requests kept in flight, whatever their arrival times: each completion brings the next."""
    requests: int | None = None
    """Requests of a synthetic workload; left out: 2000, or eight waves of a closed loop when those are more."""
    duration: str | None = None
    """Length of a synthetic workload instead of a number of requests, e.g. "30m"."""
    prefix_pool: str | None = None
    """Shared prefixes of a synthetic workload: "COUNT:TOKENS[:SHARE]"."""

    def __post_init__(self) -> None:
        """Refuse what cannot be read or drawn, before any file is opened."""
        check_types(self, "workload")
        if self.trace == "":
            raise ScenarioError("workload.trace is empty; give the path of a request log, or isl and osl instead")
        if self.concurrency is not None and not 1 <= self.concurrency <= _MOST_IN_FLIGHT:
            raise ScenarioError(
                f"workload.concurrency must be a whole number in 1..{_MOST_IN_FLIGHT}, got {self.concurrency!r}"
            )
        if self.max_line is not None and self.max_line < 1:
            raise ScenarioError(f"workload.max_line must be a whole number of MiB >= 1, got {self.max_line!r}")
        self._check_kind()
        read_options(self, seed=0)
        if self.trace is None:
            parse_lengths(str(self.isl), "workload.isl")
            parse_lengths(str(self.osl), "workload.osl")
            if self.requests is not None and not 1 <= self.requests <= MOST_ROWS:
                raise ScenarioError(
                    f"workload.requests must be a whole number in 1..{MOST_ROWS}, got {self.requests!r}"
                )
            if self.duration is not None:
                self._check_duration(parse_duration(self.duration, "workload.duration"))
            if self.prefix_pool is not None:
                parse_pool(self.prefix_pool)

    def _check_duration(self, duration_s: float) -> None:
        """A length that holds some requests, but not more than can be drawn."""
        if not duration_s > 0:
            raise ScenarioError(f"workload.duration must be longer than 0, got {self.duration!r}")
        rate = self.rate_per_s or (0.0 if self.arrivals is None else parse_arrivals(self.arrivals).rate_per_s)
        if duration_s * rate > MOST_ROWS:
            raise ScenarioError(
                f"workload.duration {self.duration!r} at {rate:g} requests/s means over {MOST_ROWS:,} requests; shorten"
                " it or lower the rate"
            )

    def _check_kind(self) -> None:
        """Either a log, or lengths with one way of arriving."""
        default = {name: f.default for name, f in self.__dataclass_fields__.items()}
        if self.trace is not None:
            clash = next((name for name in _SYNTHETIC_ONLY if getattr(self, name) is not None), None)
            if clash:
                raise ScenarioError(f"workload.{clash} and workload.trace exclude each other; leave one out")
            if self.concurrency is not None and self.arrivals is not None:
                raise ScenarioError("workload.concurrency and workload.arrivals exclude each other; leave one out")
            return
        for name in _TRACE_ONLY:
            if getattr(self, name) not in (default[name], {}):
                raise ScenarioError(f"workload.{name} is about reading a log, but workload.trace is missing; give it")
        if self.isl is None or self.osl is None:
            missing = "isl" if self.isl is None else "osl"
            raise ScenarioError(f"workload.{missing} is missing; give a trace, or isl and osl of a synthetic workload")
        ways = [name for name in ("rate_per_s", "arrivals", "concurrency") if getattr(self, name) is not None]
        if len(ways) != 1:
            said = " and ".join(f"workload.{name}" for name in ways) or "nothing"
            raise ScenarioError(f"a synthetic workload takes one of rate_per_s, arrivals and concurrency, got {said}")
        if self.concurrency is not None and (self.duration is not None or self.prefix_pool is not None):
            raise ScenarioError("workload.concurrency takes neither duration nor prefix_pool; give requests instead")
        if self.requests is not None and self.duration is not None:
            raise ScenarioError("workload.requests and workload.duration exclude each other; leave one out")
        if self.rate_per_s is not None and not LEAST_RATE_PER_S <= self.rate_per_s <= MOST_RATE_PER_S:
            raise ScenarioError(
                f"workload.rate_per_s must be a number > 0, {LEAST_RATE_PER_S:g} to {MOST_RATE_PER_S:g} requests/s,"
                f" got {self.rate_per_s!r}"
            )
        if self.hash_block is not None and self.prefix_pool is None:
            raise ScenarioError("workload.hash_block does nothing without workload.prefix_pool or trace; leave it out")


def read_options(spec: WorkloadSpec, *, seed: int) -> ReadOptions:
    """How the log of a workload is to be read.

    Raises:
        TraceError: a value out of range or malformed.
    """
    per_token = {
        name: None if getattr(spec, name) is None else parse_per_token(getattr(spec, name), f"workload.{name}")
        for name in ("bytes_per_token", "chars_per_token")
    }
    return ReadOptions(
        trace_format=spec.trace_format,
        columns=parse_columns([f"{name}={column}" for name, column in spec.columns.items()]),
        time_unit=spec.time_unit,
        strict=spec.strict,
        window=None if spec.window is None else parse_window(spec.window),
        busiest_s=None if spec.busiest is None else parse_duration(spec.busiest, "workload.busiest"),
        limit=spec.limit,
        rate_scale=spec.rate_scale,
        seed=seed,
        spread_grid=spec.spread_grid,
        session_rate_per_s=spec.session_rate,
        arrivals=None if spec.arrivals is None else parse_arrivals(spec.arrivals),
        default_output_tokens=spec.default_output,
        hash_block_tokens=spec.hash_block,
        max_line_bytes=(spec.max_line or 16) << 20,
        **per_token,
    )


def load_workload(
    spec: WorkloadSpec, *, folder: Path, seed: int, progress: Callable[[int], None] | None = None
) -> Trace:
    """The requests of a workload; `folder` is where a relative trace path starts.

    Raises:
        TraceError: the log cannot be read, or using it would make the answer a lie.
    """
    if spec.trace is not None:
        from specsim.traces.read import read_trace

        path = spec.trace if spec.trace == "-" else folder / os.path.expanduser(spec.trace)
        return read_trace(path, read_options(spec, seed=seed), progress=progress)
    from specsim.traces.synth import synthesise

    if spec.concurrency is not None:
        from specsim.planner.concurrency import steady_trace

        prompt, output = (parse_lengths(str(text), name) for text, name in ((spec.isl, "isl"), (spec.osl, "osl")))
        count = spec.requests or max(_DEFAULT_REQUESTS, 8 * spec.concurrency)
        return steady_trace(prompt, output, spec.concurrency, count, seed)
    arrivals = spec.arrivals if spec.arrivals is not None else f"poisson:{spec.rate_per_s!r}"
    requests = _DEFAULT_REQUESTS if spec.requests is None and spec.duration is None else spec.requests
    recipe = spec_from_text(
        arrivals=arrivals,
        requests=requests,
        duration=spec.duration,
        isl=str(spec.isl),
        osl=str(spec.osl),
        prefix_pool=spec.prefix_pool,
        hash_block=spec.hash_block,
        seed=seed,
    )
    return synthesise(recipe)
