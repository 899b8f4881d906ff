"""A machine whose law is known: points without a device, times without a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from calibrate.fit.predict import predicted_s
from calibrate.latency.grid import Grid, holdout, rows_ladder, seeds
from calibrate.points import Point, Setup
from specsim.profiles import LatencyProfile, PassCost

__all__ = ["Machine", "make_points", "make_setup", "measured", "true_pass", "true_profile"]


def true_pass(**changes: object) -> PassCost:
    """Near a small model on one CPU core: 30 ms of weights, 2 ms a token."""
    terms: dict[str, object] = {
        "weights_s": 30e-3, "token_s": 2.2e-3, "fixed_s": 2e-3, "request_s": 1.5e-3, "kv_token_s": 6.5e-6,
        "kv_pair_s": 1.2e-6, "decode_kv_pair_s": 4e-7, "head_weights_s": 7e-3, "head_row_s": 7e-4, "knee": 1.6,
        "attention_knee": 1.3,
    }  # fmt: skip
    return PassCost(**{**terms, **changes})  # type: ignore[arg-type]


def true_profile(cost: PassCost | None = None, draft: PassCost | None = None) -> LatencyProfile:
    """A profile that is exactly one pass."""
    mode = "none" if draft is None else "serial"
    return LatencyProfile("true", "measured", cost or true_pass(), draft=draft, draft_mode=mode)  # type: ignore[arg-type]


def make_setup(**changes: object) -> Setup:
    """A setup of a model of 30 layers."""
    values: dict[str, object] = {
        "target": "smollm2-135m", "device": "a machine of known law", "backend": "cpu", "clock": "cpu", "dtype": "fp32",
        "attention_backend": "none", "engine": "a law", "methods": ("ngram",), "num_layers": 30, "threads": 1,
        "facts": {"memory_bytes": "8000000000"},
    }  # fmt: skip
    return Setup(**{**values, **changes})  # type: ignore[arg-type]


def make_points(grid: Grid, *, held_out: int = 12, seed: int = 0) -> list[Point]:
    """Seeds, heads and held-out points of a grid, not yet measured."""
    rng = np.random.default_rng(seed)
    points = [*seeds(grid), *(grid.decode(b, w, 200) for b in (1, 2, 6, 12) for w in (1, 3, 5)
                               if w <= grid.width and b <= grid.requests)]  # fmt: skip
    points += [Point("head", grid.role, rows=n, again=again) for again in (0, 1) for n in rows_ladder(grid)]
    points = list({point.key: point for point in points}.values())
    drawn = {point.key: point for point in (holdout(grid, rng) for _ in range(held_out))}
    return points + [point for key, point in drawn.items() if key not in {p.key for p in points}]


def measured(
    points: Sequence[Point], profile: LatencyProfile, *, noise: float = 0.01, drift: float = 0.0, seed: int = 0
) -> list[Point]:
    """Points as a machine of that profile gives them: scattered by `noise`, slower at times by `drift`."""
    rng = np.random.default_rng(seed)
    found = []
    for point in points:
        slow = float(np.exp(rng.normal(0, drift))) if drift else 1.0
        seconds = (predicted_s(profile, point) or 0.0) * slow * float(np.exp(rng.normal(0, noise)))
        half = 1.96 * noise * seconds + 1e-9
        found.append(
            replace(
                point, seconds=seconds, low_s=seconds - half, high_s=seconds + half, repeats=9, reference_s=0.04 * slow
            )
        )  # fmt: skip
    return found


@dataclass
class Machine:
    """Works like a device: makes calls of points, and tells how long a call took on its own clock."""

    profile: LatencyProfile
    noise: float = 0.01
    memory_tokens: int = 10**9
    """Cached tokens beyond which it is out of memory."""
    slow: Callable[[Point], float] = lambda point: 1.0
    """Factor by which a point is slower than the law."""
    clock_s: float = 0.0
    calls: list[str] = field(default_factory=list)
    """Keys of everything timed, in order."""
    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._current: Point | None = None

    def work(self, point: Point) -> Callable[[], object]:
        """A call that remembers which point it stands for."""
        if sum(n + context for n, context in point.parts) > self.memory_tokens:
            raise MemoryError

        def call() -> None:
            self._current = point

        return call

    def launch_of(self, point: Point) -> str:
        """Nothing is launched."""
        return ""

    def time_s(self, work: Callable[[], object]) -> float:
        """Seconds of the call by the law; the clock goes on by as much."""
        work()
        assert self._current is not None
        known = replace(self._current, kind="body") if self._current.kind == "reference" else self._current
        seconds = predicted_s(self.profile, known) or 1e-4
        seconds *= self.slow(self._current) * float(np.exp(self._rng.normal(0, self.noise)))
        self.clock_s += seconds
        self.calls.append(self._current.key)
        return seconds
