"""Measuring one model under a time budget: seeds first, then the points of which the fit is least certain, held-out
points between them, everything in turns with a reference point, every point on the disk as soon as it is done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

import numpy as np

from calibrate.fit.law import Architecture
from calibrate.fit.solve import Fitted, fit_pass
from calibrate.latency.grid import Grid, choose, holdout, largest_variance, reference_point, rows_ladder, seeds
from calibrate.latency.timing import Repeats, time_in_turns
from calibrate.points import Point, PointFile, Role, reference_words
from specsim.errors import ProfileError, SpecsimError

__all__ = ["Measuring", "Session", "Worker"]

BATCH = 4
"""Points that are timed in turns; the last of them is held out."""
HOLDOUTS = 12
"""Held-out points below which measuring goes on, while there is time."""
CERTAIN = 0.03
"""Standard error of the least certain prediction at which measuring ends."""
HEAD_TIMES = 2
"""How often, at different times, the output head is measured at each size."""
_HOLDOUT_TRIES = 50
_PASSES = ("body", "whole")
"""Kinds of which points are held out."""


class Worker(Protocol):
    """Turns points into calls that can be timed."""

    def work(self, point: Point) -> Callable[[], object]:
        """The call behind a point."""
        ...

    def launch_of(self, point: Point) -> str:
        """How that call is launched, for `Point.launch`."""
        ...


@dataclass
class Measuring:
    """How a session measures; what it says goes to `say` (a line) and `progress` (share of the budget used)."""

    file: PointFile
    time_s: Callable[[Callable[[], object]], float]
    budget_s: float
    repeats: Repeats = field(default_factory=Repeats)
    seed: int = 0
    say: Callable[[str], None] = lambda line: None
    progress: Callable[[float, str], None] = lambda share, text: None
    now: Callable[[], float] = time.monotonic
    state: Callable[[], Mapping[str, float]] = dict
    roofline_s: Callable[[Point], float] = lambda point: math.nan
    """Least seconds of a point by measured ceilings; nan when unknown."""
    is_out_of_memory: Callable[[BaseException], bool] = lambda error: isinstance(error, MemoryError)
    release: Callable[[], None] = lambda: None


class Session:
    """One model's points, as target or as drafter."""

    def __init__(
        self, how: Measuring, make: Callable[[Grid], Worker], grid: Grid, architecture: Architecture, *, layers: int = 0
    ) -> None:
        """
        Args:
            make: a worker with a cache for the grid; asked again when memory runs out and the grid shrinks.
            layers: layers that were built, where fewer than the model's; 0: all.
        """
        self._how = how
        self._make = make
        self.grid = grid
        self._architecture = architecture
        self._layers = layers
        self._worker: Worker | None = None
        self._began = how.now()

    @property
    def role(self) -> Role:
        return self.grid.role

    def _own(self) -> list[Point]:
        """Points of this model that are in the file."""
        return [p for p in self._how.file.points if p.role == self.role and p.kind != "reference"]

    def _left_s(self) -> float:
        return self._how.budget_s - (self._how.now() - self._began)

    def fitted(self) -> Fitted:
        """The fit to what is measured."""
        passes = [
            p for p in self._own() if p.kind in ("head", "whole") or (p.kind == "body" and p.layers == self._layers)
        ]
        return fit_pass(passes, self._architecture, place=str(self._how.file.path))

    def measure(self, further: Sequence[Point] = ()) -> None:
        """Measure until the fit is certain or the budget is used; `further` points are measured after the seeds."""
        self._began = self._how.now()
        self._planned(further)
        self._adaptive()

    def _planned(self, further: Sequence[Point]) -> None:
        heads = [Point("head", self.role, rows=n, again=again) for again in range(HEAD_TIMES)
                 for n in rows_ladder(self.grid)]  # fmt: skip
        samples = [Point("sample", self.role, rows=n) for n in rows_ladder(self.grid)[::2]]
        passes = seeds(self.grid)
        if self._layers > 1:
            further = [*further, *(replace(point, layers=self._layers // 2) for point in passes[:: len(passes) // 4])]
        waiting: list[Point] = []
        for n in range(max(len(heads), len(passes), len(samples), len(further))):
            waiting += [points[n] for points in (passes, heads, samples, further) if n < len(points)]
        waiting = [
            replace(point, layers=point.layers or self._layers) if point.kind in ("body", "eager") else point
            for point in waiting
        ]
        while waiting:
            done = {point.key for point in self._own()}
            waiting = [point for point in waiting if point.key not in done and self._fits(point)]
            if not waiting:
                return
            batch, waiting = waiting[:BATCH], waiting[BATCH:]
            passed = sum(point.kind in _PASSES and not point.is_holdout for point in self._own())
            if passed >= BATCH * (1 + sum(point.is_holdout for point in self._own())):
                batch += self._holdout(batch)
            self._batch(batch)
            chunks = 3 if not self.grid.heads else 0
            if self._left_s() < 0 and self._enough() and sum(p.is_prefill for p in self._own()) >= chunks:
                self._how.say(f"{self.role}: the budget ran out in the first points; those left are not measured")
                return

    def _enough(self) -> bool:
        try:
            self.fitted()
        except ProfileError:
            return False
        return True

    def _fits(self, point: Point) -> bool:
        return not point.parts or self.grid.holds(point)

    def _adaptive(self) -> None:
        while self._left_s() > 0:
            fit = self.fitted()
            points = [p for p in self._own() if p.kind in _PASSES]
            least_certain = math.sqrt(max(0.0, largest_variance(fit, self.grid)))
            if sum(p.is_holdout for p in points) >= HOLDOUTS and least_certain < CERTAIN:
                self._how.say(f"{self.role}: every prediction is certain to {least_certain:.1%}; done")
                return
            plain = [replace(point, layers=0) for point in points]
            chosen = choose(fit, self.grid, plain, BATCH - 1)
            if not chosen:
                return
            batch = [replace(point, layers=self._layers) for point in chosen]
            self._batch(batch + self._holdout(batch))

    def _holdout(self, beside: Sequence[Point]) -> list[Point]:
        """A point to be held out, none where every one that was drawn is measured already, or must be in the fit.

        Args:
            beside: what is measured next.
        """
        own = self._own()
        count, keys = sum(point.is_holdout for point in own), {point.key for point in (*own, *beside)}
        keys |= {replace(point, layers=self._layers).key for point in seeds(self.grid)}
        for attempt in range(_HOLDOUT_TRIES):
            rng = np.random.default_rng((self._how.seed, len(self.role), count, attempt))
            point = replace(holdout(self.grid, rng), layers=self._layers)
            if point.key not in keys:
                return [point]
        return []

    def reference(self) -> Point:
        """The point that is timed in every turn."""
        return replace(reference_point(self.grid), layers=self._layers)

    def _batch(self, points: Sequence[Point]) -> None:
        """Time points in turns and keep them; when memory runs out, shrink the grid and leave out what does not fit."""
        how = self._how
        remaining = list(points)
        while True:
            remaining = [point for point in remaining if self._fits(point)]
            if not remaining:
                return
            try:
                if self._worker is None:
                    self._worker = self._make(self.grid)
                worker = self._worker
                works = [worker.work(point) for point in remaining]
                reference = worker.work(self.reference())
                timed = time_in_turns(works, how.time_s, self._patience(), reference=reference)
                break
            except Exception as error:
                if not how.is_out_of_memory(error):
                    raise
            self._shrink()
        state, utc = dict(how.state()), datetime.now(UTC).isoformat(timespec="seconds")
        for point, result in zip(remaining, timed, strict=True):
            least = how.roofline_s(point)
            how.file.add(
                replace(
                    point, seconds=result.seconds, low_s=result.low_s, high_s=result.high_s, repeats=result.repeats,
                    reference_s=result.reference_s, reference=reference_words(self.reference()),
                    launch=worker.launch_of(point), utc=utc, state=state,
                    roofline=math.nan if math.isnan(least) else round(least / result.seconds, 4),
                )
            )  # fmt: skip
        last = how.file.points[-1]
        share = min(1.0, max(0.0, 1.0 - self._left_s() / how.budget_s)) if how.budget_s > 0 else 1.0
        how.progress(share, f"{self.role}: {len(self._own())} points, last {last.label} {last.seconds * 1e3:.3g} ms")

    def _patience(self) -> Repeats:
        """Fewer repeats when the budget is short: one batch may take a twentieth of it."""
        return replace(self._how.repeats, seconds=min(self._how.repeats.seconds, self._how.budget_s / 20))

    def _shrink(self) -> None:
        before = self.grid
        self._worker = None
        self._how.release()
        self.grid = before.shrunk()
        if self.grid.is_empty:
            raise SpecsimError(
                f"the {self.role} does not fit the memory of the device even with {before.requests} requests of "
                f"{before.context_tokens} tokens; measure it by layer with --layers, or at a higher --tp"
            )
        self._how.say(
            f"{self.role}: out of memory; the grid shrinks from {before.requests} to {self.grid.requests} requests and "
            f"from {before.context_tokens} to {self.grid.context_tokens} tokens of context"
        )
