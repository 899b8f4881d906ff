"""Synthetic traces: a renewal process of arrivals, optionally with a changing rate, lengths, shared prefixes.

A changing rate is made by stretching the time of a unit-rate process with the inverse of the cumulated rate, so that
the burstiness (CV) stays that of the process. Leaves out: correlation of length with time, and sessions.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from specsim.errors import TraceError
from specsim.rng import Purpose, stream
from specsim.traces.arrivals import draw_arrivals
from specsim.traces.model import Trace, TraceMeta
from specsim.traces.options import ArrivalProcess
from specsim.traces.recipe import MOST_ROWS, RateProfile, SynthSpec
from specsim.traces.slices import refuse_absurd

__all__ = ["synthesise"]


def _arrivals(spec: SynthSpec) -> np.ndarray:
    if spec.requests is not None:
        return draw_arrivals(spec.process, spec.requests, spec.seed)
    assert spec.duration_s is not None
    times, relative = (spec.profile or RateProfile()).cumulated(spec.duration_s)
    load = relative * spec.process.rate_per_s
    unit = ArrivalProcess(kind=spec.process.kind, rate_per_s=1.0, cv=spec.process.cv)
    total = float(load[-1])
    rows = int(total + 10 * (1 + spec.process.cv) * math.sqrt(total + 1) + 20)
    marks = draw_arrivals(unit, rows, spec.seed)
    while len(marks) < MOST_ROWS and marks[-1] < total:
        rows *= 2
        marks = draw_arrivals(unit, rows, spec.seed)
    return np.interp(marks[marks < total], load, times)


def _hashes(spec: SynthSpec, prompts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Prefix hashes of requests that share prefixes from a pool; every other block is its own."""
    assert spec.pool is not None
    block, rng = spec.hash_block_tokens, stream(spec.seed, Purpose.PREFIXES)
    counts = -(-prompts.astype(np.int64) // block)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    member = rng.random(len(prompts)) < spec.pool.share
    which = rng.integers(0, spec.pool.prefixes, len(prompts))
    per_prefix = spec.pool.tokens // block
    shared = np.where(member, np.minimum(per_prefix, prompts // block), 0)
    row = np.repeat(np.arange(len(prompts)), counts)
    place = np.arange(int(offsets[-1])) - offsets[row]
    own = spec.pool.prefixes * per_prefix + np.arange(int(offsets[-1]))
    return np.where(place < shared[row], which[row] * per_prefix + place, own).astype(np.int64), offsets


def _changing(spec: SynthSpec) -> str:
    """How the rate changes, for the note; empty when it does not."""
    if spec.profile is None:
        return ""
    if spec.profile.amplitude:
        return f" in the mean, a sine of amplitude {spec.profile.amplitude:g} every {spec.profile.period_s:g} s"
    steps = zip(spec.profile.times_s, spec.profile.factors, strict=True)
    return " at most: " + ", ".join(f"from {t:g} s {f * spec.process.rate_per_s:g}/s" for t, f in steps)


def synthesise(spec: SynthSpec, lengths_from: Trace | None = None) -> Trace:
    """The trace of a recipe.

    Args:
        lengths_from: draw (prompt, output) pairs from this trace with replacement, instead of `prompt` and `output`.

    Raises:
        TraceError: no lengths, or no request falls into the duration.
    """
    if lengths_from is None and (spec.prompt is None or spec.output is None):
        raise TraceError("a synthetic trace needs lengths: --isl and --osl, or --lengths-from TRACE")
    arrival = _arrivals(spec)
    if not len(arrival):
        raise TraceError("no request falls into the duration: lengthen --duration or raise the rate")
    rng = stream(spec.seed, Purpose.LENGTHS)
    if lengths_from is not None:
        pick = rng.integers(0, len(lengths_from), len(arrival))
        prompts, outputs = lengths_from.prompt_tokens[pick], lengths_from.output_tokens[pick]
        lengths = f"lengths drawn from {lengths_from.meta.source}"
    else:
        assert spec.prompt is not None and spec.output is not None
        prompts, outputs = spec.prompt.draw(len(arrival), rng), spec.output.draw(len(arrival), rng)
        lengths = f"prompt {spec.prompt}, output {spec.output} tokens"
    ids = offsets = None
    if spec.pool is not None:
        if spec.pool.tokens < spec.hash_block_tokens:
            raise TraceError(
                f"a shared prefix of {spec.pool.tokens} tokens is shorter than one block of {spec.hash_block_tokens}:"
                " lengthen it or give a smaller --hash-block"
            )
        ids, offsets = _hashes(spec, prompts)
    origin = lengths_from.meta.sha256 if lengths_from is not None else ""
    trace = Trace(
        arrival_s=arrival,
        prompt_tokens=prompts,
        output_tokens=outputs,
        meta=TraceMeta(
            source=f"synthetic: {spec.process}",
            format="synthetic",
            time_unit="s (drawn)",
            sha256=hashlib.sha256(f"{spec!r} {origin}".encode()).hexdigest(),
            rows_read=len(arrival),
            rows_kept=len(arrival),
            notes=(f"synthetic: {spec.process}{_changing(spec)}, {lengths}, seed {spec.seed}",),
        ),
        hash_block_tokens=spec.hash_block_tokens if ids is not None else None,
        hash_ids=ids,
        hash_offsets=offsets,
    )
    refuse_absurd(trace, "such --arrivals")
    return trace
