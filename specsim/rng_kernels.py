"""Compiled Philox 4x64-10: uniforms of many streams at once, the same bytes as `specsim.rng.stream` gives one by one.

Models: the counter-based generator of Salmon et al. (SC 2011), as numpy has it. Leaves out: everything but uniform
doubles. Numbers: the generator's constants.
"""

from __future__ import annotations

import numpy as np

from specsim.compiled import kernel, wide_product

__all__ = ["fill_uniforms", "round_keys", "uniforms"]

_MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS = 10
_TOP_BITS = np.uint64(11)
_STEP = 1.0 / (1 << 53)


def round_keys(seed: int, purpose: int) -> np.ndarray:
    """uint64 [rounds, 2]: the keys of a stream's rounds, the same for every index."""
    keys = [[(start + n * step) % (1 << 64) for start, step in zip((seed, purpose), _WEYL, strict=True)]
            for n in range(_ROUNDS)]  # fmt: skip
    return np.array(keys, dtype=np.uint64)


@kernel
def uniforms(keys, index, out):  # type: ignore[no-untyped-def]
    """Fill `out` (float64) with the first uniforms of the stream with that index."""
    high = np.uint64(index)
    for first in range(0, len(out), 4):
        a, b, c, d = np.uint64(first // 4 + 1), np.uint64(0), high, np.uint64(0)
        for n in range(len(keys)):
            upper, lower = wide_product(_MULTIPLIERS[0], a)
            more, less = wide_product(_MULTIPLIERS[1], c)
            a, b, c, d = more ^ b ^ keys[n, 0], less, upper ^ d ^ keys[n, 1], lower
        out[first] = (a >> _TOP_BITS) * _STEP
        if first + 1 < len(out):
            out[first + 1] = (b >> _TOP_BITS) * _STEP
        if first + 2 < len(out):
            out[first + 2] = (c >> _TOP_BITS) * _STEP
        if first + 3 < len(out):
            out[first + 3] = (d >> _TOP_BITS) * _STEP


@kernel
def fill_uniforms(keys, indices, starts, out):  # type: ignore[no-untyped-def]
    """Fill `out[starts[n] : starts[n + 1]]` with the first uniforms of the stream of each index."""
    for n in range(len(indices)):
        uniforms(keys, indices[n], out[starts[n] : starts[n + 1]])
