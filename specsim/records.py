"""What leaves a simulation: one row a request, as columns, and the totals of a run."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["GapHistogram", "HandoverColumns", "PrefillPool", "RequestColumns", "RunResult", "RunTotals"]


class GapHistogram:
    """Counts of time gaps in bins 1 % wide, from 1 microsecond to about 3 hours; memory does not grow with the run."""

    BINS_PER_E = 100
    LOW_S = 1e-6
    SIZE = 2400

    def __init__(self) -> None:
        self.counts = [0] * self.SIZE
        self.zeros = 0

    def add(self, gap_s: float, count: int = 1) -> None:
        """Count `count` gaps of `gap_s` seconds; gaps outside the range go to the first or last bin."""
        position = int(math.log(gap_s / self.LOW_S) * self.BINS_PER_E) if gap_s > self.LOW_S else 0
        self.counts[position if position < self.SIZE else -1] += count

    def quantile(self, q: float, *, with_zeros: bool = False) -> float:
        """Gap at quantile `q` (seconds, middle of its bin: at most 0.5 % off); nan when empty."""
        counts = np.asarray(self.counts, dtype=np.int64)
        zeros = self.zeros if with_zeros else 0
        total = int(counts.sum()) + zeros
        if total == 0:
            return float("nan")
        rank = q * (total - 1)
        if rank < zeros:
            return 0.0
        bin_index = int(np.searchsorted(np.cumsum(counts) + zeros, rank, side="right"))
        return self.LOW_S * float(np.exp((bin_index + 0.5) / self.BINS_PER_E))


@dataclass(slots=True)
class RequestColumns:
    """Per-request outcome, arrays of length n in trace order. nan time: it did not happen."""

    arrival_s: np.ndarray
    first_scheduled_s: np.ndarray
    first_token_s: np.ndarray
    finish_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    cached_tokens: np.ndarray
    """Prompt tokens found in the prefix cache at first admission."""
    preemptions: np.ndarray
    rejected: np.ndarray
    """bool: refused at arrival, longer than max_model_len or than the whole cache."""
    replica: np.ndarray

    def freeze(self) -> None:
        """Turn the columns that a run writes one by one into arrays."""
        for name in ("first_scheduled_s", "first_token_s", "finish_s"):
            setattr(self, name, np.frombuffer(getattr(self, name), dtype=np.float64))
        self.preemptions = np.asarray(self.preemptions)  # a plain array, whatever an observer made of it

    @classmethod
    def empty(cls, arrival_s: np.ndarray, prompt_tokens: np.ndarray, output_tokens: np.ndarray) -> RequestColumns:
        """Nothing has happened yet. Times are `array.array` until `freeze`: writing one of its items is quick."""
        n = len(arrival_s)
        return cls(
            arrival_s=np.array(arrival_s, dtype=np.float64),
            first_scheduled_s=array("d", [math.nan]) * n,  # type: ignore[arg-type]
            first_token_s=array("d", [math.nan]) * n,  # type: ignore[arg-type]
            finish_s=array("d", [math.nan]) * n,  # type: ignore[arg-type]
            prompt_tokens=np.asarray(prompt_tokens),
            output_tokens=np.asarray(output_tokens),
            cached_tokens=np.zeros(n, dtype=np.int32),
            preemptions=np.zeros(n, dtype=np.int32),
            rejected=np.zeros(n, dtype=bool),
            replica=np.full(n, -1, dtype=np.int16),
        )


@dataclass(slots=True)
class HandoverColumns:
    """How each request went from its prefill replica to its decode replica, arrays of length n in trace order. nan:
    it did not."""

    prefill_end_s: np.ndarray
    """Its prompt was computed."""
    room_s: np.ndarray
    """The decode replica had blocks for it, and asked for its cache."""
    transfer_start_s: np.ndarray
    """Both links were free."""
    link_s: np.ndarray
    """Seconds for which it kept them, without latency."""
    transfer_end_s: np.ndarray
    """Its cache was there."""
    decode_start_s: np.ndarray
    """Its first step there began."""
    decode_replica: np.ndarray
    """-1: none."""

    TIMES = ("prefill_end_s", "room_s", "transfer_start_s", "link_s", "transfer_end_s", "decode_start_s")

    @classmethod
    def empty(cls, n: int) -> HandoverColumns:
        """Nothing has happened yet; see `RequestColumns.empty`."""
        times: dict[str, Any] = {name: array("d", [math.nan]) * n for name in cls.TIMES}
        return cls(**times, decode_replica=np.full(n, -1, dtype=np.int16))

    def freeze(self) -> None:
        """Turn the columns that a run writes one by one into arrays."""
        for name in self.TIMES:
            setattr(self, name, np.frombuffer(getattr(self, name), dtype=np.float64))


@dataclass(slots=True)
class RunTotals:
    """Sums over the steps of a run, all replicas together."""

    steps: int = 0
    busy_s: float = 0.0
    """Sum of step times."""
    batch_time: float = 0.0
    """Integral of running requests over busy time (requests x seconds); those that stall behind the prompts of others,
    where an engine computes prompts apart, run too."""
    kv_block_time: float = 0.0
    """Integral of used KV blocks over busy time (blocks x seconds)."""
    peak_batch: int = 0
    peak_kv_blocks: int = 0
    rounds: int = 0
    """Request-steps in which a decoding request was verified, drafts or not."""
    draft_rounds: int = 0
    """Rounds that had at least one draft (what vLLM counts as num_drafts)."""
    drafted_tokens: int = 0
    """Drafts verified: of trees, all their nodes."""
    accepted_tokens: int = 0
    decode_tokens: int = 0
    """Tokens emitted by rounds (first tokens of prefills are not)."""
    prefill_tokens: int = 0
    """Prompt tokens computed, recomputation after preemption included."""
    cached_tokens: int = 0
    preemptions: int = 0
    k_steps: dict[int, int] = field(default_factory=dict)
    """num_spec_tokens drafted -> steps."""


@dataclass(slots=True)
class PrefillPool:
    """What prefill replicas did, where prompts are computed apart, and how their caches moved on."""

    totals: RunTotals
    num_replicas: int
    handover: HandoverColumns


@dataclass(slots=True)
class RunResult:
    """One simulated run: who, when, and the sums. All statistics are derived (`specsim.metrics`)."""

    requests: RequestColumns
    totals: RunTotals
    gaps: GapHistogram
    """Gaps between consecutive chunks of a request, over its decoding life; zeros are the further tokens of a burst."""
    end_s: float
    """Simulated time of the last event."""
    measure_from_s: float
    """Totals and gaps count steps that end in `measure_from_s..measure_until_s`; statistics of requests too."""
    measure_until_s: float
    policy: str
    seed: int
    num_replicas: int
    """All of them."""
    num_kv_blocks: int
    prefill: PrefillPool | None = None
    """None: each replica does both. Otherwise `totals` are those of the decode replicas."""
