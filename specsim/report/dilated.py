"""A curve over load as it would be if every step took longer by one factor.

A server whose steps all take f times as long does at a load what the one of the curve does at f times that load, in
slow motion: times are f times as long, rates f times as low, counts the same. That holds exactly for arrivals that only
come closer together as the load rises, as those of a plan do. Leaves out: shares within an objective, which is a time
that does not stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

__all__ = ["Kind", "dilated"]

Kind = Literal["time", "rate", "count"]


def dilated(load_per_s: Sequence[float], values: Sequence[float], factor: float, kind: Kind) -> list[float]:
    """The curve with steps `factor` times as long, at the same loads.

    Args:
        load_per_s: rising.
        values: one a load; between two it is interpolated.
        kind: whether a value is seconds, something per second, or neither.

    Returns:
        One value a load; nan where it lies at a load that the curve does not reach.
    """
    at = np.interp(np.multiply(load_per_s, factor), load_per_s, values, left=np.nan, right=np.nan)
    return (at * {"time": factor, "rate": 1.0 / factor, "count": 1.0}[kind]).tolist()
