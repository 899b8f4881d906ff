"""Compiled dealing of a mixture's luck: regimes of the text, matches and proposals, position by position.

Models: the draws of `specsim.acceptance.mixture`, in their order. Leaves out: everything else. Numbers: the caller's.
"""

from __future__ import annotations

import numpy as np

from specsim.compiled import kernel
from specsim.rng_kernels import uniforms

__all__ = ["deal", "heads"]


@kernel
def heads(keys, ids, draws):  # type: ignore[no-untyped-def]
    """The first two uniforms of each request, into `draws` [2, requests]: of its kind, and of its first regime."""
    both = np.empty(2)
    for i in range(len(ids)):
        uniforms(keys, ids[i], both)
        draws[0, i], draws[1, i] = both[0], both[1]


@kernel
def deal(keys, ids, kinds, regimes, offsets, bands, stay, onward, chances, proposes, most, run, drafts):  # type: ignore[no-untyped-def]
    """Fill `run`, and `drafts` where the drafter does not always propose: requests one after another, by `offsets`.

    Args:
        kinds, regimes: int64 [requests]: the kind, and the regime of the first position.
        bands: int64, first output position of each stretch with moves of its own.
        stay: float64 [bands, kinds, regimes]: chance that the next position is of the same regime.
        onward: float64 [bands, kinds, regimes, regimes]: running sums of the chances of the next regime, once left.
        chances: float64 [drafts, regimes]: chance of a match by place in the draft and by regime.
        proposes: float64 [regimes]; empty: something is proposed to every round.
        most: longest run, and what `drafts` has where something is proposed.
    """
    longest, places = most
    each = 3 if len(proposes) else 2
    widest = 0
    for i in range(len(ids)):
        widest = max(widest, offsets[i + 1] - offsets[i])
    draws = np.empty(2 + each * (widest + longest))
    path = np.empty(widest + longest, dtype=np.int64)
    for i in range(len(ids)):
        first, kind, regime, band = offsets[i], kinds[i], regimes[i], 0
        length = offsets[i + 1] - first
        span = length + longest
        uniforms(keys, ids[i], draws[: 2 + each * span])
        for p in range(span):
            path[p] = regime
            while band + 1 < len(bands) and bands[band + 1] <= p:
                band += 1
            rest, moves = stay[band, kind, regime], draws[2 + each * p + 1]
            if moves >= rest:
                share, last = (moves - rest) / (1.0 - rest), regime
                regime = 0
                for s in range(onward.shape[3] - 1):
                    regime += share >= onward[band, kind, last, s]
        for p in range(length):
            if len(proposes):
                if draws[2 + each * p + 2] >= proposes[path[p]]:
                    run[first + p] = drafts[first + p] = 0
                    continue
                drafts[first + p] = places
            depth = 0
            while depth < longest and draws[2 + each * (p + depth)] < chances[depth, path[p + depth]]:
                depth += 1
            run[first + p] = depth
