"""Short logs end to end, so that a load has a steady state at all.

Ten requests never fill a fleet, whatever their rate: replayed once, they say nothing about capacity or queues.
Repeated, they do, at the price that the traffic is the same over and over. Prefix hashes of each repetition are its
own, since the real log does not say that its prompts come back.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specsim.traces.model import Trace

__all__ = ["repeated"]


def repeated(trace: Trace, at_least: int) -> Trace:
    """The trace end to end until it has `at_least` requests; its rate stays the same. Unchanged when it has them.

    The gap from the last request of a repetition to the first of the next is the mean gap. The trace must have a rate.
    """
    n = len(trace)
    times = -(-at_least // n)
    if times <= 1:
        return trace
    period_s = trace.span_s * n / (n - 1)
    starts = np.repeat(np.arange(times) * period_s, n)
    ids = offsets = None
    if trace.hash_ids is not None and trace.hash_offsets is not None:
        # Fresh ids: shifted past the largest one, repetition by repetition.
        width = int(trace.hash_ids.max()) + 1 - min(0, int(trace.hash_ids.min())) if len(trace.hash_ids) else 0
        if width * times < 2**62:
            ids = np.tile(trace.hash_ids, times) + np.repeat(np.arange(times) * width, len(trace.hash_ids))
        else:
            distinct, small = np.unique(trace.hash_ids, return_inverse=True)
            ids = np.tile(small, times) + np.repeat(np.arange(times) * len(distinct), len(small))
        blocks = np.tile(np.diff(trace.hash_offsets), times)
        offsets = np.concatenate(([0], np.cumsum(blocks))).astype(np.int64)
        ids = ids.astype(np.int64)
    return replace(
        trace,
        arrival_s=np.tile(trace.arrival_s, times) + starts,
        prompt_tokens=np.tile(trace.prompt_tokens, times),
        output_tokens=np.tile(trace.output_tokens, times),
        hash_ids=ids,
        hash_offsets=offsets,
        session=None if trace.session is None else np.tile(trace.session, times),
        task=None if trace.task is None else np.tile(trace.task, times),
    )
