"""Which points to measure: a few corners first, then where the fit is least certain for the time it takes, and held-out
points drawn anywhere between; of a model its passes, of heads that run at once so many of them for so many requests.

The certainty of a candidate is the variance of its predicted logarithm by the covariance of the fit (G-optimal design),
plus what a size that no point lies near may deviate from the smooth law.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.fit.solve import Fitted
from calibrate.points import Point, Role

__all__ = ["Grid", "choose", "holdout", "largest_variance", "reference_point", "rows_ladder", "seeds"]

_NEW_SIZE = 0.1
"""How far, as a logarithm, a kernel of a size that was not measured may lie off the law."""
_NEAR = 0.2
"""Two sizes are near when their logarithms differ by less."""
_COST_POWER = 0.3
"""Variance is divided by seconds to this power: cheap points first, but not only those."""
_SPREAD = 0.25
"""Contexts of one point lie this far about its mean, as requests of a server do."""
_EVERY_WIDTH = 16
"""Up to it every width is measured, above it some: kernels go by steps, but by ever smaller ones."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Limits of what is measured."""

    requests: int = 32
    """Most decoding requests."""
    width: int = 6
    """Most tokens verified a request, 1 + k."""
    context_tokens: int = 1024
    """Longest context."""
    chunk_tokens: int = 512
    """Largest prompt chunk."""
    role: Role = "target"
    heads: int = 0
    """Most heads that run at once, of a drafter that is heads on the target's state; 0: it is a model."""

    def shrunk(self) -> Grid:
        """The grid that is left after the device ran out of memory: fewer requests first, then shorter contexts."""
        if self.requests > 4:
            return replace(self, requests=self.requests // 2)
        return replace(self, context_tokens=self.context_tokens // 2, chunk_tokens=self.chunk_tokens // 2)

    @property
    def is_empty(self) -> bool:
        return self.context_tokens < 16 or self.chunk_tokens < 16

    def holds(self, point: Point) -> bool:
        """Whether a point lies within."""
        if point.is_prefill:
            return all(n <= self.chunk_tokens and n + c <= self.slot_tokens for n, c in point.parts)
        if self.heads:
            return len(point.parts) <= self.requests and point.drafts <= self.heads
        inside = all(n <= self.width and n + c <= self.slot_tokens for n, c in point.parts)
        return inside and len(point.parts) <= self.requests and point.rows <= self.requests * self.width

    @property
    def slot_tokens(self) -> int:
        """Room that one request needs in the cache."""
        return math.ceil(self.context_tokens * (1 + _SPREAD)) + max(self.width, self.chunk_tokens) + 2

    def decode(self, requests: int, width: int, context: int) -> Point:
        """A point of decoding requests of about `context` cached tokens, no two alike."""
        if requests == 1:
            parts: tuple[tuple[int, int], ...] = ((width, context),)
        else:
            low = max(1, round(context * (1 - _SPREAD)))
            step = max(1, round(2 * (context - low) / (requests - 1)))
            parts = tuple((width, low + n * step) for n in range(requests))
        return Point("body", self.role, parts)

    def at_once(self, requests: int, heads: int) -> Point:
        """A round of heads: `heads` drafts for each of `requests`, output heads included."""
        return Point("whole", self.role, ((1, 0),) * requests, rows=requests, drafts=heads)

    def prefill(self, tokens: int, context: int) -> Point:
        """A prompt chunk behind `context` cached tokens."""
        return Point("body", self.role, ((tokens, context),), is_prefill=True)


def _ladder(low: int, high: int, per_octave: int = 1) -> list[int]:
    """Numbers from `low` to `high` that grow by the same factor, both ends among them."""
    count = max(1, math.ceil(math.log2(max(high, low) / low) * per_octave))
    return sorted({round(low * (high / low) ** (n / count)) for n in range(count + 1)} | {low, high})


def _widths(grid: Grid) -> list[int]:
    """Tokens a request that are measured."""
    every = range(1, min(grid.width, _EVERY_WIDTH) + 1)
    return sorted({*every, *(_ladder(_EVERY_WIDTH, grid.width, 2) if grid.width > _EVERY_WIDTH else ())})


def seeds(grid: Grid) -> list[Point]:
    """The points that every fit begins with: corners, and one request at every width, twice.

    Kernels for few tokens go by steps (5 tokens may cost more than 6), which no law between neighbours shows. Of heads:
    one request and the most of them, one head and all, and their residual blocks alone.
    """
    if grid.heads:
        return _seeds_at_once(grid)
    short, long = min(64, grid.context_tokens), grid.context_tokens
    middle, widest, most = max(16, long // 4), grid.width, grid.requests
    some = max(1, most // 4)
    rows = [
        (1, 1, short), (1, 1, long), (1, 2, middle), (2, 1, middle), (1, widest, short), (1, widest, long),
        (some, 1, short), (some, 2, middle), (some, widest, long), (most, 1, short), (most, 1, long),
        (most, widest, short), (most, widest, long), (1, 3, middle), (3, 1, middle), (2, 2, short), (4, 1, long),
    ]  # fmt: skip
    rows += [(1, width, context) for width in _widths(grid) for context in (short, middle)]
    decoding = [grid.decode(*row) for row in dict.fromkeys(rows) if row[0] <= most and row[1] <= widest]
    chunk = grid.chunk_tokens
    pairs = [
        (max(16, chunk // 8), 0),
        (chunk // 2, 0),
        (chunk, 0),
        (max(16, chunk // 4), long),
        (chunk, long),
        (chunk // 2, long),
    ]
    chunks = [grid.prefill(*row) for row in dict.fromkeys(pairs)]
    points: list[Point] = []
    for n, point in enumerate(decoding):  # a short budget must not end before the first chunks
        points += [point, *chunks[n : n + 1]]
    points += chunks[len(decoding) :]
    return list({point.key: point for point in points}.values())


def _seeds_at_once(grid: Grid) -> list[Point]:
    counts = sorted({1, 2, max(1, grid.requests // 4), grid.requests})
    some = sorted({1, math.ceil(grid.heads / 2), grid.heads})
    wholes = [grid.at_once(requests, heads) for heads in some for requests in counts if requests <= grid.requests]
    # the blocks alone tell what of a round is theirs; a short budget must not end before the first of them
    return [point for whole in wholes for point in (whole, replace(whole, kind="body", rows=0))]


def reference_point(grid: Grid) -> Point:
    """The point by which drift of the machine is told: a few requests of two tokens at a short context, or of two
    heads."""
    few = max(1, min(4, grid.requests))
    if grid.heads:
        return replace(grid.at_once(few, min(2, grid.heads)), kind="reference")
    return replace(grid.decode(few, min(2, grid.width), min(64, grid.context_tokens)), kind="reference")


def rows_ladder(grid: Grid) -> list[int]:
    """Rows of logits at which head and sampling are measured."""
    most = grid.requests * (1 if grid.heads else grid.width)
    return [n for n in (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512) if n <= most]


def candidates(grid: Grid) -> list[Point]:
    """Everything that may be measured next."""
    if grid.heads:
        return [grid.at_once(*row) for row in itertools.product(_ladder(1, grid.requests, 2), range(1, grid.heads + 1))]
    contexts = _ladder(min(32, grid.context_tokens), grid.context_tokens)
    counts = _ladder(1, grid.requests, 2)
    points = [grid.decode(*row) for row in itertools.product(counts, _widths(grid), contexts)]
    chunks = _ladder(min(16, grid.chunk_tokens), grid.chunk_tokens)
    points += [grid.prefill(n, context) for n in chunks for context in (0, *contexts[::2])]
    return list({point.key: point for point in points}.values())


def largest_variance(fit: Fitted, grid: Grid) -> float:
    """Of all candidates, by the covariance of the fit alone."""
    return float(fit.variance(candidates(grid)).max())


def choose(fit: Fitted, grid: Grid, done: Sequence[Point], count: int) -> list[Point]:
    """The `count` points that tell most for the time they take, each chosen as if those before it were measured."""
    keys = {point.key for point in done}
    open_ones = [point for point in candidates(grid) if point.key not in keys]
    if not open_ones:
        return []
    gradient = fit.gradient(open_ones)
    covariance = fit.covariance[:-1, :-1].copy()
    seconds = fit.predict(open_ones, drifted=False)
    sizes = np.log([point.tokens for point in open_ones])
    seen = [math.log(p.tokens) for p in done if p.tokens and not p.is_holdout]
    chosen: list[Point] = []
    for _ in range(min(count, len(open_ones))):
        variance = np.einsum("ij,jk,ik->i", gradient, covariance, gradient)
        distance = np.abs(sizes[:, None] - np.array(seen or [math.inf])[None, :]).min(axis=1)
        gain = (variance + np.where(distance > _NEAR, _NEW_SIZE**2, 0.0)) / seconds**_COST_POWER
        gain[[open_ones.index(point) for point in chosen]] = -1.0
        best = int(np.argmax(gain))
        chosen.append(open_ones[best])
        seen.append(float(sizes[best]))
        row = covariance @ gradient[best]
        covariance -= np.outer(row, row) / (0.03**2 + gradient[best] @ row)
    return chosen


def holdout(grid: Grid, rng: np.random.Generator) -> Point:
    """A point anywhere within the grid, of a model one in five a prompt chunk."""

    def between(low: int, high: int) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high)))) if high > low else high

    if grid.heads:
        point = grid.at_once(between(1, grid.requests), int(rng.integers(1, grid.heads + 1)))
        return replace(point, is_holdout=True)
    context = between(min(32, grid.context_tokens), grid.context_tokens)
    if rng.random() < 0.2:
        chunk = between(min(16, grid.chunk_tokens), grid.chunk_tokens)
        return replace(grid.prefill(chunk, context if rng.random() < 0.5 else 0), is_holdout=True)
    width = int(rng.integers(1, grid.width + 1))
    return replace(grid.decode(between(1, grid.requests), width, context), is_holdout=True)
