"""Named random streams: every draw has an address (run seed, purpose, index), so no stream disturbs another."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

__all__ = ["Purpose", "stream"]


class Purpose(IntEnum):
    """What a stream is for. Numbers are part of every stored result: never renumber, only add."""

    ACCEPTANCE = 1
    ARRIVALS = 2
    LENGTHS = 3
    GRID = 4
    BOOTSTRAP = 5
    SESSIONS = 6
    PREFIXES = 7
    PROMPTS = 8
    ERRORS = 9


def stream(seed: int, purpose: Purpose, index: int = 0) -> np.random.Generator:
    """Independent generator for one purpose and one index (a request, a chunk).

    Philox is counter-based: the key holds seed and purpose, the high words of the counter hold the index, so a
    stream costs no seeding and 2**128 draws separate neighbours.
    """
    if seed < 0 or index < 0:
        raise ValueError(f"seed and index must be >= 0, got {seed} and {index}")
    key = np.array([seed & 0xFFFFFFFFFFFFFFFF, int(purpose)], dtype=np.uint64)
    counter = np.array([0, 0, index, 0], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
