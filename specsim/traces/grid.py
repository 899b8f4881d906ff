"""Arrivals that sit on a coarse time grid: found, and spread evenly over their cell.

Some logs stamp requests in batches (Mooncake: every 3 s, with a jitter of 3 ms) or in whole seconds. Replayed as they
are, they come in volleys that never happened. Leaves out: true simultaneous bursts, whose gaps have no common step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.rng import Purpose, stream

__all__ = ["Grid", "find_grid", "spread"]

_SMALLEST_GRID_S = 0.05
"""Finer grids are below a few engine steps and change no queue."""
_SAME_CELL_S = 0.02
"""Arrivals closer than this are one cell: the grid itself may jitter by a few ms."""
_TIED_SHARE = 0.25
"""Below this share of requests with company in their cell, the grid hardly distorts the gaps."""
_REGULAR_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Grid:
    """A coarse grid: its step, and what share of requests shares a cell with another."""

    step_s: float
    tied_share: float
    cells: int


def _cells(arrival_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first row of each cell, rows in each cell)."""
    starts = np.flatnonzero(np.concatenate(([True], np.diff(arrival_s) > _SAME_CELL_S)))
    return starts, np.diff(np.append(starts, len(arrival_s)))


def find_grid(arrival_s: np.ndarray) -> Grid | None:
    """The coarse grid of sorted arrivals [n] in seconds, or None.

    A grid is one when at least a quarter of the requests share their cell, and the steps between cells are whole
    multiples of one step of at least 50 ms, for 95 % of the cells.
    """
    if len(arrival_s) < 20:
        return None
    starts, sizes = _cells(arrival_s)
    if len(starts) < 5:
        return None
    tied = float(sizes[sizes > 1].sum() / len(arrival_s))
    if tied < _TIED_SHARE:
        return None
    steps = np.diff(arrival_s[starts])
    low = float(np.quantile(steps, 0.05))
    step = float(np.median(steps[steps <= 1.5 * low]))
    if step < _SMALLEST_GRID_S:
        return None
    multiple = np.round(steps / step)
    tolerance = np.minimum(0.2, 0.01 + 0.01 * multiple)
    regular = (multiple >= 1) & (np.abs(steps / step - multiple) <= tolerance)
    if float(regular.mean()) < _REGULAR_SHARE:
        return None
    rounded = round(step, 3) if step < 1 else round(step, 2)
    return Grid(step_s=rounded, tied_share=tied, cells=len(starts))


def spread(arrival_s: np.ndarray, grid: Grid, seed: int) -> np.ndarray:
    """Arrivals [n] drawn uniformly over the cell that follows each grid point; the order of rows stays.

    A cell ends where the next one begins, or after one step. Same seed, same result.
    """
    starts, sizes = _cells(arrival_s)
    origin = arrival_s[starts]
    width = np.full(len(starts), grid.step_s)
    width[:-1] = np.minimum(np.diff(origin), 1.5 * grid.step_s)
    far = width >= 1.49 * grid.step_s
    width[far] = grid.step_s
    draws = stream(seed, Purpose.GRID).random(len(arrival_s))
    return np.sort(np.repeat(origin, sizes) + draws * np.repeat(width, sizes))
